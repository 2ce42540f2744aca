"""The job of the queues in Python: it counts itself at a Redis of its own."""

import functools
import os

import redis


@functools.cache
def ledger():
    return redis.Redis(port=int(os.environ["LEDGER"]))


def note(number):
    ledger().hincrby("done", number, 1)
