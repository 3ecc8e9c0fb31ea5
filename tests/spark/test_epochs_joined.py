"""Collections, and two spaces joined by their epochs, in real Spark: one application for all of it, but for
those that are killed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.spark.drivers import Driver, run
from tests.spark.epoch_feed import ROWS, EpochFeed
from tests.spark.gates import Gate
from tests.spark.test_collections import Reading, Shop
from tests.spark.test_epochs_spark import rows_by_batch
from tests.spark.test_spark import reached
from tests.spark.world import World

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

EPOCHS = 8

CHANGES: list[list[tuple[str, str, int]]] = [
    [("prices/a", "10", 2), ("prices/b", "20", 1), ("prices/b", "20", -1)],
    [("prices/a", "10", -1), ("prices/c", "30", 5)],
    [("prices/c", "30", -5), ("prices/a", "11", 1)],
]
"""What becomes of a collection before each of three runs of a query that reads it."""


def test_collections_and_two_spaces_that_are_joined_by_their_epochs(
    make_world: Callable[..., World], tmp_path: Path
) -> None:
    world = make_world()
    world.lead()
    feeds = {name: EpochFeed(world, name) for name in ("clicks", "views")}
    for feed in feeds.values():
        feed.publish(EPOCHS)
    world._thread.call(world._client.create_space("prices", ["prices/#"], streams=2, collection=True))
    usual = {"redis": world.url, "startingOffsets": "earliest", "epochs": "atomic"}
    sides = {
        name: {**usual, "subscribe": f"$shared/{name}/{name}/#", "maxEpochsPerTrigger": str(most)}
        for most, name in enumerate(feeds, 1)
    }
    join = {
        "do": "joined",
        "sides": sides,
        "checkpoint": str(tmp_path / "cp-join"),
        "out": str(tmp_path / "join"),
    }
    collection: dict[str, Any] = {
        "do": "collected",
        "options": {"redis": world.url, "subscribe": "prices/#"},
        "checkpoint": str(tmp_path / "cp-prices"),
        "out": str(tmp_path / "prices"),
    }
    steps = [{**collection, "changes": changes} for changes in CHANGES]
    catalog: dict[str, Any] = {
        "do": "catalogued",
        "options": {"redis": world.url, "subscribe": "$catalog/spaces"},
        "checkpoint": str(tmp_path / "cp-catalog"),
        "out": str(tmp_path / "catalog"),
    }
    more = [{**catalog, "space": name} for name in ("made1", "made2")]
    *tables, one, two, _, told = run(tmp_path, *steps, *more, {**join, "batches": 1}, join)
    check_catalog([one, two], tmp_path / "catalog")
    check_collection(tables, tmp_path / "prices")
    check_join(told["state"], tmp_path / "join")
    for feed in feeds.values():
        feed.close()


def check_collection(tables: list[Any], out: Path) -> None:
    """Each run added its changes, and only those; the first one what they came to."""
    sums: Counter[tuple[str, str]] = Counter()
    batches = rows_by_batch(out)
    for changes, table, rows in zip(CHANGES, tables, batches, strict=True):
        for topic, payload, diff in changes:
            sums[topic, payload] += diff
        there = {item: count for item, count in sums.items() if count}
        assert {(topic, payload): count for topic, payload, count in table} == there
        if rows is batches[0]:
            assert {(row["topic"], row["payload"]): row["diff"] for row in rows} == there
        else:
            assert sorted((row["topic"], row["payload"], row["diff"]) for row in rows) == sorted(changes)
        assert {row["offset"] is None for row in rows} == {rows is batches[0]}


def check_catalog(tables: list[Any], out: Path) -> None:
    """The first run has all spaces, the second one what came."""
    first, second = rows_by_batch(out)
    assert [[row["space"], 1] for row in sorted(first, key=lambda row: str(row["space"]))] == tables[0]
    assert {row["diff"] for row in first} == {1}
    assert [(row["space"], list(row["topics"]), row["diff"]) for row in second] == [("made2", ["made2/#"], 1)]
    assert tables[1] == sorted([*tables[0], ["made2", 1]])


def check_join(state: int, out: Path) -> None:
    """All pairs of each epoch, in one micro-batch; what was joined leaves the state."""
    epochs = [Counter(row["epoch"][0] for row in rows) for rows in rows_by_batch(out)]
    assert sum(epochs, Counter[int]()) == dict.fromkeys(range(EPOCHS), ROWS * ROWS)
    assert {count for batch in epochs for count in batch.values()} == {ROWS * ROWS}, "no epoch in two"
    pairs = {(row["clicks"], row["views"]) for rows in rows_by_batch(out) for row in rows}
    assert len(pairs) == EPOCHS * ROWS * ROWS
    assert all(one.split(".")[0] == other.split(".")[0] for one, other in pairs)
    assert state < 2 * EPOCHS * ROWS, "not all rows of both sides"


def test_a_driver_killed_while_it_reads_a_snapshot_and_while_it_reads_changes_has_each_once(
    embedded_redis_url: str, tmp_path: Path, start_driver: Callable[..., Driver]
) -> None:
    with closing(Shop(embedded_redis_url)) as shop:
        read_and_killed(shop, tmp_path, start_driver)


def read_and_killed(shop: Shop, tmp_path: Path, start_driver: Callable[..., Driver]) -> None:
    gate, out = Gate(tmp_path / "gate"), tmp_path / "out"
    given = shop.options("changes", maxOffsetsPerTrigger="25", gate=str(gate.folder))
    step = {"options": given, "checkpoint": str(tmp_path / "checkpoint"), "out": str(out)}

    def newest(log: str) -> int:
        return max((int(path.name) for path in (tmp_path / "checkpoint" / log).glob("[0-9]*")), default=-1)

    def is_held_in(batch: int) -> bool:
        return gate.is_held("reading") and newest("offsets") == batch == newest("commits") + 1

    shop.change(200, items=60)
    shop.snapshot()
    shop.change(30, items=60)
    gate.hold("reading")
    driver = start_driver({"do": "always", **step})
    driver.wait_for(lambda: is_held_in(0))
    driver.kill()
    shop.change(40, items=60)
    shop.snapshot(keep=1000)  # the one that was being read is followed
    gate.hold("reading")
    driver = start_driver({"do": "always", **step})
    driver.wait_for(lambda: is_held_in(0))
    gate.let_go("reading")
    driver.wait_for(lambda: reached(out, 2) and newest("commits") == newest("offsets"))
    gate.hold("reading")
    batch = newest("commits") + 1
    shop.change(70, items=60)
    driver.wait_for(lambda: is_held_in(batch))
    driver.kill()
    shop.change(10, items=60)
    gate.let_go("reading")
    run(tmp_path, {"do": "once", **step})
    check_changes(shop, tmp_path / "checkpoint", rows_by_batch(out))


def check_changes(shop: Shop, checkpoint: Path, batches: list[list[dict[str, Any]]]) -> None:
    """The first micro-batch is what the changes up to its point come to; a later one, those up to its own."""
    before: dict[str, int] = {}
    for number, rows in enumerate(batches):
        ends = json.loads((checkpoint / "offsets" / str(number)).read_text().splitlines()[2])["ends"]
        changes = [
            (stream, offset, *shop.changes[stream, offset])
            for stream, end in ends.items()
            for offset in range(before.get(stream, 0), end)
        ]
        if number:
            found = [
                (r["stream"], r["offset"], (r["topic"], r["key"], r["payload"]), r["diff"]) for r in rows
            ]
            assert sorted(found) == sorted(changes)
        else:
            there: Counter[tuple[Any, ...]] = Counter()
            for *_, item, diff in changes:
                there[item] += diff
            assert len(rows) == len(Reading.multiset(rows)), "each item in one row"
            assert Reading.multiset(rows) == {item: count for item, count in there.items() if count}
        before = ends
    assert Reading.multiset([row for rows in batches for row in rows]) == shop.there()
