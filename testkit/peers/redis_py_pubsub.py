"""redis_py_pubsub.py PORT RESP: redis-py publishes and subscribes through the proxy."""

import sys
import threading

import redis

port, resp = (int(word) for word in sys.argv[1:3])
client = redis.Redis(port=port, protocol=resp, decode_responses=True)


def take(pubsub, count):
    """Returns the next messages, those about subscriptions included."""
    found = []
    while len(found) < count:
        message = pubsub.get_message(timeout=20)
        assert message is not None, found
        found.append((message["type"], message["pattern"], message["channel"], message["data"]))
    return found


pubsub = client.pubsub()
pubsub.subscribe("a", "b")
assert sorted(take(pubsub, 2)) == [("subscribe", None, "a", 1), ("subscribe", None, "b", 2)]
pubsub.psubscribe("a*")
assert take(pubsub, 1) == [("psubscribe", None, "a*", 3)]
assert client.publish("a", "one") == 2
assert sorted(take(pubsub, 2)) == [("message", None, "a", "one"), ("pmessage", "a*", "a", "one")]
assert client.publish("ab", "two") == 1
assert take(pubsub, 1) == [("pmessage", "a*", "ab", "two")]
assert client.publish("none", "x") == 0
assert sorted(client.pubsub_channels()) == ["a", "b"]
assert client.pubsub_numsub("a", "none") == [("a", 1), ("none", 0)]
assert client.pubsub_numpat() == 1
if resp == 2:
    # In RESP3 the answer is no push, and redis-py does not know what it belongs to.
    pubsub.ping("hello")
    assert take(pubsub, 1)[0][3] == "hello"
pubsub.unsubscribe("a")
assert take(pubsub, 1) == [("unsubscribe", None, "a", 2)]
pubsub.punsubscribe()
assert take(pubsub, 1) == [("punsubscribe", None, "a*", 1)]
pubsub.unsubscribe()
assert take(pubsub, 1) == [("unsubscribe", None, "b", 0)]
assert client.publish("a", "nobody") == 0
pubsub.close()

# A thread that handles messages, and shard channels.
heard, end = [], threading.Event()


def handle(message):
    heard.append(message["data"])
    if message["data"] == "end":
        end.set()


pubsub = client.pubsub(ignore_subscribe_messages=True)
pubsub.subscribe(**{"t": handle})
thread = pubsub.run_in_thread(sleep_time=0.01)
while client.publish("t", "begin") == 0:
    pass
for nth in range(100):
    client.publish("t", str(nth))
client.publish("t", "end")
assert end.wait(20), heard
thread.stop()
thread.join()
assert [one for one in heard if one not in ("begin", "end")] == [str(nth) for nth in range(100)]
