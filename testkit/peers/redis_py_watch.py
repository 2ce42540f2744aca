"""What redis-py does with WATCH: pipelines that watch, its helper, and locks."""

import sys
import threading

import redis
from redis.exceptions import WatchError

port = int(sys.argv[1])


def connect(version):
    return redis.Redis(port=port, protocol=version, decode_responses=True)


for version in (2, 3):
    ours, other = connect(version), connect(version)
    ours.set("{t}n", 1)

    # What has not changed is executed, with what was read before.
    with ours.pipeline() as pipe:
        pipe.watch("{t}n")
        found = int(pipe.get("{t}n"))
        pipe.multi()
        pipe.set("{t}n", found + 1)
        pipe.get("{t}n")
        assert pipe.execute() == [True, str(found + 1)], "nobody has changed it"

    # What has changed is not.
    with ours.pipeline() as pipe:
        pipe.watch("{t}n")
        other.set("{t}n", 50)
        pipe.multi()
        pipe.incr("{t}n")
        try:
            pipe.execute()
            raise AssertionError("it has changed")
        except WatchError:
            pass
        # The same connection goes on.
        assert pipe.incr("{t}n").execute() == [51]

    # A watch that is given up.
    with ours.pipeline() as pipe:
        pipe.watch("{t}n")
        other.set("{t}n", 60)
        pipe.unwatch()
    assert ours.pipeline().incr("{t}n").execute() == [61]

    # The helper repeats until it succeeds.
    other.set("{t}sum", 0)

    def count(redis_of_thread):
        def add(pipe):
            found = int(pipe.get("{t}sum"))
            pipe.multi()
            pipe.set("{t}sum", found + 1)

        for _ in range(50):
            redis_of_thread.transaction(add, "{t}sum")

    threads = [threading.Thread(target=count, args=(connect(version),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ours.get("{t}sum") == "200", ours.get("{t}sum")

    # A lock keeps others out.
    inside, most = 0, 0

    def enter(redis_of_thread):
        global inside, most
        for _ in range(10):
            with redis_of_thread.lock("{t}lock", timeout=20, sleep=0.001):
                inside += 1
                most = max(most, inside)
                inside -= 1

    threads = [threading.Thread(target=enter, args=(connect(version),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1, most
    ours.delete("{t}n", "{t}sum", "{t}lock")
print("done")
