"""Queries of whole epochs: each micro-batch has all of an epoch, of all streams, or nothing of it."""

from __future__ import annotations

import contextlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest

from streamlease.hosts.keepers import Keepers
from streamlease.protocol.acts import MoveStream, ReleaseStream
from streamlease.protocol.errors import ActRefused, InvalidOption
from streamlease.protocol.group_options import GroupOptions
from streamlease.protocol.messages import FixCut
from streamlease.spark.continuous import continuous
from streamlease.spark.query import epoch_following
from streamlease.streams.epochs import boundary_reading, keys
from streamlease.streams.epochs.keeping import Keeper
from streamlease.streams.redis.connection import ask
from tests.epochs.playing import Hand, hand, kept
from tests.spark.refusals import one_line
from tests.spark.test_available import only_batch
from tests.spark.world import SPACE, SUBSCRIPTION, Checkpoint, Query, World, run_together, wait_for

ROWS = 5
"""Messages of an epoch: in streams 0 and 1, and of every third epoch in stream 2 too."""


class Play:
    """A publisher and a keeper by hand, in a world whose space has epochs."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.epochs: dict[tuple[str, int], int] = {}
        """Stream and offset of each message -> its epoch."""
        self.made: Hand = world._thread.call(hand(world._client.redis, space=SPACE))
        self.keeper: Keeper = world._thread.call(kept(world._client, SPACE))
        self.open: list[tuple[int, str]] = []
        self.next = 0

    def epoch(self, *, complete: bool = True, keep: bool = True) -> None:
        """Send another epoch."""
        self.world._thread.call(self._send(complete=complete, keep=keep))

    async def _send(self, *, complete: bool, keep: bool) -> None:
        epoch = self.next
        shards = [0, 0, 1, 2, 2] if epoch % 3 == 0 else [0, 1, 1, 1, 1]
        for shard in shards:
            await self.made.send(epoch, f"{epoch}", shard=shard, topic="t/x")
        self.next += 1
        self.open += [(epoch, f"{SPACE}.0.{shard}") for shard in shards]
        if not complete:
            return
        for one, stream in self.open:
            self.epochs[stream, self.world.published[stream]] = one
            self.world.published[stream] += 1
        self.open.clear()
        await self.made.advance(self.next)
        if keep:
            await self._keep()

    async def _keep(self) -> None:
        while await self.keeper.turn():
            pass

    def keep(self) -> None:
        """What was given up completes."""
        self.world._thread.call(self._keep())

    def micro_batches(self, *checkpoints: Checkpoint) -> list[list[int]]:
        """The epochs of each micro-batch that has rows; all of each must be in it."""
        found = []
        for checkpoint in checkpoints:
            for _, rows in sorted(checkpoint.sink.items()):
                counts: defaultdict[int, int] = defaultdict(int)
                for row in rows:
                    counts[self.epochs[row.stream, row.offset]] += 1
                assert set(counts.values()) <= {ROWS}, f"an epoch was cut in two: {dict(counts)}"
                found.append(sorted(counts))
        return [one for one in found if one]


@pytest.fixture
def play(make_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch) -> Play:
    async def none(_: Keepers) -> None:
        """The keeper is the test's."""

    monkeypatch.setattr(Keepers, "round", none)
    return Play(make_world(epochs=1))


def atomic(play: Play, checkpoint: Checkpoint | None = None, **more: Any) -> Query:
    return play.world.query(checkpoint, epochs="atomic", **more)


def test_what_is_completed_comes_whole_and_what_is_open_does_not(play: Play) -> None:
    for _ in range(4):
        play.epoch()
    play.epoch(complete=False)
    play.world.lead()
    query = atomic(play)
    query.run(lambda: len(query.checkpoint.rows) == play.world.total)
    assert play.micro_batches(query.checkpoint) == [[0, 1, 2, 3]]
    play.world.check(query.checkpoint)
    assert query.reader.reportLatestOffset()["epochs"] == {"boundary": 4, "lower": [[4]]}
    assert not query.trigger()


def test_as_they_come_each_is_in_one_micro_batch(play: Play) -> None:
    play.world.lead()
    query = atomic(play)
    for epoch in range(6):
        play.epoch()
        query.run(lambda: len(query.checkpoint.rows) == play.world.total)
        assert query.reader.reportLatestOffset()["epochs"] == {"boundary": epoch + 1, "lower": [[epoch + 1]]}
    assert play.micro_batches(query.checkpoint) == [[epoch] for epoch in range(6)]
    play.world.check(query.checkpoint)


def test_what_was_moved_waits_until_its_boundary_is_recorded(play: Play) -> None:
    """The keeper dies between moving and recording: the messages are there, and the epoch is not yet."""
    play.world.lead()
    query = atomic(play)
    play.epoch()
    query.run(lambda: len(query.checkpoint.rows) == ROWS)
    play.epoch(keep=False)
    redis = play.world._client.redis

    async def only_move() -> None:
        done = []

        async def refuse(*_: Any) -> None:
            done.append(1)
            raise ConnectionResetError

        play.keeper._record = refuse  # type: ignore[attr-defined]
        while not done:
            with contextlib.suppress(ConnectionResetError):
                await play.keeper.turn()

    assert hasattr(play.keeper, "_record")
    play.world._thread.call(only_move())
    (end,) = play.world._thread.call(ask(redis, [("HGET", keys.state(SPACE), "boundary")]))
    assert int(end) == 1
    wait_for(lambda: play.world.ends()[f"{SPACE}.0.1"] > 1)
    for _ in range(5):
        assert not query.trigger(), "its boundary is not there yet"
    play.keeper = play.world._thread.call(kept(play.world._client, SPACE, 2))
    play.keep()
    query.run(lambda: len(query.checkpoint.rows) == 2 * ROWS)
    assert play.micro_batches(query.checkpoint) == [[0], [1]]


@pytest.mark.parametrize("page", [boundary_reading.AT_ONCE, 2])
def test_a_limit_of_epochs(play: Play, page: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boundary_reading, "AT_ONCE", page)
    monkeypatch.setattr(epoch_following, "AT_ONCE", page)
    for _ in range(7):
        play.epoch()
    play.world.lead()
    query = atomic(play, maxEpochsPerTrigger=3)
    query.run(lambda: len(query.checkpoint.rows) == play.world.total)
    assert play.micro_batches(query.checkpoint) == [[0, 1, 2], [3, 4, 5], [6]]
    play.world.check(query.checkpoint)


def test_available_now_ends_at_the_boundary_that_was_newest_at_the_start(play: Play) -> None:
    for _ in range(4):
        play.epoch()
    play.world.lead()
    query = atomic(play, once=True, maxEpochsPerTrigger=3)
    query.run_until("committed")
    play.epoch()
    query.run_to_the_end()
    assert play.micro_batches(query.checkpoint) == [[0, 1, 2], [3]]


def test_once_has_all_of_it_in_one(play: Play) -> None:
    for _ in range(5):
        play.epoch()
    play.world.lead()
    rows = only_batch(atomic(play, maxEpochsPerTrigger=1))
    assert len(rows) == 5 * ROWS


@pytest.mark.parametrize("phase", ["fixed", "logged", "read", "sunk", "committed"])
@pytest.mark.slow
def test_a_query_that_is_killed_and_started_again_splits_nothing(play: Play, phase: Any) -> None:
    play.world.lead()
    checkpoint = Checkpoint()
    for _ in range(3):
        play.epoch()
        play.epoch()
        query = atomic(play, checkpoint, maxEpochsPerTrigger=2)
        query.run_until(phase)
        play.epoch()
        query.kill()
    query = atomic(play, checkpoint, maxEpochsPerTrigger=2)
    query.run(lambda: len({row[:2] for row in checkpoint.rows}) == play.world.total)
    play.micro_batches(checkpoint)
    play.world.check(checkpoint)


@pytest.mark.slow
def test_a_lost_checkpoint_changes_no_boundary(play: Play) -> None:
    """The ends of the killed query's open cut are pinned: its epochs come together again."""
    play.world.lead()
    first = Checkpoint()
    for _ in range(4):
        play.epoch()
    killed = atomic(play, first, maxEpochsPerTrigger=2, sessionTimeoutMs=2000)
    killed.run_until("sunk")
    killed.kill()
    play.epoch()
    query = atomic(play, sessionTimeoutMs=2000)
    query.run(lambda: len(query.checkpoint.rows) == play.world.total)
    assert play.micro_batches(query.checkpoint) == [[0, 1], [2, 3, 4]]
    play.world.check(first, query.checkpoint, duplicates=True)


def test_two_queries_share_the_streams_and_each_has_its_part_of_an_epoch_in_one_micro_batch(
    play: Play,
) -> None:
    play.world.lead()
    queries = [atomic(play), atomic(play)]
    for query in queries:
        query.trigger()
    wait_for(lambda: all(len(query.held) == 2 for query in queries))
    for _ in range(8):
        play.epoch()
        play.epoch()
        for query in queries:
            query.trigger()
    rows = sum(len(query.checkpoint.rows) for query in queries)
    while rows < play.world.total:
        for query in queries:
            query.trigger()
        rows = sum(len(query.checkpoint.rows) for query in queries)
    play.world.check(*(query.checkpoint for query in queries))
    for query in queries:
        where: dict[int, set[int]] = {}
        for batch, seen in query.checkpoint.sink.items():
            for row in seen:
                where.setdefault(play.epochs[row.stream, row.offset], set()).add(batch)
        assert all(len(batches) == 1 for batches in where.values())


def test_a_stream_that_is_asked_back_while_the_cut_is_fixed_is_waited_for(play: Play) -> None:
    """An operator moves streams from one slot of the query to the other just before the cut gets there."""
    play.world.lead()
    query = atomic(play)
    play.epoch()
    query.run(lambda: len(query.checkpoint.rows) == ROWS)
    for epoch in range(1, 5):
        ahead_of_its_cut(query, partial(move, play.world, query, play.world.streams[1:], epoch % 2))
        play.epoch()
        query.run(lambda: len(query.checkpoint.rows) == play.world.total)
    assert play.micro_batches(query.checkpoint) == [[epoch] for epoch in range(5)]
    play.world.check(query.checkpoint)


def ahead_of_its_cut(query: Query, do: Callable[[], None]) -> None:
    """Do that when the query asks its leader for a cut, before the leader hears of it."""
    borrowing = query.session.query.loop.borrowing
    assert borrowing is not None
    session, post = borrowing.session, borrowing.session.post

    def after_that(message: Any) -> None:
        if isinstance(message, FixCut):
            session.post = post  # type: ignore[method-assign]
            do()
        post(message)

    session.post = after_that  # type: ignore[method-assign]


def move(world: World, query: Query, streams: Iterable[str], slot: int) -> None:
    """Have an operator move streams to a slot of the query."""
    name = f"{query.session.query.machine.cuts.who.session}/{slot}"
    for stream in streams:
        with contextlib.suppress(ActRefused):  # a new leader does not know the slot yet
            world._thread.call(world._client.act(SUBSCRIPTION, MoveStream(stream=stream, borrower=name)))


# ---------------------------------------------------------------- where it begins


def test_the_latest_is_the_newest_boundary(play: Play) -> None:
    play.epoch()
    play.epoch(complete=False)
    query = declared(atomic(play, startingOffsets="latest"))
    play.world.lead()
    query.trigger()
    wait_for(lambda: len(query.held) == 4)
    play.epoch()
    query.run(lambda: len(query.checkpoint.rows) > 0)
    assert play.micro_batches(query.checkpoint) == [[1, 2]], "1 was open, and is whole behind that boundary"


def declared(query: Query) -> Query:
    """Have the query declare the group, ahead of its leader."""
    query.session.thread.call(query.session.query.finder.connected())
    return query


@pytest.mark.parametrize(
    ("starting", "first"),
    [
        ({"s.0.1": 2}, 1),  # in the middle of epoch 1
        ({"s.0.1": 5}, 2),
        ({"s.0.1": 1, "s.0.0": -1}, 1),
        ({"s.0.1": -2, "s.0.0": 3}, 0),
        ("earliest", 0),
    ],
)
def test_offsets_inside_an_epoch_begin_at_its_beginning(
    play: Play, starting: dict[str, int] | str, first: int
) -> None:
    for _ in range(4):
        play.epoch()
    text = starting if isinstance(starting, str) else json.dumps(starting)
    query = declared(atomic(play, startingOffsets=text))
    play.world.lead()
    query.run(lambda: any(play.micro_batches(query.checkpoint)))
    assert play.micro_batches(query.checkpoint) == [[*range(first, 4)]]


def test_boundaries_that_were_forgotten_hide_no_messages(play: Play) -> None:
    for _ in range(4):
        play.epoch()
    query = declared(atomic(play))
    commands = [("XDEL", keys.bounds(SPACE), "1-0", "2-0")]
    assert play.world._thread.call(ask(play.world._client.redis, commands)) == [2]
    play.world.lead()
    query.run(lambda: len(query.checkpoint.rows) == play.world.total)
    assert play.micro_batches(query.checkpoint) == [[0, 1, 2, 3]]


def test_boundaries_that_redis_lost_are_looked_for_anew(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    play.world.lead()
    query = atomic(play)
    play.epoch()
    query.run(lambda: len(query.checkpoint.rows) == ROWS)
    redis = play.world._client.redis
    (((_, fields),),) = play.world._thread.call(ask(redis, [("XRANGE", keys.bounds(SPACE), "1-0", "1-0")]))
    other = json.dumps(json.loads(fields[1]) | {"upto": 9})
    commands = [("DEL", keys.bounds(SPACE)), ("XADD", keys.bounds(SPACE), "1-0", "b", other, "t", "0")]
    play.world._thread.call(ask(redis, commands))
    play.epoch()
    query.run(lambda: len(query.checkpoint.rows) == 2 * ROWS)
    assert "boundary 1 of space s is not there as it was read" in caplog.text
    assert play.micro_batches(query.checkpoint) == [[0], [1]]


# ---------------------------------------------------------------- what is refused


def refused(play: Play, match: str, **options: Any) -> None:
    with pytest.raises(InvalidOption, match=match) as told:
        atomic(play, **options).trigger()
    one_line(told.value)


@pytest.mark.parametrize("name", ["maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger"])
def test_limits_that_would_cut_epochs_in_two(play: Play, name: str) -> None:
    refused(play, f"^option '{name}' would cut epochs in two", **{name: 5})


def test_a_limit_of_epochs_needs_epochs(world: World) -> None:
    with pytest.raises(InvalidOption, match=r"set 'epochs' to 'atomic'"):
        world.query(maxEpochsPerTrigger=5)
    with pytest.raises(InvalidOption, match="use 'off' or 'atomic'"):
        world.query(epochs="eager")


def test_a_space_without_epochs(world: World) -> None:
    with pytest.raises(InvalidOption, match="space s, which has no epochs") as told:
        world.query(epochs="atomic").trigger()
    one_line(told.value)


def test_several_spaces(play: Play) -> None:
    client = play.world._client
    play.world._thread.call(client.create_space("other", ["o/#"], streams=1, epochs=1))
    refused(play, "other and s, whose epochs complete apart", subscribe="$shared/g/+/x")


def test_continuous_mode() -> None:
    with pytest.raises(InvalidOption, match=r"^epochs is 'atomic', and continuous mode"):
        continuous(None, "$shared/g/t/#", print, epochs="atomic")  # type: ignore[arg-type]


def parts_of_epochs(play: Play, *checkpoints: Checkpoint) -> dict[tuple[int, str], list[tuple[int, int]]]:
    """Which query and micro-batch has what a stream has of an epoch; each has all of it."""
    wholes = Counter((epoch, stream) for (stream, _), epoch in play.epochs.items())
    parts: defaultdict[tuple[int, str], list[tuple[int, int]]] = defaultdict(list)
    for query, checkpoint in enumerate(checkpoints):
        for batch, rows in sorted(checkpoint.sink.items()):
            found = Counter((play.epochs[row.stream, row.offset], row.stream) for row in rows)
            assert found.items() <= wholes.items(), f"query {query}, batch {batch}: a part was cut in two"
            for part in found:
                parts[part].append((query, batch))
    return parts


@pytest.mark.parametrize("phase", ["fixed", "logged", "read", "sunk"])
def test_a_stream_that_is_released_divides_no_micro_batch_that_spark_has_begun(
    play: Play, phase: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a cut that Spark has not logged, the stream comes later, which is told. Nothing comes twice."""
    world = play.world
    world.lead()
    query = atomic(play, maxEpochsPerTrigger=2)
    for _ in range(6):
        play.epoch()
    query.run_until(phase)
    released = world.streams[1]
    world._thread.call(world._client.act(SUBSCRIPTION, ReleaseStream(stream=released), who="ann"))
    play.epoch()
    query.run(lambda: world.all_committed)
    world.check(query.checkpoint)
    parts = parts_of_epochs(play, query.checkpoint)
    split = {
        epoch for epoch in range(play.next) if len({parts[one][0] for one in parts if one[0] == epoch}) > 1
    }
    assert split == ({0, 1} if phase == "fixed" else set())
    told = "1 of 3 streams were taken out of it by force, so it lacks their part" in caplog.text
    assert told is (phase == "fixed")


def test_a_stream_that_is_taken_after_the_revocation_timeout_brings_its_parts_whole(play: Play) -> None:
    world = play.world
    options = GroupOptions(revocation_timeout_ms=200)
    world._thread.call(world._client.groups.declare(SUBSCRIPTION, "earliest", options=options))
    world.lead()
    one = atomic(play)
    for _ in range(3):
        play.epoch()
    one.run_until("logged")
    two = atomic(play)
    two.run(lambda: len(two.held) == 2)
    play.epoch()
    run_together(one, two, done=lambda: world.all_committed)
    world.check(one.checkpoint, two.checkpoint, duplicates=True)
    parts = parts_of_epochs(play, one.checkpoint, two.checkpoint)
    assert any(len(batches) > 1 for batches in parts.values())
    for epoch in range(3):
        first = {batches[0] for (of, _), batches in parts.items() if of == epoch}
        assert first == {(0, 0)}, "the open micro-batch keeps all of it"
