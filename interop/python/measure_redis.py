"""Times the lock of redis-py or python-redis-lock: see ../README.md."""

import random
import sys
import threading
import time

import redis

client, port, key = sys.argv[1:]
# A hold that is waited for longer, in nanoseconds, is late.
PROMPT = 10_000_000
holder, waiter = (redis.Redis(port=int(port)) for _ in range(2))


if client == "python-redis-lock":
    import redis_lock

    def lock_of(server, name):
        return redis_lock.Lock(server, name, expire=30)

else:

    def lock_of(server, name):
        return server.lock(name, timeout=30)



def free(rounds):
    lock = lock_of(holder, key)
    for _ in range(rounds):
        start = time.monotonic_ns()
        lock.acquire()
        lock.release()
        yield time.monotonic_ns() - start


def handoff(rounds, wait):
    """From each release to the moment in which a waiter on another connection holds."""
    for _ in range(rounds):
        held, wanted = lock_of(holder, key), lock_of(waiter, key)
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
        yield granted[0] - start


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
            lock = lock_of(holder, f"{key}-{name}")
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
    numbers = [word if isinstance(word, float) else int(word) for word in words]
    print(*{"free": free, "handoff": handoff, "crowd": crowd}[order](*numbers), flush=True)
