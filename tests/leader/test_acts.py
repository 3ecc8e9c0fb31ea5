"""Operators' acts: each in every state of a lease, told twice, refused, found again by the next leader."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlease.leader.core.state.group_state import GroupState
from streamlease.leader.core.state.operated import RefusedAct
from streamlease.protocol.messages import CommandRefused, CommandReply
from tests.leader.make import S0, S1, S2, Rig, command, finished, fix, led, only, part, wanted
from tests.leader.operating import STATES, alive, answer, in_state, successor
from tests.leader.test_recovery import EVENTS, consistent, do

ACTS: dict[str, dict[str, Any]] = {
    "pause": {},
    "resume": {},
    "rebalance": {},
    "drain": {"borrower": "n-b1"},
    "undrain": {"borrower": "n-b1"},
    "move": {"stream": S0, "borrower": "n-b2"},
    "release": {"stream": S0},
    "reset": {"offsets": {S0: 0, S1: 3}},
    "expire": {},
    "delete": {},
    "step_down": {},
}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("act", list(ACTS))
def test_every_act_in_every_state(act: str, state: str) -> None:
    """It is answered once and for all, recorded, told again the same, and found by the next leader."""
    rig = in_state(state)
    before = rig.frozen()
    trial = only(rig.hear(command(act, dry_run=True, request="trial", at=7, **ACTS[act]), "op"), CommandReply)
    assert rig.frozen() == before, "a dry run changes nothing"
    reply = only(
        rig.hear(command(act, request="once", who="ann@host", at=7, **ACTS[act]), "op"), CommandReply
    )
    assert reply == trial.model_copy(update={"request": "once"})
    kept = rig.leader.durable.operated.acts[-1]
    assert (kept.act, kept.who, kept.at, kept.request) == (act, "ann@host", 7, "once")
    assert isinstance(kept, RefusedAct) == isinstance(reply, CommandRefused)
    assert rig.replayed() == rig.leader.durable
    if not rig.leader.ledger.stopped:
        consistent(rig)
        after = rig.frozen()
        again = only(rig.hear(command(act, request="once", **ACTS[act]), "op"), CommandReply)
        assert again == reply
        assert rig.frozen() == after, "told twice, it is done once"
    other = successor(rig)
    assert only(other.hear(command(act, request="once", **ACTS[act]), "op"), CommandReply) == reply


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("act", [act for act in ACTS if act not in ("delete", "step_down", "expire")])
def test_after_an_act_the_group_comes_to_rest(act: str, state: str) -> None:
    rig = in_state(state)
    rig.hear(command(act, request="once", **ACTS[act]), "op")
    if state == "absent":
        rig.join("b1", attempt=2)
    alive(rig, 45_000, "b1", "b2")
    paused = rig.leader.durable.operated.paused is not None
    assert paused == (act == "pause" or (state == "free" and act != "resume"))
    assert len(rig.owners) == (0 if paused else 2)
    if act == "move" and not paused:
        assert rig.owners[S0] == "b2"
    if act == "drain" and not paused:
        assert set(rig.owners.values()) == {"b2"}
    consistent(rig)


@pytest.mark.parametrize("act", ["pause", "drain", "move", "release", "reset"])
def test_the_leader_may_die_after_any_record_of_an_act(act: str) -> None:
    rig = led((S0, S1), ("b1", "b2"))
    rig.hear(
        fix("s-n-b1", 1, *(part(s, rig.lease_epoch(s), 0, 5) for s, o in rig.owners.items() if o == "b1"))
    )
    before = len(rig.journal)
    stream = next(s for s, owner in rig.owners.items() if owner == "b1")
    more = {**ACTS[act], **({"stream": stream} if "stream" in ACTS[act] else {})}
    rig.hear(command(act, request="once", who="ann", **more), "op")
    alive(rig, 3000, "b1", "b2")
    journal = rig.journal
    for length in range(before, len(journal) + 1):
        state = GroupState()
        for record in journal[:length]:
            state.apply(record)
        state = GroupState.restore(state.snapshot())
        known = state.operated.answered("once") is not None
        assert known == (length > before)
        next_one = Rig(term=2, state=state)
        next_one.journal = [*journal[:length], *next_one.journal]
        next_one.streams(S0, S1)
        for borrower in ("b1", "b2"):
            next_one.join(borrower, attempt=2)
        alive(next_one, 15_000, "b1", "b2")
        consistent(next_one)
        assert next_one.replayed() == next_one.leader.durable
        if act == "pause" and known:
            assert next_one.owners == {}
        else:
            assert set(next_one.owners) == {S0, S1}
        if act == "drain" and known:
            assert set(next_one.owners.values()) == {"b2"}
        if act == "move" and known:
            assert next_one.owners[stream] == "b2"
        if act == "reset" and known:
            assert (next_one.committed(S0), next_one.committed(S1)) == (0, 3)


@pytest.mark.parametrize(
    ("act", "more", "why"),
    [
        ("move", {"stream": "s.0.9", "borrower": "b2"}, "group g/a has no stream s.0.9; nearest: s.0."),
        ("move", {"stream": S0, "borrower": "n-b9"}, "group g/a has no borrower n-b9; nearest: n-b"),
        ("release", {"stream": "zzz"}, "group g/a has no stream zzz; there are 2, such as s.0.0"),
        ("drain", {"borrower": "n-b7"}, "group g/a has no borrower n-b7; nearest: n-b"),
        ("undrain", {"borrower": "n-b1"}, "borrower n-b1 of group g/a is not drained; there are none"),
        ("resume", {}, "group g/a is not paused"),
        ("reset", {"offsets": {"s.0.7": 1}}, "group g/a has no stream s.0.7; nearest: s.0."),
        ("reset", {}, "the reset names no stream"),
        ("expire", {}, "group g/a has 2 borrowers, such as n-b1: stop them first"),
        (
            "delete",
            {},
            "group g/a has 2 borrowers, such as n-b1: "
            "stop them first, or delete it with --force if they are gone",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_reason_and_recorded(
    act: str, more: dict[str, Any], why: str
) -> None:
    rig = led((S0, S1), ("b1", "b2"))
    before = rig.leader.durable.model_copy(deep=True)
    ok, said = answer(rig, act, **more)
    assert not ok
    assert said.startswith(why)
    kept = rig.leader.durable.operated.acts.pop()
    assert isinstance(kept, RefusedAct)
    assert kept.error == said
    assert rig.leader.durable == before
    assert not rig.leader.ledger.stopped


NAME = st.sampled_from(["a", "b", "b1", "nobody"])
STREAM = st.sampled_from([S0, S1, S2])
ANY_ACT = st.one_of(
    st.tuples(st.just("act"), st.sampled_from(["pause", "resume", "rebalance", "expire"]), st.just({})),
    st.tuples(
        st.just("act"), st.sampled_from(["drain", "undrain"]), st.fixed_dictionaries({"borrower": NAME})
    ),
    st.tuples(st.just("act"), st.just("move"), st.fixed_dictionaries({"stream": STREAM, "borrower": NAME})),
    st.tuples(st.just("act"), st.just("release"), st.fixed_dictionaries({"stream": STREAM})),
    st.tuples(
        st.just("act"),
        st.just("reset"),
        st.fixed_dictionaries({"offsets": st.dictionaries(STREAM, st.integers(0, 6), min_size=1)}),
    ),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(EVENTS, ANY_ACT), max_size=30))
def test_the_journal_gives_the_state_after_any_acts_among_any_events(events: list[tuple[Any, ...]]) -> None:
    rig = Rig()
    rig.streams(S0, S1)
    for number, event in enumerate(events):
        committed = {stream: rig.committed(stream) for stream in rig.leader.durable.streams}
        lease_epochs = {stream: held.lease_epoch for stream, held in rig.leader.durable.streams.items()}
        if event[0] == "act":
            rig.hear(command(event[1], request=f"r{number}", at=number + 1, **event[2]), "op")
        else:
            rig = do(rig, event)
        assert rig.replayed() == rig.leader.durable
        assert GroupState.restore(rig.leader.durable.snapshot()) == rig.leader.durable
        consistent(rig)
        if event[0] == "streams":
            continue
        reset = event[2]["offsets"] if event[:2] == ("act", "reset") else {}
        for stream, durable in rig.leader.durable.streams.items():
            assert durable.lease_epoch >= lease_epochs.get(stream, 0)
            if stream in committed and stream not in reset:
                assert durable.committed >= committed[stream]


def test_a_late_word_of_before_an_act_is_only_counted() -> None:
    rig = led((S0, S1), ("b1", "b2"))
    rig.hear(wanted("b3", name="n-b3"), "box-b3")
    before = rig.leader.ledger.refused
    rig.hear(finished("b1", S1, 9), "box-b1")
    assert rig.leader.ledger.refused == before + 1
