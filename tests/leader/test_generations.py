"""Order across generations: who may read when, what is finished, and that it stays so."""

from __future__ import annotations

import pytest

from streamlease.leader.core.events import Recovered, StreamsListed
from streamlease.leader.core.state.group_state import GroupState
from streamlease.leader.core.state.records import StreamsAdvanced, decode_records, encode_records
from streamlease.protocol.messages import CommandRefused, Grant, Revoke
from tests.leader.make import (
    CONFIG,
    S0,
    S1,
    Rig,
    command,
    finish,
    finished,
    fix,
    goodbye,
    led,
    only,
    part,
    progress,
    sent,
)
from tests.leader.operating import successor

N0, N1, M0 = "s.1.0", "s.1.1", "s.2.0"
CHAIN = {S0: (), S1: (), N0: (S0, S1), N1: (S0, S1), M0: (N0, N1)}


def sealed(ends: dict[str, int] | None = None) -> Rig:
    """b1 holds S0 and S1, which are sealed now; N0 and N1 follow both."""
    rig = led()
    rig.generations(ends or {S0: 3, S1: 5}, N0, N1)
    return rig


def consume(rig: Rig, stream: str, offset: int) -> None:
    owner = rig.owners[stream]
    rig.hear(progress(owner, stream, rig.lease_epoch(stream), offset), f"box-{owner}")


def test_a_stream_waits_until_all_its_predecessors_are_consumed_to_their_end() -> None:
    rig = sealed()
    rig.settle()
    assert set(rig.owners) == {S0, S1}
    consume(rig, S0, 2)
    assert rig.lease_state(S0) == "granted"
    consume(rig, S0, 3)
    assert rig.lease_state(S0) == "revoking"
    rig.give_back(S0, 3)
    rig.settle()
    assert set(rig.owners) == {S1}
    consume(rig, S1, 5)
    rig.effects.clear()
    rig.give_back(S1, 5)
    assert {grant.stream for grant in sent(rig.effects, Grant)} == {N0, N1}
    assert rig.journal[-3] == StreamsAdvanced(finished=(S1,), released=(N0, N1))


def test_a_stream_waits_for_its_own_predecessors_only() -> None:
    rig = led()
    rig.generations({S0: 3, S1: 5}, N0, N1, order={S0: (), S1: (), N0: (S0,), N1: (S1,)})
    consume(rig, S0, 3)
    rig.give_back(S0, 3)
    assert set(rig.owners) == {S1, N0}


def test_a_finished_stream_is_never_granted_again() -> None:
    rig = sealed()
    consume(rig, S0, 3)
    rig.give_back(S0, 3)
    rig.join("b2")
    for _ in range(50):
        rig.tick(1000)
        rig.accept()
    rig.generations({S0: 3, S1: 5}, N0, N1)
    rig = rig.crash()
    rig.join("b3")
    rig.generations({S0: 3, S1: 5}, N0, N1)
    for _ in range(50):
        rig.tick(1000)
        rig.accept()
    assert S0 not in rig.owners
    assert rig.leader.durable.streams[S0].finished


def test_what_is_free_is_finished_directly_and_what_is_empty_at_once() -> None:
    rig = Rig()
    rig.generations({S0: 0, S1: 0}, N0, N1)
    assert rig.journal[-1] == StreamsAdvanced(finished=(S0, S1), released=(N0, N1))
    assert {grant.stream for grant in sent(rig.join("b1"), Grant)} == {N0, N1}


def test_an_empty_generation_does_not_let_the_next_one_overtake_the_one_before() -> None:
    rig = led()
    rig.generations({S0: 3, S1: 5, N0: 0, N1: 0}, M0, order=CHAIN)
    rig.settle()
    assert set(rig.owners) == {S0, S1}
    for stream, end in ((S0, 3), (S1, 5)):
        assert not rig.leader.durable.streams[N0].finished
        consume(rig, stream, end)
        rig.give_back(stream, end)
    assert set(rig.owners) == {M0}
    advanced = [record for record in rig.journal if isinstance(record, StreamsAdvanced)]
    assert advanced[-1] == StreamsAdvanced(finished=(S1, N0, N1), released=(N0, N1, M0))


def test_a_leader_grants_nothing_that_waits_before_its_first_listing() -> None:
    rig = sealed().crash()
    rig.join("b1", attempt=2)
    rig.join("b2")
    for _ in range(10):
        rig.tick(100)
        rig.accept()
    assert set(rig.owners) == {S0, S1}
    consume(rig, S0, 3)
    assert rig.lease_state(S0) == "granted"
    rig.generations({S0: 3, S1: 5}, N0, N1)
    assert rig.lease_state(S0) == "revoking"


@pytest.mark.parametrize("loss", ["silence", "goodbye"])
def test_an_owner_that_is_lost_at_the_end_finishes_the_stream(loss: str) -> None:
    rig = sealed()
    consume(rig, S0, 3)
    if loss == "silence":
        rig.tick(10_000)
    else:
        rig.hear(goodbye("b1", (S0, 1, 3), (S1, 1, 4)))
    assert rig.leader.durable.streams[S0].finished
    assert rig.leader.leases.hand_overs.under_way.keys() == {S1}
    rig.join("b2")
    rig.settle()
    rig.accept()
    assert rig.owners == {S1: "b2"}
    assert rig.committed(S1) == (0 if loss == "silence" else 4)


def test_a_newcomer_under_the_same_name_hears_that_its_commit_is_durable_and_gives_back() -> None:
    rig = sealed()
    consume(rig, S0, 3)
    rig.join("b1b", name="n-b1", session="s-n-b1", attempt=2)
    grant = next(g for g in sent(rig.effects, Grant) if (g.borrower, g.stream) == ("b1b", S0))
    assert (grant.progress, grant.resumes) == (3, 1)
    rig.accept("b1b")
    assert rig.lease_state(S0) == "revoking"
    rig.give_back(S0, 3)
    assert rig.leader.durable.streams[S0].finished


def test_a_grant_that_is_not_answered_yet_is_taken_back_once_it_is() -> None:
    rig = Rig()
    rig.join("b1")
    rig.streams(S0)
    rig.settle()
    rig.generations({S0: 0}, N0)
    assert rig.lease_state(S0) == "granting"
    assert sent(rig.effects, Revoke) == []
    rig.accept()
    assert only(rig.effects, Revoke).stream == S0
    rig.give_back(S0, 0)
    assert set(rig.owners) == {N0}


def test_the_end_of_a_cut_finishes_its_streams_but_not_before() -> None:
    rig = sealed()
    rig.hear(fix("s-n-b1", 1, part(S0, 1, 0, 3), part(S1, 1, 0, 4)))
    assert rig.lease_state(S0) == "granted"
    rig.hear(finish("s-n-b1", 1))
    assert (rig.lease_state(S0), rig.lease_state(S1)) == ("revoking", "granted")
    rig.give_back(S0, 3)
    assert rig.leader.durable.streams[S0].finished


def test_a_pinned_end_survives_the_seal() -> None:
    rig = sealed()
    rig.hear(fix("s-n-b1", 1, part(S0, 1, 0, 3)))
    rig.hear(goodbye("b1"))
    grants = {grant.stream: grant for grant in sent(rig.join("b2"), Grant)}
    assert grants[S0].pinned_end == 3
    rig.accept()
    consume(rig, S0, 3)
    rig.give_back(S0, 3)
    assert rig.leader.durable.streams[S0].finished
    assert rig.leader.durable.streams[S0].pinned_end is None


def test_a_dropped_generation_is_forgotten_and_stays_forgotten() -> None:
    rig = sealed({S0: 0, S1: 0})
    for stream in (S0, S1):
        rig.give_back(stream, 0)
    rig.settle()
    rig.accept()
    rig.streams(N0, N1)
    assert set(rig.leader.durable.streams) == {N0, N1}
    state = GroupState.restore(rig.leader.durable.snapshot())
    again = Rig(term=9, state=state)
    again.streams(N0, N1)
    assert set(again.leader.durable.streams) == {N0, N1}
    assert again.committed(N0) == 0


def test_a_generation_that_is_dropped_unread_releases_what_followed_it() -> None:
    rig = sealed()
    rig.streams(N0, N1)
    assert rig.journal[-1] == StreamsAdvanced(finished=(), released=(N0, N1))
    joined = rig.join("b1b", name="n-b1", session="s-n-b1", attempt=2)
    assert {grant.stream for grant in sent(joined, Grant)} == {N0, N1}


def test_retention_that_passes_the_end_finishes_the_stream() -> None:
    rig = led((S0,))
    rig.hear(goodbye("b1"))
    rig.step(StreamsListed({S0: 7, N0: 0}, {S0: 7, N0: 0}, {S0: 7}, {S0: (), N0: (S0,)}))
    assert rig.leader.durable.streams[S0].finished
    assert not rig.leader.durable.streams[N0].waiting


def test_leaving_streams_do_not_count_for_the_balance() -> None:
    rig = led((S0, S1), ("b1", "b2"))
    rig.generations({S0: 0}, S1, N0, N1, order={S0: (), S1: (), N0: (), N1: ()})
    assert rig.lease_state(S0) == "revoking"
    rig.settle()
    rig.accept()
    rig.give_back(S0, 0)
    rig.accept()
    loads = sorted(list(rig.owners.values()).count(one) for one in ("b1", "b2"))
    assert loads == [1, 2]


def generation_life() -> Rig:
    """Two generations that end, with an owner lost on the way."""
    rig = sealed({S0: 3, S1: 5})
    rig.join("b2")
    consume(rig, S0, 3)
    rig.give_back(S0, 3)
    rig.settle()
    rig.accept()
    consume(rig, S1, 5)
    rig.hear(goodbye(rig.owners[S1]))
    rig.settle()
    rig.accept()
    rig.generations({S0: 3, S1: 5, N0: 2, N1: 0}, M0, order=CHAIN)
    for stream, end in ((N0, 2), (N1, 0)):
        if rig.lease_state(stream) == "granted":
            consume(rig, stream, end)
        if stream in rig.owners:
            rig.give_back(stream, end)
    rig.accept()
    return rig


def journals() -> list[list[object]]:
    journal = generation_life().journal
    return [journal[:length] for length in range(len(journal) + 1)]  # type: ignore[misc]


@pytest.mark.parametrize("journal", journals(), ids=lambda journal: f"{len(journal)} records")
@pytest.mark.parametrize("through_snapshot", [False, True])
def test_a_successor_keeps_the_order_wherever_the_leader_died(
    journal: list[object], through_snapshot: bool
) -> None:
    ends = {S0: 3, S1: 5, N0: 2, N1: 0}
    state = GroupState()
    for record in decode_records(encode_records(journal)):  # type: ignore[arg-type]
        state.apply(record)
    if through_snapshot:
        state = GroupState.restore(state.snapshot())
    over = {stream for stream, held in state.streams.items() if held.finished}
    rig = Rig(term=state.term + 1, state=state, config=CONFIG)
    rig.join("new")
    granted: list[str] = []
    for number in range(300):
        if number == 3:
            rig.generations(ends, M0, order=CHAIN)
        rig.hear(progress("new", "none", 1, 0), "box-new")
        rig.tick(100)
        for stream, owner in rig.owners.items():
            if owner != "new":
                continue
            if stream not in granted:
                granted.append(stream)
                for before in CHAIN[stream]:
                    known = rig.leader.durable.streams[before]
                    assert known.finished, f"{stream} was granted before {before} was finished"
            match rig.lease_state(stream):
                case "granting" | "granted":
                    consume(rig, stream, max(ends.get(stream, 4), rig.committed(stream)))
                case "revoking" | "revoked":
                    end = rig.committed(stream)
                    rig.hear(progress("new", stream, rig.lease_epoch(stream), end, final=True), "box-new")
                    rig.hear(finished("new", stream, rig.lease_epoch(stream)), "box-new")
    assert over.isdisjoint(granted)
    assert set(rig.owners) == {M0}
    assert all(rig.leader.durable.streams[stream].finished for stream in ends)
    assert rig.leader.step(Recovered(), rig.now) is not None


def test_streams_of_a_damaged_space_stay_as_they_are() -> None:
    """The listing leaves them out; without the mark they would be forgotten with the group's progress."""
    rig = Rig()
    rig.join("b1")
    before: dict[str, tuple[str, ...]] = {S0: (), N0: (S0,), "t.0.0": ()}
    rig.step(StreamsListed(dict.fromkeys(before, 0), {}, {S0: 7}, before))
    rig.settle()
    rig.accept()
    rig.hear(progress("b1", S0, rig.lease_epoch(S0), 3), "box-b1")
    for _ in range(2):  # also by a leader that has never seen the definition
        rig.step(StreamsListed({"t.0.0": 0}, {}, {}, {"t.0.0": ()}, frozenset({"s"})))
        assert rig.committed(S0) == 3
        assert rig.leader.durable.streams[N0].waiting
        rig = successor(rig)
    rig.step(StreamsListed({"t.0.0": 0}, {}, {}, {"t.0.0": ()}, frozenset({"s"})))
    reply = only(rig.hear(command("reset", offsets={S0: 0}), "op"), CommandRefused)
    assert "the space of s.0.0 is damaged" in reply.error
    rig.step(StreamsListed({"t.0.0": 0}, {}, {}, {"t.0.0": ()}))
    assert [*rig.leader.durable.streams] == ["t.0.0"]
