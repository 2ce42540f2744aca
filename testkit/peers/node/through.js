// through.js CLIENT PORT RESP [USER PASSWORD]: checks every answer to ioredis or node-redis.
import assert from "node:assert/strict";

const [client, port, resp, username, password] = process.argv.slice(2);
const login = username ? { username, password } : {};
const many = Array.from({ length: 300 }, (_, n) => `many${n}`);
const large = Buffer.from(Array.from({ length: 1_000_000 }, (_, n) => n % 251));

async function ioredis() {
  const { default: Redis } = await import("ioredis");
  const r = new Redis({ port: Number(port), connectionName: "shopper", ...login });
  assert.equal(await r.ping(), "PONG");
  assert.equal(await r.client("GETNAME"), "shopper");
  assert.equal(await r.set("a", "one"), "OK");
  assert.equal(await r.get("a"), "one");
  assert.equal(await r.get("none"), null);
  assert.equal(await r.incrby("n", 7), 7);
  assert.equal(await r.hset("h", { f1: "1", f2: "2" }), 2);
  assert.deepEqual(await r.hgetall("h"), { f1: "1", f2: "2" });
  assert.equal(await r.mset(Object.fromEntries(many.map((key) => [key, key]))), "OK");
  assert.deepEqual(await r.mget(...many, "none"), [...many, null]);
  assert.equal(await r.del(...many), 300);
  await assert.rejects(r.rename("k1", "k2"), /same server|no such key/);
  assert.equal(await r.watch("none"), "OK");
  assert.deepEqual(await r.multi().get("none").exec(), [[null, null]]);
  const pipe = r.pipeline();
  many.forEach((key) => pipe.set(key, key).get(key));
  const answers = await pipe.exec();
  assert.deepEqual(answers.map((one) => one[1]), many.flatMap((key) => ["OK", key]));
  const multi = await r.multi().set("{tx}a", "1").incr("{tx}a").lpop("{tx}a").ping().exec();
  assert.deepEqual(multi.map((one) => one[1]), ["OK", 2, undefined, "PONG"]);
  assert.match(multi[2][0].message, /WRONGTYPE/);
  const apart = r.multi(many.slice(0, 50).map((key) => ["set", key, "x"]));
  await assert.rejects(apart.exec(), /EXECABORT .* The first: CROSSSLOT/);
  r.defineCommand("add", { numberOfKeys: 1, lua: "return redis.call('INCRBY', KEYS[1], ARGV[1])" });
  for (const key of many.slice(0, 8)) await r.del(key);
  for (const key of many.slice(0, 8)) assert.equal(await r.add(key, 5), 5);
  await r.script("FLUSH");
  for (const key of many.slice(0, 8)) assert.equal(await r.add(key, 5), 10);
  const found = [];
  for await (const keys of r.scanStream({ match: "many*", count: 40 })) found.push(...keys);
  assert.deepEqual(found.sort(), [...many].sort());
  assert.equal(await r.set("large", large), "OK");
  assert.ok((await r.getBuffer("large")).equals(large));
  r.disconnect();
  const other = new Redis({ port: Number(port), db: 3, ...login });
  assert.equal(await other.get("a"), null);
  other.disconnect();
}

async function nodeRedis() {
  const { createClient } = await import("redis");
  const socket = { port: Number(port), host: "127.0.0.1", reconnectStrategy: false };
  const r = createClient({ socket, RESP: Number(resp), name: "shopper", ...login });
  r.on("error", (error) => { throw error; });
  await r.connect();
  assert.equal(await r.ping(), "PONG");
  assert.equal(await r.clientGetName(), "shopper");
  assert.equal(await r.set("a", "one"), "OK");
  assert.equal(await r.get("a"), "one");
  assert.equal(await r.get("none"), null);
  assert.equal(await r.incrBy("n", 7), 7);
  assert.equal(await r.hSet("h", { f1: "1", f2: "2" }), 2);
  assert.deepEqual({ ...(await r.hGetAll("h")) }, { f1: "1", f2: "2" });
  assert.equal(await r.zAdd("z", [{ score: 1, value: "a" }, { score: 2.5, value: "b" }]), 2);
  const scores = await r.zRangeWithScores("z", 0, -1);
  assert.deepEqual(scores.map((one) => [one.value, one.score]), [["a", 1], ["b", 2.5]]);
  assert.equal(await r.mSet(Object.fromEntries(many.map((key) => [key, key]))), "OK");
  assert.deepEqual(await r.mGet([...many, "none"]), [...many, null]);
  assert.equal(await r.del(many), 300);
  assert.equal(await r.watch("none"), "OK");
  assert.deepEqual(await r.multi().get("none").exec(), [null]);
  // It pipelines the requests of one turn.
  const answers = await Promise.all(many.flatMap((key) => [r.set(key, key), r.get(key)]));
  assert.deepEqual(answers, many.flatMap((key) => ["OK", key]));
  assert.deepEqual(await r.multi().set("{tx}a", "1").incr("{tx}a").get("{tx}a").exec(), ["OK", 2, "2"]);
  const sha = await r.scriptLoad("return redis.call('INCRBY', KEYS[1], ARGV[1])");
  for (const key of many.slice(0, 8)) await r.set(key, "0");
  for (const key of many.slice(0, 8)) {
    assert.equal(await r.evalSha(sha, { keys: [key], arguments: ["5"] }), 5);
  }
  const found = [];
  for await (const keys of r.scanIterator({ MATCH: "many*", COUNT: 40 })) found.push(...keys);
  assert.deepEqual(found.sort(), [...many].sort());
  const text = "x".repeat(1_000_000);
  assert.equal(await r.set("large", text), "OK");
  assert.equal(await r.get("large"), text);
  await r.select(3);
  assert.equal(await r.get("a"), null);
  r.destroy();
}

await (client === "ioredis" ? ioredis() : nodeRedis());
console.log(`${client}: all words hold`);
