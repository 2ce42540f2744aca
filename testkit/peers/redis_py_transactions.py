"""redis_py_transactions.py PORT RESP DIRECT: redis-py's transactions through the proxy, each beside the
same one at a server of its own."""

import random
import sys

import redis

port, resp, direct = (int(word) for word in sys.argv[1:4])


def connect(to):
    return redis.Redis(port=to, protocol=resp, decode_responses=True)


both = [connect(port), connect(direct)]


def check(what, holds):
    if not holds:
        sys.exit(f"{what} does not hold")


def same(what, do):
    ours, theirs = (do(r) for r in both)
    check(f"{what}: {ours!r} is {theirs!r}", ours == theirs)
    return ours


def told(results):
    """Errors are compared by their class and text."""
    return [(type(one), str(one)) if isinstance(one, Exception) else one for one in results]


KEYS = [f"{{t}}{n}" for n in range(6)]
DRAWS = [
    lambda pipe, key, other: pipe.set(key, random.randrange(100)),
    lambda pipe, key, other: pipe.incr(key),
    lambda pipe, key, other: pipe.get(key),
    lambda pipe, key, other: pipe.delete(key, other),
    lambda pipe, key, other: pipe.rpush(key, "a", "b"),
    lambda pipe, key, other: pipe.lrange(key, 0, -1),
    lambda pipe, key, other: pipe.hset(key, "f", "v" * random.randrange(2_000)),
    lambda pipe, key, other: pipe.hgetall(key),
    lambda pipe, key, other: pipe.zadd(key, {"m": 1.5}),
    lambda pipe, key, other: pipe.zrange(key, 0, -1, withscores=True),
    lambda pipe, key, other: pipe.mget(key, other),
    lambda pipe, key, other: pipe.rename(key, other),
    lambda pipe, key, other: pipe.blpop([key, other], timeout=0),
    lambda pipe, key, other: pipe.eval("return {KEYS[1], ARGV[1]}", 1, key, "x"),
    lambda pipe, key, other: pipe.echo("own"),
    lambda pipe, key, other: pipe.ping(),
]


def drawn(seed):
    def do(r):
        random.seed(seed)
        with r.pipeline(transaction=True) as pipe:
            for _ in range(random.randrange(1, 30)):
                random.choice(DRAWS)(pipe, random.choice(KEYS), random.choice(KEYS))
            return told(pipe.execute(raise_on_error=False))

    return do


for seed in range(300):
    same(f"transaction {seed}", drawn(seed))
same("what is left", lambda r: [r.type(key) for key in KEYS])


def raised(r):
    pipe = r.pipeline().set("{t}0", "text").incr("{t}0").set("{t}1", "after")
    try:
        pipe.execute()
    except redis.ResponseError as error:
        return str(error), r.get("{t}1")


check("an error is raised by its place", "Command # 2" in same("an error", raised)[0])
sums = same("a function", lambda r: r.transaction(lambda pipe: pipe.multi() or pipe.incr("{t}n").incr("{t}n")))
check("its sums", sums[1] == sums[0] + 1)


def by_hand(r):
    connection = r.connection_pool.get_connection()
    try:
        answers = []
        for words in [("MULTI",), ("SET", "{t}0", "1"), ("INCR", "{t}0"), ("EXEC",), ("EXEC",)]:
            connection.send_command(*words)
            try:
                answers.append(connection.read_response())
            except redis.ResponseError as error:
                answers.append(str(error))
        return answers
    finally:
        r.connection_pool.release(connection)


same("one by one", by_hand)


def reset(r):
    pipe = r.pipeline().set("{t}gone", 1)
    pipe.reset()
    return pipe.execute(), r.exists("{t}gone")


same("a pipeline that is emptied", reset)
same("empty", lambda r: r.pipeline().execute())
same("large", lambda r: r.pipeline().set("{t}large", "x" * 3_000_000).strlen("{t}large").get("{t}large").execute())
same("many", lambda r: [r.pipeline().incr("{t}many").execute() for _ in range(200)])
