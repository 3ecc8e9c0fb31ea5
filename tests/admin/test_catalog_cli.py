"""The catalog, as the command lists and follows it."""

from __future__ import annotations

import json

import pytest
import redis

from streamlease.catalog.items import ITEMS
from streamlease.streams.log.keys import SPACE_DEFINITIONS
from tests.admin.command import Command, finish


def test_each_collection_is_listed_and_an_empty_one_says_so(command: Command) -> None:
    command.ok("space", "create", "flights", "--topics", "flights/#", "--streams", "2")
    command.ok("group", "declare", "$shared/g/flights/#")
    for name in ITEMS:
        document = command.ok("catalog", name, "--json").document
        assert len(document["items"]) == (name in ("spaces", "leaders"))
        shown = command.ok("catalog", name).out
        assert ("flights/#" in shown) == (name in ("spaces", "leaders"))
        assert (f"there are no {name}" in shown) == (not document["items"])
    (space,) = command.ok("catalog", "spaces", "--json").document["items"]
    assert (space["space"], space["streams"], space["topics"], space["count"]) == (
        "flights",
        2,
        ["flights/#"],
        1,
    )


def test_a_follower_gets_the_items_then_each_change_and_goes_on_at_a_cursor(command: Command) -> None:
    command.ok("space", "create", "a", "--topics", "a/#")
    process = command.start("catalog", "spaces", "--follow", "--json")
    assert process.stdout is not None
    first = json.loads(process.stdout.readline())
    assert (first["item"]["space"], first["diff"]) == ("a", 1)
    ended = json.loads(process.stdout.readline())
    assert ended["snapshot"] is True
    command.ok("space", "create", "b", "--topics", "b/#")
    change = json.loads(process.stdout.readline())
    assert (change["item"]["space"], change["diff"]) == ("b", 1)
    assert finish(process).code == 0
    command.ok("space", "delete", "a", "--yes")
    for start, wanted in ((ended["at"], [("b", 1), ("a", -1)]), (change["at"], [("a", -1)])):
        process = command.start("catalog", "spaces", "--follow", "--json", "--from", start)
        assert process.stdout is not None
        found = [json.loads(process.stdout.readline()) for _ in wanted]
        assert [(one["item"]["space"], one["diff"]) for one in found] == wanted
        assert finish(process).code == 0


def test_an_item_that_cannot_be_read_is_told_beside_the_others(command: Command) -> None:
    command.ok("space", "create", "a", "--topics", "a/#")
    assert command.url is not None
    with redis.Redis.from_url(command.url) as store:
        store.hset(SPACE_DEFINITIONS, "b", "{")
    outcome = command("catalog", "spaces", "--json")
    assert [item["space"] for item in outcome.document["items"]] == ["a"]
    (told,) = outcome.err.splitlines()
    assert told.startswith("item 'b' of spaces cannot be read: Invalid JSON")


def test_consume_prints_it_as_messages(command: Command) -> None:
    command.ok("space", "create", "a", "--topics", "a/#")
    outcome = command.ok("consume", "$catalog/spaces", "--from", "earliest", "--count", "1", "--json")
    line = json.loads(outcome.out)
    assert (line["topic"], line["offset"], json.loads(line["payload"])["space"]) == (
        "$catalog/spaces",
        None,
        "a",
    )
    assert ["diff", "1"] in line["headers"]
    assert "spaces" in command.ok("consume", "$catalog/spaces", "--from", "earliest", "--count", "1").out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("flights",), "the catalog has no collection 'flights': it has spaces, "),
        (("spaces", "--from", "x"), "--from says where to go on, so it needs --follow"),
        (
            ("spaces", "--from", "x", "--follow"),
            "the cursor is none of spaces: use 'at' of an answer, as it is",
        ),
    ],
)
def test_bad_input_is_one_line(command: Command, words: tuple[str, ...], said: str) -> None:
    outcome = command("catalog", *words)
    assert outcome.code == 2
    assert said in outcome.err
    assert len(outcome.err.splitlines()) == 1
