"""Times kazoo's lock: see ../README.md."""

import random
import sys
import threading
import time

from kazoo.client import KazooClient

# A hold that is waited for longer, in nanoseconds, is late.
PROMPT = 10_000_000
port, path = sys.argv[1:]
holder, waiter = (KazooClient(hosts=f"127.0.0.1:{port}", timeout=30) for _ in range(2))
holder.start()
waiter.start()


def free():
    lock = holder.Lock(path, "kazoo")
    start = time.monotonic_ns()
    lock.acquire()
    lock.release()
    return time.monotonic_ns() - start


def handoff(wait):
    """From the release to the moment in which a waiter of another session holds."""
    held, wanted = holder.Lock(path, "kazoo"), waiter.Lock(path, "kazoo")
    granted = []

    def want():
        wanted.acquire()
        granted.append(time.monotonic_ns())
        wanted.release()

    held.acquire()
    waiting = threading.Thread(target=want)
    waiting.start()
    time.sleep(wait / 1000)
    start = time.monotonic_ns()
    held.release()
    waiting.join()
    return granted[0] - start


def crowd(workers, names, skew, _readers, work, milliseconds):
    weights = [(rank + 1) ** -float(skew) for rank in range(names)]
    sums = []
    for weight in weights:
        sums.append(weight + (sums[-1] if sums else 0))
    start = time.monotonic_ns()
    end = start + milliseconds * 1_000_000
    waits = []

    def toil(seed):
        choice = random.Random(seed)
        while time.monotonic_ns() < end:
            name = choice.choices(range(names), cum_weights=sums)[0]
            lock = holder.Lock(f"{path}-{name}", "kazoo")
            began = time.monotonic_ns()
            lock.acquire()
            waits.append(time.monotonic_ns() - began)
            if work:
                time.sleep(work / 1_000_000)
            lock.release()

    threads = [threading.Thread(target=toil, args=(seed,)) for seed in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed, count = time.monotonic_ns() - start, len(waits)
    waits.sort()
    return (
        elapsed // count,
        sum(waits) // count,
        waits[int(count * 0.95)],
        waits[int(count * 0.99)],
        waits[-1],
        elapsed // max(1, sum(wait <= PROMPT for wait in waits)),
    )


for line in sys.stdin:
    order, *words = line.split()
    if order == "crowd":
        words[2] = float(words[2])
        print(*crowd(*(word if isinstance(word, float) else int(word) for word in words)), flush=True)
    else:
        rounds, *wait = map(int, words)
        measure = {"free": free, "handoff": handoff}[order]
        print(*(measure(*wait) for _ in range(rounds)), flush=True)

holder.stop()
waiter.stop()
