// Times node-redlock 5: see ../README.md.

const readline = require("node:readline");
const Redis = require("ioredis");
const Redlock = require("redlock").default;

const [port, key] = process.argv.slice(2);
// The delay between two tries is the client's own; only their number is not limited.
const connect = () => new Redlock([new Redis(Number(port), "127.0.0.1")], { retryCount: -1 });
const holder = connect();
const waiter = connect();
const now = () => process.hrtime.bigint();

async function free() {
  const start = now();
  const lock = await holder.acquire([key], 30000);
  await lock.release();
  return now() - start;
}

// From the release to the moment in which a waiter on another connection holds.
async function handoff(wait) {
  const held = await holder.acquire([key], 30000);
  const granted = waiter.acquire([key], 30000).then(async (lock) => {
    const time = now();
    await lock.release();
    return time;
  });
  await new Promise((resolve) => setTimeout(resolve, wait));
  const start = now();
  await held.release();
  return (await granted) - start;
}

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [order, rounds, wait] = line.split(" ");
    const times = [];
    for (let round = 0; round < Number(rounds); round++) {
      times.push(order === "free" ? await free() : await handoff(Number(wait)));
    }
    console.log(times.join(" "));
  }
  process.exit(0);
}

main();
