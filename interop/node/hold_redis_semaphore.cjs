// Drives the mutex of redis-semaphore: see ../README.md.

const readline = require("node:readline");
const Redis = require("ioredis");
const { Mutex } = require("redis-semaphore");

const [port, key] = process.argv.slice(2);
const server = new Redis(Number(port), "127.0.0.1");
let mutex;

async function answer(command, ttl) {
  if (command === "release") {
    return mutex.release().then(() => "sent");
  }
  // It adds the `mutex:` of the key itself. Without a refresh, a hold ends with its term.
  mutex = new Mutex(server, key.replace(/^mutex:/, ""), {
    lockTimeout: Number(ttl),
    acquireTimeout: 24 * 3600 * 1000,
    acquireAttemptsLimit: command === "wait" ? Infinity : 1,
    retryInterval: 10,
    refreshInterval: 0,
  });
  return (await mutex.tryAcquire()) ? "held" : "busy";
}

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    console.log(await answer(...line.split(" ")));
  }
  process.exit(0);
}

main();
