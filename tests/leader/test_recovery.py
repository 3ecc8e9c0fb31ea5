"""A leader may die after any record: what it journalled is all that its successor needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlease.leader.core.events import StreamsListed
from streamlease.leader.core.state.group_state import GroupState
from streamlease.leader.core.state.records import Record, decode_records, encode_records
from streamlease.protocol.messages import Grant
from tests.leader.make import (
    CONFIG,
    S0,
    S1,
    S2,
    Rig,
    command,
    finish,
    finished,
    fix,
    goodbye,
    led,
    part,
    ping,
    progress,
    resume,
    sent,
    wanted,
)

STREAM = st.sampled_from([S0, S1, S2])
BORROWER = st.sampled_from(["b1", "b2", "b3"])
SMALL = st.integers(0, 6)
SESSION = st.sampled_from(["s-a", "s-b"])

EVENTS = st.one_of(
    st.tuples(st.just("join"), BORROWER, st.sampled_from("ab"), SESSION, SMALL),
    st.tuples(st.just("progress"), BORROWER, STREAM, SMALL, SMALL, st.booleans()),
    st.tuples(st.just("own progress"), STREAM, SMALL, st.booleans()),
    st.tuples(st.just("finished"), STREAM),
    st.tuples(st.just("goodbye"), BORROWER),
    st.tuples(st.just("ping"), BORROWER),
    st.tuples(st.just("fix"), SESSION, st.integers(1, 4), STREAM, SMALL),
    st.tuples(st.just("finish"), SESSION, SMALL),
    st.tuples(st.just("resume"), SESSION, st.integers(1, 4)),
    st.tuples(st.just("tick"), st.sampled_from([100, 1000, 10_000])),
    st.tuples(st.just("streams"), st.sets(STREAM)),
    st.tuples(st.just("rebalance")),
    st.tuples(st.just("crash")),
)


def do(rig: Rig, event: tuple[Any, ...]) -> Rig:
    match event:
        case ("join", borrower, name, session, arrival):
            rig.hear(wanted(borrower, name=name, session=session, arrival=arrival), f"box-{borrower}")
        case ("progress", borrower, stream, lease_epoch, offset, final):
            rig.hear(progress(borrower, stream, lease_epoch, offset, final=final))
        case ("own progress", stream, offset, final) if stream in rig.leader.leases:
            rig.hear(
                progress(rig.owners[stream] or "nobody", stream, rig.lease_epoch(stream), offset, final=final)
            )
        case ("finished", stream) if stream in rig.leader.leases:
            rig.hear(finished(rig.owners[stream] or "nobody", stream, rig.lease_epoch(stream)))
        case ("goodbye", borrower):
            rig.hear(goodbye(borrower, (S0, 1, 9)))
        case ("ping", borrower):
            rig.hear(ping(borrower))
        case ("fix", session, cut, stream, size) if stream in rig.leader.leases:
            start = rig.committed(stream)
            wish = part(stream, rig.lease_epoch(stream), start, start + size)
            rig.hear(fix(session, cut, wish, arrival=9))
        case ("finish", session, cut):
            rig.hear(finish(session, cut, arrival=9))
        case ("resume", session, cut):
            rig.hear(resume(session, cut, arrival=9))
        case ("tick", milliseconds):
            rig.tick(milliseconds)
        case ("streams", streams):
            rig.step(StreamsListed(dict.fromkeys(streams, 2)))
        case ("rebalance",):
            rig.hear(command("rebalance"))
        case ("crash",):
            journal = rig.journal
            rig = rig.crash()
            rig.journal = journal + rig.journal
    return rig


def consistent(rig: Rig) -> None:
    """What must hold between any two events."""
    leader = rig.leader
    for stream, lease in leader.leases.items():
        held = leader.durable.streams[stream]
        assert (held.owner, held.lease_epoch) == (lease.name, lease.lease_epoch)
        assert held.session == leader.peers[lease.name].session
    for stream, durable in leader.durable.streams.items():
        assert (durable.owner is not None) is (stream in leader.leases)
        assert durable.pinned_end is None or durable.pinned_end > durable.committed
    for id, name in leader.peers.names.items():
        assert leader.peers[name].borrower == id
    sessions = {peer.session for peer in leader.peers.values()}
    for session, cuts in leader.durable.sessions.root.items():
        assert session in sessions, "a session without borrowers is remembered"
        for stream in cuts.ranges:
            assert leader.durable.streams[stream].session == session, "an open cut holds another's stream"


@settings(max_examples=300, deadline=None)
@given(st.lists(EVENTS, max_size=30))
def test_the_journal_gives_the_state_after_any_events(events: list[tuple[Any, ...]]) -> None:
    rig = Rig()
    rig.streams(S0, S1)
    for event in events:
        committed = {stream: rig.committed(stream) for stream in rig.leader.durable.streams}
        lease_epochs = {stream: held.lease_epoch for stream, held in rig.leader.durable.streams.items()}
        listed = event[0] == "streams"
        rig = do(rig, event)
        assert rig.replayed() == rig.leader.durable
        assert GroupState.restore(rig.leader.durable.snapshot()) == rig.leader.durable
        consistent(rig)
        for stream, durable in rig.leader.durable.streams.items():
            if not listed and stream in committed:
                assert durable.committed >= committed[stream]
                assert durable.lease_epoch >= lease_epochs[stream]


def life() -> Rig:
    """A group in which everything happened once."""
    rig = led((S0, S1), ("b1",))
    session = "s-n-b1"
    rig.hear(fix(session, 1, part(S0, 1, 0, 10), part(S1, 1, 0, 20)))
    rig.join("b2")
    rig.settle()
    rig.hear(finish(session, 1))
    rig.hear(progress("b1", S1, 1, 20, final=True))
    rig.hear(finished("b1", S1, 1))
    rig.accept()
    rig.hear(fix(session, 2, part(S0, 1, 10, 30)))
    rig.hear(wanted("b3", name="n-b1", session="other", arrival=2), "box-b3")
    rig.accept()
    rig.hear(goodbye("b2", (S1, 2, 33)))
    rig.hear(command("rebalance"))
    rig.streams(S0)
    return rig


def prefixes() -> Iterator[list[Record]]:
    journal = life().journal
    for length in range(len(journal) + 1):
        yield journal[:length]


@pytest.mark.parametrize("journal", list(prefixes()), ids=lambda journal: f"{len(journal)} records")
def test_a_successor_begins_wherever_the_leader_died(journal: list[Record]) -> None:
    state = GroupState()
    for record in decode_records(encode_records(journal)):
        state.apply(record)
    before = state.model_copy(deep=True)
    rig = Rig(term=state.term + 1, state=state, config=CONFIG)
    consistent(rig)
    rig.streams(S0, S1)
    # The owner of before comes back, the others do not: after a while it has everything, from where it was.
    owners = sorted({p.owner for p in before.streams.values() if p.owner})
    name = owners[0] if owners else "n-b1"
    session = next((p.session for p in before.streams.values() if p.owner == name), None) or "s"
    rig.hear(wanted("back", name=name, session=session, arrival=9), "box")
    resumed = {grant.stream: grant for grant in sent(rig.effects, Grant)}
    for stream, progress_before in before.streams.items():
        if progress_before.owner == name:
            assert resumed[stream].resumes == progress_before.held_since
            assert resumed[stream].lease_epoch > progress_before.lease_epoch
            assert resumed[stream].progress == progress_before.committed
    for _ in range(150):
        rig.hear(ping("back"))
        rig.accept()
        rig.tick(100)
    assert rig.owners == {S0: "back", S1: "back"}
    for stream, progress_before in before.streams.items():
        assert rig.committed(stream) == progress_before.committed
        assert rig.lease_epoch(stream) > progress_before.lease_epoch
    consistent(rig)
