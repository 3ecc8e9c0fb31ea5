"""Batches as epochs, without Java: each is delivered once and whole, whatever dies between two steps."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from streamlease.agent.client import Client
from streamlease.protocol.errors import Fenced, Indefinite, InvalidInput, InvalidOption, StoreUnavailable
from streamlease.spark.reading.batch_read import batch_reader
from streamlease.spark.schema import readable
from streamlease.spark.sink import Sinks, Written, deliver, stage
from streamlease.spark.sink_options import SinkOptions
from streamlease.streams.epochs import batch_epochs
from streamlease.streams.epochs.keeping import Keeper
from streamlease.streams.epochs.presence import Presence
from streamlease.streams.epochs.stored import read_writers
from streamlease.streams.epochs.writing import LineWriter, lose
from streamlease.streams.publish.staged import batch_plan
from streamlease.streams.publish.staged.staging import StagedLost
from streamlease.streams.redis.connection import AsyncRedis, ask, connect_blocking, run_blocking
from streamlease.streams.redis.scripts import Call
from tests.epochs.playing import kept
from tests.spark.refusals import one_line
from tests.spark.test_batch import rows
from tests.spark.world import SPACE, World

QUERY = Sinks("query", "q1")


class Chain:
    """A sink into a space with epochs, whose keeper is the test's."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.keeper: Keeper = world._thread.call(kept(world._client, SPACE))
        self.options = SinkOptions.parse(self.given(), stream=True)

    def given(self, **more: str) -> dict[str, str]:
        """Options of the sink."""
        return {"redis": self.world.url, "space": SPACE, "epochs": "batch", **more}

    def staged(self, batch: int, tasks: int = 2, query: Sinks = QUERY) -> list[Written]:
        """What the tasks of a batch of 12 rows staged."""
        found = []
        for task in range(tasks):
            numbers = range(task * 12 // tasks, (task + 1) * 12 // tasks)
            data = {
                "topic": [f"t/{number}" for number in numbers],
                "payload": [b"%d.%d" % (batch, number) for number in numbers],
            }
            found.append(stage(iter([pa.record_batch(data)]), self.options, query, batch, task))
        return found

    def commit(self, batch: int, **more: Any) -> None:
        """The batch, from its tasks to the driver's commit."""
        deliver([*self.staged(batch, **more)], self.options)

    def keep(self) -> None:
        """What was given up completes."""

        async def turns() -> None:
            while await self.keeper.turn():
                pass

        self.world._thread.call(turns())

    def epochs(self) -> dict[int, list[str]]:
        """What is completed: the payloads of each epoch."""
        self.keep()
        named = {"redis": self.world.url, "subscribe": "t/#"}
        found: dict[int, list[str]] = {}
        for row in rows(batch_reader(readable(named), named)):
            found.setdefault(row["epoch"][0], []).append(row["payload"].decode())
        return {epoch: sorted(texts) for epoch, texts in found.items()}

    def topics(self) -> dict[str, int]:
        """How many messages of completed epochs each topic has."""
        self.keep()
        named = {"redis": self.world.url, "subscribe": "t/#"}
        return Counter(row["topic"] for row in rows(batch_reader(readable(named), named)))

    def left(self) -> int:
        """How many messages are staged and belong to nothing yet."""
        self.keep()
        with connect_blocking(self.world.url) as redis:
            (keys,) = run_blocking(ask(redis, [("KEYS", "*:open:epochs")]))
            counts = run_blocking(ask(redis, [("HVALS", key) for key in keys]))
        return sum(int(count) for one in counts for count in one)


def whole(*batches: int) -> dict[int, list[str]]:
    return {batch: sorted(f"{batch}.{number}" for number in range(12)) for batch in batches}


@pytest.fixture
def chain(make_world: Callable[..., World]) -> Chain:
    return Chain(make_world(epochs=1))


def test_each_batch_is_an_epoch(chain: Chain) -> None:
    for batch in range(3):
        chain.commit(batch)
        assert chain.epochs() == whole(*range(batch + 1))
    assert chain.left() == 0


def test_a_batch_without_rows_is_an_epoch_too(chain: Chain) -> None:
    chain.commit(0)
    deliver([Written(QUERY, 1, [], {})], chain.options)
    chain.commit(2, tasks=3)
    assert chain.epochs() == whole(0, 2)


def test_a_batch_that_is_committed_again_is_not_there_twice(chain: Chain) -> None:
    chain.commit(0)
    chain.commit(1)
    chain.commit(1, tasks=3)
    assert chain.epochs() == whole(0, 1)
    chain.commit(1)
    chain.commit(2)
    assert chain.epochs() == whole(0, 1, 2)
    assert chain.left() == 0


def test_partitions_with_topics_of_their_own(chain: Chain) -> None:
    """The partitions of an epoch are topics, and are whole together."""
    given = chain.given(topic="t/all", partition="perWorker")
    chain.options = SinkOptions.parse(given, stream=True)
    chain.commit(0, tasks=2)
    chain.commit(1, tasks=3)
    chain.commit(1, tasks=4)  # made again, from other partitions: the first one counts
    assert chain.topics() == {"t/all.0": 6 + 4, "t/all.1": 6 + 4, "t/all.2": 4}
    chain.options = SinkOptions.parse(chain.given(partition="perWorker"), stream=True)
    chain.commit(2, tasks=2)
    assert chain.epochs() == whole(0, 1, 2)
    assert {topic for topic in chain.topics() if "all" not in topic} == {
        f"t/{number}.{number // 6}" for number in range(12)
    }


class Killed(Exception):
    """The process of the driver is gone."""


@pytest.fixture(params=["entered", "half staged", "staged", "advanced"])
def die(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Has the next commit die at a point; nothing of its own cleaning up is left out but signs of life."""
    enter, advance, copy = Presence.enter, Presence.advance, batch_epochs.run_settled

    async def enter_and_die(self: Presence) -> Any:
        await enter(self)
        raise Killed

    async def copy_one_and_die(redis: AsyncRedis, calls: list[Call], *args: Any) -> Any:
        await copy(redis, calls[:1], *args)
        raise Killed

    async def die_before(self: Presence, *args: Any) -> Any:
        raise Killed

    async def advance_and_die(self: Presence, *args: Any) -> Any:
        await advance(self, *args)
        raise Killed

    def arm() -> None:
        match request.param:
            case "entered":
                monkeypatch.setattr(Presence, "enter", enter_and_die)
            case "half staged":
                monkeypatch.setattr(batch_epochs, "run_settled", copy_one_and_die)
            case "staged":
                monkeypatch.setattr(Presence, "advance", die_before)
            case "advanced":
                monkeypatch.setattr(Presence, "advance", advance_and_die)

    yield arm


@pytest.mark.parametrize("between", ["at once", "kept", "given up"])
def test_a_driver_that_dies_leaves_the_batch_to_the_next_one(
    chain: Chain, die: Callable[[], None], monkeypatch: pytest.MonkeyPatch, between: str
) -> None:
    chain.commit(0)
    for batch in (1, 2):
        die()
        with pytest.raises(Killed):
            chain.commit(batch)
        monkeypatch.undo()
        if between != "at once":
            chain.keep()
        if between == "given up":
            chain.world._thread.call(given_up(chain.world._client))
            chain.keep()
        chain.commit(batch, tasks=3)
        assert chain.epochs() == whole(*range(batch + 1))
    assert chain.left() == 0


async def given_up(client: Client) -> None:
    writers = await read_writers(client.redis, SPACE)
    name = QUERY.publisher(QUERY.name)
    assert await lose(client.redis, SPACE, name, writers[name].inc, "silent")


def test_an_earlier_attempt_that_still_runs_is_fenced(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    chain.commit(0)
    old, advance = chain.staged(1), Presence.advance

    async def after_another(self: Presence, *args: Any) -> None:
        monkeypatch.undo()
        other = LineWriter(self._redis, SPACE, QUERY.publisher(QUERY.name))
        await other.enter()
        await advance(self, *args)

    monkeypatch.setattr(Presence, "advance", after_another)
    with pytest.raises(Fenced):
        deliver([*old], chain.options)
    assert chain.epochs() == whole(0)
    chain.commit(1)
    assert chain.epochs() == whole(0, 1)


@pytest.mark.parametrize("error", [Indefinite("no answer"), StoreUnavailable("away")])
def test_a_commit_is_tried_again_while_redis_does_not_answer(
    chain: Chain, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    advance = Presence.advance

    async def once(self: Presence, *args: Any) -> None:
        monkeypatch.undo()
        await advance(self, *args)
        raise error

    monkeypatch.setattr(Presence, "advance", once)
    chain.commit(0)
    assert chain.epochs() == whole(0)


def test_rows_of_a_stream_are_copied_in_parts(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_plan, "APPEND_KEYS", 1)
    chain.commit(0, tasks=4)
    chain.commit(1, tasks=6)
    assert chain.epochs() == whole(0, 1)
    assert chain.left() == 0


def test_a_copy_whose_answer_was_lost_is_not_there_twice(
    chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = batch_epochs.run_settled

    async def twice(*args: Any) -> Any:
        await copy(*args)
        return await copy(*args)

    monkeypatch.setattr(batch_epochs, "run_settled", twice)
    chain.commit(0, tasks=3)
    assert chain.epochs() == whole(0)
    assert chain.left() == 0


def test_rows_that_redis_lost_before_the_commit(chain: Chain) -> None:
    """The commit fails, and its repetition brings them again."""
    chain.commit(0)
    written = chain.staged(1)
    with connect_blocking(chain.world.url) as redis:
        (found,) = run_blocking(ask(redis, [("KEYS", "*:staged:*")]))
        run_blocking(ask(redis, [("DEL", sorted(found)[0])]))
    with pytest.raises(StagedLost, match="0 of 1 entries are left of what was staged") as refused:
        deliver([*written], chain.options)
    one_line(refused.value)
    chain.commit(1)
    assert chain.epochs() == whole(0, 1)
    assert chain.left() == 0


def test_rows_of_an_older_version_of_the_schema(make_world: Callable[..., World]) -> None:
    world = make_world(epochs=1)
    schema = {"columns": [{"name": "a", "type": "int64"}]}
    client = world._client
    world._thread.call(client.create_space("typed", ["typed/#"], streams=1, epochs=1, schema=schema))
    given = {"redis": world.url, "space": "typed", "epochs": "batch", "topic": "typed/x"}
    options = SinkOptions.parse(given, stream=True)
    written = [stage(iter([pa.record_batch({"a": [n]})]), options, QUERY, 0, n) for n in range(3)]
    schema["columns"].append({"name": "b", "type": "string"})
    world._thread.call(client.alter_space("typed", schema=schema))
    deliver(written, options)
    keeper: Keeper = world._thread.call(kept(client, "typed"))

    async def turns() -> None:
        while await keeper.turn():
            pass

    world._thread.call(turns())
    named = {"redis": world.url, "subscribe": "typed/#"}
    found = [(row["a"], row["b"], row["epoch"]) for row in rows(batch_reader(readable(named), named))]
    assert found == [(n, None, [0]) for n in range(3)]


@pytest.mark.slow
def test_the_sink_gives_signs_of_life_in_a_commit_that_lasts(
    make_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lasts for three time-outs of the space, and nobody gives the sink up."""
    world, copy = make_world(epochs=1), batch_epochs.run_settled
    shorter = {"epochs_timeout_ms": 1000}
    world._thread.call(world._client.spaces.change(SPACE, lambda space: space.model_copy(update=shorter)))
    chain = Chain(world)
    chain.commit(0)
    chain.keep()

    async def slowly(redis: AsyncRedis, *args: Any) -> Any:
        async def seen() -> int:
            return (await read_writers(redis, SPACE))[QUERY.publisher(QUERY.name)].seen

        first = await seen()
        async with asyncio.timeout(30):
            while await seen() < first + 3000:
                chain.keep()
                await asyncio.sleep(0.02)
        return await copy(redis, *args)

    monkeypatch.setattr(batch_epochs, "run_settled", slowly)
    before = (chain.world._thread.call(read_writers(chain.world._client.redis, SPACE))).popitem()[1]
    chain.commit(1)
    after = (chain.world._thread.call(read_writers(chain.world._client.redis, SPACE))).popitem()[1]
    assert (after.inc, after.state) == (before.inc + 1, "here"), "it entered once"
    assert chain.epochs() == whole(0, 1)


# ---------------------------------------------------------------- what is refused


def test_an_older_checkpoint(chain: Chain) -> None:
    for batch in range(3):
        chain.commit(batch)
    with pytest.raises(Fenced, match="wrote batch 2 already, and this one writes batch 1") as refused:
        chain.commit(1)
    one_line(refused.value)
    assert chain.epochs() == whole(0, 1, 2)


def test_a_space_of_another_publisher(chain: Chain) -> None:
    chain.commit(0)
    with pytest.raises(InvalidOption, match="belongs to one sink") as refused:
        chain.commit(0, query=Sinks("query", "q2"))
    one_line(refused.value)
    assert chain.epochs() == whole(0)


def test_a_space_without_integers(make_world: Callable[..., World]) -> None:
    chain = Chain(make_world(epochs=2))
    with pytest.raises(InvalidOption, match="space s has no epochs that are integers") as refused:
        chain.commit(0)
    one_line(refused.value)


def test_options(chain: Chain) -> None:
    with pytest.raises(InvalidOption, match="use 'off' or 'batch'"):
        SinkOptions.parse(chain.given(epochs="atomic"), stream=True)
    with pytest.raises(InvalidOption, match="'batch' is for streams"):
        SinkOptions.parse(chain.given(), stream=False)
    given = {name: one for name, one in chain.given().items() if name != "space"}
    with pytest.raises(InvalidOption, match="name the space with option 'space'"):
        SinkOptions.parse(given, stream=True)
    with pytest.raises(InvalidInput, match="space s has epochs"):
        chain.options = SinkOptions.parse(chain.given(epochs="off"), stream=True)
        chain.commit(0)


def test_what_redis_lost_is_told(chain: Chain, caplog: pytest.LogCaptureFixture) -> None:
    chain.commit(0)
    chain.commit(3)
    assert chain.epochs() == whole(0, 3)
    assert "epochs 1 to 2 of space s are not there" in caplog.text
