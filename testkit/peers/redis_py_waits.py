"""redis_py_waits.py PORT RESP: redis-py's waits and locks through the proxy."""

import sys
import threading

import redis

port, resp = (int(word) for word in sys.argv[1:3])


def connect():
    return redis.Redis(port=port, protocol=resp, decode_responses=True)


def check(what, holds):
    if not holds:
        sys.exit(f"{what} does not hold")


def pair(item):
    return tuple(item) if item is not None else None


r, other = connect(), connect()


def echo():
    for _ in range(200):
        other.rpush("{w}back", other.blpop(["{w}there", "{w}more"], 20)[1])


thread = threading.Thread(target=echo)
thread.start()
for n in range(200):
    r.rpush("{w}there", n)
    check("there and back", pair(r.blpop("{w}back", 20)) == ("{w}back", str(n)))
thread.join()


def meanwhile(wait, do):
    """Has another client do something before or after the wait begins, and returns what comes."""
    thread = threading.Thread(target=do)
    thread.start()
    found = wait()
    thread.join()
    return found


check("brpop", pair(meanwhile(lambda: r.brpop("{w}l", 20), lambda: other.rpush("{w}l", "a"))) == ("{w}l", "a"))
moved = meanwhile(lambda: r.blmove("{w}a", "{w}b", 20), lambda: other.rpush("{w}a", "it"))
check("blmove", moved == "it" and r.lrange("{w}b", 0, -1) == ["it"])
moved = meanwhile(lambda: r.brpoplpush("{w}b", "{w}c", 20), lambda: None)
check("brpoplpush", moved == "it")
popped = meanwhile(lambda: r.blmpop(20, 2, "{w}d", "{w}e", direction="LEFT"), lambda: other.rpush("{w}e", "x", "y"))
check("blmpop", popped == ["{w}e", ["x"]])
least = meanwhile(lambda: r.bzpopmin("{w}z", 20), lambda: other.zadd("{w}z", {"m": 1.5}))
check("bzpopmin", pair(least) == ("{w}z", "m", 1.5))
read = meanwhile(lambda: r.xread({"{w}x": "0"}, block=20_000), lambda: other.xadd("{w}x", {"f": "v"}, id="1-1"))
check("xread", "1-1" in str(read) and "'f': 'v'" in str(read))
check("a group", r.xgroup_create("{w}x", "g", "$"))
read = meanwhile(
    lambda: r.xreadgroup("g", "c", {"{w}x": ">"}, block=20_000),
    lambda: other.xadd("{w}x", {"f": "w"}, id="2-1"),
)
check("xreadgroup", "2-1" in str(read) and "1-1" not in str(read))
check("in vain", r.blpop("{w}none", 0.05) is None)
check("a wait in a transaction is none", r.pipeline().blpop("{w}none", 0).ping().execute() == [None, True])

# redis-py's own lock: several clients add to one number, and no sum is lost.
def add():
    mine = connect()
    for _ in range(10):
        with mine.lock("{lock}held", timeout=20, sleep=0.001):
            mine.set("{lock}sum", int(mine.get("{lock}sum") or 0) + 1)


threads = [threading.Thread(target=add) for _ in range(3)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
check("the sum", r.get("{lock}sum") == "30")
lock = r.lock("{lock}held", timeout=20)
check("one takes it", lock.acquire(blocking=False) and lock.owned() and lock.locked())
check("another does not", not other.lock("{lock}held").acquire(blocking=False))
check("it lives on", lock.extend(10) and lock.reacquire())
r.delete("{lock}held")
try:
    lock.release()
    check("a lost lock is not given back", False)
except redis.exceptions.LockNotOwnedError:
    pass
print("redis-py: all holds")
