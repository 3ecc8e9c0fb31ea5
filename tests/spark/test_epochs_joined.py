"""Collections, and two spaces joined by their epochs, in real Spark: one application for all of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.spark.drivers import run
from tests.spark.epoch_feed import ROWS, EpochFeed
from tests.spark.test_epochs_spark import rows_by_batch
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
    *tables, one, two, _, told = run(tmp_path, *steps, *more, {**join, "batches": 2}, join)
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
