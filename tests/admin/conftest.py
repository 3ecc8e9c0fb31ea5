"""The command on an empty Redis."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from tests.admin.command import Command


@pytest.fixture(autouse=True)
def own_logs() -> Iterator[None]:
    """A command that runs in this process leaves neither its handlers nor its levels behind."""
    root, ours = logging.getLogger(), logging.getLogger("streamlease")
    handlers, levels = [*root.handlers], (root.level, ours.level)
    yield
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


@pytest.fixture
def command(tmp_path: Path, embedded_redis_url: str) -> Command:
    """``streamlease`` on an empty Redis."""
    return Command(tmp_path, embedded_redis_url)


@pytest.fixture
def store(embedded_redis_url: str) -> Iterator[redis.Redis]:
    """A plain client of the same Redis."""
    with redis.Redis.from_url(embedded_redis_url) as client:
        yield client


@pytest.fixture
def flights(command: Command) -> Command:
    """The command, with a space of four streams for ``flights/#``."""
    command.ok("space", "create", "flights", "--topics", "flights/#", "--streams", "4")
    return command
