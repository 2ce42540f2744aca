# through_pylibmc.py PORT 0|1 [USER PASSWORD]: every word of pylibmc in text or binary, with SASL PLAIN
# where there is a user; ends with an assertion or with 0.
import glob, os, sys

# The wheel brings libsasl along, which looks for its mechanisms where its builders have them.
os.environ.setdefault("SASL_PATH", ":".join(glob.glob("/usr/lib/*/sasl2") + ["/usr/lib/sasl2"]))
import pylibmc

port, binary, login = sys.argv[1], sys.argv[2] == "1", sys.argv[3:5]
more = {"username": login[0], "password": login[1]} if login else {}
if login:
    wrong = pylibmc.Client(["127.0.0.1:" + port], binary=binary, username=login[0], password="x")
    try:
        wrong.set("a", "1")
        sys.exit("a wrong password is taken")
    except pylibmc.Error:
        pass


def refused(word, *arguments):
    try:
        return word(*arguments) is False
    except pylibmc.NotFound:
        return True  # what binary says


c = pylibmc.Client(["127.0.0.1:" + port], binary=binary, behaviors={"cas": True}, **more)
assert c.set("a", "1") and c.get("a") == "1"
assert c.get("missing") is None
assert c.add("a", "2") is False and c.add("b", "2") is True
assert c.replace("b", "3") is True and refused(c.replace, "none", "3")
c.set("s", b"b")
assert c.append("s", b"c") and c.prepend("s", b"a") and c.get("s") == b"abc"
value, token = c.gets("b")
assert value == "3" and token > 0
assert c.cas("b", "5", token) is True and c.cas("b", "6", token) is False
c.set("n", 10)
assert c.incr("n", 6) == 16 and c.decr("n", 20) == 0
try:
    c.incr("none", 1)
    sys.exit("a counter that is not there")
except pylibmc.NotFound:
    pass
for name, value in [("int", 7), ("long", 1 << 40), ("bytes", b"\0\r\n\xff"), ("text", "\u00e4"), ("list", [1, "x", None])]:
    assert c.set(name, value) and c.get(name) == value, name
many = {"many%d" % n: ("v%d" % n) * (n + 1) for n in range(300)}
assert c.set_multi(many) == []
assert c.get_multi(list(many) + ["none1", "none2"]) == many
assert c.get_multi(["none%d" % n for n in range(500)]) == {}
assert c.delete_multi(["many1", "many2"]) and c.get_multi(["many1", "many2"]) == {}
assert c.delete("b") is True and c.delete("b") is False
assert c.touch("a", 100) is True and c.touch("none", 100) is False
for size in (0, 1, 8190, 8192, 10240, 100000, 1000000):
    value = os.urandom(size)
    assert c.set("large", value) and c.get("large") == value, size
assert len(c.get_stats()) == 1
print("pylibmc: all words hold")
