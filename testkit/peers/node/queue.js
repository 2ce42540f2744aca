// BullMQ's queue through quickack: `queue.js produce|consume PORT COUNT LEDGER`.
//
// All keys have one hash tag, so that one server of several has them all. Each job counts itself at
// the Redis at LEDGER, which no fault touches: hash `done`, field: the job's number.

import { Queue, QueueEvents, Worker } from "bullmq";
import Redis from "ioredis";

const [role, port, count, ledgerPort] = process.argv.slice(2);
const connection = { port: Number(port), maxRetriesPerRequest: null };
const prefix = "{bull}";

if (role === "produce") {
  const queue = new Queue("jobs", { connection, prefix });
  for (let start = 0; start < Number(count); start += 100) {
    const length = Math.min(100, Number(count) - start);
    const some = Array.from({ length }, (_, i) => ({ name: "note", data: { number: start + i } }));
    await queue.addBulk(some);
  }
  await queue.close();
} else {
  const ledger = new Redis({ port: Number(ledgerPort) });
  const note = (job) => ledger.hincrby("done", job.data.number, 1);
  // A job whose worker was cut off is found and done again.
  const worker = new Worker("jobs", note, { connection, prefix, concurrency: 4, stalledInterval: 1000, lockDuration: 2000, maxStalledCount: 100 });
  worker.on("error", (error) => console.error(String(error)));
  // Its events come by XREAD BLOCK.
  const events = new QueueEvents("jobs", { connection, prefix });
  events.on("completed", ({ jobId }) => ledger.hincrby("completed", jobId, 1));
  events.on("error", (error) => console.error(String(error)));
}
