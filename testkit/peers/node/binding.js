// binding.js CLIENT PORT RESP: transactions, subscriptions, waits and locks of ioredis or node-redis.
import assert from "node:assert/strict";

const [client, port, resp] = process.argv.slice(2);
const UNLOCK = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";
const numbers = (count) => Array.from({ length: count }, (_, n) => String(n));

const apart = (all, fits) => [all.filter(fits), all.filter((one) => !fits(one))];

/** Collects what is said, and waits for so many. */
class Heard {
  all = [];
  #wanted = () => {};
  say(what) {
    this.all.push(what);
    this.#wanted();
  }
  async wait(count) {
    while (this.all.length < count) await new Promise((resolve) => (this.#wanted = resolve));
    return this.all.splice(0, count);
  }
}

/** Several clients add to one number; without the lock some of the sums would be lost. */
async function locks(clients, { take, give, get, set }) {
  await Promise.all(clients.map(async (r, at) => {
    for (let n = 0; n < 10; n++) {
      const token = `${at}-${n}`;
      while (!(await take(r, "{lock}held", token))) {}
      const sum = Number(await get(r, "{lock}sum"));
      await set(r, "{lock}sum", String(sum + 1));
      assert.equal(await give(r, "{lock}held", token), 1);
    }
  }));
  assert.equal(await get(clients[0], "{lock}sum"), String(10 * clients.length));
  assert.equal(await take(clients[0], "{lock}held", "once"), true);
  assert.equal(await take(clients[0], "{lock}held", "twice"), false);
  assert.equal(await give(clients[0], "{lock}held", "another"), 0);
}

async function ioredis() {
  const { default: Redis } = await import("ioredis");
  const connect = () => new Redis({ port: Number(port) });
  const [r, other, sub] = [connect(), connect(), connect()];

  for (let n = 1; n <= 50; n++) {
    const multi = await r.multi().incr("{tx}n").rpush("{tx}l", n).llen("{tx}l").exec();
    assert.deepEqual(multi.map((one) => one[1]), [n, n, n]);
  }
  // One by one, not as a pipeline.
  await r.multi({ pipeline: false });
  assert.equal(await r.set("{tx}by hand", "1"), "QUEUED");
  assert.equal(await other.get("{tx}by hand"), null);
  assert.deepEqual(await r.exec(), [[null, "OK"]]);
  await r.multi({ pipeline: false });
  await r.set("{tx}by hand", "2");
  assert.equal(await r.discard(), "OK");
  assert.equal(await r.get("{tx}by hand"), "1");

  const [messages, patterns] = [new Heard(), new Heard()];
  sub.on("message", (channel, text) => messages.say([channel, text]));
  sub.on("pmessage", (pattern, channel, text) => patterns.say([pattern, channel, text]));
  assert.equal(await sub.subscribe("news", "sport"), 2);
  assert.equal(await sub.psubscribe("n*"), 3);
  for (const n of numbers(200)) assert.ok((await r.publish("news", n)) >= 1);
  await r.publish("sport", "1:0");
  // There is an order in each channel, and none between two of them.
  const [news, sport] = apart(await messages.wait(201), ([channel]) => channel === "news");
  assert.deepEqual(news, numbers(200).map((n) => ["news", n]));
  assert.deepEqual(sport, [["sport", "1:0"]]);
  assert.deepEqual(await patterns.wait(200), numbers(200).map((n) => ["n*", "news", n]));
  assert.deepEqual(await sub.ping(), ["pong", ""]);
  assert.equal(await sub.unsubscribe("news", "sport"), 1);
  assert.equal(await sub.punsubscribe("n*"), 0);
  assert.equal(await r.publish("news", "nobody"), 0);
  assert.equal(await sub.set("{sub}k", "an ordinary client again"), "OK");
  const shards = new Heard();
  sub.on("smessage", (channel, text) => shards.say([channel, text]));
  await sub.ssubscribe("shard");
  await r.spublish("shard", "one");
  assert.deepEqual(await shards.wait(1), [["shard", "one"]]);
  await sub.sunsubscribe("shard");

  const echo = (async () => {
    for (let n = 0; n < 200; n++) await other.rpush("{w}back", (await other.blpop("{w}there", "{w}more", 20))[1]);
  })();
  for (const n of numbers(200)) {
    await r.rpush("{w}there", n);
    assert.deepEqual(await r.blpop("{w}back", 20), ["{w}back", n]);
  }
  await echo;
  const moved = r.blmove("{w}from", "{w}to", "LEFT", "RIGHT", 20);
  await other.rpush("{w}from", "it");
  assert.equal(await moved, "it");
  const least = r.bzpopmin("{w}z", 20);
  await other.zadd("{w}z", 1.5, "m");
  assert.deepEqual(await least, ["{w}z", "m", "1.5"]);
  const read = r.xread("BLOCK", 20000, "STREAMS", "{w}x", "0");
  await other.xadd("{w}x", "1-1", "f", "v");
  assert.deepEqual(await read, [["{w}x", [["1-1", ["f", "v"]]]]]);
  await r.xgroup("CREATE", "{w}x", "g", "$");
  const group = r.xreadgroup("GROUP", "g", "c", "BLOCK", 20000, "STREAMS", "{w}x", ">");
  await other.xadd("{w}x", "2-1", "f", "w");
  assert.deepEqual(await group, [["{w}x", [["2-1", ["f", "w"]]]]]);
  assert.equal(await r.blpop("{w}none", 0.05), null);

  r.defineCommand("unlock", { numberOfKeys: 1, lua: UNLOCK });
  const clients = [connect(), connect(), connect()];
  clients.forEach((one) => one.defineCommand("unlock", { numberOfKeys: 1, lua: UNLOCK }));
  await locks(clients, {
    take: async (one, key, token) => (await one.set(key, token, "PX", 20000, "NX")) === "OK",
    give: (one, key, token) => one.unlock(key, token),
    get: (one, key) => one.get(key),
    set: (one, key, value) => one.set(key, value),
  });
  [r, other, sub, ...clients].forEach((one) => one.disconnect());
}

async function nodeRedis() {
  const { createClient } = await import("redis");
  const connect = async () => {
    const socket = { port: Number(port), host: "127.0.0.1", reconnectStrategy: false };
    const r = createClient({ socket, RESP: Number(resp) });
    r.on("error", (error) => { throw error; });
    return r.connect();
  };
  const [r, other, sub] = [await connect(), await connect(), await connect()];

  for (let n = 1; n <= 50; n++) {
    const multi = await r.multi().incr("{tx}n").rPush("{tx}l", String(n)).lLen("{tx}l").exec();
    assert.deepEqual(multi, [n, n, n]);
  }
  await assert.rejects(r.multi().set("{tx}t", "text").incr("{tx}t").set("{tx}after", "1").exec());
  assert.equal(await r.get("{tx}after"), "1");

  const [messages, patterns, shards] = [new Heard(), new Heard(), new Heard()];
  await sub.subscribe(["news", "sport"], (text, channel) => messages.say([channel, text]));
  await sub.pSubscribe("n*", (text, channel) => patterns.say([channel, text]));
  for (const n of numbers(200)) assert.ok((await r.publish("news", n)) >= 1);
  await r.publish("sport", "1:0");
  // There is an order in each channel, and none between two of them.
  const [news, sport] = apart(await messages.wait(201), ([channel]) => channel === "news");
  assert.deepEqual(news, numbers(200).map((n) => ["news", n]));
  assert.deepEqual(sport, [["sport", "1:0"]]);
  assert.deepEqual(await patterns.wait(200), numbers(200).map((n) => ["news", n]));
  if (resp === "3") assert.equal(await sub.set("{sub}k", "in between"), "OK");
  await sub.unsubscribe(["news", "sport"]);
  await sub.pUnsubscribe("n*");
  assert.equal(await r.publish("news", "nobody"), 0);
  assert.equal(await sub.incr("{sub}n"), 1);
  await sub.sSubscribe("shard", (text, channel) => shards.say([channel, text]));
  await r.sPublish("shard", "one");
  assert.deepEqual(await shards.wait(1), [["shard", "one"]]);
  await sub.sUnsubscribe("shard");

  const echo = (async () => {
    for (let n = 0; n < 200; n++) {
      const { element } = await other.blPop(["{w}there", "{w}more"], 20);
      await other.rPush("{w}back", element);
    }
  })();
  for (const n of numbers(200)) {
    await r.rPush("{w}there", n);
    assert.equal((await r.blPop("{w}back", 20)).element, n);
  }
  await echo;
  const moved = r.blMove("{w}from", "{w}to", "LEFT", "RIGHT", 20);
  await other.rPush("{w}from", "it");
  assert.equal(await moved, "it");
  const least = r.bzPopMin("{w}z", 20);
  await other.zAdd("{w}z", { score: 1.5, value: "m" });
  assert.deepEqual({ ...(await least) }, { key: "{w}z", value: "m", score: 1.5 });
  const command = ["XREAD", "BLOCK", "20000", "STREAMS", "{w}x", "0"];
  const read = r.sendCommand(command);
  await other.xAdd("{w}x", "1-1", { f: "v" });
  assert.match(JSON.stringify(await read), /1-1.*f.*v/);
  assert.equal(await r.blPop("{w}none", 0.05), null);

  const clients = [await connect(), await connect(), await connect()];
  await locks(clients, {
    take: async (one, key, token) => (await one.set(key, token, { PX: 20000, NX: true })) === "OK",
    give: (one, key, token) => one.eval(UNLOCK, { keys: [key], arguments: [token] }),
    get: (one, key) => one.get(key),
    set: (one, key, value) => one.set(key, value),
  });
  [r, other, sub, ...clients].forEach((one) => one.destroy());
}

await (client === "ioredis" ? ioredis() : nodeRedis());
console.log(`${client}: all holds`);
