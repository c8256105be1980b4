"""Times kazoo's lock: see ../README.md."""

import sys
import threading
import time

from kazoo.client import KazooClient

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


for line in sys.stdin:
    order, rounds, *wait = line.split()
    measure = {"free": free, "handoff": handoff}[order]
    print(*(measure(*map(int, wait)) for _ in range(int(rounds))), flush=True)

holder.stop()
waiter.stop()
