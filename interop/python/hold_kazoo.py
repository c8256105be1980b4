"""Drives kazoo's locks: see ../README.md."""

import sys

from kazoo.client import KazooClient

port, path, kind, session = sys.argv[1:]
client = KazooClient(hosts=f"127.0.0.1:{port}", timeout=int(session) / 1000)
client.start()

locks = {
    "exclusive": lambda: client.Lock(path, "kazoo"),
    # As kazoo's manual has it for locks that are shared with Curator's.
    "exclusive-beside-curator": lambda: client.Lock(path, "kazoo", extra_lock_patterns=["lock-"]),
    "read": lambda: client.ReadLock(path, "kazoo"),
    "write": lambda: client.WriteLock(path, "kazoo"),
}
lock = locks[kind]()

for line in sys.stdin:
    command = line.strip()
    if command == "release":
        answer = "released" if lock.release() else "not held"
    else:
        answer = "held" if lock.acquire(blocking={"try": False, "wait": True}[command]) else "busy"
    print(answer, flush=True)

client.stop()
