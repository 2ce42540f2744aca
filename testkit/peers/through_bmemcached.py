# through_bmemcached.py PORT [USER PASSWORD]: every word of python-binary-memcached, with SASL PLAIN where
# there is a user; ends with an assertion or with 0.
import sys
import bmemcached
from bmemcached.exceptions import MemcachedException

port, login = sys.argv[1], sys.argv[2:4]
c = bmemcached.Client(["127.0.0.1:" + port], *login, pickle_protocol=4)
if login:
    try:
        wrong = bmemcached.Client(["127.0.0.1:" + port], login[0], login[1] + "x")
        wrong.get("a")
        sys.exit("a wrong password is taken")
    except MemcachedException:
        pass
assert c.set("a", "1") and c.get("a") == "1"
assert c.get("missing") is None
assert c.add("a", "2") is False and c.add("b", "2") is True
assert c.replace("b", "3") is True and c.replace("none", "3") is False
value, token = c.gets("b")
assert value == "3" and token > 0
assert c.cas("b", "5", token) is True and c.cas("b", "6", token) is False
# Counters begin at their default when they are not there.
assert c.incr("n", 1, default=10) == 10 and c.incr("n", 6) == 16 and c.decr("n", 20) == 0
# Each type is a flag of its own.
for name, value in [("int", 7), ("long", 1 << 40), ("bytes", b"\0\r\n\xff"), ("text", "\u00e4"), ("list", [1, "x", None])]:
    assert c.set(name, value) and c.get(name) == value, name
many = {"many%d" % n: ("v%d" % n) * (n + 1) for n in range(200)}
assert c.set_multi(many) == []
assert c.get_multi(list(many) + ["none1", "none2"]) == many
assert c.get_multi(["none1", "none2", "none3"]) == {}
assert c.delete_multi(["many1", "many2"]) and c.get_multi(["many1", "many2"]) == {}
assert c.delete("b") is True and c.get("b") is None
assert c.set("soon", "x", time=100) and c.get("soon") == "x"
import os
for size in (0, 1, 8192, 100000, 1000000):
    value = os.urandom(size)
    assert c.set("large", value, compress_level=0) and c.get("large") == value, size
assert len(c.stats()) == 1
c.disconnect_all()
print("python-binary-memcached: all words hold")
