"""RQ's queue through quickack: `rq_jobs.py produce|consume PORT COUNT LEDGER`.

`produce` enqueues COUNT jobs at PORT. `consume` works on them until it is killed. Each job counts
itself at the Redis at LEDGER, which no fault touches: hash `done`, field: the job's number.
"""

import os
import sys

import redis
from rq import Queue, SimpleWorker

import queue_ledger


def main():
    role, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    os.environ["LEDGER"] = sys.argv[4]
    queue = Queue(connection=redis.Redis(port=port))
    if role == "produce":
        for start in range(0, count, 100):
            numbers = range(start, min(start + 100, count))
            queue.enqueue_many([Queue.prepare_data(queue_ledger.note, (number,)) for number in numbers])
        return
    SimpleWorker([queue], connection=queue.connection).work(logging_level="WARNING", with_scheduler=False)


main()
