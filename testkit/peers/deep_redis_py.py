"""deep_redis_py.py PORT: redis-py writes 500,000 commands before it reads an answer; each is checked."""

import sys

import redis

COUNT = 250_000

r = redis.Redis(port=int(sys.argv[1]), decode_responses=True)
with r.pipeline(transaction=False) as pipe:
    for n in range(COUNT):
        pipe.set(f"k{n}", n)
        pipe.get(f"k{n}")
    answers = pipe.execute()
if answers != [x for n in range(COUNT) for x in (True, str(n))]:
    sys.exit("an answer is wrong")
