"""Drives redis-py's lock: see ../README.md."""

import sys

import redis

port, key = sys.argv[1:]
server = redis.Redis(port=int(port))
lock = None

for line in sys.stdin:
    command, *ttl = line.split()
    if command == "release":
        try:
            lock.release()
            answer = "released"
        except redis.exceptions.LockNotOwnedError:
            answer = "not held"
    else:
        lock = server.lock(key, timeout=int(ttl[0]) / 1000, sleep=0.01)
        answer = "held" if lock.acquire(blocking=command == "wait") else "busy"
    print(answer, flush=True)
