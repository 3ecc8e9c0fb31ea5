"""Collections, made and shown by the command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import redis

from streamlease.protocol.ids import StreamId
from streamlease.streams.log.keys import stream_meta, stream_news
from tests.admin.command import Command, finish, until


def test_a_collection_is_made_and_shown(command: Command) -> None:
    made = command.ok("space", "create", "prices", "--topics", "prices/#", "--collection", "--json").document
    assert made["collection"] is True
    assert command.ok("space", "show", "prices", "--json").document["collection"] is True
    assert "a collection" in command.ok("space", "show", "prices").out
    command.ok("space", "create", "plain", "--topics", "plain/#")
    assert command.ok("space", "show", "plain", "--json").document["collection"] is False
    assert "collection" not in command.ok("space", "show", "plain").out


def test_what_a_collection_rules_out_is_refused_in_one_line(command: Command) -> None:
    words = ("space", "create", "prices", "--topics", "prices/#", "--collection")
    outcome = command(*words, "--compact-after", "1m")
    assert outcome.code == 2 and "never merged" in outcome.err and len(outcome.err.splitlines()) == 1
    command.ok(*words)
    outcome = command("space", "create", "prices", "--topics", "prices/#")
    assert outcome.code == 1 and "exists as a collection" in outcome.err
    outcome = command("space", "alter", "prices", "--compact-after", "1m")
    assert outcome.code == 2 and "never merged" in outcome.err


def test_diffs_are_published_and_the_collection_is_printed(command: Command) -> None:
    command.ok("space", "create", "prices", "--topics", "prices/#", "--collection")
    command.ok("publish", "prices/a", text="x\ny\nx\n")
    command.ok("publish", "prices/a", "--diff", "-3", text="y\n")
    rows = [{"apple": 1, "d": 2}, {"apple": 1, "d": -1}, {"apple": 2, "d": "5"}]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    command.ok("publish", "prices/b", "--format", "jsonl", "--diff-column", "d", text=text)
    document = command.ok("collection", "prices/#", "--json").document
    items = [(one["topic"], one["payload"], one["count"]) for one in document["items"]]
    assert items == [
        ("prices/a", "x", 2),
        ("prices/a", "y", -2),
        ("prices/b", '{"apple": 1}', 1),
        ("prices/b", '{"apple": 2}', 5),
    ]
    assert document["frontier"] is None and document["items"][0]["key"] is None
    shown = command.ok("collection", "prices/a").out
    assert "-2" in shown and "payload" in shown
    assert "empty" in command.ok("collection", "prices/c").out


def test_following_tells_the_items_the_end_of_the_snapshot_and_each_change(command: Command) -> None:
    command.ok("space", "create", "prices", "--topics", "prices/#", "--collection")
    command.ok("publish", "prices/a", "--diff", "2", text="x\n")
    process = command.start("collection", "prices/#", "--follow", "--json")
    assert process.stdout is not None
    x = {"topic": "prices/a", "key": None, "payload": "x"}
    assert json.loads(process.stdout.readline()) == {"item": x, "diff": 2}
    assert json.loads(process.stdout.readline()) == {"snapshot": True}
    command.ok("publish", "prices/a", "--diff", "-2", text="x\n")
    assert json.loads(process.stdout.readline()) == {"item": x, "diff": -2}
    assert finish(process).code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--diff", "0"), "changes nothing"),
        (("--diff", "1", "--diff-column", "d", "--format", "jsonl"), "leave one out"),
        (("--diff-column", "d"), "needs fields"),
        (("--diff", "0", "--resume", "r"), "changes nothing"),
        (("--diff-column", "d", "--format", "jsonl", "--resume", "r"), "line 1: diff 1.5 is no whole number"),
        (("--diff-column", "e", "--format", "jsonl"), "line 1 has no field 'e'"),
        (("--diff-column", "d", "--format", "jsonl"), "line 1: diff 1.5 is no whole number"),
    ],
)
def test_diffs_that_cannot_be_are_refused_in_one_line(
    command: Command, words: tuple[str, ...], said: str
) -> None:
    command.ok("space", "create", "prices", "--topics", "prices/#", "--collection")
    outcome = command("publish", "prices/a", *words, text='{"d": 1.5}\n')
    assert outcome.code == 2 and said in outcome.err and len(outcome.err.splitlines()) == 1
    assert command.ok("collection", "prices/#", "--json").document["items"] == []


def test_a_diff_elsewhere_and_a_collection_of_messages_are_refused(command: Command) -> None:
    command.ok("space", "create", "plain", "--topics", "plain/#")
    outcome = command("publish", "plain/a", "--diff", "1", text="x\n")
    assert outcome.code == 2 and "plain is no collection" in outcome.err
    outcome = command("collection", "plain/#")
    assert outcome.code == 2 and "which is no collection" in outcome.err


def test_typed_items_and_epochs(command: Command, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps({"columns": [{"name": "n", "type": "int64"}]}))
    made = ("space", "create", "prices", "--topics", "prices/#", "--collection", "--epochs", "1")
    command.ok(*made, "--schema", str(schema))
    sent = ("publish", "prices/a", "--publisher", "one", "--epoch", "0", "--format", "jsonl")
    command.ok(*sent, "--diff-column", "d", text='{"n": 1, "d": 3}\n{"n": 1, "d": -1}\n')
    process = command.start("collection", "prices/#", "--follow", "--json")
    assert process.stdout is not None
    seen = 0
    while seen != 2:  # before the boundary or behind it
        line = json.loads(process.stdout.readline())
        if "item" in line:
            assert (line["item"]["payload"], line["item"]["values"]) == (None, {"n": 1})
            seen += line["diff"]
    assert finish(process).code == 0


def test_changes_that_are_resumed_are_there_once(command: Command, tmp_path: Path) -> None:
    command.ok("space", "create", "prices", "--topics", "prices/#", "--streams", "3", "--collection")
    file = tmp_path / "changes.jsonl"
    file.write_text("".join(f'{{"n": {n % 5}, "d": {3 if n % 2 else -1}}}\n' for n in range(100)))
    words = ("publish", "prices/{n}", "--format", "jsonl", "--file", str(file), "--resume", "night", "--json")
    once = command.ok(*words, "--diff-column", "d").document
    assert (once["published"], once["there_before"]) == (100, 0)
    again = command.ok(*words, "--diff-column", "d").document
    assert (again["published"], again["there_before"]) == (0, 100)
    items = command.ok("collection", "prices/#", "--json").document["items"]
    assert {one["topic"]: one["count"] for one in items} == {f"prices/{n}": 20 for n in range(5)}
    for other in ((), ("--diff", "2"), ("--diff-column", "n")):
        outcome = command(*words, *other)
        assert outcome.code == 2 and "--diff" in outcome.err and len(outcome.err.splitlines()) == 1
    piped = ("publish", "prices/x", "--resume", "pipe", "--diff", "-2", "--json")
    for text, published in (("a\n", 1), ("a\nb\n", 1), ("a\nb\n", 0)):
        assert command.ok(*piped, text=text).document["published"] == published
    items = command.ok("collection", "prices/x", "--json").document["items"]
    assert {one["payload"]: one["count"] for one in items} == {"a": -2, "b": -2}


def test_who_follows_is_told_that_a_stream_cannot_be_read_any_more(command: Command) -> None:
    command.ok("space", "create", "prices", "--topics", "prices/#", "--collection")
    command.ok("publish", "prices/a", text="x\n")
    process = command.start("collection", "prices/#", "--follow")
    assert process.stdout is not None and command.url is not None
    assert process.stdout.readline() == b"+1\tprices/a\t\tx\n"
    stream = StreamId("prices", 0, 0)
    with redis.Redis.from_url(command.url) as store:
        store.hset(stream_meta(stream), "next", "x")
        store.publish(stream_news(stream), "2")
    until(lambda: b"prices.0.0" in command.log.read_bytes(), 20)
    finish(process)
