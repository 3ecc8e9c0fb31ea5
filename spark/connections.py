"""Connections of a Python worker: one per Redis, kept between tasks and micro-batches."""

from __future__ import annotations

import os

from streamlease.streams.redis.connection import BlockingRedis, connect_blocking

_connections: dict[tuple[int, str], BlockingRedis] = {}
"""The process id keeps a forked child from using its parent's."""


def connection(url: str) -> BlockingRedis:
    """This process's connection to the Redis at `url`.

    Raises:
        InvalidOption: the URL is malformed.
    """
    key = (os.getpid(), url)
    if key not in _connections:
        _connections[key] = connect_blocking(url)
    return _connections[key]
