"""Faults of real drivers, each provoked at a known point, and judged by what is in SQLite.

All tests share one Spark application, which is started by the first that needs it; a test that kills one
starts others of its own.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from streamlease.agent.client import Client
from streamlease.leader.core.state.group_state import GroupState
from streamlease.leader.journal import recover
from streamlease.protocol.topics import SharedSubscription
from tests.spark.durable import Durable
from tests.spark.epoch_feed import EpochFeed, micro_batches
from tests.spark.gates import Place
from tests.spark.jobs import Job, one_line
from tests.spark.programs import Interactive
from tests.spark.table import Message
from tests.spark.test_source_options import truncate
from tests.spark.world import SUBSCRIPTION, Query, World, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

MakeJob = Callable[..., Job]

LATE = 4000
"""A session timeout (ms) that passes quickly, where a query is to be given up; not by a slow machine."""

RETURNS = 300_000
"""A session timeout (ms) that passes in no test."""

PATIENT_TTL = 10_000
"""How long (ms) a leader host may be silent that only keeps a space."""


class Shared:
    """One application for all tests, made anew if a test has ended it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._application: Interactive | None = None

    def get(self) -> Interactive:
        if self._application is None or not self._application.is_running:
            self._application = Interactive(self._folder)
        return self._application

    def close(self) -> None:
        if self._application is not None and self._application.is_running:
            self._application.kill()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    made = Shared(tmp_path_factory.mktemp("spark"))
    yield made
    made.close()


@pytest.fixture
def application(shared: Shared) -> Interactive:
    return shared.get()


@pytest.fixture
def make_application(tmp_path: Path) -> Iterator[Callable[[], Interactive]]:
    """Starts applications to be killed."""
    made: list[Interactive] = []

    def make() -> Interactive:
        made.append(Interactive(tmp_path))
        return made[-1]

    yield make
    for application in made:
        if application.is_running:
            application.kill()


@pytest.fixture
def make_job(tmp_path: Path) -> Iterator[MakeJob]:
    """Makes queries, and stops those that still run in an application that does."""
    made: list[Job] = []

    def make(name: str, url: str, subscribe: str = str(SUBSCRIPTION), **options: Any) -> Job:
        made.append(Job(tmp_path, name, url, subscribe, **options))
        return made[-1]

    yield make
    for job in made:
        job.close()


def published(world: World) -> dict[tuple[str, int], str]:
    """What the table must be."""
    return {(s, offset): str(offset) for s in world.streams for offset in range(world.published[s])}


def state_of(world: World, job: Job) -> GroupState:
    """What the journal of the job's group says."""
    group = SharedSubscription.parse(job.options["subscribe"]).id
    return world._thread.call(recover(world._client.redis, group)).state


def is_done(world: World, job: Job) -> bool:
    """Whether all is in the table, and in the commit log."""
    return job.table.messages() == published(world) and job.commits() == job.offsets()


# ---------------------------------------------------------------- killed

POINTS: tuple[Place | None, ...] = ("fixed", "reading", "unsunk", "sunk", None)
"""Where queries are killed; None: behind the commit log, with nothing new to read."""


def has_all(source: World | EpochFeed, job: Job) -> bool:
    """Whether all is in the table."""
    if isinstance(source, EpochFeed):
        return source.is_in(job.table)
    return job.table.messages() == published(source)


def is_through(source: World | EpochFeed, job: Job) -> bool:
    """Whether all is in the table, and in the commit log."""
    return has_all(source, job) and job.commits() == job.offsets()


def go_to(source: World | EpochFeed, job: Job, place: Place | None) -> int:
    """Wait until the query is at the place; the micro-batch that it is in."""
    if place is None:
        job.wait_for(lambda: is_through(source, job))
    else:
        job.wait_at(place)
    return job.offsets() + (place == "fixed")


def check_point(world: World, source: World | EpochFeed, job: Job, place: Place | None, batch: int) -> None:
    """The checkpoint and the table are what they are at that point; the application is dead."""
    assert (job.offsets() >= batch) == (place != "fixed")
    assert (job.commits() >= batch) == (place is None)
    assert (batch in {row.batch for row in job.table.deliveries()}) == (place in ("sunk", None))
    assert has_all(source, job) or place is not None
    cuts = [session.cut for session in state_of(world, job).sessions.root.values()]
    assert cuts != [0] or place is None, "the leader has fixed the cut before"


def test_a_driver_killed_between_any_two_logs_leaves_the_table_exact(
    world: World, make_job: MakeJob, make_application: Callable[[], Interactive], shared: Shared
) -> None:
    """Ten queries of one application stand at five points when it is killed; five read whole epochs."""
    world.lead(ttl=PATIENT_TTL)
    feed = EpochFeed(world)
    jobs = {
        (place, source): make_job(
            f"killed-{place}-{source is feed}",
            world.url,
            f"$shared/{place}/{'e' if source is feed else 't'}/#",
            sessionTimeoutMs=RETURNS,
            **({"epochs": "atomic", "maxEpochsPerTrigger": 2} if source is feed else {}),
        )
        for place in POINTS
        for source in (world, feed)
    }
    for source in (world, feed):
        source.publish(3)
    application = make_application()
    for job in jobs.values():
        job.start(application)
    for (_, source), job in jobs.items():
        job.wait_for(lambda source=source, job=job: is_through(source, job))  # type: ignore[misc]
    for (place, _), job in jobs.items():
        if place is not None:
            job.gate.hold(place)
    for source in (world, feed):
        source.publish(4)
    batches = {key: go_to(key[1], job, key[0]) for key, job in jobs.items()}
    application.kill()
    for (place, source), job in jobs.items():
        check_point(world, source, job, place, batches[place, source])
        if place is not None:
            job.gate.let_go(place)
    for source in (world, feed):
        source.publish(2)
    for job in jobs.values():
        job.start(shared.get(), once=True)
    for (place, source), job in jobs.items():
        assert job.error() is None
        assert has_all(source, job)
        check_batches(job, {batches[place, source]: 2} if place == "sunk" else {})
        if source is feed:
            epochs = [epoch for some in micro_batches(job.table.deliveries()).values() for epoch in some]
            assert sorted(epochs) == [*range(feed.next)], "each is in one micro-batch"
    feed.close()


def check_batches(job: Job, times: dict[int, int]) -> None:
    """Each micro-batch reached the sink once, or as often as `times` says, and each time with the same rows.

    And no message is in two of them.
    """
    rows: dict[int, Counter[Message]] = {}
    for delivery in job.table.deliveries():
        rows.setdefault(delivery.batch, Counter())[delivery.message] += 1
    for batch, counts in rows.items():
        assert set(counts.values()) == {times.get(batch, 1)}, f"batch {batch}"
    messages = [row[:2] for counts in rows.values() for row in counts]
    assert len(messages) == len(set(messages)), "a message in two micro-batches"
    assert times.keys() <= rows.keys()


# ---------------------------------------------------------------- stopped and continued


def hold_and_stop(world: World, job: Job, application: Interactive) -> int:
    """Hold the query before its sink's commit, and stop its driver until the leader has given it up."""
    job.start(application, sessionTimeoutMs=LATE, embeddedLeader="false")
    job.wait_for(lambda: is_done(world, job))
    job.gate.hold("unsunk")
    world.publish(4)
    job.wait_at("unsunk")
    application.signal(signal.SIGSTOP)
    wait_for(lambda: all(one.session is None for one in world.state().streams.values()))
    return job.offsets()


def test_a_driver_that_stood_still_for_too_long_has_everything_once_if_nobody_took_over(
    world: World, make_job: MakeJob, application: Interactive
) -> None:
    world.lead()
    world.publish(3)
    job = make_job("still", world.url)
    try:
        hold_and_stop(world, job, application)
    finally:
        application.signal(signal.SIGCONT)
    job.gate.let_go("unsunk")
    world.publish(2)
    job.wait_for(lambda: is_done(world, job) and world.all_committed)
    assert set(job.table.times().values()) == {1}


def test_what_was_taken_over_from_a_driver_that_stood_still_comes_twice_and_nothing_else(
    world: World, make_job: MakeJob, application: Interactive
) -> None:
    """Its open micro-batch is read again by the other query, in the same parts; then both go on."""
    world.lead()
    world.publish(3)
    job = make_job("late", world.url)
    try:
        batch = hold_and_stop(world, job, application)
        open_rows = {s: range(world.committed[s], world.published[s]) for s in world.streams}
        other = world.query()
        other.run(lambda: {(s, o) for s, rows in open_rows.items() for o in rows} <= positions(other))
    finally:
        application.signal(signal.SIGCONT)
    job.gate.let_go("unsunk")
    wait_for(
        lambda: bool(other.trigger()) or len(other.held) == 2, 120.0
    )  # the other two are the job's again
    world.publish(2)

    def all_delivered() -> bool:
        other.trigger()
        return positions(other) | set(job.table.messages()) == published(world).keys()

    job.wait_for(all_delivered)
    twice = world.check(job.table.checkpoint(), other.checkpoint, duplicates=True)
    assert twice == {row.message[:2]: 1 for row in job.table.deliveries() if row.batch == batch}


def positions(query: Query) -> set[tuple[str, int]]:
    """What a query has delivered."""
    return {row[:2] for row in query.checkpoint.rows}


# ---------------------------------------------------------------- Redis


def test_a_running_query_waits_for_a_redis_that_restarts_or_ends_with_one_line_and_goes_on(
    durable: Durable, make_job: MakeJob, application: Interactive
) -> None:
    world, server = durable.world, durable.server
    job = make_job("restarted", world.url, sessionTimeoutMs=RETURNS)
    world.publish(3)
    job.start(application)
    job.wait_for(lambda: is_done(world, job))
    job.gate.hold("reading")
    world.publish(3)
    job.wait_at("reading")
    server.kill()
    job.gate.let_go("reading")
    server.start()
    world.publish(3)
    job.wait_for(lambda: is_done(world, job))
    job.stop()
    job.start(application, **{"redis.timeout": "1s"})
    world.publish(3)
    job.wait_for(lambda: is_done(world, job))
    server.kill()
    said = one_line(job.error(), "StoreUnavailable")
    assert said.startswith("StoreUnavailable: Redis was away for 1 s (option 'redis.timeout')")
    assert "start the query again with the same checkpoint, and it goes on where it was" in said
    server.start()
    world.publish(3)
    job.run(application)
    assert job.table.messages() == published(world)
    assert set(job.table.times().values()) == {1}


def test_a_query_goes_on_after_a_failover_that_lost_messages_commits_and_cuts(
    durable: Durable, make_job: MakeJob, application: Interactive
) -> None:
    """First a query that runs meanwhile, then one that has only its checkpoint left.

    What is lost of the messages stays lost, and what came before is in the table; their offsets stay a hole,
    so that new messages are behind what was read, and each is delivered.
    """
    world = durable.world
    job = make_job("failed-over", world.url, sessionTimeoutMs=RETURNS)
    world.publish(3)
    job.start(application)
    job.wait_for(lambda: is_done(world, job))
    before = durable.snapshot()
    world.publish(4)
    job.wait_for(lambda: is_done(world, job))
    durable.lose(before)
    job.wait_for(lambda: world.ends() == dict.fromkeys(world.streams, 7))
    world.begin_anew()
    world.publish(5)
    job.wait_for(lambda: is_done(world, job))
    assert set(job.table.times().values()) == {1}

    job.gate.hold("unsunk")
    world.publish(1)
    job.wait_at("unsunk")
    world.publish(6)
    before = durable.snapshot()
    job.gate.hold("sunk")
    job.gate.let_go("unsunk")
    job.wait_at("sunk")
    job.gate.hold("unsunk")
    job.gate.let_go("sunk")
    job.wait_at("unsunk")
    job.gate.hold("sunk")
    job.gate.let_go("unsunk")
    job.wait_at("sunk")
    batch = job.offsets()
    assert batch not in {row.batch for row in job.table.deliveries() if row.message.offset < 12}
    (source,) = application.sources()
    os.kill(source, signal.SIGKILL)
    durable.lose(before)
    job.gate.break_at("sunk")
    job.gate.let_go("sunk")
    assert "this function fails behind the commit of its sink" in str(job.error())
    assert job.commits() == batch - 1
    job.gate.break_at("sunk", on=False)
    world.publish(2)
    job.start(application)
    job.wait_for(lambda: is_done(world, job))
    check_batches(job, {batch: 2})


# ---------------------------------------------------------------- another shape, another checkpoint


async def publish_numbers(world: World, counts: Counter[str], each: int) -> None:
    """To each of seven topics, numbers that go on where they were."""
    async with Client(world.url, embedded=False) as client, client.publisher() as publisher:
        for _ in range(each):
            for topic in (f"t/{number}" for number in range(7)):
                await publisher.submit(topic, b"%d" % counts[topic])
                counts[topic] += 1


def test_other_slots_and_other_streams_between_runs_change_neither_the_set_nor_the_order(
    make_world: Callable[..., World], make_job: MakeJob, application: Interactive
) -> None:
    world, counts = make_world(2), Counter[str]()
    job = make_job("altered", world.url, sessionTimeoutMs=RETURNS, maxOffsetsPerTrigger=40)
    for slots, streams in ((1, 5), (3, 1), (2, 1)):
        world._thread.call(publish_numbers(world, counts, 9))
        job.run(application, slots=slots)
        world._thread.call(publish_numbers(world, counts, 5))  # the next run finds some in the old streams
        world._thread.call(world._client.spaces.generations.alter("s", streams=streams))
    job.run(application)
    rows = [row.message for row in job.table.deliveries()]
    for topic, count in counts.items():
        assert [int(row.payload) for row in rows if row.topic == topic] == [*range(count)], topic
    assert len(rows) == counts.total()
    assert {row.stream.rpartition(".")[0] for row in rows} == {"s.0", "s.1", "s.2"}


def test_checkpoints_that_are_copied_are_fenced_and_without_one_the_group_s_progress_counts(
    world: World, make_job: MakeJob, application: Interactive
) -> None:
    world.lead()
    world.publish(3)
    job = make_job("live", world.url, sessionTimeoutMs=RETURNS, embeddedLeader="false")
    job.start(application)
    job.wait_for(lambda: is_done(world, job) and world.all_committed)
    old = job.copy("old")
    world.publish(3)
    job.wait_for(lambda: is_done(world, job) and world.all_committed)
    older = one_line(old.run_to_error(application), "Fenced")
    assert older.startswith("Fenced: cut ")
    assert "its checkpoint is older than its progress; use the newest checkpoint, or a new one" in older
    replaced = one_line(job.error(), "Fenced")
    assert "was replaced: another process runs under the same name; stop one of the two" in replaced
    world.publish(3)
    job.start(application)
    job.wait_for(lambda: is_done(world, job) and world.all_committed)
    same = job.copy("same")
    same.start(application)
    assert one_line(job.error(), "Fenced").endswith("stop one of the two")
    world.publish(2)
    same.wait_for(lambda: is_done(world, same) and world.all_committed)
    same.stop()
    shutil.rmtree(same.checkpoint)
    world.publish(2)
    same.start(application)
    same.wait_for(lambda: is_done(world, same))
    assert set(job.table.times().values()) == {1}


# ---------------------------------------------------------------- bad input


def test_a_subscription_without_a_space_is_refused_in_one_line(
    world: World, make_job: MakeJob, application: Interactive
) -> None:
    job = make_job("nowhere", world.url, "$shared/g/nowhere/#")
    assert "'nowhere/#'" in one_line(job.try_to_start(application), "UnknownSpace")


def test_a_schema_that_grows_changes_nothing_and_another_one_ends_the_query_in_one_line(
    world: World, make_job: MakeJob, application: Interactive
) -> None:
    def publish(**columns: list[Any]) -> None:
        world._thread.call(send(pa.record_batch(columns)))

    async def send(batch: pa.RecordBatch) -> None:
        async with Client(world.url, embedded=False) as client, client.publisher() as publisher:
            await publisher.send_batch("u/a", batch)

    spaces = world._client.spaces
    first = {"name": "n", "type": "int64", "nullable": False}
    world._thread.call(spaces.create("u", ["u/#"], schema={"columns": [first]}))
    publish(n=[0, 1])
    job = make_job("typed", world.url, "$shared/typed/u/#", sessionTimeoutMs=RETURNS)
    job.start(application)
    job.wait_for(lambda: list(job.table.messages().values()) == ["0", "1"])
    more = {"name": "more", "type": "string"}
    world._thread.call(world._client.alter_space("u", schema={"columns": [first, more]}))
    publish(n=[2], more=["a"])
    job.wait_for(lambda: list(job.table.messages().values()) == ["0", "1", "2"])
    world._thread.call(spaces.delete("u"))
    world._thread.call(spaces.create("u", ["u/#"], schema={"columns": [{"name": "n", "type": "string"}]}))
    publish(n=["x", "y"])
    assert "column n of space u is string" in one_line(job.error(), "SchemaMismatch")
    job.start(application)
    job.wait_for(lambda: list(job.table.messages().values()) == ["0", "1", "2", "x", "y"])
    assert set(job.table.times().values()) == {1}


def test_what_retention_took_ends_the_query_in_one_line_or_is_skipped(
    world: World, make_job: MakeJob, application: Interactive
) -> None:
    world.lead()
    world.publish(3)
    job = make_job("truncated", world.url, sessionTimeoutMs=RETURNS, embeddedLeader="false")
    job.start(application)
    job.wait_for(lambda: is_done(world, job))
    job.gate.hold("fixed")
    world.publish(6)
    job.wait_at("fixed")
    truncate(world, "s.0.0", 5)
    job.gate.let_go("fixed")
    assert "the oldest left is 5" in one_line(job.error(), "HistoryTruncated")
    again = job.run_to_error(application)
    assert "the oldest left is 5" in one_line(again, "HistoryTruncated"), "nothing is skipped without a word"
    lost = {("s.0.0", offset) for offset in range(3, 5)}
    job.start(application, failOnDataLoss="false")
    job.wait_for(lambda: job.table.messages().keys() == published(world).keys() - lost)
    world.publish(2)
    job.wait_for(lambda: job.table.messages().keys() == published(world).keys() - lost)
    assert set(job.table.times().values()) == {1}


def test_a_task_that_fails_in_the_middle_reads_the_same_rows_again(
    world: World, make_job: MakeJob, application: Interactive
) -> None:
    world.lead()
    job = make_job("retried", world.url, sessionTimeoutMs=RETURNS, embeddedLeader="false")
    world.publish(5)
    job.gate.break_at("reading")
    job.start(application)
    job.wait_for(lambda: is_done(world, job))
    seen: dict[tuple[int, int], dict[int, list[Any]]] = {}
    for cut, slot, attempt, rows in job.gate.noted("reading"):
        seen.setdefault((cut, slot), {}).setdefault(attempt, []).append(rows)
    retried = [attempts for attempts in seen.values() if 1 in attempts]
    assert retried
    for attempts in retried:
        assert attempts[0] == attempts[1][: len(attempts[0])]
    assert set(job.table.times().values()) == {1}
