"""Connections of a Python worker: one per Redis, kept between tasks and micro-batches."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from streamlease.protocol.errors import StoreUnavailable
from streamlease.streams.redis.connection import BlockingRedis, connect_blocking, run_blocking

if TYPE_CHECKING:
    from streamlease.streams.epochs.boundary_reading import Vouched

RETRY_SECONDS = 0.2

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


def check_still_there(url: str, vouched: Vouched, remedy: str, patience: float) -> None:
    """Whether the boundary by which rows were chosen is still there, now that they are read.

    Args:
        patience: how long (s) to wait for a Redis that is away.

    Raises:
        EpochsLost: it is not: others may have come where they were read. It ends in `remedy`.
        StoreUnavailable, StoreRefused.
    """
    from streamlease.streams.epochs.boundary_reading import check_there

    began = time.monotonic()
    while True:
        try:
            return run_blocking(check_there(connection(url), vouched, remedy))
        except StoreUnavailable:
            if time.monotonic() - began >= patience:
                raise
        time.sleep(RETRY_SECONDS)
