"""The pure parts of queries: the machine, placing, what is signed, the guard."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlease.executor.core import guarding
from streamlease.executor.core.guarding import Guard, GuardEvent, GuardState
from streamlease.protocol.errors import InvalidInput, InvalidOption, NoExecutor, QueryRefused
from streamlease.queries.core import machine
from streamlease.queries.core.machine import (
    EndWanted,
    Event,
    WorkerExited,
    WorkerJoined,
    WorkersLost,
    WorkersPlaced,
    WorkerStarted,
    step,
)
from streamlease.queries.core.record import QueryOutcome, QueryRecord, QueryStage, Worker
from streamlease.queries.core.signed_orders import (
    Job,
    JobFile,
    Order,
    OrderedWorker,
    check_file_name,
    check_job,
    check_key,
    check_order,
    next_query,
    permit_for,
    sign,
)
from streamlease.queries.core.worker_places import Booked, ExecutorSeen, booked_by, place

KEY = b"0123456789abcdef"
QUERY = "0123456789abcdef"
ORDER_OF_STATES = [*QueryStage]


def record(size: int, state: QueryStage = QueryStage.PLACING) -> QueryRecord:
    return QueryRecord(query=QUERY, name="q", state=state, size=size, submitted_at=0)


def workers(size: int) -> tuple[Worker, ...]:
    return tuple(Worker(worker=n, executor=f"e{n % 2}", life=f"l{n % 2}", host="h") for n in range(size))


def behind(size: int, *events: Event) -> QueryRecord:
    """The record of a query of that many workers behind its placing and these events."""
    found = step(record(size), WorkersPlaced(workers(size), 100), 1)
    for event in events:
        found = step(found, event, 2)
    return found


def started(*numbers: int) -> list[Event]:
    return [WorkerStarted(n, f"l{n % 2}", 100 + n) for n in numbers]


def test_a_query_runs_when_all_its_workers_have_joined_and_is_done_when_all_exited_well() -> None:
    assert behind(2).state is QueryStage.SPAWNING
    events: list[Event] = [*started(0, 1), WorkerJoined(0)]
    assert behind(2, *events).state is QueryStage.SPAWNING
    assert behind(2, *events, WorkerJoined(0)).state is QueryStage.SPAWNING, "the same one twice"
    running = behind(2, *events, WorkerJoined(1))
    assert running.state is QueryStage.RUNNING
    one_left = step(running, WorkerExited(1, "l1", 0), 3)
    assert one_left.state is QueryStage.RUNNING
    ended = step(one_left, WorkerExited(0, "l0", 0), 4)
    assert (ended.state, ended.outcome, ended.ended_at) == (QueryStage.ENDED, QueryOutcome.DONE, 4)


def test_a_worker_that_is_alone_need_not_join() -> None:
    assert behind(1, *started(0)).state is QueryStage.RUNNING
    assert behind(1, *started(0), WorkerJoined(0)).state is QueryStage.RUNNING
    assert behind(1, *started(0), WorkerExited(0, "l0", 0)).outcome is QueryOutcome.DONE


@pytest.mark.parametrize("code", [0, 3, 137])
def test_a_worker_that_ends_while_others_wait_ends_all_of_them(code: int) -> None:
    found = behind(3, *started(0, 1, 2), WorkerJoined(0), WorkerExited(1, "l1", code))
    assert (found.state, found.outcome) == (QueryStage.ENDING, QueryOutcome.ABORTED)
    assert found.reason == (
        f"worker 1 exited with {code} when 1 of 3 workers had joined: "
        f"each worker calls streamlease.queries.join()"
    )
    over = step(step(found, WorkerExited(0, "l0", 143), 3), WorkerExited(2, "l0", 143), 4)
    assert (over.state, over.outcome) == (QueryStage.ENDED, QueryOutcome.ABORTED)


def test_what_is_said_first_stays() -> None:
    found = behind(
        2,
        *started(0, 1),
        WorkerJoined(0),
        WorkerJoined(1),
        WorkerExited(1, "l1", 3),
        WorkersLost("l0", "died"),
    )
    assert (found.state, found.outcome) == (QueryStage.ENDED, QueryOutcome.FAILED)
    found = behind(2, *started(0, 1), EndWanted(QueryOutcome.TERMINATED, "wanted"), WorkersLost("l0", "died"))
    assert (found.state, found.outcome, found.left[0].worker) == (
        QueryStage.ENDING,
        QueryOutcome.TERMINATED,
        1,
    )


def test_events_of_another_life_change_nothing() -> None:
    found = behind(2, *started(0, 1))
    for event in (WorkerStarted(0, "other", 7), WorkerExited(0, "other", 0), WorkersLost("other", "")):
        assert step(found, event, 5) == found


def test_a_query_without_executors_ends_at_once_when_it_is_to_end() -> None:
    found = step(record(2), EndWanted(QueryOutcome.TERMINATED, "wanted"), 5)
    assert (found.state, found.outcome, found.ended_at) == (QueryStage.ENDED, QueryOutcome.TERMINATED, 5)


EVENTS = st.one_of(
    st.builds(WorkersPlaced, st.just(workers(3)), st.just(10)),
    st.builds(WorkerStarted, st.integers(0, 3), st.sampled_from(["l0", "l1", "l2"]), st.just(1)),
    st.builds(WorkerJoined, st.integers(0, 3)),
    st.builds(WorkerExited, st.integers(0, 3), st.sampled_from(["l0", "l1"]), st.sampled_from([None, 0, 1])),
    st.builds(WorkersLost, st.sampled_from(["l0", "l1"]), st.just("died")),
    st.builds(EndWanted, st.sampled_from([QueryOutcome.TERMINATED, QueryOutcome.ABORTED]), st.just("stop")),
)


@given(st.lists(EVENTS, max_size=25))
def test_no_state_comes_back_and_every_event_may_come_twice(events: list[Event]) -> None:
    found = record(3)
    for event in events:
        stepped = step(found, event, 5)
        assert ORDER_OF_STATES.index(stepped.state) >= ORDER_OF_STATES.index(found.state)
        assert step(stepped, event, 6) == stepped, "the same event twice"
        if found.state is QueryStage.ENDED:
            assert stepped == found
        if stepped.state is QueryStage.ENDED:
            assert not stepped.left and stepped.outcome is not None
        if stepped.state in (QueryStage.SPAWNING, QueryStage.RUNNING):
            assert stepped.left and stepped.outcome is None
        assert [one.worker for one in stepped.workers] in ([], [0, 1, 2])
        found = stepped


def test_every_line_of_the_table_is_used() -> None:
    """A line that nothing leads to would say that something can happen which cannot."""
    used: set[tuple[QueryStage, machine.Move]] = set()

    class Noting(dict[tuple[QueryStage, machine.Move], QueryStage]):
        def get(self, key, default=None):  # type: ignore[no-untyped-def]
            if key in self:
                used.add(key)
            return super().get(key, default)

    table = machine.TABLE
    choices: list[Event] = [
        *started(0, 1),
        *(WorkerJoined(n) for n in range(2)),
        *(WorkerExited(n, f"l{n}", code) for n in range(2) for code in (0, 1)),
        EndWanted(QueryOutcome.TERMINATED, ""),
    ]
    machine.TABLE = Noting(table)  # type: ignore[misc]
    try:
        for size, count in ((1, 4), (2, 5)):
            for events in itertools.product(choices, repeat=count - 1):
                behind(size, *events)
        step(record(1), EndWanted(QueryOutcome.TERMINATED, ""), 1)
        running = behind(2, *started(0), WorkerJoined(0), WorkerJoined(1))
        assert running.state is QueryStage.RUNNING
        step(behind(2, *started(0), WorkerJoined(0)), WorkerJoined(1), 1)
        step(behind(2, *started(0, 1), WorkerJoined(0), WorkerJoined(1)), WorkerExited(0, "l0", 0), 1)
        waiting = behind(3, *started(0), EndWanted(QueryOutcome.TERMINATED, ""))
        step(waiting, WorkerStarted(1, "l1", 5), 1)
        step(step(behind(1, *started(0)), WorkerJoined(0), 1), WorkerJoined(0), 1)
    finally:
        machine.TABLE = table  # type: ignore[misc]
    assert set(table) - used == set()


# -- placing -------------------------------------------------------------------------------------------------


def job(count: int = 1, **more: object) -> Job:
    fields = {
        "query": QUERY, "name": "q", "workers": count, "placement": "random", "spawn_ms": 1000,
        "grace_ms": 1000, "who": "me", "program": JobFile(name="job.py", sha256="0" * 64, size=1), **more,
    }  # fmt: skip
    return Job.model_validate(fields)


def executor(
    name: str, slots: int = 2, ports: tuple[int, int] | None = (7000, 7001), **labels: str
) -> ExecutorSeen:
    return ExecutorSeen(name, f"life-{name}", "host", slots, tuple(labels.items()), ports)


def test_workers_are_spread_each_with_a_port_of_its_own() -> None:
    found = place(job(4), [executor("a"), executor("b")], {})
    assert sorted((one.executor, one.port) for one in found) == [
        ("a", 7000),
        ("a", 7001),
        ("b", 7000),
        ("b", 7001),
    ]
    assert [one.port for one in place(job(), [executor("a", ports=None)], {})] == [None]
    strange = executor("a", ports=(7000, 7003))._replace(strange=(7000, 7002))
    assert [one.port for one in place(job(2), [strange], {})] == [7001, 7003]


@given(st.integers(1, 6), st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(0, 9))
def test_no_slot_and_no_port_is_given_away_twice(count: int, slots: list[int], seed: int) -> None:
    executors = [executor(f"e{n}", size, (7000, 7002)) for n, size in enumerate(slots)]
    rng = random.Random(seed)
    records: list[QueryRecord] = []
    for number in itertools.count():
        try:
            placed = place(job(count), rng.sample(executors, len(executors)), booked_by(records))
        except NoExecutor:
            break
        records.append(behind(1).model_copy(update={"query": str(number), "workers": placed}))
    taken = [one for found in records for one in found.workers]
    for one in executors:
        here = [worker for worker in taken if worker.life == one.life]
        assert len(here) <= one.slots
        ports = [worker.port for worker in here if worker.port is not None]
        assert len({*ports}) == len(ports)


@pytest.mark.parametrize(
    ("made", "executors", "says"),
    [
        (job(), [], "there is no executor: start one"),
        (job(on=("exd",)), [executor("exec"), executor("b")], "the nearest names are exec, b"),
        (job(3), [executor("a")], "no free slot for worker 2: 3 workers need one each"),
        (job(2), [executor("a", ports=None)], "no free port for worker 0: 2 workers need one each"),
        (job(3), [executor("a", 5)], "no free port for worker 2: .*a: 7000-7001"),
        (job(labels=(("gpu", "yes"),)), [executor("a", zone="x")], "no executor has the labels gpu=yes: a"),
        (job(3, placement="pinned", on=("a",)), [executor("a", 1)], "slot for worker 1"),
    ],
)  # fmt: skip
def test_what_is_missing_is_said(made: Job, executors: list[ExecutorSeen], says: str) -> None:
    with pytest.raises(NoExecutor, match=says):
        place(made, executors, {})


def test_pinned_workers_are_where_they_belong_and_labels_choose() -> None:
    executors = [executor("a", gpu="yes"), executor("b"), executor("c", gpu="yes")]
    pinned = place(job(3, placement="pinned", on=("b", "a")), executors, {})
    assert [one.executor for one in pinned] == ["b", "a", "b"]
    chosen = place(job(3, labels=(("gpu", "yes"),)), executors, {"life-a": Booked(1, frozenset({7000}))})
    assert sorted((one.executor, one.port) for one in chosen) == [("a", 7001), ("c", 7000), ("c", 7001)]


def test_a_query_that_is_placed_anew_goes_to_those_that_are_left() -> None:
    named = job(on=("a", "b"))
    with pytest.raises(NoExecutor, match="there is no executor 'a'"):
        place(named, [executor("b")], {})
    assert [one.executor for one in place(named, [executor("b"), executor("c")], {}, anew=True)] == ["b"]
    with pytest.raises(NoExecutor, match="there is no executor 'a'"):
        place(named, [executor("c")], {}, anew=True)


# -- what is signed ------------------------------------------------------------------------------------------


def signed_order(**changes: object) -> tuple[str, str]:
    fields = {
        "query": QUERY, "life": "life", "workers": (OrderedWorker(worker=0, port=None),), "until": 1000,
        "job": job().text, **changes,
    }  # fmt: skip
    text = Order.model_validate(fields).text
    return text, sign(KEY, "order", text)


def test_an_order_is_for_one_query_one_life_and_some_time() -> None:
    text, signature = signed_order()
    order, found = check_order(KEY, text, signature, "life", 999)
    assert (order.query, found) == (QUERY, job())


def refused_orders() -> Iterable[tuple[tuple[str, str], str, int, str]]:
    text, signature = signed_order()
    yield (text, signature), "life", 1000, "the order's time was over 0.0 s ago"
    yield (text, signature), "next", 0, "for another executor, or for an earlier life"
    yield (text.replace('"port":null', '"port":22'), signature), "life", 0, "not signed with this submit key"
    yield (text, sign(b"another key, 16+", "order", text)), "life", 0, "not signed with this submit key"
    yield (text, sign(KEY, "job", text)), "life", 0, "not signed with this submit key"
    yield (text, ""), "life", 0, "not signed"
    yield signed_order(query="fedcba9876543210"), "life", 0, "is for query fedcba9876543210, and its job for"
    yield signed_order(job=job(program=JobFile(name="../evil.py")).text), "life", 0, "job is malformed"
    yield signed_order(job=job(files=(JobFile(name="a/b"),)).text), "life", 0, "job is malformed"
    yield signed_order(job="{}"), "life", 0, "job is malformed"


@pytest.mark.parametrize(("order", "life", "now", "says"), [*refused_orders()])
def test_what_is_not_signed_for_this_is_refused(
    order: tuple[str, str], life: str, now: int, says: str
) -> None:
    with pytest.raises(QueryRefused, match=says):
        check_order(KEY, *order, life, now)


def test_a_job_is_placed_only_with_the_permit_of_that_query_and_in_its_time() -> None:
    text = job(restart=True).text
    signature, following = sign(KEY, "job", text), next_query(QUERY)
    assert following == f"{QUERY}.2"
    assert next_query(following) == f"{QUERY}.3"
    permit = permit_for(KEY, following, 1000)
    assert check_job(KEY, following, text, signature, permit, 999) == job(restart=True)
    for query, words, mark, now, says in (
        (following, permit, signature, 1000, "ended 0 s ago"),
        (QUERY, permit, signature, 0, f"the permit of query {QUERY} is that of {following}"),
        (following, permit.replace("1000", "9000"), signature, 0, "the permit is not signed"),
        (following, "", signature, 0, "the permit is not signed"),
        (following, permit, sign(KEY, "order", text), 0, "the job is not signed"),
        ("fedcba9876543210.2", permit, signature, 0, "the job of query"),
    ):
        with pytest.raises(QueryRefused, match=says):
            check_job(KEY, query, text, mark, words, now)


def test_keys_and_file_names() -> None:
    with pytest.raises(InvalidOption, match="there is no submit key"):
        check_key("")
    with pytest.raises(InvalidOption, match="has 5 characters: use at least 16"):
        check_key("short")
    for name in ("", ".", "..", "../x", "/x", "a/b", "a\\b", ".bashrc", "-rf", "a\0b", "a\nb", "x" * 201):
        with pytest.raises(InvalidInput, match="a file cannot be called"):
            check_file_name(name)
    assert check_file_name("Data 1.csv") == "Data 1.csv"


# -- the guard -----------------------------------------------------------------------------------------------


def test_a_guard_kills_at_the_end_of_the_lease_and_after_the_grace() -> None:
    leased = guarding.renewed(Guard(), 10.0)
    assert guarding.step(leased, GuardEvent.TIME, 9.9) == leased
    assert guarding.renewed(leased, 5.0) == leased, "a deadline never comes nearer"
    lapsed = guarding.step(leased, GuardEvent.TIME, 10.0)
    assert (lapsed.state, lapsed.lapsed, lapsed.deadline) == (GuardState.KILLED, True, None)
    ending = guarding.step(leased, GuardEvent.WANTED, 1.0, 5.0)
    assert (ending.state, ending.deadline) == (GuardState.ENDING, 6.0)
    assert guarding.step(ending, GuardEvent.WANTED, 2.0, 1.0).deadline == 3.0, "sooner"
    assert guarding.step(ending, GuardEvent.WANTED, 2.0, 9.0).deadline == 6.0, "not later"
    killed = guarding.step(ending, GuardEvent.TIME, 6.0)
    assert (killed.state, killed.lapsed) == (GuardState.KILLED, False)
    assert guarding.step(killed, GuardEvent.EXITED, 7.0).state is GuardState.OVER
    alone = guarding.step(Guard(), GuardEvent.ALONE, 1.0)
    assert (alone.state, alone.deadline) == (GuardState.ENDING, 1.0 + guarding.LEFT_ALONE_SECONDS)
    assert guarding.step(Guard(), GuardEvent.TIME, 1e9) == Guard(), "without a lease it waits"
