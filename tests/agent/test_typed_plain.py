"""Readers with and without a group in spaces with a schema: typed columns, old and new, or a clear end."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from streamlease.agent.client import Client
from streamlease.protocol.errors import InvalidOption, InvalidTopic, SchemaMismatch
from streamlease.streams.entries.schemas import Schema

CARRIER = {"name": "carrier", "type": "string", "nullable": False}
DELAY = {"name": "delay", "type": "float64", "nullable": True}
GATE = {"name": "gate", "type": "int16", "nullable": True}
OLD: dict[str, Any] = {"columns": [CARRIER, DELAY]}
NEW: dict[str, Any] = {"columns": [CARRIER, DELAY, GATE]}


async def two_versions(client: Client) -> None:
    """A space with one message of each version of its schema; the second was asked for as an Arrow schema."""
    await client.create_space("f", ["f/#"], schema=OLD)
    async with client.publisher() as publisher:
        await publisher.send("f/a", {"carrier": "UA", "delay": 2.5})
    await client.alter_space("f", schema=Schema.of(NEW).arrow)
    async with client.publisher() as publisher:
        await publisher.send("f/a", {"carrier": "AA", "gate": 7})


async def values(batches: Any, count: int) -> list[dict[str, Any] | None]:
    found: list[dict[str, Any] | None] = []
    async with batches:
        while len(found) < count:
            found += [message.values for message in (await anext(batches)).messages]
    return found


async def shared(client: Client, group: str, schema: Any, count: int) -> list[dict[str, Any] | None]:
    found: list[dict[str, Any] | None] = []
    async with client.subscribe(f"$shared/{group}/f/#", start="earliest", schema=schema) as reader:
        while len(found) < count:
            batch = await anext(reader)
            found += [message.values for message in batch.messages]
            await batch.commit()
    return found


async def test_old_and_new_readers_of_a_schema_that_gained_a_column(client: Client) -> None:
    await two_versions(client)
    expected: dict[str, tuple[Any, list[dict[str, Any]]]] = {
        "all": (
            None,
            [{"carrier": "UA", "delay": 2.5, "gate": None}, {"carrier": "AA", "delay": None, "gate": 7}],
        ),
        "old": (OLD, [{"carrier": "UA", "delay": 2.5}, {"carrier": "AA", "delay": None}]),
        "some": (pa.schema([("gate", pa.int16())]), [{"gate": None}, {"gate": 7}]),
    }
    for group, (schema, found) in expected.items():
        assert await values(client.history("f/#", schema=schema), 2) == found
        assert await values(client.listen("f/#", start="earliest", schema=schema), 2) == found
        assert await shared(client, group, schema, 2) == found


async def test_columns_come_out_in_their_types(client: Client) -> None:
    await two_versions(client)
    async with client.history("f/#") as batches:
        found = [batch.to_arrow() async for batch in batches]
    for batch in found:
        typed = batch.select(["carrier", "delay", "gate"]).schema
        assert [field.type for field in typed] == [pa.string(), pa.float64(), pa.int16()]


@pytest.mark.parametrize(
    "columns",
    [
        [{"name": "carrier", "type": "int64"}],
        [{"name": "captain", "type": "string"}],
        [{"name": "delay", "type": "float64", "nullable": False}],
    ],
)
async def test_who_wants_something_else_gets_a_clear_end(client: Client, columns: list[Any]) -> None:
    await two_versions(client)
    wanted = {"columns": columns}
    listening = client.listen("f/#", start="earliest", schema=wanted)
    for reading in (client.history("f/#", schema=wanted), listening):
        with pytest.raises(SchemaMismatch, match=columns[0]["name"]):
            await values(reading, 1)
    with pytest.raises(SchemaMismatch, match=columns[0]["name"]):
        await shared(client, "g", wanted, 1)


async def test_payloads_are_no_columns(client: Client) -> None:
    await client.create_space("p", ["p/#"])
    async with client.publisher() as publisher:
        await publisher.send("p/a", b"\x01\x02")
    with pytest.raises(SchemaMismatch, match="leave schema out"):
        await values(client.history("p/#", schema=OLD), 1)
    with pytest.raises(InvalidOption, match="nothing"):
        client.listen("p/#", schema={"columns": [{"name": "a", "type": "nothing"}]})


async def test_a_filter_over_several_spaces_gives_each_its_columns(client: Client) -> None:
    await two_versions(client)
    await client.create_space("p", ["p/#"])
    async with client.publisher() as publisher:
        await publisher.send("p/a", b"plain")
    async with client.history("+/a") as batches:
        found = [message async for batch in batches for message in batch.messages]
    assert sorted((message.payload, message.values is not None) for message in found) == [
        (b"", True),
        (b"", True),
        (b"plain", False),
    ]


async def test_with_and_without_a_group_each_say_what_to_use(client: Client) -> None:
    with pytest.raises(InvalidTopic, match=r"'f/#' names no group: .*client\.listen") as caught:
        client.subscribe("f/#")
    assert "\n" not in str(caught.value)
    for reading in (client.listen, client.history):
        with pytest.raises(InvalidOption, match=r"use client\.subscribe"):
            reading("$shared/g/f/#")
