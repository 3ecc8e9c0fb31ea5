"""What the console reads and does on request: a space, its messages, dead letters, queries, publishers."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pytest

from bench.leaders import journal_of
from streamlease.admin.messages.message_diffs import diffs_of
from streamlease.admin.ui import board as boards
from streamlease.admin.ui import looks, query_looks
from streamlease.admin.ui.app import STATIC
from streamlease.admin.ui.board import Board
from streamlease.admin.ui.other_acts import AnyAct, asked, demanded, do, roles
from streamlease.admin.ui.shown_processes import by_process
from streamlease.agent.client import Client, connect
from streamlease.catalog.items import BorrowerItem, CatalogItem, PublicationItem
from streamlease.leader.core.state.records import Committed, StreamsAdded
from streamlease.leader.journals import PAGE
from streamlease.protocol.errors import (
    ActRefused,
    InvalidInput,
    InvalidOption,
    UnknownSpace,
)
from streamlease.protocol.group_options import GroupOptions
from streamlease.protocol.ids import StreamId
from streamlease.protocol.topics import SharedSubscription
from streamlease.queries import store
from streamlease.queries.core.record import QueryRecord, QueryStage
from streamlease.queries.store import Write
from streamlease.registry.dead_letters import DeadLetters, Poisoned
from streamlease.streams.entries.delivered import to_messages
from streamlease.streams.log.keys import stream_log
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.redis.connection import connect_blocking
from tests.archive.helpers import archive, publish, space_of, trim_all
from tests.catalog.waiting import eventually

QUERY = "00000000000000ab"
SHARED = SharedSubscription.parse("$shared/desk/calls/#")


@pytest.fixture
async def client(embedded_redis_url: str) -> AsyncIterator[Client]:
    async with connect(embedded_redis_url, embedded=False) as client:
        await client.create_space("calls", ["calls/#"], streams=2)
        yield client


async def act(client: Client, **fields: Any) -> list[str]:
    return await do(client, asked(json.dumps(fields).encode()), "ana@127.0.0.1")


async def test_messages_of_a_collection_have_their_diffs(client: Client) -> None:
    await client.create_space("seats", ["seats/#"], streams=2, collection=True)
    for payload, diff in (("one", 3), ("two", 1), ("one", -2)):
        (said,) = await act(client, act="publish", topic="seats/a", payload=payload, diff=diff)
    found = (await looks.messages(client, {"space": "seats"}))["messages"]
    assert [(one["payload"]["text"], one["diff"]) for one in found] == [("one", -2), ("two", 1), ("one", 3)]
    stream, _, offset = said.partition("@")
    assert (await looks.message(client, {"stream": stream, "offset": offset}))["diff"] == -2


async def test_a_diff_that_retention_took_meanwhile_is_not_known(client: Client) -> None:
    await client.create_space("seats", ["seats/#"], streams=1, collection=True)
    for payload in ("one", "two"):
        await act(client, act="publish", topic="seats/a", payload=payload, diff=4)
    stream = StreamId.parse("seats.0.0")
    (batch,) = await AsyncLog(client.redis).read(stream, 0)
    await client.redis.xtrim(stream_log(stream), maxlen=1, approximate=False)
    assert await diffs_of(client, to_messages(batch)) == [None, 4]


async def test_a_message_is_published_looked_at_and_has_neighbours(client: Client) -> None:
    for payload in ("one", "two", "x" * 5000):
        said = await act(client, act="publish", topic="calls/a", payload=payload, key="k", headers={"h": "v"})
    stream, _, offset = said[0].partition("@")
    assert offset == "2"
    found = await looks.messages(client, {"space": "calls", "limit": "2"})
    first, second = found["messages"]
    assert (first["bytes"], len(first["payload"]["text"]), first["payload"]["cut"]) == (5000, 2000, True)
    assert (second["payload"], second["headers"]) == (
        {"text": "two", "cut": False}, [["h", {"text": "v", "cut": False}]],
    )  # fmt: skip
    rest = await looks.messages(client, {"space": "calls", "cursor": found["cursor"]})
    assert [one["payload"]["text"] for one in rest["messages"]] == ["one"]
    whole = await looks.message(client, {"stream": stream, "offset": "2"})
    assert (len(whole["payload"]["text"]), whole["before"], whole["after"]) == (5000, 1, None)
    assert "diff" not in whole and "diff" not in first
    topics = await looks.topics(client, {"space": "calls", "like": "A"})
    assert [one["topic"] for one in topics["topics"]] == ["calls/a"]
    shown = await looks.space(client, {"space": "calls"})
    assert sum(one["next"] for one in shown["streams"]) == 3


async def test_bytes_that_are_no_text_and_typed_columns(client: Client) -> None:
    await client.create_space("typed", ["typed/#"], schema=pa.schema([("city", pa.string())]))
    async with client.publisher() as publisher:
        await publisher.send("calls/a", b"\xff\x00")
        await publisher.send("calls/a", "é".encode() * 1500)  # cut in the middle of a character
    texts = [one["payload"] for one in (await looks.messages(client, {"space": "calls"}))["messages"]]
    assert texts[0]["cut"]
    assert texts[0]["text"] in ("é" * 1000, "é" * 999)
    assert texts[1]["base64"] == "/wA="
    await act(client, act="publish", topic="typed/a", payload='{"city": "Oslo"}')
    with pytest.raises(InvalidInput, match="the payload is no JSON"):
        await act(client, act="publish", topic="typed/a", payload="Oslo")
    (message,) = (await looks.messages(client, {"space": "typed", "text": "oslo"}))["messages"]
    assert message["values"] == {"city": "Oslo"}


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        ({"space": "nothing"}, UnknownSpace),
        ({"space": "calls", "order": "random"}, InvalidOption),
        ({"space": "calls", "at": "yesterday"}, InvalidOption),
        ({"space": "calls", "limit": "100000"}, InvalidInput),
        ({"space": "calls", "cursor": "x"}, InvalidInput),
    ],
)
async def test_bad_questions_are_refused(client: Client, wanted: dict[str, str], error: Any) -> None:
    with pytest.raises(error):
        await looks.messages(client, wanted)


async def test_a_message_that_is_not_there(client: Client) -> None:
    with pytest.raises(InvalidInput, match="has no message at offset 7"):
        await looks.message(client, {"stream": "calls.0.0", "offset": "7"})
    for wanted in ({"stream": "x", "offset": "0"}, {"stream": "calls.0.0", "offset": "-1"}):
        with pytest.raises(InvalidInput):
            await looks.message(client, wanted)


async def test_dead_letters_are_shown_and_replayed_once(client: Client) -> None:
    await client.groups.declare(SHARED, "earliest")
    async with client.publisher() as publisher:
        stream, offset = await publisher.send("calls/a", b"bad")
    options = GroupOptions()
    await DeadLetters(client.redis).write(Poisoned(SHARED, options, stream, offset, 1, 3, "b1", "ValueError"))
    wanted = {"subscription": str(SHARED)}
    (letter,) = (await looks.letters(client, wanted))["letters"]
    assert (letter["cause"], letter["payload"]["text"]) == ("ValueError", "bad")
    fields = {"act": "replay", "subscription": str(SHARED), "places": [letter["place"]]}
    assert "would be published to calls/a again" in (await act(client, **fields, dry_run=True))[0]
    assert (await looks.letters(client, wanted))["letters"][0]["replayed"] is None
    assert "is now calls.0." in (await act(client, **fields))[0]
    assert await act(client, **fields) == ["there is nothing to replay"]
    assert (await looks.letters(client, wanted))["letters"][0]["replayed"]["by"] == "ana@127.0.0.1"
    with pytest.raises(InvalidInput, match="is no dead letter"):
        await act(client, act="replay", subscription=str(SHARED), places=["calls.0.0@9"])


async def test_an_archive_shows_floors_files_and_what_is_not_archived_yet(
    client: Client, embedded_redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = await space_of(client, str(tmp_path / "archive"), streams=2)
    with closing(connect_blocking(embedded_redis_url)) as blocking:
        await publish(client, 0, 100)
        await asyncio.to_thread(archive, blocking, space)
    await trim_all(client, space)
    await publish(client, 100, 50)
    seen = await looks.archive(client, {"space": "flights"})
    assert (seen["archived"], seen["waiting"], seen["files_in_all"]) == (100, 50, 2)
    assert sum(row["bytes"] for row in seen["streams"]) == sum(row["bytes"] for row in seen["files"]) > 0
    for row in seen["streams"]:
        assert 0 == row["first"] < row["memory"] <= row["archived"] < row["next"]
        (file,) = [one for one in seen["files"] if one["stream"] == row["stream"]]
        assert (file["first"], file["next"]) == (0, row["archived"])
        assert file["since_us"] == row["since_us"] < row["until_us"]
    monkeypatch.setattr(looks, "MOST_FILES", 1)
    seen = await looks.archive(client, {"space": "flights"})
    assert (seen["files"], seen["bytes"], seen["files_in_all"], seen["archived"]) == ([], None, 2, 100)
    with pytest.raises(InvalidInput, match="space calls has no archive"):
        await looks.archive(client, {"space": "calls"})


async def test_what_stopped_a_stream_is_tried_anew_or_becomes_a_dead_letter_after_a_look(
    client: Client, embedded_redis_url: str
) -> None:
    fields = {"subscription": str(SHARED), "stream": ""}

    async def fail_next(subscription: Any) -> tuple[str, int]:
        batch = await anext(subscription)
        assert await batch.fail(batch.start, ValueError("bad")) == "stopped"
        return str(batch.stream), batch.start

    async with connect(embedded_redis_url) as consumer, asyncio.timeout(120):
        options = GroupOptions(max_failures=1, on_poison="stop", retry_delay_ms=0)
        await client.groups.declare(SHARED, "earliest", options=options)
        async with client.publisher() as publisher:
            for payload in (b"one", b"two"):
                await publisher.send("calls/a", payload)
        async with consumer.subscribe(str(SHARED)) as subscription:
            stream, offset = await fail_next(subscription)
            fields["stream"] = stream
            for act_name, said in (
                ("retry", f"{stream} goes on at offset {offset}, which is tried anew"),
                ("dead_letter", f"{stream} goes on behind offset {offset}, which becomes a dead letter"),
            ):
                for _ in range(2):
                    assert await act(client, act=act_name, **fields, dry_run=True) == [said]
                assert (await looks.letters(client, fields))["letters"] == []
                assert await act(client, act=act_name, **fields) == [said]
                if act_name == "retry":
                    assert await fail_next(subscription) == (stream, offset)
            batch = await anext(subscription)
            assert [one.payload for one in batch.messages] == [b"two"]
            (letter,) = (await looks.letters(client, fields))["letters"]
            assert (letter["original"], letter["payload"]["text"]) == (f"{stream}@{offset}", "one")
            with pytest.raises(ActRefused, match="is not stopped"):
                await act(client, act="retry", **fields, dry_run=True)


async def test_a_group_that_nobody_consumes_expires_when_its_name_is_typed(
    client: Client, embedded_redis_url: str
) -> None:
    await client.groups.declare(SHARED, "earliest")
    fields = {"act": "expire", "subscription": str(SHARED)}
    said = [f"{SHARED} holds no messages any more, until it is consumed again"]
    async with connect(embedded_redis_url) as consumer, asyncio.timeout(60):  # which leads
        async with consumer.subscribe(str(SHARED)):
            pass
        with pytest.raises(InvalidOption, match="to confirm that it may lose"):
            await act(client, **fields)
        assert await act(client, **fields, dry_run=True) == said
        assert await act(client, **fields, confirm=str(SHARED)) == said
        board = Board(client, 0.01)
        reader = asyncio.create_task(board.run())
        try:
            await board.fresh()
            summary = board.groups[str(SHARED)].summary
            assert summary is not None
            assert summary.expired
        finally:
            reader.cancel()


def test_each_act_has_a_form_and_the_role_of_its_kind() -> None:
    script = (STATIC / "acts.js").read_text().partition("export const ACTS = {")[2].partition("};")[0]
    forms = re.findall(r"^  (\w+): \{ title: ", script, re.M)
    assert sorted(forms) == sorted(roles())
    assert "role" not in script
    admins = {name for name, role in roles().items() if role == "admin"}
    assert admins == {"delete", "expire", "abort_publisher", "alter_space"}
    for kind in get_args(AnyAct):
        for name in get_args(kind.model_fields["act"].annotation):
            assert demanded(kind.model_construct(act=name)).name.lower() == roles()[name]


async def test_why_streams_wait_says_how_many_there_are_and_reaches_each(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.groups.declare(SHARED, "earliest")
    monkeypatch.setattr(looks, "MOST_ROWS", 1)

    async def asked(like: str) -> tuple[list[str], int, int]:
        seen = await looks.why(client, {"subscription": str(SHARED), "like": like})
        return [one["stream"] for one in seen["streams"]], seen["found"], seen["streams_in_all"]

    (shown,), found, in_all = await asked("")
    assert (found, in_all) == (2, 2)
    (other,) = {"calls.0.0", "calls.0.1"} - {shown}
    assert await asked(other.upper()) == ([other], 1, 2)
    assert await asked("nothing") == ([], 0, 2)


async def test_publishers_of_epochs_are_given_up_by_name(client: Client) -> None:
    await client.create_space("clicks", ["clicks/#"], epochs=1)
    async with client.epoch_publisher("clicks", "ingest") as ingest:
        shown = await looks.space(client, {"space": "clicks"})
        assert [one["name"] for one in shown["frontiers"]["publishers"]] == ["ingest"]
        fields = {"act": "abort_publisher", "space": "clicks", "publisher": "ingest"}
        assert await act(client, **fields, dry_run=True) == [
            "ingest has staged nothing that would be dropped", "it alone holds the frontier, at 0",
        ]  # fmt: skip
        with pytest.raises(InvalidOption, match="type ingest to confirm"):
            await act(client, **fields)
        with pytest.raises(InvalidInput, match="no publisher 'ingst' now; nearest: ingest"):
            await act(client, **{**fields, "publisher": "ingst"}, dry_run=True)
        async with client.epoch_publisher("clicks", "quick") as quick:
            await ingest.send("clicks/a", b"one", epoch=0)
            await ingest.flush()
            await quick.advance(5)
            assert await act(client, **fields, dry_run=True) == [
                "1 message that ingest staged, and has not given up, would be dropped",
                "epochs of 1 other publisher would no longer wait for it at 0",
            ]
            quick_fields = {**fields, "publisher": "quick"}
            assert await act(client, **quick_fields, dry_run=True) == [
                "quick has staged nothing that would be dropped", "it holds no epoch back",
            ]  # fmt: skip
    with pytest.raises(InvalidInput, match="has epochs"):
        await act(client, act="publish", topic="clicks/a", payload="x")


def test_a_process_tells_what_its_spark_queries_are_called() -> None:
    made = {"process": "p", "host": "box", "pid": 7}
    named: list[CatalogItem] = [
        BorrowerItem(**made, subscription=str(SHARED), borrower=name or "b", query_name=name)
        for name in ("totals", None, "alerts", "totals")
    ]
    other = PublicationItem(**made | {"process": "q"}, topic="calls/a", space="calls")
    first, second = by_process([*named, other])
    assert (first.query, first.query_names, first.consumes) == (None, ["alerts", "totals"], {str(SHARED): 4})
    assert (second.query_names, second.publishes) == ([], {"calls": 1})


async def test_queries_are_listed_shown_and_terminated(client: Client) -> None:
    now = await store.redis_ms(client.redis)
    record = QueryRecord(
        query=QUERY, name="job", state=QueryStage.PLACING, size=1, who="ana", submitted_at=now
    )
    await store.write(client.redis, [Write(0, record)])
    seen = await query_looks.queries(client, {})
    assert [(one["query"], one["state"]) for one in seen["queries"]] == [(QUERY, "placing")]
    shown = await query_looks.query(client, {"query": QUERY})
    assert (shown["name"], shown["logs"]) == ("job", [])
    assert (
        "SIGTERM goes to 0 workers of job"
        in (await act(client, act="terminate", query=QUERY, dry_run=True))[0]
    )
    await act(client, act="terminate", query=QUERY)
    shown = await query_looks.query(client, {"query": QUERY})
    assert (shown["outcome"], shown["reason"]) == ("terminated", "ana@127.0.0.1 terminated it")


async def test_the_catalog_is_searched(client: Client) -> None:
    found = await looks.catalog(client, {"name": "spaces", "like": "CALLS"})
    assert (found["found"], found["items"][0]["space"]) == (1, "calls")
    assert (await looks.catalog(client, {"name": "spaces", "like": "x"}))["found"] == 0
    with pytest.raises(InvalidInput, match="the catalog has no collection"):
        await looks.catalog(client, {"name": "planets"})


async def test_a_host_that_is_not_there_cannot_be_drained(client: Client) -> None:
    for dry_run in (True, False):
        with pytest.raises(InvalidInput, match="no leader host is called 'h'"):
            await act(client, act="drain_host", host="h", dry_run=dry_run)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "Invalid JSON"),
        (b'{"act": "dance"}', "dance"),
        (b'{"act": "publish"}', "publish needs a topic"),
        (b'{"act": "publish", "topic": "a", "color": 1}', "color"),
    ],
)
def test_what_is_no_act_is_refused(body: bytes, said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        asked(body)


async def test_processes_that_are_not_shown_are_counted(
    client: Client, monkeypatch: pytest.MonkeyPatch, embedded_redis_url: str
) -> None:
    monkeypatch.setattr(boards, "MOST_PROCESSES", 1)
    monkeypatch.setattr(boards, "SLOW_SECONDS", 0.01)
    board = Board(client, 0.01)
    reader = asyncio.create_task(board.run())
    try:
        async with (
            asyncio.timeout(60),
            connect(embedded_redis_url) as other,
            client.publisher() as first,
            other.publisher() as second,
        ):
            for publisher in (first, second):
                await publisher.send("calls/a", b"one")

            async def counted() -> bool:
                await board.fresh()
                return board.overview is not None and board.overview.publishing == 2

            await eventually(counted)
            assert board.overview is not None
            assert (len(board.overview.processes), board.overview.consuming) == (1, 0)
    finally:
        reader.cancel()


async def test_while_nobody_looks_nothing_is_read(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boards, "LINGER_SECONDS", 0.01)
    board = Board(client, 0.01)
    reader = asyncio.create_task(board.run())
    try:
        async with asyncio.timeout(60):

            async def rests() -> bool:
                return board.number > 0 and board.resting

            await eventually(rests)
            await client.groups.declare(SHARED, "earliest")
            journal = await journal_of(client.redis, SHARED.id, 1)
            await journal.write(journal.next_commit([StreamsAdded(starts={"calls.0.0": 0})]))
            await board.fresh()
            assert board.groups[str(SHARED)].rows["calls.0.0"].committed == 0
            await eventually(rests)
            number, before = board.number, await commands(client)
            for _ in range(10):
                await asyncio.sleep(0.01)  # twenty looks would fit
            assert (board.number, await commands(client)) == (number, before + 1)
            assert board.trouble is None, "to rest is no trouble"
            for number in range(1, 2 * PAGE + 8):
                progress = Committed(offsets={"calls.0.0": number})
                await journal.write(journal.next_commit([progress]))
            await board.fresh()
            rows = board.groups[str(SHARED)].rows
            assert rows["calls.0.0"].committed == 2 * PAGE + 7, "all that came meanwhile, at once"
    finally:
        reader.cancel()


async def commands(client: Client) -> int:
    """How many commands the server has run before this one."""
    redis: Any = client.redis
    return int((await redis.info("stats"))["total_commands_processed"])
