"""``streamlease publish --publisher NAME``: epochs from an option or from a field, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import redis

from streamlease.admin.messages.publish_epochs import behind_all, both, from_on
from streamlease.protocol.epochs.order import HIGHEST_EPOCH
from streamlease.streams.epochs import keys
from tests.admin.command import Command


@pytest.fixture
def clicks(command: Command) -> Command:
    """The command, with a space of integers, one of pairs, and one without epochs."""
    command.ok("space", "create", "clicks", "--topics", "clicks/#", "--streams", "2", "--epochs", "1")
    command.ok("space", "create", "pairs", "--topics", "pairs/#", "--epochs", "2")
    command.ok("space", "create", "plain", "--topics", "plain/#")
    return command


def lines(store: redis.Redis, space: str = "clicks") -> list[dict[str, Any]]:
    return [json.loads(fields[b"l"]) for _, fields in store.xrange(keys.lines(space))]


def told(store: redis.Redis, space: str = "clicks") -> list[tuple[Any, dict[str, int]]]:
    """Of each line but the first: its frontier, and how many messages of which epochs it names."""
    found: list[tuple[Any, dict[str, int]]] = []
    for line in lines(store, space):
        if line["k"] == "enter":
            continue
        rows: dict[str, int] = {}
        for epoch, _, ranges in line["parts"]:
            text = ",".join(map(str, epoch))
            rows[text] = rows.get(text, 0) + sum(to - first for first, to in ranges)
        found.append((line.get("to", line["k"]), rows))
    return found


def published(store: redis.Redis) -> int:
    names = [key for key in store.scan_iter("sl:{*}:meta") if b":open:" not in key]
    return sum(int(store.hget(name, "next") or 0) for name in names)


def test_all_messages_of_one_epoch(clicks: Command, store: redis.Redis) -> None:
    said = clicks.ok("publish", "clicks/a", "--publisher", "p", "--epoch", "4", "--json", text="a\nb\n")
    assert said.document["published"] == 2
    assert told(store) == [([[5]], {"4": 2}), ("leave", {})]
    clicks.ok("publish", "clicks/a", "--publisher", "p", "--epoch", "7", text="c\n")
    assert told(store)[2:] == [([[8]], {"7": 1}), ("leave", {})]


def test_the_epoch_of_each_row(clicks: Command, store: redis.Redis) -> None:
    text = "".join(f'{{"n": {n}, "to": "x{n % 3}"}}\n' for n in (3, 3, 4, 7, 7, 7))
    words = ("clicks/{to}", "--format", "jsonl", "--key", "n", "--publisher", "p", "--epoch-column", "n")
    clicks.ok("publish", *words, text=text)
    assert told(store) == [([[4]], {"3": 2}), ([[7]], {"4": 1}), ([[8]], {"7": 3}), ("leave", {})]


def test_a_row_of_an_epoch_before_is_taken_while_that_is_open(clicks: Command, store: redis.Redis) -> None:
    words = ("clicks/a", "--format", "jsonl", "--publisher", "p", "--epoch-column", "n")
    clicks.ok("publish", *words, text='{"n": 5}\n{"n": 4}\n')
    assert told(store) == [([[6]], {"4": 1, "5": 1}), ("leave", {})]


def test_a_table_has_epochs_too(clicks: Command, store: redis.Redis, tmp_path: Any) -> None:
    clicks.ok(
        "publish",
        "clicks/a",
        "--format",
        "csv",
        "--publisher",
        "p",
        "--epoch-column",
        "n",
        text="n,v\n1,a\n2,b\n",
    )
    assert told(store) == [([[2]], {"1": 1}), ([[3]], {"2": 1}), ("leave", {})]
    table = tmp_path / "t.parquet"
    pq.write_table(pa.table({"n": [5, 5, HIGHEST_EPOCH], "v": [1, 2, 3]}), table)
    clicks.ok("publish", "clicks/a", "--file", str(table), "--publisher", "p", "--epoch-column", "n")
    last = [[HIGHEST_EPOCH]]
    assert told(store)[3:] == [(last, {"5": 2}), ("leave", {str(HIGHEST_EPOCH): 1})]


def test_pairs_come_in_the_order_of_tuples(clicks: Command, store: redis.Redis) -> None:
    text = "".join(json.dumps({"at": at}) + "\n" for at in ([1, 5], "1,7", [2, 0], [2, 0]))
    words = ("pairs/a", "--format", "jsonl", "--publisher", "p", "--epoch-column", "at")
    clicks.ok("publish", *words, text=text)
    assert told(store, "pairs") == [
        ([[1, 7], [2, 0]], {"1,5": 1}),
        ([[2, 0]], {"1,7": 1}),
        ([[2, 1], [3, 0]], {"2,0": 2}),
        ("leave", {}),
    ]
    clicks.ok("publish", "pairs/a", "--publisher", "p", "--epoch", "3,3", text="x\n")


def test_the_field_is_no_column_unless_the_schema_has_it(clicks: Command, tmp_path: Any) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps({"columns": [{"name": "v", "type": "int64", "nullable": False}]}))
    clicks.ok("space", "create", "typed", "--topics", "typed/#", "--epochs", "1", "--schema", str(schema))
    words = ("typed/a", "--format", "jsonl", "--publisher", "p", "--epoch-column", "n")
    assert clicks.ok("publish", *words, "--json", text='{"n": 1, "v": 2}\n').document["published"] == 1


def test_nothing_to_publish_is_a_clean_end(clicks: Command, store: redis.Redis) -> None:
    clicks.ok("publish", "clicks/a", "--publisher", "p", "--epoch", "4", text="")
    assert told(store) == [("leave", {})]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("clicks/a",), "space clicks has epochs, so its messages come from publishers with a name"),
        (("clicks/a", "--resume", "r"), "space clicks has epochs"),
        (("plain/a", "--publisher", "p", "--epoch", "4"), "space plain has no epochs"),
        (("nope/a", "--publisher", "p", "--epoch", "4"), "no space has topics"),
        (("clicks/a", "--publisher", "no good", "--epoch", "4"), "is not a name"),
        (("clicks/a", "--publisher", "", "--epoch", "4"), "is not a name"),
        (("clicks/a", "--publisher", "p"), "give --epoch N or --epoch-column COL"),
        (("clicks/a", "--publisher", "p", "--epoch", "4", "--epoch-column", "n"), "leave one out"),
        (("clicks/a", "--epoch", "4"), "--epoch is for publishers with a name"),
        (("clicks/a", "--epoch-column", "n"), "--epoch-column is for publishers with a name"),
        (("clicks/a", "--publisher", "p", "--epoch-column", "n"), "needs fields"),
        (
            ("clicks/a", "--publisher", "p", "--epoch", "4", "--resume", "r"),
            "--resume publishes without epochs",
        ),
        (("clicks/a", "--publisher", "p", "--epoch", "4,5"), "has 2 dimensions, and the space 1"),
        (("clicks/a", "--publisher", "p", "--epoch=-1"), "give integers from 0 to"),
        (("clicks/a", "--publisher", "p", "--epoch", "x"), "--epoch: epoch 'x': give integers"),
        (("clicks/a", "--publisher", "p", "--epoch", ""), "give integers"),
        (("clicks/a", "--publisher", "p", "--epoch", "9223372036854775808"), "give integers from 0 to"),
        (("clicks/a", "--publisher", "p", "--epoch", "9" * 200), "give integers"),
        (
            ("pairs/a", "--publisher", "p", "--epoch", "4"),
            "has 1 dimension, and the space 2: give 2 integers",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(
    clicks: Command, store: redis.Redis, words: tuple[str, ...], said: str
) -> None:
    outcome = clicks("publish", *words, text="a\n")
    assert outcome.code != 0 and said in outcome.err and len(outcome.err.splitlines()) == 1
    assert lines(store) == [] == lines(store, "pairs")
    assert published(store) == 0


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (['{"n": 5}', '{"n": 6}', '{"n": 5}'], "line 3: publisher p holds 6 and cannot send at epoch 5"),
        (['{"n": 1}', '{"n": 1.5}'], "line 2: epoch 1.5: give integers"),
        (['{"n": true}'], "line 1: epoch True: give integers"),
        (['{"n": null}'], "line 1: epoch None: give integers"),
        (['{"n": 1.5}'], "line 1: epoch 1.5: give integers"),
        (['{"n": [1, 2]}'], "line 1: epoch [1, 2] has 2 dimensions"),
        (['{"m": 1}'], "line 1 has no field 'n': it has m"),
    ],
)
def test_a_row_without_a_good_epoch_ends_it_uncleanly(
    clicks: Command, store: redis.Redis, rows: list[str], said: str
) -> None:
    words = ("clicks/a", "--format", "jsonl", "--publisher", "p", "--epoch-column", "n")
    outcome = clicks("publish", *words, text="\n".join(rows) + "\n")
    assert outcome.code != 0 and said in outcome.err and len(outcome.err.splitlines()) == 1
    assert "leave" not in [line["k"] for line in lines(store)]
    assert lines(store) == [] or "line 1" not in outcome.err


def test_who_could_send_nothing_holds_back_nobody(clicks: Command, store: redis.Redis) -> None:
    clicks.ok("publish", "clicks/a", "--publisher", "p", "--epoch", "4", text="a\n")
    outcome = clicks("publish", "clicks/a", "--publisher", "q", "--epoch", "4", text="b\n")
    assert outcome.code != 0 and "line 1: publisher q holds 5 and cannot send at epoch 4" in outcome.err
    assert [(line["k"], line["name"]) for line in lines(store)[-2:]] == [("enter", "q"), ("leave", "q")]


def test_frontiers_in_the_order_of_tuples() -> None:
    assert from_on((4,)) == ((4,),)
    assert from_on((1, 5)) == ((1, 5), (2, 0))
    assert from_on((1, 0)) == ((1, 0),)
    assert from_on((1, 2, 3)) == ((1, 2, 3), (1, 3, 0), (2, 0, 0))
    assert behind_all((4,)) == ((5,),)
    assert behind_all((HIGHEST_EPOCH,)) == ()
    assert behind_all((1, 5)) == ((1, 6), (2, 0))
    assert behind_all((HIGHEST_EPOCH, HIGHEST_EPOCH)) == ()
    assert both([(0, 5)], from_on((1, 6))) == ((1, 6), (2, 5))
    assert both([(3,)], [(5,)]) == ((5,),)
