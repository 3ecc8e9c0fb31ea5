"""``streamlease space``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import redis
from pyarrow import parquet

from streamlease.streams.catalog.keys import TOPICS_ORDER
from streamlease.streams.spaces.published_topics import MOST_TOPICS
from tests.admin.command import Command


def test_a_space_is_created_listed_shown_and_deleted(command: Command, store: redis.Redis) -> None:
    made = command.ok(
        "space",
        "create",
        "flights",
        "--topics",
        "flights/#",
        "--topics",
        "delays/+",
        "--streams",
        "2",
        "--json",
    ).document
    assert made["topics"] == ["flights/#", "delays/+"]
    assert (made["streams"], made["shard_by"]) == (2, "topic")
    assert command.ok("space", "list", "--json").document == {"spaces": [made]}

    command.ok("publish", "delays/JFK", text="one\ntwo\n")
    streams = command.ok("space", "show", "flights", "--json").document["streams"]
    assert sorted(stream["next"] for stream in streams) == [0, 2]
    assert {(stream["oldest"], stream["state"]) for stream in streams} == {(0, "open")}
    assert sorted(stream["last_append"] is None for stream in streams) == [False, True]

    assert command.ok("space", "delete", "flights", "--yes", "--json").document == {"deleted": "flights"}
    assert command.ok("space", "list", "--json").document == {"spaces": []}
    assert [key for key in store.scan_iter("sl:*") if b"flights." in key] == []


def test_several_filters_may_follow_one_option(command: Command) -> None:
    made = command.ok("space", "create", "s", "--topics", "a/#", "b/#", "--streams", "3", "--json").document
    assert (made["topics"], made["streams"]) == (["a/#", "b/#"], 3)


def test_the_same_definition_again_changes_nothing(flights: Command, store: redis.Redis) -> None:
    before = store.dbsize()
    flights.ok("space", "create", "flights", "--topics", "flights/#", "--streams", "4")
    assert store.dbsize() == before


def test_the_topics_of_a_space_are_listed(flights: Command, store: redis.Redis) -> None:
    assert flights.ok("space", "topics", "flights").out == "nobody has published to space flights\n"
    flights.ok("publish", "flights/JFK", text="one\n")
    flights.ok("publish", "flights/ATL", text="one\ntwo\n")
    listed = flights.ok("space", "topics", "flights", "--json").document
    assert listed == {"space": "flights", "topics": ["flights/ATL", "flights/JFK"], "truncated": False}
    assert flights.ok("space", "topics", "flights").out.split()[-2:] == ["flights/ATL", "flights/JFK"]
    store.zadd(TOPICS_ORDER, {f"flights/flights/{number:05}": 0 for number in range(MOST_TOPICS - 2)})
    full = flights("space", "topics", "flights")
    assert (full.code, full.err) == (0, "there may be more: 10,000 topics of a space are kept\n")
    assert flights.ok("space", "topics", "flights", "--json").document["truncated"] is True
    unknown = flights("space", "topics", "flihgts")
    assert unknown.code == 1
    assert unknown.err.startswith("error: ") and unknown.err.count("\n") == 1, unknown.err
    assert "flihgts" in unknown.err


def test_tables_are_for_people(flights: Command) -> None:
    listed = flights.ok("space", "list").out
    assert listed.splitlines()[0].split() == ["SPACE", "STREAMS", "TOPICS"]
    assert "flights/#" in listed
    assert "flights.0.3" in flights.ok("space", "show", "flights").out


def test_an_empty_redis_has_an_empty_list_that_says_what_to_do(command: Command) -> None:
    assert "streamlease space create" in command.ok("space", "list").out
    assert "streamlease group declare" in command.ok("group", "list").out


def test_deleting_without_a_terminal_needs_yes(flights: Command, store: redis.Redis) -> None:
    before = store.dbsize()
    outcome = flights("space", "delete", "flights")
    assert (outcome.code, outcome.err) == (
        2,
        "error: space 'flights' is deleted with all its messages: confirm with --yes\n",
    )
    assert store.dbsize() == before


def test_a_space_gets_other_streams_and_is_sealed_in_the_end(flights: Command) -> None:
    flights.ok("publish", "flights/JFK", text="one\n")
    altered = flights.ok("space", "alter", "flights", "--streams", "6", "--json").document
    assert flights.ok("space", "alter", "flights", "--streams", "6", "--json").document == altered
    assert [(one["number"], one["streams"], one["sealed"]) for one in altered["generations"]] == [
        (0, 4, True),
        (1, 6, False),
    ]
    assert "generation 2" in flights.ok("space", "alter", "flights", "--rotate").out
    flights.ok("publish", "flights/JFK", text="two\n")
    shown = flights.ok("space", "show", "flights", "--json").document
    states = {(stream["stream"].split(".")[1], stream["state"]) for stream in shown["streams"]}
    assert states == {("0", "sealed"), ("1", "sealed"), ("2", "open")}
    group = "$shared/g/flights/#"
    flights.ok("consume", group, "--from", "earliest", "--count", "2", "--timeout", "20")
    shown = flights.ok("space", "show", "flights", "--json").document
    finished = {stream["stream"]: stream["finished_by"] for stream in shown["streams"]}
    assert finished["flights.0.0"] == [group]
    assert finished["flights.2.0"] is None
    text = flights.ok("space", "show", "flights").out
    assert "generation 1: 6 streams, sealed" in text
    assert "1 of 1" in text

    assert "--yes" in flights("space", "seal", "flights").err
    assert "sealed" in flights.ok("space", "seal", "flights", "--yes").out
    assert flights.ok("space", "seal", "flights", "--yes", "--json").document["ended"] is True
    refused = flights("publish", "flights/JFK", text="three\n")
    assert refused.code == 1
    assert "space flights is sealed" in refused.err
    assert flights("space", "alter", "flights", "--streams", "2").code == 1


def test_a_rotation_repeated_after_a_lost_answer_is_made_once(flights: Command) -> None:
    rotate = ("space", "alter", "flights", "--rotate", "--from-generation", "0", "--json")
    assert flights.ok(*rotate).document == flights.ok(*rotate).document
    assert len(flights.ok(*rotate).document["generations"]) == 2
    flights.ok("space", "alter", "flights", "--streams", "3", "--from-generation", "1")
    late = flights(*rotate[:-1])
    assert (late.code, late.err.count("\n")) == (1, 1)
    assert "was altered meanwhile" in late.err
    alone = flights("space", "alter", "flights", "--from-generation", "1")
    assert alone.code == 2
    assert "give --streams or --rotate" in alone.err


def test_a_space_with_a_schema_is_made_shown_and_altered(command: Command, tmp_path: Path) -> None:
    columns: list[dict[str, Any]] = [{"name": "carrier", "type": "string", "nullable": False}]
    files = {}
    for name, some in (
        ("old", columns),
        ("new", [*columns, {"name": "delay", "type": "float64"}]),
        ("bad", [{"name": "topic", "type": "string"}]),
    ):
        file = tmp_path / f"{name}.json"
        file.write_text(json.dumps({"columns": some}))
        files[name] = str(file)
    create = ("space", "create", "f", "--topics", "f/#", "--schema")
    made = command.ok(*create, files["old"], "--json").document
    assert made["schema"]["columns"] == columns
    altered = command.ok("space", "alter", "f", "--schema", files["new"], "--json").document
    assert altered["schema"]["columns"][1] == {"name": "delay", "type": "float64", "nullable": True}
    assert altered["schema"]["fingerprint"] != made["schema"]["fingerprint"]
    assert "carrier" in command.ok("space", "show", "f").out

    for words, code, reason in (
        (("space", "alter", "f", "--schema", files["old"]), 1, "column delay would be dropped"),
        ((*create, files["bad"]), 2, "column topic"),
        ((*create, str(tmp_path / "none")), 2, "cannot read"),
    ):
        refused = command(*words)
        assert (refused.code, refused.err.count("\n")) == (code, 1)
        assert reason in refused.err


def test_the_columns_of_a_space_may_be_those_of_a_table(command: Command, tmp_path: Path) -> None:
    table = pa.table(
        {
            "country": ["de", None],
            "count": pa.array([1, 2], pa.uint32()),
            "sold": pa.array([0, 1], pa.timestamp("ms", "Europe/Berlin")),
            "none": pa.nulls(2),
        }
    )
    parquet.write_table(table, tmp_path / "t.parquet")
    (tmp_path / "t.csv").write_text(
        "country,amount,sold,at,none\nde,1.5,2026-01-02,10:30:00,\nfr,2,2026-01-03,,\n"
    )
    (tmp_path / "t.jsonl").write_text('{"country": "de", "tags": ["a"]}\n{"country": "fr", "n": 1}\n')
    types = {}
    for suffix in ("parquet", "csv", "jsonl"):
        file = str(tmp_path / f"t.{suffix}")
        made = command.ok("space", "create", suffix, "--topics", f"{suffix}/#", "--schema", file, "--json")
        types[suffix] = {one["name"]: one["type"] for one in made.document["schema"]["columns"]}
        said = command.ok("publish", f"{suffix}/x", "--file", file)
        assert said.out.startswith("published 2 messages")
    assert types == {
        "parquet": {"country": "string", "count": "int64", "sold": "timestamp[us, UTC]", "none": "string"},
        "csv": {"country": "string", "amount": "float64", "sold": "date", "at": "string", "none": "string"},
        "jsonl": {"country": "string", "tags": "list<string>", "n": "int64"},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("t.csv", b"", "has no columns to go by"),
        ("t.csv", b"a,topic\n1,2\n", "column topic"),
        ("t.csv", b"a,b\n1\n", "has no columns to go by"),
        ("t.jsonl", b"[1]\n", "has no columns to go by"),
        ("t.jsonl", b'{"a": ', "has no columns to go by"),
        ("t.parquet", b"nonsense", "has no columns to go by"),
    ],
)
def test_a_table_without_columns_is_refused_in_one_line(
    command: Command, tmp_path: Path, name: str, content: bytes, reason: str
) -> None:
    (tmp_path / name).write_bytes(content)
    refused = command("space", "create", "f", "--topics", "f/#", "--schema", str(tmp_path / name))
    assert (refused.code, refused.err.count("\n")) == (2, 1), refused
    assert reason in refused.err
