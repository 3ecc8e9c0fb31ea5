"""What a failover of Redis takes from a batch of a sink between staging and commit, and in a commit.

A failover that loses the newest writes is made by hand: entries, keys or decisions are removed, or all keys
are put back to how they were some exchanges before. The queries of ``tests/simulation`` and of
``tests/spark/world.py`` write into sinks of the tests' own, which stage nothing: they could see none of this.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import pytest

from streamlease.protocol.errors import Indefinite, StoreRefused, StoreUnavailable, UnknownSpace
from streamlease.protocol.ids import StreamId
from streamlease.streams.entries.entries import Row, encode_rows
from streamlease.streams.log.keys import sink_state, stream_meta, stream_publishers, stream_staged
from streamlease.streams.publish.staged import batch_plan as plans
from streamlease.streams.publish.staged import staging
from streamlease.streams.publish.staged.batch_plan import BatchPlan, Staged
from streamlease.streams.publish.staged.delivery import Delivery
from streamlease.streams.publish.staged.staging import StagedLost, Stager
from streamlease.streams.redis import connection
from streamlease.streams.redis.connection import ask, connect_blocking
from tests.streams.delivering import SCHEMA, SINK, Dying, Losing, Rig, rig

pytestmark = pytest.mark.thorough

STARTS_AGAIN = "of . entries are left of what was staged for stream t.* start again"


async def lose(world: Rig, staged: Staged, entries: slice) -> None:
    """Remove some of the entries of a staged key; all of them with the key."""
    name = stream_staged(staged.stream, staged.token)
    (there,) = await ask(world.redis, [("XRANGE", name, "-", "+")])
    gone = [id for id, _ in there][entries]
    await ask(world.redis, [("UNLINK", name) if len(gone) == len(there) else ("XDEL", name, *gone)])


LOSSES = {
    "the last": slice(-1, None),
    "in the middle": slice(1, 2),
    "the first": slice(0, 1),
    "all": slice(None),
}


@pytest.mark.parametrize("entries", LOSSES.values(), ids=[*LOSSES])
async def test_rows_lost_between_staging_and_commit_are_staged_anew(redis_url: str, entries: slice) -> None:
    """The commit took what was left for all there was, and told nobody."""
    async with rig(redis_url) as world:
        first = world.stage(0, range(100), 2, "a")
        await lose(world, first[1], entries)
        with pytest.raises(StagedLost, match=STARTS_AGAIN):
            await world.delivery().deliver(0, first)
        assert await world.numbers() == []
        assert (await world.delivery().deliver(0, world.stage(0, range(100), 3, "b"))).rows == 100
        assert await world.numbers() == list(range(100))
        assert await world.left() == []


@pytest.mark.parametrize("entries", LOSSES.values(), ids=[*LOSSES])
async def test_rows_lost_behind_the_decision_come_from_the_repetition(redis_url: str, entries: slice) -> None:
    async with rig(redis_url) as world:
        first = world.stage(0, range(100), 2, "a")
        await world.delivery()._decide(0, "", BatchPlan.of(first), False)
        await lose(world, first[1], entries)
        with pytest.raises(StagedLost, match=STARTS_AGAIN):
            await world.delivery().deliver(0, first)
        there = await world.numbers()
        assert 0 < len(there) < 100
        again = await world.delivery().deliver(0, world.stage(0, range(100), 3, "b"))
        assert (again.rows, again.repeated) == (100 - len(there), True)
        assert await world.numbers() == list(range(100))
        assert await world.left() == []


async def test_rows_of_the_repetition_are_lost_too(embedded_redis_url: str) -> None:
    async with rig(embedded_redis_url) as world:
        for token in "abc":
            staged = world.stage(0, range(100), 2, token)
            await world.delivery()._decide(0, "", BatchPlan.of(staged), False)
            await lose(world, staged[1], slice(None))
            with pytest.raises(StagedLost, match=STARTS_AGAIN):
                await world.delivery().deliver(0, staged)
        await world.delivery().deliver(0, world.stage(0, range(100), 4, "d"))
        assert await world.numbers() == list(range(100))


@pytest.mark.parametrize("entries", LOSSES.values(), ids=[*LOSSES])
async def test_the_decision_and_staged_rows_are_lost(embedded_redis_url: str, entries: slice) -> None:
    async with rig(embedded_redis_url) as world:
        first = world.stage(0, range(100), 2, "a")
        await world.delivery()._decide(0, "", BatchPlan.of(first), False)
        await ask(world.redis, [("DEL", sink_state(SINK))])
        await lose(world, first[0], entries)
        with pytest.raises(StagedLost, match=STARTS_AGAIN):
            await world.delivery().deliver(0, first)
        await world.delivery().deliver(0, world.stage(0, range(100), 5, "b"))
        assert await world.numbers() == list(range(100))


async def test_a_decision_of_which_nothing_is_there_gives_way_although_its_streams_are_gone(
    embedded_redis_url: str,
) -> None:
    """The space was altered meanwhile, so the repetition has nothing for the streams of the first attempt."""
    async with rig(embedded_redis_url) as world:
        first = world.stage(0, range(100), 2, "a")
        await world.delivery()._decide(0, "", BatchPlan.of(first), False)
        await lose(world, first[1], slice(None))
        world.space = await world.spaces.generations.alter("t", streams=5)
        done = await world.delivery().deliver(0, world.stage(0, range(100), 2, "b"))
        assert done.rows == 100
        assert await world.numbers() == list(range(100))
        assert await world.left() == []


@pytest.mark.parametrize("streams", [0, 1, 2, 3])
async def test_only_the_decision_is_lost_behind_the_appends_of_some_streams(
    embedded_redis_url: str, streams: int
) -> None:
    """Streams took the rows of another decision for their own: some came twice, others not at all."""
    async with rig(embedded_redis_url) as world:
        plan = BatchPlan.of(world.stage(0, range(100), 1, "a"))
        await world.delivery()._decide(0, "", plan, False)
        some = [*plan.parts][:streams]
        await world.delivery()._append(0, plan.with_parts({stream: plan.parts[stream] for stream in some}))
        await ask(world.redis, [("DEL", sink_state(SINK))])
        await world.delivery().deliver(0, world.stage(0, range(100), 4, "b"))
        assert await world.numbers() == list(range(100))


async def test_a_lost_decision_about_other_rows_is_one_clear_error(
    embedded_redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rig(embedded_redis_url) as world:
        monkeypatch.setattr(plans, "APPEND_KEYS", 1)
        plan = BatchPlan.of(world.stage(0, range(100), 2, "a"))
        await world.delivery()._decide(0, "", plan, False)
        half = {stream: parts[:1] for stream, parts in plan.parts.items()}
        await world.delivery()._append(0, plan.with_parts(half))
        await ask(world.redis, [("DEL", sink_state(SINK))])
        there = await world.numbers()
        with pytest.raises(
            StagedLost, match=r"stream t.0.. has \d+ of \d+ rows of batch 0 .* new checkpointLocation"
        ):
            await world.delivery().deliver(0, world.stage(0, range(100), 3, "b"))
        assert await world.numbers() == there


async def test_a_lost_decision_and_an_altered_space_is_one_clear_error(embedded_redis_url: str) -> None:
    """The rows of the repetition go to other streams, which cannot tell that they were delivered before."""
    async with rig(embedded_redis_url) as world:
        plan = BatchPlan.of(world.stage(0, range(100), 2, "a"))
        await world.delivery()._decide(0, "", plan, False)
        await world.delivery()._append(0, plan)
        await ask(world.redis, [("DEL", sink_state(SINK))])
        world.space = await world.spaces.generations.alter("t", streams=5)
        for token in "bc":
            with pytest.raises(
                StagedLost, match=r"has rows of batch 0 .* altered since: .* new checkpointLocation"
            ):
                await world.delivery().deliver(0, world.stage(0, range(100), 2, token))
        assert await world.numbers() == list(range(100))


async def test_no_part_of_a_stream_is_appended_while_a_later_one_is_incomplete(
    embedded_redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the stream would have some of its rows, and the repetition could not say which are not there."""
    monkeypatch.setattr(plans, "APPEND_KEYS", 1)
    async with rig(embedded_redis_url) as world:
        first = world.stage(0, range(100), 4, "a")
        await world.delivery()._decide(0, "", BatchPlan.of(first), False)
        await lose(world, first[-1], slice(-1, None))
        with pytest.raises(StagedLost, match=STARTS_AGAIN):
            await world.delivery().deliver(0, first)
        (record,) = await ask(world.redis, [("HGET", stream_publishers(first[-1].stream), "spark-q")])
        assert record is None
        await world.delivery().deliver(0, world.stage(0, range(100), 3, "b"))
        assert await world.numbers() == list(range(100))
        assert await world.left() == []


async def test_a_driver_that_still_has_the_former_decision_adds_nothing(
    embedded_redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take the first part of the repetition for its own, and append its second part behind that."""
    async with rig(embedded_redis_url) as world:
        with monkeypatch.context() as patched:
            patched.setattr(plans, "APPEND_KEYS", 1)
            former = BatchPlan.of(world.stage(0, range(100), 4, "a"))
        await world.delivery()._decide(0, "", former, False)
        stream, groups = next(iter(former.parts.items()))
        await lose(world, Staged(stream, groups[0][0].token, 0, 0, 0), slice(None))
        others = {one: parts for one, parts in former.parts.items() if one != stream}
        await world.delivery()._append(0, former.with_parts(others))
        again = world.stage(0, range(100), 1, "b")
        original = Delivery._there

        async def late(self: Delivery, batch: int, plan: BatchPlan) -> Any:
            _, trouble = await Delivery(world.redis, SINK, "spark-q")._append(0, former)
            assert [reply[0] for _, reply in trouble.values()] == [b"other"]
            return await original(self, batch, plan)

        monkeypatch.setattr(Delivery, "_there", late)
        await world.delivery().deliver(0, again)
        assert await world.numbers() == list(range(100))


async def test_a_decision_whose_streams_are_gone_does_not_give_way(embedded_redis_url: str) -> None:
    """They may have had the rows: the repetition could bring them again."""
    async with rig(embedded_redis_url) as world:
        plan = BatchPlan.of(world.stage(0, range(100), 2, "a"))
        await world.delivery()._decide(0, "", plan, False)
        await world.delivery()._append(0, plan)
        world.space = await world.spaces.generations.alter("t", streams=5)
        again = world.stage(0, range(100), 1, "b")
        for stream in plan.parts:
            await ask(world.redis, [("DEL", stream_meta(stream), stream_publishers(stream))])
        with pytest.raises(UnknownSpace):
            await world.delivery().deliver(0, again)


async def test_parts_lost_after_they_were_appended_are_appended_again(
    real_redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They ended in an error that asked for a new checkpoint, though their staged keys are back, too."""
    monkeypatch.setattr(plans, "APPEND_KEYS", 1)
    async with rig(real_redis_url) as world:
        staged = world.stage(0, range(100), 4, "a")
        losing: Any = Losing(world, at=6, back=2)
        await Delivery(losing, SINK, "spark-q").deliver(0, staged)
        assert losing.lost
        assert await world.numbers() == list(range(100))
        assert await world.left() == []


class Emptying(Delivery):
    """Ends the losses before it empties the decision."""

    def __init__(self, redis: Any, losing: Losing) -> None:
        super().__init__(redis, SINK, "spark-q")
        self._losing = losing

    async def _decide(
        self, batch: int, version: str, plan: BatchPlan, skip_past: bool
    ) -> tuple[str, BatchPlan | None]:
        if version and not plan.parts:
            self._losing.end()
        return await super()._decide(batch, version, plan, skip_past)


@pytest.mark.parametrize("seed", range(12))
async def test_failovers_and_deaths_at_any_exchange(real_redis_url: str, seed: int) -> None:
    """Each attempt loses the newest writes once, and may die; the batch is made again with other tasks.

    Nothing is lost once the decision is emptied: from there on the durability of the space is what counts.
    """
    choose = random.Random(seed)
    failed = lost = 0
    async with rig(real_redis_url) as world:
        for batch in range(3):
            numbers = range(batch * 50, batch * 50 + 50)
            for attempt in range(4):
                staged = world.stage(
                    batch, choose.sample(numbers, 50), choose.randint(1, 4), f"{batch}.{attempt}"
                )
                at = choose.randint(1, 7)
                losing: Any = Losing(world, at=at, back=choose.randint(1, at))
                dying: Any = Dying(losing, choose.randint(3, 9), sends_last=choose.random() < 0.5)
                try:
                    await Emptying(dying, losing).deliver(batch, staged)
                except (StoreUnavailable, StoreRefused, Indefinite, StagedLost):
                    failed += 1
                lost += losing.lost
            last = world.stage(batch, numbers, 2, f"{batch}.last")
            try:
                await world.delivery().deliver(batch, last)
            except StagedLost as error:
                assert "start again" in str(error)
                await world.delivery().deliver(batch, world.stage(batch, numbers, 3, f"{batch}.more"))
            assert await world.numbers() == list(range(batch * 50 + 50))
        assert await world.left() == []
    assert failed and lost


@pytest.mark.parametrize("seed", range(16))
async def test_everything_at_once(
    embedded_redis_url: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failovers, deaths, altered spaces, parts of few keys, a second driver: no row is lost or comes twice.

    What cannot be healed is one error, which must not be raised unless Redis lost something.
    """
    choose = random.Random(seed)
    monkeypatch.setattr(plans, "APPEND_KEYS", choose.choice([1, 2, 1000]))
    losses = choose.random() < 0.7
    async with rig(embedded_redis_url, choose.choice([None, SCHEMA])) as world:
        for batch in range(3):
            for attempt in range(5):
                try:
                    await attempted(world, choose, batch, losses and attempt < 4, attempt == 4)
                except StagedLost as lost:
                    assert losses, lost
                    if "start again" not in str(lost):
                        found = await world.numbers()
                        assert len(found) == len(set(found))
                        return
                    if attempt == 4:
                        await attempted(world, choose, batch, False, True)
                except (StoreUnavailable, StoreRefused, Indefinite):
                    assert attempt < 4
            assert await world.numbers() == list(range(batch * 50 + 50))


async def attempted(world: Rig, choose: random.Random, batch: int, losses: bool, last: bool) -> None:
    """One attempt at a batch; unless it is the last one, its driver may die."""

    def staged() -> list[Staged]:
        numbers = choose.sample(range(batch * 50, batch * 50 + 50), 50)
        return world.stage(batch, numbers, choose.randint(1, 4), f"{choose.random()}")

    mine = staged()
    if choose.random() < 0.3 and not last:
        world.space = await world.spaces.generations.alter("t", streams=choose.randint(1, 5))
        mine = choose.choice([mine, staged()])
    if last:
        await world.delivery().deliver(batch, mine)
        return
    exchanges, sends_last = choose.randint(2, 14), choose.random() < 0.5
    if losses:
        at = choose.randint(1, 9)
        losing = Losing(world, at=at, back=choose.randint(1, at))
        dying: Any = Dying(losing, exchanges, sends_last=sends_last)
        await Emptying(dying, losing).deliver(batch, mine)
        return
    dying = Dying(world.redis, exchanges, sends_last=sends_last)
    drivers = [Delivery(dying, SINK, "spark-q").deliver(batch, mine)]
    if choose.random() < 0.3:
        drivers.append(world.delivery().deliver(batch, staged()))
    for outcome in await asyncio.gather(*drivers, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


@pytest.mark.parametrize("schema", [None, SCHEMA], ids=["payloads", "columns"])
async def test_rows_lost_before_their_stream_was_sealed(
    embedded_redis_url: str, schema: dict[str, Any] | None
) -> None:
    async with rig(embedded_redis_url, schema) as world:
        first = world.stage(0, range(100), 2, "a")
        await world.delivery()._decide(0, "", BatchPlan.of(first), False)
        await lose(world, first[0], slice(-1, None))
        again = world.stage(0, range(100), 3, "b")
        await world.spaces.generations.alter("t", streams=5)
        assert (await world.delivery().deliver(0, again)).rows == 100
        assert await world.numbers() == list(range(100))
        assert await world.left() == []


@pytest.mark.parametrize("in_one_script", [1000, 100_000])
async def test_thousands_of_staged_keys_for_one_stream(
    embedded_redis_url: str, monkeypatch: pytest.MonkeyPatch, in_one_script: int
) -> None:
    """The script failed at its last command, with all rows appended and no news of them."""
    monkeypatch.setattr(plans, "APPEND_KEYS", in_one_script)
    monkeypatch.setattr(staging, "KEY_BYTES", 0)
    monkeypatch.setattr(staging, "FLUSH_BYTES", 64 * 1024)
    async with rig(embedded_redis_url) as world:
        stream = StreamId("t", 0, 0)
        with connect_blocking(embedded_redis_url) as redis:
            stager = Stager(redis, lambda _: SINK, 0, "many")
            for number in range(8500):
                stager.add(stream, encode_rows([Row("t/a", b"%d" % number)]))
            staged = stager.finish()
        assert len(staged) == 8500
        assert (await world.delivery().deliver(0, staged)).rows == 8500
        assert await world.numbers() == list(range(8500))
        assert await world.left() == []


REFUSALS = {"NOREPLICAS": ("min-replicas-to-write", "1", "0"), "OOM": ("maxmemory", "1", "0")}


@pytest.fixture
def refused(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, int]]:
    """Lets a server refuse some staged entries in the middle of a pipeline, and take those behind."""
    state = {"left": 0}
    original = connection.exchange_one
    name, on, off = request.param

    async def exchange(client: Any, commands: Any) -> Any:
        staged = [n for n, c in enumerate(commands) if any(b"staged:" in _bytes(word) for word in c[:4])]
        if not state["left"] or len(staged) < 2:
            return await original(client, commands)
        state["left"] -= 1
        before, behind = staged[0], staged[1]
        asked = [
            *commands[:before],
            ("CONFIG", "SET", name, on),
            *commands[before:behind],
            ("CONFIG", "SET", name, off),
            *commands[behind:],
        ]
        replies = await original(client, asked)
        return [reply for place, reply in enumerate(replies) if place not in (before, behind + 1)]

    monkeypatch.setattr(connection, "exchange_one", exchange)
    yield state


def _bytes(word: Any) -> bytes:
    return word if isinstance(word, bytes) else str(word).encode()


@pytest.mark.parametrize("refused", REFUSALS.values(), ids=[*REFUSALS], indirect=True)
async def test_an_entry_that_is_refused_before_one_that_is_taken_leaves_no_hole(
    real_redis_url: str, refused: dict[str, int]
) -> None:
    """The repetition took "equal or smaller id" for "already there", and the rows were lost."""
    async with rig(real_redis_url) as world:
        stream = StreamId("t", 0, 0)
        with connect_blocking(real_redis_url) as redis:
            stager = Stager(redis, lambda _: SINK, 0, "a", patience=10.0)
            for number in range(5):
                stager.add(stream, encode_rows([Row("t/a", b"%d" % number)]))
            refused["left"] = 3
            staged = stager.finish()
        assert refused["left"] == 0
        (there,) = await ask(world.redis, [("XRANGE", stream_staged(stream, staged[0].token), "-", "+")])
        assert [id for id, _ in there] == [b"%d-1" % number for number in range(1, 6)]
        assert (await world.delivery().deliver(0, staged)).rows == 5
        assert await world.numbers() == list(range(5))


async def test_a_task_whose_staged_rows_are_lost_while_it_runs_fails(redis_url: str) -> None:
    async with rig(redis_url) as world:
        stream = StreamId("t", 0, 0)
        with connect_blocking(redis_url) as redis:
            stager = Stager(redis, lambda _: SINK, 0, "a", patience=60.0)
            for number in range(3):
                stager.add(stream, encode_rows([Row("t/a", b"%d" % number)]))
                stager.flush()
            await lose(world, Staged(stream, "a.0", 3, 3, 0), slice(-1, None))
            stager.add(stream, encode_rows([Row("t/a", b"3")]))
            with pytest.raises(
                StagedLost, match=r"3 entries were there, and 2 are left; the task must be run again"
            ):
                stager.flush()
            stager.discard()
        assert [key for key in await world.left() if b":staged:" in key] == []


def test_a_plan_survives_its_text() -> None:
    stream = StreamId("t", 0, 1)
    plan = BatchPlan.of([Staged(stream, "a.0", 3, 7, 9_000_000), Staged(stream, "b.0", 1, 1, 9_000_000)])
    assert plan.parts == {stream: [[("a.0", 3, 7)], [("b.0", 1, 1)]]}
    loaded = BatchPlan.load("s", plan.dump().encode())
    assert loaded.parts == plan.parts
    assert loaded.tag == plan.tag != BatchPlan.of([]).tag
    other = BatchPlan.load("s", plan.with_parts(plan.parts, {stream: "other"}).dump().encode())
    assert (other.tag, other.tag_of(stream), other.tag_of(StreamId("u", 0, 0))) == (
        plan.tag,
        "other",
        plan.tag,
    )
    assert plan.rows(stream) == 8


def test_a_part_has_a_bounded_number_of_keys() -> None:
    stream = StreamId("t", 0, 1)
    plan = BatchPlan.of([Staged(stream, f"{n}.0", 1, 1, 10) for n in range(2500)])
    assert [len(keys) for keys in plan.parts[stream]] == [1000, 1000, 500]
