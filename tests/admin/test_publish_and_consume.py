"""``streamlease publish`` and ``streamlease consume``, through pipes as in a shell."""

from __future__ import annotations

import csv
import io
import json
import re
import select
import signal
import subprocess
import urllib.request
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.admin.command import SCRIPT, Command, Outcome, bytes_lines, finish, lines_of, until

SUB = "$shared/g/flights/#"


def read(command: Command, filter: str, count: int, *words: str) -> list[dict[str, Any]]:
    return command.ok(
        "consume", filter, "--from", "earliest", "--count", str(count), "--json", *words
    ).documents


def payloads(outcome: Outcome) -> list[str]:
    return [line.partition("\t")[2] for line in outcome.out.splitlines()]


# -- publishing ----------------------------------------------------------------------------------------------


def test_each_line_is_a_message(flights: Command) -> None:
    lines = [b"one", b"", b" two ", "drei \u20ac".encode(), b"\xff\xfe", b"no end"]
    said = flights.ok("publish", "flights/JFK/LAX", "--json", text=b"\n".join(lines)).document
    assert said["published"] == len(lines)
    messages = read(flights, "flights/#", len(lines))
    assert [message["payload"] for message in messages] == [
        "one", "", " two ", "drei \u20ac", {"base64": "//4="}, "no end",
    ]  # fmt: skip
    assert [message["offset"] for message in messages] == list(range(len(lines)))


def test_a_message_has_all_its_fields(flights: Command) -> None:
    flights.ok("publish", "flights/JFK/LAX", text="payload\n")
    (message,) = read(flights, "flights/+/LAX", 1)
    moment = datetime.fromisoformat(message.pop("timestamp"))
    assert abs((datetime.now(UTC) - moment).total_seconds()) < 60
    assert message.pop("stream").startswith("flights.0.")
    assert message == {
        "topic": "flights/JFK/LAX", "key": None, "payload": "payload", "offset": 0, "headers": [],
        "epoch": None,
    }  # fmt: skip


def test_json_lines_give_keys_and_topics(flights: Command, tmp_path: Path) -> None:
    rows = [{"from": "JFK", "to": "LAX", "tail": "N1"}, {"from": "EWR", "to": "SFO", "tail": None}]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    flights.ok("publish", "flights/{from}/{to}", "--file", str(file), "--key", "tail")
    messages = sorted(read(flights, "flights/#", 2), key=lambda message: message["topic"], reverse=True)
    assert [(m["topic"], m["key"], json.loads(m["payload"])) for m in messages] == [
        ("flights/JFK/LAX", "N1", rows[0]),
        ("flights/EWR/SFO", None, rows[1]),
    ]


def test_csv_rows_become_objects(flights: Command) -> None:
    text = io.StringIO()
    rows = [{"a": "1", "b": 'x, "y"\nz'}, {"a": "007", "b": ""}]
    writer = csv.DictWriter(text, ["a", "b"])
    writer.writeheader()
    writer.writerows(rows)
    flights.ok("publish", "flights/x", "--format", "csv", "--key", "a", text="\ufeff" + text.getvalue())
    messages = read(flights, "flights/x", 2)
    assert [json.loads(message["payload"]) for message in messages] == rows
    assert [message["key"] for message in messages] == ["1", "007"]


def test_parquet_rows_become_objects(flights: Command, tmp_path: Path) -> None:
    file = tmp_path / "t.parquet"
    moment = datetime(2026, 1, 31, 12, tzinfo=UTC)
    pq.write_table(
        pa.table({"n": [1, 2], "at": [moment, None], "x": [float("nan"), 0.5], "raw": [b"\xff", b""]}), file
    )
    flights.ok("publish", "flights/n{n}", "--file", str(file))
    objects = [json.loads(m["payload"]) for m in read(flights, "flights/#", 2)]
    assert sorted(objects, key=lambda row: row["n"]) == [
        {"n": 1, "at": "2026-01-31T12:00:00+00:00", "x": None, "raw": "/w=="},
        {"n": 2, "at": None, "x": 0.5, "raw": ""},
    ]


def test_lines_of_a_pipe_go_out_as_they_come(flights: Command) -> None:
    process = subprocess.Popen(
        [str(SCRIPT), "publish", "flights/a"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=flights.environment,
    )  # fmt: skip
    try:
        assert process.stdin is not None
        process.stdin.write(b"early\n")
        process.stdin.flush()
        assert read(flights, "flights/a", 1)[0]["payload"] == "early"
        assert process.poll() is None
        assert finish(process, signal.SIGINT).code == 130
    finally:
        process.kill()


def test_many_lines_arrive_in_order(flights: Command) -> None:
    lines = [b"%d" % number for number in range(50_000)]
    flights.ok("publish", "flights/many", text=bytes_lines(lines))
    out = flights.ok("consume", "flights/many", "--from", "earliest", "--count", "50000")
    assert payloads(out) == [line.decode() for line in lines]


@pytest.mark.parametrize(
    ("words", "text", "says"),
    [
        (["flights/a", "--format", "jsonl"], '{"a": 1}\n{"a": \n', "line 2 is no JSON"),
        (["flights/a", "--format", "jsonl"], "[1]\n", "line 1 is a JSON list"),
        (["flights/{b}", "--format", "jsonl"], '{"a": 1}\n', "line 1 has no field 'b': it has a"),
        (["flights/{a}", "--format", "jsonl"], '{"a": "x/y"}\n', "field 'a' of line 1 is 'x/y'"),
        (["flights/{a}", "--format", "jsonl"], '{"a": null}\n', "field 'a' of line 1 is None"),
        (["flights/a", "--format", "jsonl", "--key", "a"], '{"a": {}}\n', "is a dict: use text or a number"),
        (["flights/a", "--format", "csv"], "a,b\n1,2\n3\n", "line 3 has 1 values for 2 columns"),
        (["flights/a", "--format", "csv"], "a,a\n", "each column needs its own"),
        (["flights/a", "--format", "csv"], b"a\n\xff\n", "line 2 is not valid UTF-8"),
        (["flights/a", "--format", "csv"], 'a\n"b\n', "is no CSV"),
        (["flights/a", "--format", "parquet"], "", "give --file FILE"),
        (["flights/a", "--file", "nothere.csv"], "", "cannot read nothere.csv: No such file"),
        (["flights/a", "--file", "nothere.parquet"], "", "nothere.parquet"),
        (["flights/a", "--key", "a"], "", "--key 'a' needs fields"),
    ],
)
def test_bad_input_is_named(flights: Command, words: list[str], text: str | bytes, says: str) -> None:
    outcome = flights("publish", *words, text=text)
    assert outcome.code == 2
    assert outcome.err.startswith("error: ")
    assert says in outcome.err
    assert outcome.err.count("\n") == 1
    assert outcome.out == ""


def test_what_went_out_before_a_bad_line_is_counted(flights: Command) -> None:
    outcome = flights("publish", "flights/a", "--format", "jsonl", text='{"n": 1}\n{"n": 2}\nnonsense\n')
    assert "line 3" in outcome.err
    assert "(2 messages published before)" in outcome.err
    assert len(read(flights, "flights/a", 2)) == 2


# -- consuming -----------------------------------------------------------------------------------------------


def test_a_group_goes_on_where_it_was(flights: Command) -> None:
    flights.ok("publish", "flights/a", text=bytes_lines([b"%d" % n for n in range(100)]))
    first = flights("consume", SUB, "--from", "earliest", "--count", "30")
    second = flights("consume", SUB, "--count", "70")
    assert (first.code, second.code) == (0, 0)
    assert payloads(first) + payloads(second) == [str(n) for n in range(100)]
    streams = flights.ok("group", "describe", SUB, "--json").document["streams"]
    assert sum(stream["committed"] for stream in streams) == 100
    assert {stream["lag"] for stream in streams} == {0}


def test_latest_is_the_default_and_begins_at_the_declaration(flights: Command) -> None:
    flights.ok("publish", "flights/a", text="before\n")
    flights.ok("group", "declare", SUB)
    flights.ok("publish", "flights/a", text="after\n")
    assert payloads(flights.ok("consume", SUB, "--count", "1")) == ["after"]


def test_an_existing_group_says_that_from_changes_nothing(flights: Command) -> None:
    flights.ok("group", "declare", SUB)
    flights.ok("publish", "flights/a", text="one\n")
    outcome = flights("consume", SUB, "--from", "earliest", "--count", "1")
    assert (outcome.code, payloads(outcome)) == (0, ["one"])
    assert "goes on where it was" in outcome.err


def test_an_offset_or_a_time_may_be_the_start(flights: Command) -> None:
    flights.ok("publish", "flights/a", text="0\n1\n2\n")
    (last,) = flights.ok("consume", "flights/a", "--from", "2", "--count", "1", "--json").documents
    assert last["payload"] == "2"
    flights.ok("publish", "flights/a", text="3\n")
    (fourth,) = flights.ok("consume", "flights/a", "--from", "3", "--count", "1", "--json").documents
    assert payloads(flights.ok("consume", "flights/a", "--from", fourth["timestamp"], "--count", "1")) == [
        "3"
    ]
    assert payloads(flights.ok("consume", "flights/a", "--from", "2020-01-01", "--count", "4")) == [*"0123"]


@pytest.mark.parametrize("target", ["flights/#", SUB])
def test_a_timeout_without_enough_messages_fails(flights: Command, target: str) -> None:
    flights.ok("publish", "flights/a", text="1\n2\n")
    words = ["consume", target, "--from", "earliest", "--timeout", "2.5"]
    outcome = flights(*words, "--count", "3")
    assert (outcome.code, payloads(outcome)) == (1, ["1", "2"])
    assert outcome.err == "error: 2 of 3 messages came within 2.5 s: wait longer, or publish\n"


def test_a_timeout_alone_is_a_way_to_end(flights: Command) -> None:
    assert flights.ok("consume", "flights/#", "--timeout", "0.2").out == ""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("target", ["flights/#", SUB])
def test_a_signal_leaves_in_good_order(flights: Command, how: signal.Signals, target: str) -> None:
    flights.ok("publish", "flights/a", text="1\n2\n")
    process = flights.start("consume", target, "--from", "earliest")
    assert lines_of(process, 2) == ["flights/a\t1", "flights/a\t2"]
    if target == SUB:
        describe = ("group", "describe", SUB, "--json")
        until(lambda: all(s["lag"] == 0 for s in flights.ok(*describe).document["streams"]))
    assert finish(process, how).code == 0
    assert flights.log.read_text() == ""
    if target == SUB:
        group = flights.ok(*describe).document
        assert (group["borrowers"], {stream["owner"] for stream in group["streams"]}) == ([], {None})


def test_a_new_space_that_the_filter_matches_is_read_too(flights: Command) -> None:
    process = flights.start("consume", "#")
    try:
        assert process.stdout is not None
        while not select.select([process.stdout], [], [], 0.05)[0]:  # until it listens
            flights.ok("publish", "flights/a", text="known\n")
        flights.ok("space", "create", "other", "--topics", "other/#")
        flights.ok("publish", "other/x", text="new\n")
        (line,) = lines_of(process, 1)
        assert line == "flights/a\tknown"
        while line == "flights/a\tknown":
            (line,) = lines_of(process, 1)
        assert line == "other/x\tnew"
    finally:
        assert finish(process).code == 0


def test_a_reader_that_goes_away_is_no_error(flights: Command) -> None:
    flights.ok("publish", "flights/a", text=bytes_lines([b"x" * 1000] * 2000))
    process = flights.start("consume", "flights/#", "--from", "earliest")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(20) == 141
    assert flights.log.read_text() == ""


def test_control_characters_do_not_reach_the_terminal(flights: Command) -> None:
    flights.ok("publish", "flights/a", text=b"\x1b[31mred\n")
    out = flights.ok("consume", "flights/a", "--from", "earliest", "--count", "1").out
    assert out == "flights/a\t\\x1b[31mred\n"


def test_a_consumer_serves_its_metrics_where_it_is_told_to(flights: Command) -> None:
    flights.ok("publish", "flights/a", text="0\n1\n")
    process = flights.start("consume", SUB, "--from", "earliest", "--metrics-port", "0")
    try:
        lines_of(process, 2)
        said = re.search(r"note: metrics are at (\S+)", flights.log.read_text())
        assert said is not None, flights.log.read_text()
        wanted = f'streamlease_consumer_committed_messages_total{{subscription="{SUB}"}} 2.0'

        def served() -> bool:
            with urllib.request.urlopen(said[1], timeout=30) as answer:
                return wanted in answer.read().decode()

        until(served)
    finally:
        assert finish(process).code == 0
    refused = flights("consume", SUB, "--metrics-port", "65536")
    assert refused.code == 2
    assert "it must be from 0 to 65535" in refused.err
