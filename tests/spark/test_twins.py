"""Two readers in one query, and in two, as tasks of their first micro-batches tell them apart."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from streamlease.borrower.reading import Pieces
from streamlease.protocol.errors import InvalidOption
from streamlease.spark.core import available
from streamlease.spark.reading import task
from streamlease.spark.source import StreamReader
from tests.spark.refusals import one_line
from tests.spark.test_query import held_all
from tests.spark.world import Query, World, within

InTask = Callable[..., None]


@pytest.fixture
def in_task(monkeypatch: pytest.MonkeyPatch) -> InTask:
    """Says in the tasks of which query, and of which run of it, what follows is read."""

    def set_to(query: str | None, run: str | None = None) -> None:
        properties = {"sql.streaming.queryId": query, "spark.jobGroup.id": run}
        context = SimpleNamespace(getLocalProperty=properties.__getitem__, attemptNumber=lambda: 0)
        monkeypatch.setattr(task, "TaskContext", SimpleNamespace(get=lambda: context))

    return set_to


def first_batch(one: Query) -> tuple[dict[str, Any], dict[str, Any]]:
    """Where the first micro-batch begins and ends, which Spark makes even if there is nothing in it."""
    start = one.reader.initialOffset()
    return start, one.reader.latestOffset(start, one.reader.getDefaultReadLimit())


def read(one: Query, start: dict[str, Any], end: dict[str, Any]) -> int:
    """How many rows the tasks of a batch give."""
    worker: StreamReader = pickle.loads(pickle.dumps(one.reader))
    partitions = pickle.loads(pickle.dumps(one.reader.partitions(start, end)))
    return sum(batch.num_rows for part in partitions for batch in worker.read(part))


@pytest.mark.parametrize(
    ("queries", "refused"),
    [
        ((("a", "run"), ("a", "run")), True),
        ((("a", None), ("a", None)), True),
        ((("a", "run"), ("b", "another")), False),
        ((("a", "same group of jobs"), ("b", "same group of jobs")), False),
        ((("a", "run"), ("a", "run after a restart")), False),
        (((None, None), (None, None)), False),
    ],
)
@pytest.mark.slow
def test_a_second_reader_of_a_run_is_refused_though_it_has_nothing_to_read(
    world: World, in_task: InTask, queries: Any, refused: bool
) -> None:
    world.declare()  # and no leader: there is nothing to read
    one, other = world.query(), world.query()
    in_task(*queries[0])
    assert read(one, *first_batch(one)) == 0
    in_task(*queries[1])
    offsets = first_batch(other)
    if not refused:
        assert read(other, *offsets) == 0
        return
    with pytest.raises(InvalidOption) as error:
        read(other, *offsets)
    assert "names group 'g/t/#' in two readers of one query" in one_line(error.value)
    in_task(*queries[0])
    assert (
        read(one, *first_batch(one)) == 0
    )  # as a union of a frame with itself reads, or a task that is repeated


@pytest.mark.slow
def test_only_the_first_micro_batch_of_a_reader_has_a_task_without_messages(
    world: World, in_task: InTask
) -> None:
    in_task("a", "run")
    world.declare()
    one = world.query()
    start, end = first_batch(one)
    for _ in range(2):  # a frame in a union with itself is read twice
        (partition,) = one.reader.partitions(start, end)
        assert (partition.first, partition.work.pieces) == (True, Pieces())  # type: ignore[attr-defined]
    world.lead()
    world.publish(3)
    held_all(one, world)
    one.run(lambda: len(one.checkpoint.rows) == 12)
    last = json.loads(one.checkpoint.offsets[-1])
    assert one.reader.partitions(last, last) == []
    again = [part for part in one.reader.partitions(start, last) if part.first]  # type: ignore[attr-defined]
    assert again == []


def test_the_readers_of_a_join_come_to_their_first_batch_with_available_now(
    world: World, monkeypatch: pytest.MonkeyPatch, in_task: InTask
) -> None:
    monkeypatch.setattr(available, "FIRST_SECONDS", 0.3)
    world.lead()
    world.publish(3)
    one, other = world.query(once=True), world.query(once=True)
    start = one.reader.initialOffset()
    end = start
    for _ in within(60.0):
        end = one.reader.latestOffset(start, one.reader.getDefaultReadLimit())
        if end != start:
            break
    # Spark asks both in one thread: as long as this one waits, the first one reads nothing.
    begin, nothing = first_batch(other)
    in_task("a", "run")
    assert read(one, start, end) > 0
    with pytest.raises(InvalidOption):
        read(other, begin, nothing)
