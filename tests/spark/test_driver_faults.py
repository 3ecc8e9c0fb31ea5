"""Faults of real drivers, each provoked at a known point, and judged by what is in SQLite.

All tests share one Spark application, which is started by the first that needs it; a test that kills one
starts others of its own.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from streamlease.leader.journal import recover
from streamlease.leader.records import GroupState
from streamlease.protocol.topics import SharedSubscription
from tests.spark.gates import Place
from tests.spark.jobs import Job
from tests.spark.programs import Application
from tests.spark.table import Message
from tests.spark.world import SUBSCRIPTION, Query, World, wait_for

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

MakeJob = Callable[..., Job]

LATE = 2000
"""A session timeout (ms) that passes quickly, where a query is to be given up; the shortest allowed."""

RETURNS = 300_000
"""A session timeout (ms) that passes in no test."""


class Shared:
    """One application for all tests, made anew if a test has ended it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._application: Application | None = None

    def get(self) -> Application:
        if self._application is None or not self._application.is_running:
            self._application = Application(self._folder)
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
def application(shared: Shared) -> Application:
    return shared.get()


@pytest.fixture
def make_application(tmp_path: Path) -> Iterator[Callable[[], Application]]:
    """Starts applications to be killed."""
    made: list[Application] = []

    def make() -> Application:
        made.append(Application(tmp_path))
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


def go_to(world: World, job: Job, place: Place | None) -> int:
    """Wait until the query is at the place; the micro-batch that it is in."""
    if place is None:
        job.wait_for(lambda: is_done(world, job))
    else:
        job.wait_at(place)
    return job.offsets() + (place == "fixed")


def check_point(world: World, job: Job, place: Place | None, batch: int) -> None:
    """The checkpoint and the table are what they are at that point; the application is dead."""
    assert (job.offsets() >= batch) == (place != "fixed")
    assert (job.commits() >= batch) == (place is None)
    assert (batch in {row.batch for row in job.table.deliveries()}) == (place in ("sunk", None))
    assert job.table.messages() == published(world) or place is not None
    cuts = [session.cut for session in state_of(world, job).sessions.values()]
    assert cuts != [0] or place is None, "the leader has fixed the cut before"


def test_a_driver_killed_between_any_two_logs_leaves_the_table_exact(
    world: World, make_job: MakeJob, make_application: Callable[[], Application], shared: Shared
) -> None:
    """Five queries of one application stand at five points when it is killed."""
    jobs = {
        place: make_job(f"killed-{place}", world.url, f"$shared/{place}/t/#", sessionTimeoutMs=RETURNS)
        for place in POINTS
    }
    world.publish(3)
    application = make_application()
    for job in jobs.values():
        job.start(application)
    for job in jobs.values():
        job.wait_for(lambda job=job: is_done(world, job))  # type: ignore[misc]
    for place, job in jobs.items():
        if place is not None:
            job.gate.hold(place)
    world.publish(4)
    batches = {place: go_to(world, job, place) for place, job in jobs.items()}
    application.kill()
    for place, job in jobs.items():
        check_point(world, job, place, batches[place])
        if place is not None:
            job.gate.let_go(place)
    world.publish(2)
    for job in jobs.values():
        job.start(shared.get(), once=True)
    for place, job in jobs.items():
        assert job.error() is None
        assert job.table.messages() == published(world)
        check_batches(job, {batches[place]: 2} if place == "sunk" else {})


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


def hold_and_stop(world: World, job: Job, application: Application) -> int:
    """Hold the query before its sink's commit, and stop its driver until the leader has given it up."""
    job.start(application, sessionTimeoutMs=LATE, embeddedLeader="false")
    job.wait_for(lambda: is_done(world, job))
    job.gate.hold("unsunk")
    world.publish(4)
    job.wait_at("unsunk")
    (session,) = state_of(world, job).sessions
    application.signal(signal.SIGSTOP)
    wait_for(lambda: session not in world.state().sessions, 120.0)
    return job.offsets()


def test_a_driver_that_stood_still_for_too_long_has_everything_once_if_nobody_took_over(
    world: World, make_job: MakeJob, application: Application
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
    world: World, make_job: MakeJob, application: Application
) -> None:
    """Its open micro-batch is read again by the other query, in the same parts; then both go on."""
    world.lead()
    world.publish(3)
    job = make_job("late", world.url)
    try:
        batch = hold_and_stop(world, job, application)
        open_rows = {s: range(world.committed[s], world.published[s]) for s in world.streams}
        other = world.query()
        other.run(lambda: {(s, o) for s, rows in open_rows.items() for o in rows} <= positions(other), 120.0)
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
