"""The commands, from the creation of a space with an archive to its end; and what they refuse."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest
from pyiceberg.catalog import load_catalog

from streamlease.protocol.ids import StreamId
from streamlease.streams.archive import archive_turns
from streamlease.streams.archive.archiver import Archived, Archiver
from streamlease.streams.log.keys import archive_turn, stream_log
from streamlease.streams.redis.connection import BlockingRedis, ask, connect_blocking, run_blocking
from tests.admin.command import Command, InProcess


@pytest.fixture
def command(tmp_path: Path, embedded_redis_url: str) -> Command:
    return Command(tmp_path, embedded_redis_url)


def made(command: Command, uri: str, *more: str) -> None:
    command.ok("space", "create", "flights", "--topics", "flights/#", "--archive", uri, *more)


def publish(command: Command, first: int, count: int) -> None:
    lines = "".join(f"message {number}\n" for number in range(first, first + count))
    command.ok("publish", "flights/a", text=lines)


def consumed(command: Command, count: int) -> list[tuple[int, str]]:
    out = command.ok("consume", "flights/#", "--from", "earliest", "--count", str(count), "--json")
    return [(line["offset"], line["payload"]) for line in out.documents]


def test_a_space_outlives_the_memory_of_its_redis(command: Command, uri: str) -> None:
    made(command, uri, "--keep-in-memory", "1B")
    for first in (0, 100):
        publish(command, first, 100)
        run = command.ok("archive", "run", "flights", "--json").document
        assert (run["messages"], run["files"], run["streams"]) == (100, 1, ["flights.0.0"])
    shown = command.ok("archive", "show", "flights", "--json").document
    assert (shown["space"], shown["uri"], shown["table"]) == ("flights", uri, "streamlease.flights")
    assert [(one["first"], one["next"]) for one in shown["streams"]] == [(0, 200)]
    assert [(one["first"], one["next"]) for one in shown["files"]] == [(0, 100), (100, 200)]
    stream = command.ok("space", "show", "flights", "--json").document["streams"][0]
    assert (stream["oldest"], stream["bytes"]) == (0, 0), "the memory is empty, and all exists"
    assert consumed(command, 200) == [(number, f"message {number}") for number in range(200)]
    done = command.ok("archive", "compact", "flights", "--json").document
    assert (done["files"], done["into"]) == (2, 1)
    assert len(command.ok("archive", "show", "flights", "--json").document["files"]) == 1
    assert consumed(command, 200) == [(number, f"message {number}") for number in range(200)]
    assert command.ok("archive", "verify", "flights", "--json").document["wrong"] == []
    (file,) = command.ok("archive", "show", "flights", "--json").document["files"]
    content = Path(file["path"]).read_bytes()
    Path(file["path"]).write_bytes(content[:50] + bytes([content[50] ^ 1]) + content[51:])
    wrong = command("archive", "verify", "flights", "--json")
    assert wrong.code == 1
    (one,) = wrong.document["wrong"]
    assert (one["path"], one["stream"], one["first"], one["next"]) == (file["path"], "flights.0.0", 0, 200)
    Path(file["path"]).unlink()
    assert "is missing" in command("archive", "verify", "flights").out
    lost = command("consume", "flights/#", "--from", "earliest", "--count", "1")
    assert lost.code == 1
    assert file["path"] in lost.err and len(lost.err.splitlines()) == 1


def test_deleting_a_space_leaves_its_files_unless_told(command: Command, uri: str) -> None:
    made(command, uri)
    publish(command, 0, 10)
    command.ok("archive", "run", "flights")
    command.ok("space", "delete", "flights", "--yes")
    assert [*Path(uri, "data").rglob("*.parquet")]
    refused = command("space", "create", "flights", "--topics", "flights/#", "--archive", uri)
    assert refused.code == 1
    assert "archive of another space" in refused.err
    made(command, f"{uri}-2")
    publish(command, 0, 10)
    command.ok("archive", "run", "flights")
    command.ok("space", "delete", "flights", "--with-archive", "--yes")
    assert not Path(f"{uri}-2").exists()


def test_the_table_may_be_in_a_catalog_of_ones_own(command: Command, uri: str, tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/shared.db"
    made(command, uri, "--archive-catalog", address)
    publish(command, 0, 10)
    run = command.ok("archive", "run", "flights", "--json").document
    assert run["messages"] == 10
    with load_catalog("streamlease", uri=address) as catalog:
        assert catalog.load_table("streamlease.flights").scan().to_arrow().num_rows == 10
        assert not Path(uri, "catalog.db").exists()
        command.ok("space", "delete", "flights", "--with-archive", "--yes")
        assert catalog.list_tables("streamlease") == []
    assert not Path(uri).exists()
    wrong = command(
        "space", "create", "other", "--topics", "o/#", "--archive", uri, "--archive-catalog", "no://x"
    )
    if wrong.code == 0:
        wrong = command("archive", "run", "other")
    assert (wrong.code, len(wrong.err.splitlines())) in ((1, 1), (2, 1)), wrong


def test_what_cannot_be_an_archive_is_refused_in_one_line(
    command: Command, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_text("no folder")
    foreign = tmp_path / "foreign"
    (foreign / "metadata").mkdir(parents=True)
    (foreign / "metadata" / "v1.metadata.json").write_text("{}")
    create = ("space", "create", "flights", "--topics", "flights/#")
    for place, why in (
        (str(file), "do so, or name another place"),
        ("/proc/archive", "cannot be written"),
        ("", "is no place"),
        ("/", "is no folder"),
        ("ftp://host/x", "of no kind"),
        ("s3://", "of no kind"),
        (str(foreign), "no archive of a space"),
    ):
        refused = command(*create, "--archive", place)
        assert refused.code in (1, 2), (place, refused)
        assert why in refused.err, (place, refused.err)
        assert len(refused.err.splitlines()) == 1
    assert "neither an age" in command(*create, "--archive", uri, "--keep-in-memory", "much").err
    assert "give --archive" in command(*create, "--keep-in-memory", "1h").err
    assert json.loads(command("space", "list", "--json").out)["spaces"] == []
    made(command, uri)
    made(command, uri)
    command.ok("space", "alter", "flights", "--archive", f"{uri}-2", "--keep-in-memory", "1h")
    publish(command, 0, 10)
    command.ok("archive", "run", "flights")
    moved = command("space", "alter", "flights", "--archive", uri)
    assert moved.code == 1
    assert "cannot move" in moved.err
    taken = command("space", "create", "other", "--topics", "o/#", "--archive", f"{uri}-2")
    assert "archive of another space" in taken.err
    command.ok("space", "create", "plain", "--topics", "plain/#")
    for words in ("run", "show", "verify", "compact"):
        none = command("archive", words, "plain")
        assert (none.code, len(none.err.splitlines())) == (2, 1)
        assert "has no archive" in none.err


def test_a_run_says_which_messages_are_missing(tmp_path: Path, embedded_redis_url: str, uri: str) -> None:
    command, publisher = InProcess(tmp_path, embedded_redis_url), Command(tmp_path, embedded_redis_url)
    made(command, uri)
    for first in (0, 10, 20):
        publish(publisher, first, 10)
    log = stream_log(StreamId("flights", 0, 0))
    with closing(connect_blocking(embedded_redis_url)) as redis:
        (entries,) = run_blocking(ask(redis, [("XRANGE", log, "-", "+")]))
        run_blocking(ask(redis, [("XDEL", log, entries[1][0])]))
    outcome = command("archive", "run", "flights")
    assert outcome.code == 0
    (told,) = outcome.err.splitlines()
    assert told.startswith("archive of flights.0.0: stream flights.0.0 has nothing at offsets 10 to 19: ")


def test_a_run_has_its_turn(
    tmp_path: Path, command: Command, embedded_redis_url: str, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So two of them, and hosts, do not do the same work."""
    here = InProcess(tmp_path, embedded_redis_url)
    made(command, uri)
    publish(command, 0, 100)
    run, seen = Archiver.run, []

    def whose(redis: BlockingRedis) -> int:
        (found,) = run_blocking(ask(redis, [("EXISTS", archive_turn("flights"))]))
        return int(found)

    def watched(archiver: Archiver) -> Archived:
        seen.append(whose(archiver.redis))
        return run(archiver)

    monkeypatch.setattr(Archiver, "run", watched)
    for count in (100, 0):
        assert here.ok("archive", "run", "flights", "--json").document["messages"] == count
    assert seen == [1, 1]
    with closing(connect_blocking(embedded_redis_url)) as redis:
        assert whose(redis) == 0


def test_a_command_that_waits_for_its_turn_says_so(
    tmp_path: Path, embedded_redis_url: str, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_turns, "PATIENCE_SECONDS", 0.1)
    command = InProcess(tmp_path, embedded_redis_url)
    made(command, uri)
    said = "archive of space flights: others are at work there; waiting for 600 s at most\n"
    with closing(connect_blocking(embedded_redis_url)) as redis:
        for words in (
            ("archive", "run", "flights"),
            ("archive", "compact", "flights"),
            ("space", "delete", "flights", "--with-archive", "--yes"),
        ):
            taken = [
                ("HSET", archive_turn("flights"), "whose", "another"),
                ("PEXPIRE", archive_turn("flights"), 1000),
            ]
            run_blocking(ask(redis, taken))
            outcome = command(*words)
            assert (outcome.code, outcome.err) == (0, said)
