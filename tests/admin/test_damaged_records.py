"""One damaged record of any kind: each view shows it as such, and everything else as ever."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import redis
from pydantic import ValidationError

from streamlease.admin.facts.hosts import Host
from streamlease.admin.ui.app import Site, make_app
from streamlease.admin.ui.board import SILENT_SECONDS, Board
from streamlease.agent.client import Client, connect
from streamlease.protocol.errors import StoreUnavailable, Unsupported
from streamlease.protocol.ids import StreamId
from streamlease.protocol.topics import SharedSubscription
from streamlease.registry import keys
from streamlease.streams.catalog.keys import rows
from streamlease.streams.epochs import keys as epoch_keys
from streamlease.streams.log.keys import SPACE_DEFINITIONS, SPACE_GENERATIONS, SPACE_VERSION, snapshot_state
from streamlease.streams.redis.damaged import attempt, parsing, readable
from streamlease.streams.tasks import stop
from tests.admin.command import InProcess

SEATS = StreamId("seats", 0, 0)
GOOD, BAD = (SharedSubscription.parse(f"$shared/{name}/{name}/#") for name in ("good", "bad"))
Damage = Callable[[redis.Redis], object]


def put(key: str, field: str | None, text: bytes) -> Damage:
    if field is None:
        return lambda store: store.set(key, text)
    return lambda store: store.hset(key, field, text)


def wrong_type(key: str) -> Damage:
    return lambda store: (store.delete(key), store.rpush(key, "x"))


def entry(store: redis.Redis) -> None:
    store.xadd(keys.journal(BAD.id), {"r": b"\xff", "t": "x", "n": "1"}, id="9999999999999-1")


DAMAGES: dict[str, tuple[Damage, str]] = {
    "definition": (put(SPACE_DEFINITIONS, "bad", b'{"name": "bad"'), "space bad"),
    "definition under no name": (lambda store: store.hset(SPACE_DEFINITIONS, b"\xff", b"1"), "space"),
    "set of groups": (lambda store: store.sadd(keys.GROUPS, b"\xff\xfe"), "\\xff\\xfe"),
    "declaration": (put(keys.definition(BAD.id), None, b"\xff"), str(BAD)),
    "declaration of another type": (wrong_type(keys.definition(BAD.id)), str(BAD)),
    "term": (put(keys.leader(BAD.id), "term", b"x"), str(BAD)),
    "host": (put(keys.leader(BAD.id), "host", b"\xff"), str(BAD)),
    "leadership of another type": (wrong_type(keys.leader(BAD.id)), str(BAD)),
    "progress": (put(keys.progress(BAD.id), "bad.0.0", b"1e999"), str(BAD)),
    "progress of another type": (wrong_type(keys.progress(BAD.id)), str(BAD)),
    "journal": (entry, str(BAD)),
    "item of the catalog": (put(rows("services"), "x/y", b"{"), "item 'x/y' of services"),
    "journal of another type": (wrong_type(keys.journal(BAD.id)), str(BAD)),
    "snapshot": (
        lambda store: store.hset(keys.snapshot(BAD.id), mapping={"id": "1-1", "state": "x"}),
        str(BAD),
    ),
    "snapshot with a count below 0": (
        lambda store: store.hset(keys.snapshot(BAD.id), mapping={"id": "1-1", "state": '{"moves": -1}'}),
        f"key {keys.snapshot(BAD.id)}",
    ),
    "journal with an offset below 0": (
        lambda store: store.xadd(
            keys.journal(BAD.id),
            {"r": '[{"type": "committed", "offsets": {"bad.0.0": -1}}]', "t": 2**40, "n": 1},
            id="9999999999999-1",
        ),
        f"key {keys.journal(BAD.id)}",
    ),
    "end of a stream": (put("sl:{bad.0.0}:meta", "next", b"x"), "bad.0.0"),
    "floor of a stream": (put("sl:{bad.0.0}:meta", "floor", b"9" * 30), ""),
    "bytes of a stream": (put("sl:{bad.0.0}:meta", "bytes", b"\xff"), "bad.0.0"),
    "next below 0": (put("sl:{bad.0.0}:meta", "next", b"-5"), "key sl:{bad.0.0}:meta"),
    "floor below 0": (put("sl:{bad.0.0}:meta", "floor", b"-5"), "key sl:{bad.0.0}:meta"),
    "bytes below 0": (put("sl:{bad.0.0}:meta", "bytes", b"-5"), "key sl:{bad.0.0}:meta"),
    "append time below 0": (put("sl:{bad.0.0}:meta", "last_append", b"-5"), "key sl:{bad.0.0}:meta"),
    "time of a trim below 0": (put("sl:{bad.0.0}:meta", "trimmed_at", b"-5"), ""),
    "time of a hold": (put("sl:{bad.0.0}:meta", "held_since", b"x"), ""),
    "oldest that exists": (put("sl:{bad.0.0}:meta", "exists", b"x"), "key sl:{bad.0.0}:meta"),
    "term below 0": (put(keys.leader(BAD.id), "term", b"-5"), f"key {keys.leader(BAD.id)}"),
    "progress below 0": (put(keys.progress(BAD.id), "bad.0.0", b"-5"), f"key {keys.progress(BAD.id)}"),
    "pause": (put(keys.progress(BAD.id), "@paused", b"x"), f"key {keys.progress(BAD.id)}"),
    "journal without fields": (
        lambda store: store.xadd(keys.journal(BAD.id), {"x": "y"}, id="9999999999999-1"),
        f"key {keys.journal(BAD.id)}",
    ),
    "stream of another type": (wrong_type("sl:{bad.0.0}:meta"), ""),
    "entries of another type": (wrong_type("sl:{bad.0.0}:log"), ""),
    "claim of a chore": (put(keys.leader(keys.RETENTION), "term", b"x"), "claim !retention"),
    "claim of another type": (wrong_type(keys.leader(f"{keys.KEEPER}ticks")), "claim !epochs-ticks"),
    "notes of a keeper": (put(epoch_keys.state("ticks"), "boundary", b"x"), "epochs of space ticks"),
    "publisher of epochs": (put(epoch_keys.writers("ticks"), "p", b"x"), "epochs of space ticks"),
    "line of epochs": (
        lambda store: store.xadd(epoch_keys.lines("ticks"), {"l": b"\xff"}, id="9999999999999-0"),
        "epochs of space ticks",
    ),
    "boundary": (
        lambda store: store.xadd(epoch_keys.bounds("ticks"), {"b": b"\xff"}, id="9999999999999-0"),
        "epochs of space ticks",
    ),
    "epochs of another type": (wrong_type(epoch_keys.state("ticks")), "epochs of space ticks"),
    "snapshot of a collection": (put(snapshot_state(SEATS), "number", b"x"), str(SEATS)),
    "term of an archive": (put("sl:{logs.0.0}:meta", "archive_term", b"x"), "archive of space logs"),
    "file of an archive": (
        lambda store: store.zadd("sl:{logs.0.0}:files", {b"\xff": 1}),
        "archive of space logs",
    ),
    "files of another type": (wrong_type("sl:{logs.0.0}:files"), "sl:{logs.0.0}:files"),
    "version": (put(SPACE_VERSION, None, b"x"), ""),
    "generations": (put(SPACE_GENERATIONS, "bad", b"x"), ""),
    "host of leaders": (
        lambda store: (
            store.zadd(keys.HOSTS_ALIVE, {b"\xff": 2**52}),
            store.hset(keys.HOSTS_INFO, b"\xff", b"x"),
        ),
        "",
    ),
}


@pytest.fixture(scope="module")
def intact() -> dict[bytes, bytes]:
    """What Redis holds of two spaces with a group each: key -> its dump."""
    return {}


@pytest.fixture
def command(tmp_path: Path, embedded_redis_url: str, intact: dict[bytes, bytes]) -> Iterator[InProcess]:
    with redis.Redis.from_url(embedded_redis_url) as store:
        if not intact:
            asyncio.run(_make(embedded_redis_url, str(tmp_path / "archive")))
            intact.update({key: store.dump(key) for key in store.scan_iter() if b"{m:" not in key})  # type: ignore[misc]
        store.flushall()
        for key, dump in intact.items():
            store.restore(key, 0, dump)
    yield InProcess(tmp_path, embedded_redis_url)


async def _make(url: str, archive: str) -> None:
    async with connect(url) as client:
        for group in (GOOD, BAD):
            await client.create_space(group.group, [group.filter], streams=2)
            async with client.publisher() as publisher:
                for number in range(5):
                    await publisher.send(f"{group.group}/{number}", b"x")
            async with client.subscribe(str(group), start="earliest") as reader:
                await (await anext(reader)).commit()
        await client.create_space("ticks", ["ticks/#"], epochs=1)
        async with client.epoch_publisher("ticks", "p") as epochs:
            await epochs.send("ticks/a", b"x", epoch=0)
        await client.create_space("seats", ["seats/#"], collection=True)
        await client.create_space("logs", ["logs/#"], archive=archive)


@pytest.mark.parametrize("name", DAMAGES)
def test_views_show_the_rest(command: InProcess, store: redis.Redis, name: str) -> None:
    damage, told = DAMAGES[name]
    damage(store)
    listed = command.ok("space", "list", "--json").document
    assert "good" in [space["name"] for space in listed["spaces"]]
    groups = command.ok("group", "list", "--json").document
    assert str(GOOD) in [group["subscription"] for group in groups["groups"]]
    status = command.ok("status", "--json").document
    assert "good" in [space["name"] for space in status["spaces"]]
    assert str(GOOD) in [group["subscription"] for group in status["groups"]]
    assert command.ok("group", "describe", str(GOOD), "--json").document["lag"] is not None
    assert command.ok("space", "show", "good", "--json").document["name"] == "good"
    for words in (("space", "list"), ("group", "list"), ("status",)):
        command.ok(*words)
    command.ok("publish", "good/x", "--file", str(_file(command)))
    # Whatever is damaged is told in one line, or is not needed for the answer.
    for words in (("group", "describe", str(BAD)), ("group", "history", str(BAD)), ("space", "show", "bad")):
        outcome = command(*words)
        assert outcome.code == 0 or len(outcome.err.splitlines()) == 1, outcome
    doctor = command("doctor", "--json").document
    said = {check["check"]: check for check in doctor["checks"]}
    if told:
        assert (told in said["records"]["message"], said["records"]["level"]) == (True, "fail")


def _file(command: InProcess) -> Path:
    file = command.log.with_name("message")
    file.write_text("hello\n")
    return file


@pytest.mark.parametrize("name", DAMAGES)
async def test_the_page_goes_on(command: InProcess, store: redis.Redis, name: str) -> None:
    damage, told = DAMAGES[name]
    damage(store)
    assert command.url is not None
    async with Client(command.url) as client:
        board = Board(client)
        for _ in range(2):
            await board._look()
        assert str(GOOD) in board.groups
        assert board.overview is not None
        assert "good" in [space.name for space in board.overview.spaces]
        if name in ("definition", "set of groups", "term", "journal", "journal of another type"):
            assert told in " ".join(one.what for one in board.overview.damaged)


async def test_a_damaged_group_is_not_said_to_be_missing(command: InProcess, store: redis.Redis) -> None:
    DAMAGES["term"][0](store)
    assert command.url is not None
    async with Client(command.url) as client:
        app = make_app([Site("main", client, Board(client))])
        async with app.router.lifespan_context(app):
            for path in ("group", "heat"):
                for group, status, said in (
                    (str(BAD), 409, f"group {BAD} cannot be read: "),
                    ("$shared/no/#", 404, "there is no group '$shared/no/#'"),
                ):
                    answer = await asked(app, f"/api/{path}", f"subscription={quote(group)}")
                    assert (answer[0], answer[1]["error"].startswith(said)) == (status, True), answer


async def asked(app: Any, path: str, query: str) -> tuple[int, dict[str, Any]]:
    """Status and document of an answer of the page."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": path, "query_string": query.encode(),
             "headers": [(b"host", b"localhost")]}  # fmt: skip
    await app(scope, receive, send)
    return sent[0]["status"], json.loads(sent[1]["body"])


async def test_a_look_that_fails_does_not_freeze_the_page(
    command: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command.url is not None
    async with Client(command.url) as client:
        board = Board(client, 0.01)
        look, left = board._look, iter([True])

        async def defect() -> None:
            if next(left, False):
                raise StoreUnavailable("Redis does not answer")
            await look()

        monkeypatch.setattr(board, "_look", defect)
        reader = asyncio.create_task(board.run())
        try:
            number = await board.after(0)
            assert board.trouble == "Redis does not answer"
            while board.trouble is not None:
                number = await board.after(number)
            assert str(GOOD) in board.groups
        finally:
            await stop([reader])
        # Whoever stands still for whatever reason says so.
        monkeypatch.setattr(board, "looked_at", time.monotonic() - SILENT_SECONDS - 1)
        assert "ended 31 s ago" in str(board.trouble)


def test_a_damaged_group_is_deleted(command: InProcess, store: redis.Redis) -> None:
    store.set(keys.definition(BAD.id), "x")
    refused = command("group", "delete", str(BAD), "--yes")
    assert (refused.code, "delete it with --force" in refused.err) == (1, True)
    command.ok("group", "delete", str(BAD), "--yes", "--force")
    store.delete(keys.definition(GOOD.id))  # and one of which only the name is left
    command.ok("group", "delete", str(GOOD), "--yes", "--force")
    assert store.keys("sl:{g:*") == []
    assert command.ok("group", "list", "--json").document["groups"] == []
    assert command("group", "delete", str(GOOD), "--yes", "--force").code == 1


def test_a_damaged_space_is_deleted_and_overlapping_ones_are_named(
    command: InProcess, store: redis.Redis
) -> None:
    definition = store.hget(SPACE_DEFINITIONS, "bad")
    store.hset(SPACE_DEFINITIONS, "bad", "x")
    command.ok("space", "create", "other", "--topics", "bad/x")
    store.hset(SPACE_DEFINITIONS, "bad", definition)  # type: ignore[arg-type]
    checks = {check["check"]: check for check in command("doctor", "--json").document["checks"]}
    assert "bad and other" in checks["records"]["message"]
    store.hset(SPACE_DEFINITIONS, "bad", "x")
    command.ok("space", "delete", "bad", "--yes")
    assert [space["name"] for space in command.ok("space", "list", "--json").document["spaces"]] == [
        "good",
        "logs",
        "other",
        "seats",
        "ticks",
    ]


async def test_of_many_only_those_at_fault_are_damaged() -> None:
    asked = []

    async def work(items: Any) -> dict[int, str]:
        asked.append(len(items))
        if any(item in (3, 700) for item in items):
            raise Unsupported("no number")
        return {item: str(item) for item in items}

    found, damaged = await readable(range(1000), work)
    assert damaged == {3: "no number", 700: "no number"}
    assert len(found) == 998
    assert len(asked) < 45
    assert await readable([], work) == ({}, {})

    async def fails(items: Any) -> dict[int, str]:
        raise Unsupported("all the same")

    with pytest.raises(Unsupported, match="all the same"):  # then it is not theirs
        await readable([1, 2, 3], fails)

    async def away(items: Any = None) -> dict[int, str]:
        raise StoreUnavailable("Redis does not answer")

    with pytest.raises(StoreUnavailable):
        await readable([1, 2, 3], away)
    with pytest.raises(StoreUnavailable):
        await attempt(away())


@pytest.mark.parametrize("defect", [ValueError("defect"), TypeError("defect"), KeyError("defect")])
async def test_a_defect_is_not_taken_for_damage(defect: Exception) -> None:
    async def work(items: Any = None) -> dict[int, str]:
        raise defect

    with pytest.raises(type(defect), match="defect"):
        await readable([1, 2], work)
    with pytest.raises(type(defect), match="defect"):
        await attempt(work())


def test_bytes_that_cannot_be_parsed_are_told_with_key_and_remedy() -> None:
    with pytest.raises(Unsupported) as caught, parsing("the weather", "sl:weather"):
        Host.model_validate_json(b'{"host": 7')
    told = str(caught.value)
    assert told.startswith("the weather is damaged, or of a later version (Invalid JSON: EOF while parsing")
    assert told.endswith("restore key sl:weather from a backup")
    assert len(told.splitlines()) == 1


def test_a_row_that_is_built_wrong_is_a_defect_of_the_command(
    command: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is sent to the backups for it."""

    async def wrong(redis: object) -> list[Host]:
        return [Host(host="h", name="h", pid=-1, leaders=0, drained=False)]

    monkeypatch.setattr("streamlease.admin.facts.status.hosts.alive", wrong)
    with pytest.raises(ValidationError, match="1 validation error for Host"):
        command("status")


async def test_a_row_that_is_built_wrong_ends_the_looks_of_the_page(
    command: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wrong(redis: object) -> list[Host]:
        return [Host(host="h", name="h", pid=-1, leaders=0, drained=False)]

    monkeypatch.setattr("streamlease.admin.ui.board.hosts.alive", wrong)
    assert command.url is not None
    async with Client(command.url) as client:
        with pytest.raises(ValidationError, match="1 validation error for Host"):
            await Board(client, 0.01)._look()
