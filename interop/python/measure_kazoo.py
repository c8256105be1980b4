"""Times kazoo's lock: see ../README.md."""

import sys
import threading
import time

from kazoo.client import KazooClient

port, path = sys.argv[1:]
client = KazooClient(hosts=f"127.0.0.1:{port}", timeout=30)
client.start()


def free():
    lock = client.Lock(path, "kazoo")
    start = time.monotonic_ns()
    lock.acquire()
    lock.release()
    return time.monotonic_ns() - start


def handoff(wait):
    """From the release to the moment in which the waiter holds."""
    held, wanted = client.Lock(path, "kazoo"), client.Lock(path, "kazoo")
    granted = []

    def want():
        wanted.acquire()
        granted.append(time.monotonic_ns())
        wanted.release()

    held.acquire()
    waiter = threading.Thread(target=want)
    waiter.start()
    time.sleep(wait / 1000)
    start = time.monotonic_ns()
    held.release()
    waiter.join()
    return granted[0] - start


for line in sys.stdin:
    order, rounds, *wait = line.split()
    measure = {"free": free, "handoff": handoff}[order]
    print(*(measure(*map(int, wait)) for _ in range(int(rounds))), flush=True)

client.stop()
