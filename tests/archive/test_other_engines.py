"""The ways without Streamlease that docs/archive.md shows, as they stand there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from streamlease.agent.client import Client
from streamlease.streams.redis.connection import BlockingRedis
from tests.archive.helpers import archive, publish, space_of

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "archive.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_the_table_is_read_as_the_guide_says(client: Client, blocking: BlockingRedis, uri: str) -> None:
    space = await space_of(client, uri, streams=1)
    for first in (0, 150):
        await publish(client, first, 150)
        archive(blocking, space)
    found = []
    for block in BLOCKS:
        names: dict[str, Any] = {}
        exec(block.replace("/data/flights", uri), names)
        found.append(names["rows"])
    scanned, counted, all_rows = found
    assert sorted(scanned["offset"].to_pylist()) == list(range(100, 110))
    assert set(scanned["payload"].to_pylist()) == {b"message %d" % number for number in range(100, 110)}
    assert counted == [(f"flights/{n}", len(range(n, 300, 7))) for n in range(7)]
    assert sorted(all_rows["offset"].to_pylist()) == list(range(300))
