"""through_redis_py.py PORT RESP [USER PASSWORD]: redis-py as its people use it, every answer checked."""

import sys

import redis

port, resp = int(sys.argv[1]), int(sys.argv[2])
login = dict(zip(("username", "password"), sys.argv[3:5]))


def connect(**more):
    return redis.Redis(port=port, protocol=resp, **login, **more)


def check(what, holds):
    if not holds:
        sys.exit(f"{what} does not hold")


r = connect(client_name="shopper", decode_responses=True)
check("ping", r.ping())
check("the name", r.client_getname() == "shopper")
check("an id", r.client_id() > 0)
check("an echo", r.echo("quack\r\n+OK") == "quack\r\n+OK")
check("set", r.set("a", "one") is True)
check("get", r.get("a") == "one")
check("a miss", r.get("none") is None)
check("set if not there", r.set("a", "two", nx=True) is None)
check("set and get", r.set("a", "two", get=True) == "one")
check("a life", r.set("lives", 1, ex=100) and 0 < r.ttl("lives") <= 100)
check("incr", r.incr("n", 7) == 7 and r.decr("n") == 6)
check("a float", r.incrbyfloat("f", 1.5) == 1.5)

check("a hash", r.hset("h", mapping={"f1": "1", "f2": "2"}) == 2)
check("its fields", r.hgetall("h") == {"f1": "1", "f2": "2"})
check("a list", r.rpush("l", *"abc") == 3 and r.lrange("l", 0, -1) == ["a", "b", "c"])
check("a set", r.sadd("s", "a", "b") == 2 and r.smembers("s") == {"a", "b"})
check("a sorted set", r.zadd("z", {"a": 1, "b": 2.5}) == 2)
scores = r.zrange("z", 0, -1, withscores=True)
check("its scores", [tuple(pair) for pair in scores] == [("a", 1.0), ("b", 2.5)])
check("a stream", r.xadd("x", {"f": "v"}, id="1-1") == "1-1" and r.xlen("x") == 1)
check("its entries", len(r.xread({"x": "0"})) == 1)

many = {f"many{n}": str(n) for n in range(300)}
check("mset", r.mset(many) is True)
check("mget", r.mget([*many, "none"]) == [*many.values(), None])
check("exists", r.exists(*many, "none") == 300)
check("touch", r.touch(*many) == 300)
check("unlink", r.unlink(*list(many)[:100]) == 100)
check("delete", r.delete(*many) == 200)

try:
    r.rename("many1", "many2")
    apart = False
except redis.ResponseError as error:
    apart = "same server" in str(error) or "no such key" in str(error)
check("keys apart", apart)
check("a tag", r.set("{t}1", 1) and r.rename("{t}1", "{t}2") is True)
with r.pipeline() as pipe:
    pipe.watch("many1")
    pipe.multi()
    pipe.get("many1")
    check("a transaction that watches", pipe.execute() == [None])

with r.pipeline(transaction=False) as pipe:
    for n in range(500):
        pipe.set(f"p{n}", n)
        pipe.get(f"p{n}")
    answers = pipe.execute()
check("a pipeline", answers == [x for n in range(500) for x in (True, str(n))])

with r.pipeline() as pipe:
    for n in range(50):
        pipe.set(f"{{tx}}{n}", n)
        pipe.get(f"{{tx}}{n}")
    answers = pipe.execute()
check("a transaction", answers == [x for n in range(50) for x in (True, str(n))])
with r.pipeline() as pipe:
    pipe.set("{tx}0", "text").incr("{tx}0").get("{tx}0").ping().hset("{tx}h", "f", "v").hgetall("{tx}h")
    answers = pipe.execute(raise_on_error=False)
check("its errors", answers[0] is True and isinstance(answers[1], redis.ResponseError))
check("and what follows", answers[2:] == ["text", True, 1, {"f": "v"}])
try:
    with r.pipeline() as pipe:
        [pipe.set(f"apart{n}", n) for n in range(50)]
        pipe.execute()
    check("a transaction of keys apart", False)
except redis.RedisError as error:
    check("keys apart are refused", "same server" in str(error))
check("nothing of it is done", r.exists(*[f"apart{n}" for n in range(50)]) == 0)

script = r.register_script("return redis.call('INCRBY', KEYS[1], ARGV[1])")
check("a script", [script(keys=[f"count{n}"], args=[5]) for n in range(8)] == [5] * 8)
r.script_flush()
check("the script again", [script(keys=[f"count{n}"], args=[5]) for n in range(8)] == [10] * 8)
check("eval", r.eval("return {KEYS[1], ARGV[1]}", 1, "k", "v") == ["k", "v"])
sha = r.script_load("return 42")
check("loaded", r.script_exists(sha) == [True] and r.evalsha(sha, 0) == 42)

check("scan", sorted(r.scan_iter(match="p*", count=50)) == sorted(f"p{n}" for n in range(500)))
check("keys", sorted(r.keys("p1*")) == sorted(f"p{n}" for n in range(500) if str(n)[0] == "1"))
check("dbsize", r.dbsize() > 500)

b = connect()
for size in (0, 1, 4_095, 4_096, 65_536, 1_000_000, 20_000_000):
    value = (bytes(range(251)) * (size // 251 + 1))[:size]
    check(f"set {size}", b.set("large", value) is True)
    check(f"get {size}", b.get("large") == value)
check("large ones in a list", b.rpush("larges", value[:100_000], value[:200_000]) == 2)
check("of it", [len(one) for one in b.lrange("larges", 0, -1)] == [100_000, 200_000])

other = connect(db=3, decode_responses=True)
check("another database", other.get("a") is None and other.set("a", "of 3"))
check("and the first", r.get("a") == "two" and other.get("a") == "of 3")

info = r.info()
check("info", "redis_version" in info)
check("commands", r.command_count() > 200)
if resp == 3:
    raw = r.execute_command("HELLO", "3")
    raw = raw if isinstance(raw, dict) else dict(zip(raw[::2], raw[1::2]))
    check("hello", raw["proto"] == 3)
if login:
    try:
        redis.Redis(port=port, protocol=resp, username=login["username"], password="no").ping()
        check("a wrong password", False)
    except redis.AuthenticationError:
        pass
    try:
        redis.Redis(port=port, protocol=resp).ping()
        check("no password", False)
    except redis.AuthenticationError:
        pass
print("redis-py: all words hold")
