"""Drives redis-py's lock, python-redis-lock or pottery: see ../README.md. The client comes first."""

import sys

import pottery
import redis
import redis_lock

client, port, key = sys.argv[1:]
server = redis.Redis(port=int(port))


class RedisPy:
    """redis-py's own lock."""

    def acquire(self, ms, blocking):
        self.lock = server.lock(key, timeout=ms / 1000, sleep=0.01)
        return self.lock.acquire(blocking=blocking)

    def release(self):
        try:
            self.lock.release()
            return "released"
        except redis.exceptions.LockNotOwnedError:
            return "not held"


class PythonRedisLock:
    """Its waiters sleep until its own releases signal them, or for `expire`: that is what bounds a hand-over from
    other clients. So it waits with a second, the least, and then extends the term."""

    def acquire(self, ms, blocking):
        seconds = (ms + 999) // 1000
        # It adds the `lock:` of the key itself.
        name = key.removeprefix("lock:")
        self.lock = redis_lock.Lock(server, name, expire=1 if blocking else seconds)
        held = self.lock.acquire(blocking=blocking)
        if held and blocking:
            self.lock.extend(seconds)
        return held

    def release(self):
        try:
            self.lock.release()
            return "released"
        except redis_lock.NotAcquired:
            return "not held"


class Pottery:
    """A quorum of one server."""

    def acquire(self, ms, blocking):
        # It adds the `redlock:` of the key itself.
        name = key.removeprefix("redlock:")
        self.lock = pottery.Redlock(key=name, masters={server}, auto_release_time=ms / 1000)
        return self.lock.acquire(blocking=blocking)

    def release(self):
        try:
            self.lock.release()
            return "released"
        except pottery.ReleaseUnlockedLock:
            return "not held"


driver = {"redis-py": RedisPy, "python-redis-lock": PythonRedisLock, "pottery": Pottery}[client]()

for line in sys.stdin:
    command, *ttl = line.split()
    if command == "release":
        answer = driver.release()
    else:
        answer = "held" if driver.acquire(int(ttl[0]), command == "wait") else "busy"
    print(answer, flush=True)
