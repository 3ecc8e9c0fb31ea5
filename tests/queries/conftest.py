"""Executors on an empty Redis."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.admin.command import Command
from tests.queries.executors import Executors, running


@pytest.fixture
def executors(tmp_path: Path, embedded_redis_url: str) -> Iterator[Executors]:
    """No executor is started yet."""
    yield from running(Command(tmp_path, embedded_redis_url), tmp_path)
