"""The ways without Streamlease that docs/archive.md shows, as they stand there."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import StaticTable, Table

from streamlease.agent.client import Client
from streamlease.streams.redis.connection import BlockingRedis
from tests.archive.going_on import GoingOn, all_once
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
        if not isinstance(names["table"], StaticTable):
            names["table"].catalog.close()
    scanned, counted, summed, all_rows = found
    assert sorted(scanned["offset"].to_pylist()) == list(range(100, 110))
    assert set(scanned["payload"].to_pylist()) == {b"message %d" % number for number in range(100, 110)}
    assert counted == [(f"flights/{n}", len(range(n, 300, 7))) for n in range(7)]
    assert summed == [(300, 0, 299)]
    assert sorted(all_rows["offset"].to_pylist()) == list(range(300))


@pytest.mark.timeout(120)
async def test_they_find_all_once_while_archiving_goes_on(
    client: Client, blocking: BlockingRedis, uri: str, embedded_redis_url: str
) -> None:
    """Files come, are joined with their neighbours and let go of, and snapshots with them."""
    space = await space_of(client, uri, streams=1)
    await publish(client, 0, 150)
    archive(blocking, space)

    def table() -> Table:
        with SqlCatalog("streamlease", uri=f"sqlite:///{uri}/catalog.db") as catalog:
            return catalog.load_table("streamlease.flights")

    def listed() -> list[str]:
        return [one.file.file_path for one in table().scan().plan_files()]

    def by_pyiceberg() -> list[Any]:
        return table().scan().to_arrow()["offset"].to_pylist()

    def by_its_folder_alone() -> list[Any]:
        newest = Path(uri, "metadata", "version-hint.text").read_text()
        static = StaticTable.from_metadata(f"{uri}/metadata/{newest}.metadata.json")
        return static.scan().to_arrow()["offset"].to_pylist()

    def by_duckdb() -> list[Any]:
        found = duckdb.execute('select "offset" from read_parquet(?)', [listed()]).fetchall()
        return [offset for (offset,) in found]

    sizes: set[int] = set()

    def read(going: GoingOn) -> None:
        while not going.has_joined(4):
            for engine in (by_pyiceberg, by_its_folder_alone, by_duckdb):
                least = 150 + going.archived
                found = engine()
                sizes.add(len(found))
                all_once(found, least)

    with GoingOn(embedded_redis_url, space).running() as going:
        await asyncio.to_thread(read, going)
    assert len(sizes) > 3, "archiving went on meanwhile"
