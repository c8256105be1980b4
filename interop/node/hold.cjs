// Drives node-redlock, version 4 or 5: see ../README.md. The version comes first.

const readline = require("node:readline");
const Redis = require("ioredis");

const [version, port, key] = process.argv.slice(2);
const Redlock = version === "4" ? require("redlock4") : require("redlock").default;
const server = new Redis(Number(port), "127.0.0.1");

// Both versions count a server that fails as one that says no, and tell of it in an event.
function fail(error) {
  if (error.name !== "ResourceLockedError") {
    console.error(error);
    process.exit(1);
  }
}

function redlock(retryCount) {
  const settings = { retryCount, retryDelay: 10, retryJitter: 5 };
  return new Redlock([server], settings).on("error", fail).on("clientError", fail);
}

const impatient = redlock(0);
const patient = redlock(-1);
let lock;

async function answer(command, ttl) {
  if (command === "release") {
    return impatient.release(lock).then(() => "released", () => "not held");
  }
  try {
    lock = await (command === "wait" ? patient : impatient).acquire([key], Number(ttl));
    return "held";
  } catch {
    return "busy";
  }
}

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    console.log(await answer(...line.split(" ")));
  }
  process.exit(0);
}

main();
