#!/usr/bin/env python3
"""Records what real servers say into redis/*.txt, which tests/conformance.rs reads.

    record-redis.py REDIS_SERVER VALKEY_SERVER

Each is the path of a server program: Redis 7.0 and Valkey 9.1. They are started on free ports, asked
the commands below in RESP2 and RESP3, and stopped. Rows whose command only Valkey has are asked of
that. Written are replies-2.txt and replies-3.txt (`? command`, the reply, its items) and own.txt
(what the proxy answers by itself, with the server's words beside it). What changes from run to run
(ids, times) is written as it was the last time: look at the difference before it is committed.
"""

import pathlib
import socket
import subprocess
import sys
import tempfile
import time

# What the commands are asked of. All of it is set up before the first row.
SETUP = """
FLUSHALL
SET s hello
SET n 10
SET b {crlf}
APPEND long {long}
HSET h f v g 2
RPUSH l a b c
SADD set a b c
SADD set2 b c d
ZADD z 1 a 2 b 3.5 c
ZADD z2 1 b 2 x
GEOADD g 13.361389 38.115556 Palermo 15.087269 37.502669 Catania
PFADD p a b
PFADD p2 b c
XADD x 1-1 f v
XADD x 1-2 f w
XGROUP CREATE x grp 0
SCRIPT LOAD return{sp}1
FUNCTION LOAD REPLACE {lib}
"""

# One command a line; of each the reply is recorded.
FORWARDED = """
acl help
append s !
bitcount s
bitfield n GET u8 0
bitfield_ro n GET u8 0
bitop AND bd s s
bitpos s 1
client help
cluster help
command help
commandlog help
config get maxmemory save
config get nope
config help
copy s s2
dbsize
decr n
decrby n 2
del nope1 nope2
delifeq s x
dump nope
echo x
eval return{sp}{} 0
eval return{sp}{1,2,{'a',{}}} 0
eval return{sp}redis.status_reply('x') 0
eval return{sp}redis.error_reply('MY{sp}err') 0
eval error('x') 0
eval_ro return{sp}1 0
evalsha e0e1f9fabfc9d4800c877a703b823ac0578ff8db 0
evalsha ffffffffffffffffffffffffffffffffffffffff 0
evalsha_ro e0e1f9fabfc9d4800c877a703b823ac0578ff8db 0
exists s nope
expire s 1000
expireat s 9999999999
expiretime s
fcall f 1 s
fcall_ro f 1 s
function dump
function help
function list
function list LIBRARYNAME lib WITHCODE
function stats
function load REPLACE {lib}
function kill
function delete nope
function restore x
geoadd g 1 1 x
geodist g Palermo Catania
geohash g Palermo nope
geopos g Palermo nope
georadius g 15 37 200 km WITHDIST WITHCOORD
georadius_ro g 15 37 200 km
georadiusbymember g Palermo 200 km
georadiusbymember_ro g Palermo 200 km
geosearch g FROMLONLAT 15 37 BYRADIUS 200 km ASC WITHDIST
geosearchstore gd g FROMLONLAT 15 37 BYRADIUS 200 km
get s
get nope
get long
get l
getbit s 1
getdel nope
getex s EX 100
getrange s 0 2
getset s3 x
hdel h nope
hexists h f
hexpire h 1000 FIELDS 1 f
hexpireat h 9999999999 FIELDS 1 f
hexpiretime h FIELDS 2 f nope
hget h f
hgetall h
hgetall nope
hgetdel h FIELDS 1 nope
hgetex h FIELDS 1 f
hincrby h g 1
hincrbyfloat h g 1.5
hkeys h
hlen h
hmget h f nope
hmset h x y
hpersist h FIELDS 1 f
hpexpire h 1000000 FIELDS 1 f
hpexpireat h 9999999999000 FIELDS 1 f
hpexpiretime h FIELDS 1 nope
hpttl h FIELDS 1 nope
hrandfield h 2 WITHVALUES
hscan h 0
hset h f v2
hsetex h FIELDS 1 f v
hsetnx h f v
hstrlen h f
httl h FIELDS 1 nope
hvals h
incr n
incrby n 2
incrbyfloat n 1.5
info keyspace
info nope
lastsave
keys *
latency help
lcs s s2
lcs s s2 IDX
lindex l 0
linsert l BEFORE b x
llen l
lmove l l LEFT RIGHT
rpush wl a b c d e f
zadd wz 1 a 2 b 3 c 4 d 5 e
blmove wl wl LEFT RIGHT 0.01
blmpop 0.01 2 nope wl LEFT
blpop nope wl 0.01
blpop nope 0.01
brpop wl 0.01
brpoplpush wl wl 0.01
bzmpop 0.01 1 wz MIN
bzpopmax nope wz 0.01
bzpopmin wz 0.01
bzpopmin nope 0.01
del wl wz
lmpop 2 nope l LEFT
lolwut
lpop l 2
lpop nope
lpos l b
lpush l x
lpushx nope x
lrange l 0 -1
lrem l 1 x
lset l 0 x
ltrim l 0 5
memory help
memory usage s
mget s nope h n
mget b long nope
module help
module list
move s nope
move s 5
mset s hello b {crlf}
msetex 1 s v
msetnx s a b b
object encoding s
object freq s
object help
object idletime s
object refcount s
persist s
pexpire s 1000000
pexpireat s 9999999999000
pexpiretime s
pfadd p c
pfcount p p2
pfmerge pd p p2
psetex s 100000 v
pttl s
publish c m
pubsub channels
pubsub help
pubsub numpat
pubsub numsub c
pubsub shardchannels
pubsub shardnumsub c
randomkey
rename s2 s4
rename nope x
renamenx s4 s
restore r 0 x
rpop l
rpoplpush l l
rpush l z
rpushx l z
sadd set x
scan 0 COUNT 5
scan 0 MATCH nope*
scard set
script exists e0e1f9fabfc9d4800c877a703b823ac0578ff8db ffffffffffffffffffffffffffffffffffffffff
script help
script kill
script load return{sp}2
script show ffffffffffffffffffffffffffffffffffffffff
sdiff set set2
sdiffstore sd set set2
set s v
set s v GET
set s v NX
setbit s 1 1
setex s 100 v
setnx s v
setrange s 1 x
sinter set set2
sintercard 2 set set2
sinterstore sd set set2
sismember set a
slowlog help
smembers set
smismember set a nope
smove set set2 a
sort l ALPHA
sort_ro l ALPHA
spublish c m
spop set 1
spop nope
srandmember set 2
srem set x
sscan set 0
strlen s
substr s 0 1
sunion set set2
sunionstore sd set set2
time
touch s nope
ttl s
type s
type nope
unlink nope
xack x grp 1-1
xadd x * f v
xautoclaim x grp c 0 0
xclaim x grp c 0 1-1
xdel x 9-9
xgroup create x grp2 $
xgroup createconsumer x grp c2
xgroup delconsumer x grp c2
xgroup destroy x grp2
xgroup help
xgroup setid x grp 0
xinfo consumers x grp
xinfo groups x
xinfo help
xinfo stream x
xinfo stream x FULL
xlen x
xpending x grp
xpending x grp - + 10
xrange x - +
xread COUNT 1 STREAMS x 0
xread STREAMS x $
xreadgroup GROUP grp c COUNT 1 STREAMS x >
xrevrange x + -
xsetid x 99999999999999-1
xtrim x MAXLEN 100
zadd z 4 d
zadd z INCR 1 a
zcard z
zcount z -inf +inf
zdiff 2 z z2 WITHSCORES
zdiffstore zd 2 z z2
zincrby z 1 a
zinter 2 z z2 WITHSCORES
zintercard 2 z z2
zinterstore zd 2 z z2
zlexcount z - +
zmpop 1 z MIN
zmscore z b nope
zpopmax z
zpopmin z 2
zrandmember z2 2 WITHSCORES
zrange z2 0 -1 WITHSCORES
zrangebylex z2 - +
zrangebyscore z2 -inf +inf WITHSCORES LIMIT 0 1
zrangestore zd z2 0 -1
zrank z2 x
zrem z2 nope
zremrangebylex z2 [q [r
zremrangebyrank z2 9 10
zremrangebyscore z2 9 10
zrevrange z2 0 -1
zrevrangebylex z2 + -
zrevrangebyscore z2 +inf -inf
zrevrank z2 x
zscan z2 0
zscore z2 x
zscore z2 nope
zunion 2 z z2 WITHSCORES
zunionstore zd 2 z z2
script flush
function flush
flushdb
flushall
"""

# What the proxy answers by itself, with the reason where its words differ from the servers'.
OWN = """
ping
ping hello
ping a b
echo hello
echo
acl whoami
auth pw
auth default pw
auth anna pw
auth a b c
auth
client id
client id x
client getname
client setname bob
client setname {spaced}
client setname
client setinfo LIB-NAME lib
client setinfo LIB-VER {spaced}
client setinfo other x
client info ! of another connection, without buffers, and with the pool
client no-evict on
client no-evict what
client no-touch off
client no-touch what
client reply on
client reply off
client reply skip
client reply what
command count ! only commands that the proxy takes
command info get
command info get nope client|id
command info eval xread sort mset ! without notes
command docs get
command docs nope
command list FILTERBY PATTERN zrevrangeby?core
command list FILTERBY MODULE x
command list FILTERBY ACLCAT nope
command list FILTERBY what x
command list what
command getkeys get a
command getkeys mset a 1 b 2
command getkeys eval x 2 a b
command getkeys eval x 0
command getkeys zunionstore d 2 a b
command getkeys xread count 1 streams a b 0 0
command getkeys object encoding k
command getkeys sort k by w_* store d
command getkeys georadius k 1 2 3 m store d
command getkeys zunion 9 a
command getkeysandflags sort k store d
command getkeysandflags set k v
command getkeysandflags set k v nx get
command getkeysandflags bitfield k get u8 0
command getkeysandflags bitfield k get u8 0 incrby u8 0 1
command getkeysandflags georadius k 1 2 3 m
command getkeysandflags getex k
command getkeys ping
command getkeys nope
command getkeys get
command getkeys
command getkeysandflags mset a 1 b 2
command getkeysandflags lmove a b left left
hello
hello 2
hello 3
hello 4
hello x
hello 01
hello 2 auth default pw
hello 2 auth anna pw
hello 2 setname bob
hello 2 setname {spaced}
hello 2 auth default
hello 2 what
quit
readonly
readwrite
reset
role
select 0
select 15
select 16
select -1
select x
select 99999999999
select
exec
discard
nope a b
client nope
"""

LIB = "#!lua name=lib\nredis.register_function{function_name='f', callback=function(k, a) return k[1] end, flags={'no-writes'}}"
WORDS = {"{sp}": " ", "{crlf}": "a\r\nb", "{long}": "x" * 5000, "{lib}": LIB, "{spaced}": "a b"}


def words(line):
    found = []
    for word in line.split():
        for name, text in WORDS.items():
            word = word.replace(name, text)
        found.append(word.encode())
    return found


def message(arguments):
    parts = [b"*%d\r\n" % len(arguments)]
    parts += [b"$%d\r\n%s\r\n" % (len(word), word) for word in arguments]
    return b"".join(parts)


class Server:
    """One of the real ones, on a free port."""

    def __init__(self, program):
        self.folder = tempfile.TemporaryDirectory()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", self.folder.name]
        self.process = subprocess.Popen([program] + options, stdout=subprocess.DEVNULL)
        self.link = None
        while self.link is None:
            try:
                self.link = Link(self.port)
            except ConnectionRefusedError:
                time.sleep(0.05)

    def stop(self):
        self.process.terminate()
        self.process.wait()
        self.folder.cleanup()


class Link:
    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.rest = b""

    def ask(self, arguments, answers=1):
        """The bytes of the reply, and whether the server hung up after it."""
        self.socket.sendall(message(arguments))
        return b"".join(self.reply() for _ in range(answers))

    def more(self):
        data = self.socket.recv(1 << 20)
        if not data:
            raise EOFError
        self.rest += data

    def take(self, count):
        while len(self.rest) < count:
            self.more()
        taken, self.rest = self.rest[:count], self.rest[count:]
        return taken

    def line(self):
        while b"\r\n" not in self.rest:
            self.more()
        return self.take(self.rest.index(b"\r\n") + 2)

    def reply(self):
        line = self.line()
        kind, text = line[:1], line[1:-2]
        if kind in b"$=!" and text != b"-1":
            return line + self.take(int(text) + 2)
        if kind in b"*~%>" and text != b"-1":
            count = int(text) * (2 if kind == b"%" else 1)
            return line + b"".join(self.reply() for _ in range(count))
        return line


def escaped(data):
    if b"x" * 5000 in data:
        before, after = data.split(b"x" * 5000)
        return escaped(before) + "{x*5000}" + escaped(after)
    out = []
    for byte in data:
        char = chr(byte)
        if char in "\r\n":
            out.append("\\r" if char == "\r" else "\\n")
        elif byte == 0:
            out.append("\\0")
        elif " " <= char <= "~" and char not in "\\{}":
            out.append(char)
        else:
            out.append("\\x%02x" % byte)
    return "".join(out)


def items(name, reply):
    """As `reply_story` tells it."""
    if reply[:1] == b"-":
        return "error"
    if name == "scan":
        return "part [%s] | status" % reply.split(b"\r\n")[2].decode()
    long = b"x" * 5000 + b"\r\n"
    if long not in reply:
        return "status"
    return "status body 5000" if reply.endswith(long) else "part body 5000 | status"


def row_name(arguments, containers):
    name = arguments[0].decode().lower()
    return name + "|" + arguments[1].decode().lower() if name in containers else name


def record(redis, valkey, folder):
    containers = {"acl", "client", "cluster", "commandlog", "config", "function", "latency", "memory", "module",
                  "object", "pubsub", "script", "slowlog", "xgroup", "xinfo"}
    for server in (redis, valkey):
        known = set(str(server.link.ask([b"COMMAND", b"LIST"])).replace("\\r\\n", " ").split())
        server.known = {name for name in known if not name.startswith("$")}
    for dialect in (2, 3):
        out = ["# What Redis 7.0 (and Valkey 9.1, where the former has not the command) says in RESP%d, recorded by" % dialect,
               "# record-redis.py."]
        for server in (redis, valkey):
            server.link.ask([b"HELLO", b"%d" % dialect])
            for line in SETUP.split("\n"):
                if line:
                    server.link.ask(words(line))
        for line in FORWARDED.split("\n"):
            if not line or line.startswith("echo"):
                continue
            arguments = words(line)
            row = row_name(arguments, containers | {"command"})
            server = redis if row in redis.known else valkey
            assert row in server.known, row
            reply = server.link.ask(arguments)
            out += ["", "# " + line, "? " + row, "< " + escaped(reply), "= " + items(row, reply)]
        (folder / ("replies-%d.txt" % dialect)).write_text("\n".join(out) + "\n")
    own(redis, valkey, containers, folder)


def own(redis, valkey, containers, folder):
    out = ["# What the proxy answers by itself, and what Redis 7.0 (or Valkey 9.1, where the former knows less) says:",
           "# recorded by record-redis.py."]
    for line in OWN.split("\n"):
        if not line:
            continue
        line, _, reason = line.partition(" ! ")
        arguments = words(line)
        row = row_name(arguments, containers | ({"command"} if len(arguments) > 1 else set()))
        # Newer in its words and its rows.
        newer = row.startswith("command") or row in ("client|setinfo", "client|no-touch")
        for dialect in (2, 3):
            server = valkey if newer or row not in redis.known else redis
            if row == "client|nope" or row == "nope":
                server = redis
            link = Link(server.port)
            if dialect == 3:
                link.ask([b"HELLO", b"3"])
            silent = row == "client|reply" and arguments[2:] in ([b"off"], [b"skip"])
            reply = link.ask(arguments, 0 if silent else 1)
            closed = " [close]" if row == "quit" else ""
            out += ["", "> " + escaped(message(arguments)), "%% %d" % dialect, "< " + escaped(still(reply)) + closed]
            out += ["= " + line] + (["! " + reason] if reason else [])
    (folder / "own.txt").write_text("\n".join(out) + "\n")


def still(reply):
    """What differs in every run: the number of a connection."""
    if b"$2\r\nid\r\n:" in reply:
        before, after = reply.split(b"$2\r\nid\r\n:")
        return before + b"$2\r\nid\r\n:7" + after[after.index(b"\r\n"):]
    return b":7\r\n" if reply[:1] == b":" and reply != b":0\r\n" and len(reply) < 8 else reply


def main():
    redis, valkey = Server(sys.argv[1]), Server(sys.argv[2])
    try:
        record(redis, valkey, pathlib.Path(__file__).parent / "redis")
    finally:
        redis.stop()
        valkey.stop()


main()
