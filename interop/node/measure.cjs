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

// A hold that is waited for longer, in nanoseconds, is late.
const PROMPT = 10_000_000n;

async function crowd(workers, names, skew, work, milliseconds) {
  const sums = [];
  let total = 0;
  for (let rank = 1; rank <= names; rank++) {
    total += rank ** -skew;
    sums.push(total);
  }
  const choose = () => {
    const share = Math.random() * total;
    let [low, high] = [0, names - 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (sums[middle] < share) low = middle + 1;
      else high = middle;
    }
    return low;
  };
  const start = now();
  const end = start + BigInt(milliseconds) * 1_000_000n;
  const waits = [];
  const toil = async () => {
    while (now() < end) {
      const name = `${key}-${choose()}`;
      const began = now();
      const lock = await holder.acquire([name], 30000);
      waits.push(now() - began);
      if (work) await new Promise((resolve) => setTimeout(resolve, work / 1000));
      await lock.release();
    }
  };
  await Promise.all(Array.from({ length: workers }, toil));
  const elapsed = now() - start;
  waits.sort((one, other) => (one < other ? -1 : Number(one > other)));
  const count = waits.length;
  const prompt = waits.filter((wait) => wait <= PROMPT).length || 1;
  return [
    elapsed / BigInt(count),
    waits.reduce((sum, wait) => sum + wait) / BigInt(count),
    waits[Math.floor(count * 0.95)],
    waits[Math.floor(count * 0.99)],
    waits[count - 1],
    elapsed / BigInt(prompt),
  ];
}

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [order, rounds, wait, ...words] = line.split(" ");
    if (order === "crowd") {
      const [skew, , work, milliseconds] = words.map(Number);
      console.log((await crowd(Number(rounds), Number(wait), skew, work, milliseconds)).join(" "));
      continue;
    }
    const times = [];
    for (let round = 0; round < Number(rounds); round++) {
      times.push(order === "free" ? await free() : await handoff(Number(wait)));
    }
    console.log(times.join(" "));
  }
  process.exit(0);
}

main();
