// deep.js PORT: ioredis writes 200,000 commands in one pipeline; each answer is checked.
import assert from "node:assert/strict";
import Redis from "ioredis";

const r = new Redis({ port: Number(process.argv[2]) });
const keys = Array.from({ length: 100_000 }, (_, n) => `k${n}`);
const pipe = r.pipeline();
keys.forEach((key) => pipe.set(key, key).get(key));
const answers = await pipe.exec();
assert.deepEqual(answers.map((one) => one[1]), keys.flatMap((key) => ["OK", key]));
r.disconnect();
