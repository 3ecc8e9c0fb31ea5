"""The settings of a space, from the console: shown before they are changed, and changed as by the command."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pyarrow as pa
import pytest

from streamlease.admin.ui.other_acts import asked, do
from streamlease.agent.client import Client
from streamlease.protocol.errors import (
    InvalidOption,
    SchemaMismatch,
    SpaceConflict,
    StreamSealed,
    UnknownSpace,
)
from streamlease.streams.spaces.spaces import Space
from streamlease.testing.memory.memory_connection import connect as connect_memory
from streamlease.testing.memory.memory_server import MemoryServer


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with connect_memory(MemoryServer()) as client:
        await client.create_space("calls", ["calls/#"], streams=2, schema=pa.schema([("city", pa.string())]))
        yield client


async def alter(client: Client, *, space: str = "calls", **fields: Any) -> list[str]:
    wanted = {"act": "alter_space", "space": space, **fields}
    return await do(client, asked(json.dumps(wanted).encode()), "ana@127.0.0.1")


async def seen(client: Client) -> Space:
    return await client.spaces.get("calls")


COLUMNS = '{"columns": [{"name": "city", "type": "string"}, {"name": "sum", "type": "float64"}]}'


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"retention": "3d"}, ["retention none becomes 3d"]),
        ({"retention": "3d", "retention_force": "yes", "confirm": "calls"},
         ["retention none becomes 3d", "retention-force no becomes yes"]),
        ({"retention_bytes": "1GiB", "retention_messages": "100000"},
         ["retention-bytes none becomes 1GiB", "retention-messages none becomes 100000"]),
        ({"group_expiry": "never"}, ["group-expiry 1w becomes never"]),
        ({"compact_after": "1m"}, ["compact-after off becomes 1m"]),
        ({"columns": COLUMNS}, ["column sum (float64) is added; older messages have null there"]),
        ({"streams": 4, "from_generation": 0},
         ["streams 2 becomes 4: a new generation of streams takes what is published, and those of "
          "generation 0 take no more"]),
        ({"rotate": True, "from_generation": 0},
         ["streams 2 becomes 2: a new generation of streams takes what is published, and those of "
          "generation 0 take no more"]),
        ({"retention": "none", "rotate": False, "from_generation": 0}, ["nothing: it is so already"]),
    ],
)  # fmt: skip
async def test_what_is_shown_is_what_is_done(client: Client, fields: dict[str, Any], says: list[str]) -> None:
    before = await seen(client)
    assert await alter(client, **fields, dry_run=True) == says
    assert await seen(client) == before, "to look changes nothing"
    assert await alter(client, **fields) == says
    after = await seen(client)
    assert (after == before) == (says == ["nothing: it is so already"])
    assert await alter(client, **fields) == ["nothing: it is so already"], "it is done once"
    assert await seen(client) == after


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize(
    ("fields", "error", "said"),
    [
        ({}, InvalidOption, "fill in a field"),
        ({"rotate": False, "from_generation": 0}, InvalidOption, "fill in a field"),
        ({"retention": "soon"}, InvalidOption, "soon"),
        ({"retention_messages": "-1"}, InvalidOption, "-1"),
        ({"compact_after": "1ms"}, InvalidOption, "merged after 1 ms"),
        ({"streams": 5000, "retention": "3d"}, InvalidOption, "5000"),
        ({"streams": 4, "from_generation": 7, "retention": "3d"}, SpaceConflict, "altered meanwhile"),
        ({"retention_force": "yes", "confirm": "calls"}, InvalidOption, "has no limit"),
        ({"keep_in_memory": "1h"}, InvalidOption, "--archive URI"),
        ({"columns": "city"}, InvalidOption, "schema"),
        ({"columns": '{"columns": [{"name": "sum", "type": "float64"}]}', "retention": "3d"},
         SchemaMismatch, "city"),
        ({"space": "nothing", "retention": "3d"}, UnknownSpace, "nothing"),
    ],
)  # fmt: skip
async def test_what_cannot_be_is_refused_and_changes_nothing(
    client: Client, fields: dict[str, Any], error: type[Exception], said: str, dry_run: bool
) -> None:
    before = await seen(client)
    with pytest.raises(error, match=said):
        await alter(client, **fields, dry_run=dry_run)
    assert await seen(client) == before


async def test_what_groups_have_not_consumed_is_removed_when_the_name_is_typed(client: Client) -> None:
    fields = {"retention": "3d", "retention_force": "yes"}
    assert len(await alter(client, **fields, dry_run=True)) == 2
    for confirm in ({}, {"confirm": "call"}):
        with pytest.raises(InvalidOption, match="type calls to confirm"):
            await alter(client, **fields, **confirm)
    assert not (await seen(client)).retention.limited
    await alter(client, **fields, confirm="calls")
    assert (await seen(client)).retention.force


async def test_a_sealed_space_gets_no_other_streams(client: Client) -> None:
    await client.seal_space("calls")
    for dry_run in (True, False):
        with pytest.raises(StreamSealed, match="create another space"):
            await alter(client, streams=4, retention="3d", dry_run=dry_run)
    assert not (await seen(client)).retention.limited


async def test_how_much_of_an_archive_stays_in_memory(client: Client, tmp_path: Any) -> None:
    place = f"{tmp_path}/calls"
    fields = {"archive": place, "keep_in_memory": "1h"}
    says = [f"archive none becomes {place}", "keep-in-memory all becomes 1h"]
    assert await alter(client, **fields, dry_run=True) == says
    assert [*tmp_path.iterdir()] == [], "to look takes no place"
    assert await alter(client, **fields) == says
    assert await alter(client, keep_in_memory="1GiB") == ["keep-in-memory 1h becomes 1GiB"]
