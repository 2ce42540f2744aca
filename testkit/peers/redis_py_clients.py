"""redis_py_clients.py PORT [USER PASSWORD]: redis-py's commands about clients, every answer checked."""

import sys
import time

import redis

port = int(sys.argv[1])
login = dict(zip(("username", "password"), sys.argv[2:4]))


def connect(**more):
    return redis.Redis(port=port, decode_responses=True, single_connection_client=True, **login, **more)


def check(what, holds):
    if not holds:
        sys.exit(f"{what} does not hold")


r = connect(client_name="me")
# As many that some of them are at other workers.
others = [connect(client_name=f"other{n}") for n in range(12)]
ids = [other.client_id() for other in others]
rows = {row["name"]: row for row in r.client_list()}
check("all are listed", {"me", *(f"other{n}" for n in range(12))} <= rows.keys())
check("by their ids", [int(rows[f"other{n}"]["id"]) for n in range(12)] == ids)
own = r.client_info()
check("its own line", own["id"] == r.client_id() and rows["me"]["addr"] == own["addr"])
check("the fields", rows["me"].keys() == {key: 0 for key in r.execute_command("CLIENT INFO").keys()}.keys()
      if isinstance(r.execute_command("CLIENT INFO"), dict) else True)
check("a kind", len(r.client_list(_type="normal")) >= 13 and r.client_list(_type="replica") == [])
some = r.client_list(client_id=[ids[3], ids[5]])
check("some", sorted(int(row["id"]) for row in some) == sorted([ids[3], ids[5]]))

check("one is killed", r.client_kill_filter(_id=ids[0]) == 1)
check("it was not asked twice", r.client_kill_filter(_id=ids[0]) == 0)
check("by its address", r.client_kill(rows["other1"]["addr"]) is True)
try:
    r.client_kill("1.1.1.1:9999")
    check("no such client", False)
except redis.ResponseError as error:
    check("no such client", str(error) == "No such client")
left = {row["name"] for row in r.client_list()}
check("they are gone", "other0" not in left and "other1" not in left and "other2" in left)
try:
    others[1].connection.retry = redis.retry.Retry(redis.backoff.NoBackoff(), 0)
    others[1].ping()
except redis.ConnectionError:
    pass

check("a pause", r.client_pause(300, all=False) is True)
begun = time.monotonic()
check("reads go on", others[2].get("k") in (None, "1"))
check("a change waits", others[3].set("k", "1") and time.monotonic() - begun >= 0.25)
check("a longer one", r.client_pause(60_000) is True)
check("ended", r.client_unpause() in (True, "OK"))
begun = time.monotonic()
check("all go on", all(other.get("k") == "1" for other in others[2:]) and time.monotonic() - begun < 30)
check("settings", r.client_no_evict("ON") == "OK" and r.client_setname("you"))
flags = [row["flags"] for row in r.client_list() if row["name"] == "you"]
check("are shown", flags == ["e"])
check("itself", r.client_kill_filter(_id=r.client_id(), skipme=False) == 1)
