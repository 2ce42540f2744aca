"""Celery's queue through quickack: `celery_jobs.py produce|consume PORT COUNT LEDGER`.

As `rq_jobs.py`. All keys have one hash tag, so that one server of several has them all.
"""

import os
import sys

import celery

import queue_ledger

role, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
os.environ["LEDGER"] = sys.argv[4]
app = celery.Celery("queue", broker=f"redis://127.0.0.1:{port}/0", backend=f"redis://127.0.0.1:{port}/0")
app.conf.broker_transport_options = {"global_keyprefix": "{celery}"}
app.conf.result_backend_transport_options = {"global_keyprefix": "{celery}"}
app.conf.broker_connection_retry_on_startup = True
app.conf.worker_prefetch_multiplier = 4


@app.task(name="note")
def note(number):
    queue_ledger.note(number)


if role == "produce":
    for number in range(count):
        note.delay(number)
else:
    app.worker_main(["worker", "--pool=solo", "--loglevel=ERROR", f"--hostname=w{os.getpid()}@localhost"])
