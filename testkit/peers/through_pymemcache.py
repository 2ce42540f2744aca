# through_pymemcache.py PORT: every word of pymemcache with all its defaults (so most writes are noreply,
# and Nagle is on), checked; ends with an assertion or with 0.
import sys
from pymemcache.client.base import Client, PooledClient
from pymemcache.client.hash import HashClient
from pymemcache.exceptions import MemcacheError

port = int(sys.argv[1])
where = ("127.0.0.1", port)


def words(c):
    assert c.set("a", "1") and c.get("a") == b"1"
    assert c.get("missing") is None and c.get("missing", "else") == "else"
    assert c.add("a", "2", noreply=False) is False
    assert c.add("b", "2", noreply=False) is True
    assert c.replace("b", "3", noreply=False) is True
    assert c.replace("none", "3", noreply=False) is False
    assert c.append("b", "4", noreply=False) and c.prepend("b", "2", noreply=False)
    assert c.get("b") == b"234"
    assert c.incr("b", 6) == 240 and c.decr("b", 40) == 200
    assert c.incr("none", 1) is None
    assert c.touch("b", 100, noreply=False) is True
    value, token = c.gets("b")
    assert value == b"200" and c.cas("b", "5", token) is True
    assert c.cas("b", "6", token) is False and c.cas("none", "6", token) is None
    many = {"many%d" % n: ("v%d" % n) * (n + 1) for n in range(200)}
    assert c.set_many(many) == []
    got = c.get_many(list(many) + ["none"])
    assert {k: v.decode() for k, v in got.items()} == many
    assert set(c.gets_many(["many1", "many2", "none"])) == {"many1", "many2"}
    assert c.delete_many(["many1", "many2"]) and c.get_many(["many1", "many2"]) == {}
    assert c.delete("b", noreply=False) is True and c.delete("b", noreply=False) is False
    big = b"x" * 900000
    assert c.set("big", big, noreply=False) and c.get("big") == big


c = Client(where)
words(c)
assert c.version() and len(c.stats()) > 0
for n in range(500):
    c.set("loop", str(n))
    assert c.get("loop") == b"%d" % n
try:
    c.flush_all(noreply=False)
    sys.exit("flush_all is refused unless the pool allows it")
except MemcacheError:
    pass
c.quit()
words(PooledClient(where))
h = HashClient([where])
assert h.set("h", "1", noreply=False) and h.get("h") == b"1"
print("pymemcache: all words hold")
