"""Publishing files and importing Redis streams, killed at any moment: each record once, in order."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import redis

from tests.admin.command import SCRIPT, Command, Process, finish, until

ROWS = 20_000


def all_messages(command: Command, filter: str, count: int) -> list[dict[str, Any]]:
    """The `count` messages that space f has, however long it takes to read them."""
    streams = command.ok("space", "show", "f", "--json").document["streams"]
    assert sum(stream["next"] for stream in streams) == count
    outcome = command(
        "consume", filter, "--from", "earliest", "--count", str(count), "--timeout", "60", "--json"
    )
    assert outcome.code == 0, outcome
    assert len(outcome.documents) == count
    return outcome.documents


def next_offsets(store: redis.Redis) -> int:
    """How many messages the streams of space f have."""
    keys = list(store.scan_iter("sl:{f.*}:meta"))
    return sum(int(store.hget(key, "next") or 0) for key in keys)  # type: ignore[arg-type]


def write_rows(directory: Path, form: str, rows: int) -> Path:
    file = directory / f"rows.{form}"
    if form == "parquet":
        pq.write_table(pa.table({"n": range(rows), "t": [f"t{n % 5}" for n in range(rows)]}), file)
    elif form == "csv":
        file.write_text("n,t\n" + "".join(f"{n},t{n % 5}\n" for n in range(rows)))
    else:
        file.write_text("".join(json.dumps({"n": n, "t": f"t{n % 5}"}) + "\n" for n in range(rows)))
    return file


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
@pytest.mark.parametrize("typed", [False, True], ids=["plain", "typed"])
@pytest.mark.cluster
def test_a_publication_killed_at_any_moment_goes_on_where_it_was(
    command: Command, store: redis.Redis, tmp_path: Path, form: str, typed: bool
) -> None:
    dice = random.Random(f"{form}{typed}")
    schema = tmp_path / "schema.json"
    columns = [{"name": "n", "type": "int64"}, {"name": "t", "type": "string"}]
    schema.write_text(json.dumps({"columns": columns}))
    options = ("--schema", str(schema)) if typed else ()
    command.ok("space", "create", "f", "--topics", "f/#", "--streams", "3", *options)
    file = write_rows(tmp_path, form, ROWS)
    words = ("publish", "f/{t}", "--file", str(file), "--resume", "night", "--json")
    kills = 0
    for share in sorted(dice.random() for _ in range(4)):
        process = command.start(*words)
        enough = int(share * ROWS)
        until(
            lambda enough=enough, process=process: next_offsets(store) > enough or process.poll() is not None
        )
        kills += process.poll() is None
        process.kill()
        process.communicate()
    done = command.ok(*words).document
    assert done["published"] + done["there_before"] == ROWS
    again = command.ok(*words).document
    assert (again["published"], again["there_before"]) == (0, ROWS)
    assert kills, "the file was published before the first kill"

    found = all_messages(command, "f/#", ROWS)
    numbers = [int((one["values"] if typed else json.loads(one["payload"]))["n"]) for one in found]
    assert sorted(numbers) == list(range(ROWS))
    for topic in range(5):
        mine = [n for n, one in zip(numbers, found, strict=True) if one["topic"] == f"f/t{topic}"]
        assert mine == list(range(topic, ROWS, 5))


def test_a_publication_of_two_runs_at_once_is_published_once(
    command: Command, store: redis.Redis, tmp_path: Path
) -> None:
    command.ok("space", "create", "f", "--topics", "f/#", "--streams", "2")
    file = write_rows(tmp_path, "jsonl", ROWS)
    words = ("publish", "f/{t}", "--file", str(file), "--resume", "twice", "--json")
    runs = [command.start(*words) for _ in range(2)]
    for run in runs:
        run.communicate(timeout=60)
    assert [run.returncode for run in runs] == [0, 0]
    assert next_offsets(store) == ROWS


@pytest.mark.parametrize("piped", [False, True], ids=["file", "pipe"])
@pytest.mark.cluster
def test_lines_that_were_killed_on_the_way_are_published_once(
    command: Command, store: redis.Redis, tmp_path: Path, piped: bool
) -> None:
    command.ok("space", "create", "f", "--topics", "f/#")
    text = "".join(f"line {n}\n" for n in range(ROWS))
    file = tmp_path / "lines.txt"
    file.write_text(text)
    words = ["publish", "f/a", "--resume", "lines", "--json", *([] if piped else ["--file", str(file)])]
    process = subprocess.Popen(
        [str(SCRIPT), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=command.environment,
    )
    assert process.stdin is not None
    try:
        if piped:
            process.stdin.write(text[: len(text) // 2].encode())
            process.stdin.flush()
        until(lambda: next_offsets(store) > 0 or process.poll() is not None)
    finally:
        process.kill()
        process.wait(30)
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
    done = command.ok(*words, text=text if piped else "").document
    assert done["published"] + done["there_before"] == ROWS
    assert done["there_before"] > 0
    assert [one["payload"] for one in all_messages(command, "f/#", ROWS)] == text.splitlines()
    if piped:
        more = command.ok(*words, text=text + "one more\n").document
        assert (more["published"], more["there_before"]) == (1, ROWS)
        other = command(*words, text="another beginning\n" + text)
        assert (other.code, "file:lines was begun with" in other.err) == (2, True), other


def test_another_file_under_the_same_name_is_refused(
    command: Command, store: redis.Redis, tmp_path: Path
) -> None:
    command.ok("space", "create", "f", "--topics", "f/#")
    file = tmp_path / "lines"
    file.write_text("one\ntwo\n")
    words = ("publish", "f/a", "--file", str(file), "--resume", "day")
    assert command("publish", "nowhere", *words[2:]).code == 1  # nothing was begun by that
    assert command.ok(*words).out == "published 2 messages to f/a\n"
    assert "2 were there before" in command.ok(*words).out
    for change in ("one\ntwo\nthree\n", "eno\nowt\n"):
        file.write_text(change)
        refused = command(*words)
        assert (refused.code, refused.err.count("\n")) == (2, 1)
        assert "file:day was begun with" in refused.err
    other = command("publish", "f/b", "--file", str(file), "--resume", "day")
    assert other.code == 2
    assert next_offsets(store) == 2


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--resume", "a b", "--file", "f"), "is not a name"),
        (("--resume", "x", "--file", "none"), "cannot read none"),
        (("--linger-ms", "-1"), "linger_ms is -1"),
        (("--max-batch-bytes", "0"), "max_batch_bytes is 0"),
        (("--compression", "gzip"), "gzip"),
    ],
)
def test_bad_options_are_one_line(command: Command, words: tuple[str, ...], reason: str) -> None:
    command.ok("space", "create", "f", "--topics", "f/#")
    refused = command("publish", "f/a", *words)
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert reason in refused.err


def test_rows_go_into_typed_columns_and_a_bad_one_is_named(command: Command, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    columns = [{"name": "n", "type": "int64"}, {"name": "day", "type": "date"}]
    schema.write_text(json.dumps({"columns": columns}))
    command.ok("space", "create", "f", "--topics", "f/#", "--schema", str(schema))
    command.ok("publish", "f/a", "--format", "csv", text="n,day\n1,2026-01-02\n,\n")
    assert [one["values"] for one in all_messages(command, "f/#", 2)] == [
        {"n": 1, "day": "2026-01-02"},
        {"n": None, "day": None},
    ]
    for text, form in (("n,day\n3,2026-01-03\nx,\n", "csv"), ('{"n": 3}\n{"n": "x"}\n', "jsonl")):
        bad = command("publish", "f/a", "--format", form, text=text)
        assert (bad.code, bad.err.count("\n")) == (1, 1)
        assert "column n is int64" in bad.err
        assert "line " in bad.err
    assert "has no fields" in command("publish", "f/a", text="just text\n").err


# ----------------------------------------------------------------------------------------------- import


def fill(store: redis.Redis, key: str, first: int, count: int) -> None:
    with store.pipeline(transaction=False) as pipe:
        for n in range(first, first + count):
            pipe.xadd(key, {"n": str(n), "t": f"t{n % 3}"})
        pipe.execute()


def numbers(found: list[dict[str, Any]]) -> list[int]:
    return [int(json.loads(one["payload"])["n"]) for one in found]


def test_streams_are_imported_once_with_their_ids(command: Command, store: redis.Redis) -> None:
    command.ok("space", "create", "f", "--topics", "f/#", "--streams", "2")
    fill(store, "one", 0, 300)
    fill(store, "two", 1000, 50)
    words = ("import", "redis-stream", "one", "two", "--space", "f", "--topic", "f/x", "--json")
    assert command.ok(*words).document["imported"] == 350
    assert command.ok(*words).document["imported"] == 0
    fill(store, "one", 300, 20)
    assert command.ok(*words).document["imported"] == 20
    found = all_messages(command, "f/#", 370)
    assert sorted(numbers(found)) == [*range(320), *range(1000, 1050)]
    ids = [id.decode() for id, _ in store.xrange("one")]
    mine = [
        dict(one["headers"])["redis-id"] for one in found if dict(one["headers"])["redis-stream"] == "one"
    ]
    assert mine == ids
    assert store.xlen("one") == 320

    assert command.ok(*words, "--delete").document["deleted"] == 370
    assert (store.xlen("one"), store.xlen("two")) == (0, 0)


def test_fields_become_topic_payload_and_key(command: Command, store: redis.Redis) -> None:
    command.ok("space", "create", "f", "--topics", "f/#")
    store.xadd("s", {"where": "f/a", "body": "hello", "who": "me", "extra": "1"}, id="1700000000000-5")
    fields = ("--topic-field", "where", "--payload-field", "body", "--key-field", "who")
    command.ok("import", "redis-stream", "s", "--space", "f", *fields)
    (found,) = all_messages(command, "f/#", 1)
    assert (found["topic"], found["payload"], found["key"]) == ("f/a", "hello", "me")
    assert found["timestamp"] == "2023-11-14T22:13:20.000000Z"
    assert found["headers"] == [["redis-stream", "s"], ["redis-id", "1700000000000-5"], ["extra", "1"]]
    other = command("import", "redis-stream", "s", "--space", "f", "--topic", "f/b")
    assert other.code == 2
    assert "was begun with" in other.err


def test_what_cannot_be_imported_is_one_line(command: Command, store: redis.Redis) -> None:
    command.ok("space", "create", "f", "--topics", "f/#")
    store.set("text", "x")
    store.xadd("s", {"t": "f/a"})
    store.xadd("s", {"u": "f/a"})
    for words, reason in (
        (("text", "--topic", "f/a"), "is a string, not a stream"),
        (("nothing", "--topic", "f/a"), "there is no key 'nothing'"),
        (("s",), "--topic"),
        (("s", "--topic", "f/#"), "f/#"),
        (("s", "s", "--topic", "f/a"), "twice"),
        (("s", "--topic-field", "t"), "has no field 't'"),
    ):
        refused = command("import", "redis-stream", *words, "--space", "f")
        assert (refused.code, refused.err.count("\n")) == (2, 1), refused
        assert reason in refused.err
    store.xadd("r", {"t": "f/a"})
    outside = command("import", "redis-stream", "r", "--space", "f", "--topic", "g/a")
    assert outside.code == 1
    nowhere = command("import", "redis-stream", "r", "--space", "g", "--topic", "g/a")
    assert "no space" in nowhere.err
    assert next_offsets(store) == 1  # the entry before the one without a topic


def test_a_key_that_was_made_anew_is_not_silently_left_out(command: Command, store: redis.Redis) -> None:
    command.ok("space", "create", "f", "--topics", "f/#")
    fill(store, "s", 0, 3)
    words = ("import", "redis-stream", "s", "--space", "f", "--topic", "f/a")
    command.ok(*words)
    store.delete("s")
    store.xadd("s", {"n": "9"}, id="5-1")
    refused = command(*words)
    assert refused.code == 2
    assert "made anew" in refused.err


@pytest.mark.cluster
def test_a_following_import_killed_at_any_moment_imports_each_entry_once(
    command: Command, store: redis.Redis
) -> None:
    dice = random.Random(7)
    command.ok("space", "create", "f", "--topics", "f/#", "--streams", "3")
    words = ("import", "redis-stream", "a", "b", "--space", "f", "--topic", "f/x", "--follow", "--delete")
    total, process = 0, command.start(*words)
    for _ in range(5):
        for key in ("a", "b"):
            fill(store, key, total, 2000)
            total += 2000
        enough = min(total, next_offsets(store) + dice.randint(0, 4000))
        until(lambda enough=enough: next_offsets(store) >= enough)
        process.kill()
        process.communicate()
        process = command.start(*words)
    until(lambda: next_offsets(store) >= total)
    fill(store, "a", total, 1)  # what was there may be the work of the one before it: this one is at work
    total += 1
    until(lambda: next_offsets(store) >= total)
    until(lambda: store.xlen("a") + store.xlen("b") == 0)
    assert finish(process, signal.SIGINT).code in (0, 130)
    assert sorted(numbers(all_messages(command, "f/#", total))) == list(range(total))


@pytest.mark.cluster
def test_a_leader_host_moves_inboxes(command: Command, store: redis.Redis) -> None:
    """Two hosts, one killed while it moves."""
    command.ok("space", "create", "f", "--topics", "f/#", "--streams", "3")
    hosts: list[Process] = [command.start("serve", "--http-port", "0") for _ in range(2)]
    try:
        with store.pipeline(transaction=False) as pipe:
            for n in range(20_000):
                pipe.xadd("sl:{inbox:f}", {"topic": f"f/{n % 4}", "payload": json.dumps({"n": n})})
            pipe.execute()
        until(lambda: next_offsets(store) > 3000)
        hosts[0].kill()
        until(lambda: store.xlen("sl:{inbox:f}") == 0, 40)
        found = all_messages(command, "f/#", 20_000)
        assert sorted(numbers(found)) == list(range(20_000))
        for topic in range(4):
            mine = [n for n, one in zip(numbers(found), found, strict=True) if one["topic"] == f"f/{topic}"]
            assert mine == sorted(mine)
    finally:
        for host in hosts:
            host.kill()
            host.communicate()
