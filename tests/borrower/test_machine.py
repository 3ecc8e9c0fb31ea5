"""What a borrower does with leases, progress and time."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlease.borrower.events import (
    Disconnected,
    Ended,
    Failed,
    FailureAnswered,
    FindLeader,
    LeaderFound,
    ProgressAcknowledged,
    Progressed,
    SendToLeader,
    Started,
    StreamGone,
    StreamGranted,
    StreamRevoking,
    Tick,
    Unsubscribed,
)
from streamlease.borrower.leases import MOST_TOLD, TELL_INTERVAL
from streamlease.borrower.life import BorrowerConfig, BorrowerState
from streamlease.protocol.errors import InvalidOption
from streamlease.protocol.messages import (
    Disconnect,
    FailureTaken,
    LeaderWanted,
    MessageFailed,
    Ping,
    Progress,
    RevokeFinished,
    UpdateProgress,
    Verdict,
)
from tests.borrower.make import (
    CONFIG,
    GROUP,
    LEASE_EPOCH,
    ME,
    STREAM,
    TERM,
    committed,
    connect_response,
    connected,
    frozen,
    grant,
    grants,
    hear,
    in_state,
    invalidate,
    new,
    not_leader,
    only,
    pong,
    progressed,
    revoke,
    revoked,
    sent,
)

# ---------------------------------------------------------------- finding the leader


def test_it_looks_for_its_leader_until_it_is_accepted() -> None:
    borrower = new()
    assert borrower.step(Started(), 1000) == [FindLeader()]
    assert borrower.step(Tick(), 1000 + CONFIG.find_leader_interval - 1) == []
    assert borrower.step(Tick(), 1000 + CONFIG.find_leader_interval) == [FindLeader()]
    (wanted,) = sent(borrower.step(LeaderFound("box", TERM), 1600), LeaderWanted)
    assert (wanted.borrower, wanted.session, wanted.name) == (ME, "session", "name")
    assert (wanted.arrival, wanted.attempt, wanted.host) == (7, 2, "here")
    assert wanted.session_timeout_ms == CONFIG.session_timeout
    # Found, but not accepted: the request or the answer may be lost.
    assert borrower.step(Tick(), 1000 + 2 * CONFIG.find_leader_interval) == [FindLeader()]
    hear(borrower, connect_response(), 2100)
    assert borrower.state is BorrowerState.CONNECTED
    assert borrower.step(Tick(), 2600) == []


def test_it_asks_the_leader_that_was_found_last() -> None:
    borrower = in_state(BorrowerState.CONNECTING)
    effect = only(borrower.step(LeaderFound("other", TERM + 1), 0), SendToLeader)
    assert effect.mailbox == "other"


def test_a_host_that_does_not_lead_any_more_makes_it_look_again() -> None:
    assert hear(in_state(BorrowerState.CONNECTING), not_leader()) == []  # it looks again when that is due
    effects = hear(connected(grant()), not_leader())
    assert effects == [StreamGone(STREAM, LEASE_EPOCH), Ended("the leader moved", again=True)]


def test_an_answer_from_before_its_host_began_to_lead_ends_nothing() -> None:
    borrower = connected(grant())
    before = frozen(borrower)
    assert hear(borrower, not_leader(TERM - 1)) == []
    assert frozen(borrower) == before
    assert borrower.refused == 1


# -- messages that cannot be processed -----------------------------------------------------------------------


def failed(offset: int = 12, failure: str = "f1") -> Failed:
    return Failed(STREAM, LEASE_EPOCH, offset, failure, "bad")


def taken(verdict: Verdict, offset: int = 12, failure: str = "f1", term: int = TERM) -> FailureTaken:
    return FailureTaken(
        group=GROUP,
        borrower=ME,
        term=term,
        stream=STREAM,
        lease_epoch=LEASE_EPOCH,
        offset=offset,
        failure=failure,
        verdict=verdict,
    )


def test_a_failure_is_told_again_until_it_is_answered() -> None:
    borrower = connected(grant())
    (message,) = sent(borrower.step(failed(), 100), MessageFailed)
    assert (message.offset, message.failure, message.cause) == (12, "f1", "bad")
    later = borrower.step(Tick(), 100 + CONFIG.resend_interval)
    assert sent(later, MessageFailed) == [message]
    assert sent(later, UpdateProgress) == []
    (answer,) = hear(borrower, taken("retry"))
    assert answer == FailureAnswered(STREAM, LEASE_EPOCH, 12, "f1", "retry")
    assert sent(borrower.step(Tick(), 200 + 2 * CONFIG.resend_interval), MessageFailed) == []


@pytest.mark.parametrize(("verdict", "next"), [("retry", 12), ("stopped", 12), ("passed", 13)])
def test_what_a_failure_comes_to_moves_the_progress(verdict: Verdict, next: int) -> None:
    borrower = connected(grant())
    borrower.step(failed(), 0)
    hear(borrower, taken(verdict))
    held = borrower.streams[STREAM]
    assert (held.told.offset, held.acknowledged, held.failed) == (next, next, None)


def test_answers_to_other_failures_change_nothing() -> None:
    borrower = connected(grant())
    borrower.step(failed(), 0)
    before = frozen(borrower)
    assert (
        hear(borrower, taken("passed", failure="f0")) == hear(borrower, taken("retry", term=TERM - 1)) == []
    )
    assert frozen(borrower) == before
    assert hear(connected(), taken("passed")) == []


def test_a_failure_below_the_progress_or_of_another_lease_is_refused() -> None:
    borrower = connected(grant())
    borrower.step(progressed(20), 0)
    before = frozen(borrower)
    assert borrower.step(failed(19), 0) == borrower.step(Failed("s.0.9", 1, 0, "f", "x"), 0) == []
    assert frozen(borrower) == before


def test_one_that_never_found_a_leader_has_nobody_to_say_goodbye_to() -> None:
    borrower = new()
    borrower.step(Started(), 0)
    assert borrower.step(Disconnected(), 1) == [Ended("disconnected", again=False)]


def test_one_that_asked_for_a_leader_says_goodbye_lest_it_was_accepted() -> None:
    effects = in_state(BorrowerState.CONNECTING).step(Unsubscribed(), 1)
    assert sent(effects) == [Disconnect(group=GROUP, borrower=ME, progress=())]
    assert only(effects, Ended).again is False


# ---------------------------------------------------------------- leases


def test_a_grant_is_handed_on_and_acknowledged_by_progress() -> None:
    borrower = connected()
    effects = hear(borrower, grant(pinned_end=20, resumes=2))
    assert effects[0] == StreamGranted(STREAM, LEASE_EPOCH, 10, pinned_end=20, resumes=2)
    entry = Progress(stream=STREAM, lease_epoch=LEASE_EPOCH, offset=10)
    assert sent(effects) == [UpdateProgress(group=GROUP, borrower=ME, progress=(entry,))]


def test_a_second_copy_of_a_grant_does_not_rewind_and_is_acknowledged_again() -> None:
    borrower = connected(grant())
    borrower.step(progressed(17), 0)
    effects = hear(borrower, grant())
    assert sent(effects, UpdateProgress)[0].progress[0].offset == 17
    assert len(effects) == 1
    assert borrower.streams[STREAM].told.offset == 17


def test_many_grants_are_held_and_acknowledged_as_if_each_had_come_alone() -> None:
    one, other = connected(), connected()
    rows = [(f"s.0.{n}", n + 1, 5 * n, n or None, None) for n in range(3)]
    alone = [
        hear(other, grant(stream, epoch, offset, resumes=resumes))
        for stream, epoch, offset, resumes, _ in rows
    ]
    effects = hear(one, grants(*rows))
    assert effects[:3] == [first for first, _ in alone]
    (told,) = sent(effects)
    assert isinstance(told, UpdateProgress)
    assert [told.progress] == [tuple(message.progress[0] for message in sent(chain(*alone), UpdateProgress))]
    assert frozen(one) == frozen(other)


def test_of_many_grants_those_that_are_late_are_refused_and_second_copies_answered() -> None:
    borrower = connected(grant("s.0.0", 3, 10), grant("s.0.1", 3, 10))
    borrower.step(progressed(17, stream="s.0.1", lease_epoch=3), 0)
    effects = hear(
        borrower,
        grants(("s.0.0", 2, 0, None, None), ("s.0.1", 3, 10, None, None), ("s.0.2", 1, 4, None, None)),
    )
    assert only(effects, StreamGranted).stream == "s.0.2"
    (told,) = sent(effects, UpdateProgress)
    assert [(entry.stream, entry.offset) for entry in told.progress] == [("s.0.1", 17), ("s.0.2", 4)]
    assert borrower.refused == 0
    before = frozen(borrower)
    assert hear(borrower, grants(("s.0.0", 2, 0, None, None))) == []
    assert (frozen(borrower), borrower.refused) == (before, 1)


def test_who_leaves_takes_none_of_many_grants() -> None:
    borrower = in_state(BorrowerState.UNSUBSCRIBING, [grant()])
    assert hear(borrower, grants(("s.0.7", 1, 0, None, None))) == []
    assert list(borrower.streams) == [STREAM]


def test_many_answers_are_messages_of_a_bounded_size() -> None:
    rows = [(f"s.0.{n}", 1, 0, None, None) for n in range(MOST_TOLD + 1)]
    told = sent(hear(connected(), grants(*rows)), UpdateProgress)
    assert [len(message.progress) for message in told] == [MOST_TOLD, 1]


def test_a_grant_under_a_higher_lease_epoch_replaces_the_lease() -> None:
    borrower = connected(grant())
    borrower.step(progressed(17), 0)
    effects = hear(borrower, grant(lease_epoch=LEASE_EPOCH + 2, progress=12))
    assert effects[:2] == [
        StreamGone(STREAM, LEASE_EPOCH),
        StreamGranted(STREAM, LEASE_EPOCH + 2, 12, pinned_end=None, resumes=None),
    ]
    assert borrower.step(progressed(18), 0) == []  # speaks of the lease before
    assert borrower.refused == 1


def test_a_grant_under_a_lower_lease_epoch_is_late() -> None:
    borrower = connected(grant())
    before = frozen(borrower)
    assert hear(borrower, grant(lease_epoch=LEASE_EPOCH - 1)) == []
    assert frozen(borrower) == before
    assert borrower.refused == 1


def test_a_late_copy_of_a_grant_does_not_bring_a_revoked_stream_back() -> None:
    """Two owners otherwise: the leader has given the stream to somebody else by then (invariant 1)."""
    borrower = connected(grant())
    hear(borrower, revoke())
    borrower.step(progressed(11, final=True), 0)
    hear(borrower, revoked())
    assert hear(borrower, grant()) == []
    assert borrower.streams == {}
    assert borrower.refused == 1
    assert only(hear(borrower, grant(lease_epoch=LEASE_EPOCH + 1, progress=11)), StreamGranted).progress == 11


def test_a_late_copy_of_a_replaced_grant_does_not_come_back_either() -> None:
    borrower = connected(grant(), grant(lease_epoch=LEASE_EPOCH + 1))
    assert borrower.streams[STREAM].lease_epoch == LEASE_EPOCH + 1
    hear(borrower, revoke(lease_epoch=LEASE_EPOCH + 1))
    borrower.step(progressed(11, final=True, lease_epoch=LEASE_EPOCH + 1), 0)
    hear(borrower, revoked(lease_epoch=LEASE_EPOCH + 1))
    assert hear(borrower, grant()) == []
    assert hear(borrower, grant(lease_epoch=LEASE_EPOCH + 1)) == []
    assert (borrower.streams, borrower.refused) == ({}, 2)


def test_revoke_asks_the_session_once_and_final_progress_answers_each_copy() -> None:
    borrower = connected(grant())
    assert hear(borrower, revoke()) == [StreamRevoking(STREAM, LEASE_EPOCH)]
    (report,) = sent(hear(borrower, revoke()), UpdateProgress)
    assert report.progress[0].final is False
    (final,) = sent(borrower.step(progressed(12, final=True), 0), UpdateProgress)
    assert final.progress == (Progress(stream=STREAM, lease_epoch=LEASE_EPOCH, offset=12, final=True),)
    assert sent(hear(borrower, revoke()), UpdateProgress) == [final]


def test_progress_that_is_not_final_keeps_a_stream_revoking() -> None:
    borrower = connected(grant())
    hear(borrower, revoke())
    borrower.step(progressed(12), 0)
    assert borrower.streams[STREAM].state.value == "revoking"
    assert borrower.streams[STREAM].told.final is False


@pytest.mark.parametrize("lease_epoch", [LEASE_EPOCH - 1, LEASE_EPOCH + 1])
def test_revoke_and_revoked_of_another_lease_epoch_do_not_touch_the_lease(lease_epoch: int) -> None:
    borrower = connected(grant())
    held = frozen(borrower).streams
    assert hear(borrower, revoke(lease_epoch=lease_epoch)) == []
    effects = hear(borrower, revoked(lease_epoch=lease_epoch))
    assert borrower.streams == held
    assert [m.lease_epoch for m in sent(effects, RevokeFinished)] == [lease_epoch]


def test_revoked_is_answered_by_the_end_of_the_stream() -> None:
    borrower = connected(grant())
    hear(borrower, revoke())
    borrower.step(progressed(12, final=True), 0)
    effects = hear(borrower, revoked())
    # `Revoked` says that the final progress is durable, even if `ProgressCommitted` was lost.
    assert effects[:2] == [
        ProgressAcknowledged(STREAM, LEASE_EPOCH, 12),
        StreamGone(STREAM, LEASE_EPOCH, 12),
    ]
    finished = RevokeFinished(group=GROUP, borrower=ME, stream=STREAM, lease_epoch=LEASE_EPOCH)
    assert sent(effects) == [finished]
    assert sent(hear(borrower, revoked())) == [finished]  # the first answer may be lost


def test_what_was_acknowledged_before_revoked_is_not_acknowledged_again() -> None:
    borrower = connected(grant())
    hear(borrower, revoke())
    borrower.step(progressed(12, final=True), 0)
    hear(borrower, committed(12, final=True))
    assert hear(borrower, revoked())[0] == StreamGone(STREAM, LEASE_EPOCH, 12)


def test_revoked_of_an_unknown_stream_is_answered() -> None:
    effects = hear(connected(), revoked("s.0.9", 4))
    assert sent(effects) == [RevokeFinished(group=GROUP, borrower=ME, stream="s.0.9", lease_epoch=4)]


# ---------------------------------------------------------------- progress


def test_progress_never_goes_back() -> None:
    borrower = connected(grant())
    borrower.step(progressed(15), 0)
    before = frozen(borrower)
    assert borrower.step(progressed(14), 0) == []
    assert frozen(borrower) == before
    assert borrower.refused == 1


def test_final_progress_needs_a_revoke() -> None:
    borrower = connected(grant())
    assert borrower.step(progressed(15, final=True), 0) == []
    assert borrower.streams[STREAM].told.offset == 10
    assert borrower.refused == 1


def test_nothing_follows_final_progress() -> None:
    borrower = connected(grant())
    hear(borrower, revoke())
    borrower.step(progressed(15, final=True), 0)
    assert borrower.step(progressed(16), 0) == []
    assert borrower.streams[STREAM].told.offset == 15
    assert borrower.refused == 1


@pytest.mark.parametrize(
    "event", [progressed(11, stream="s.0.9"), progressed(11, lease_epoch=LEASE_EPOCH - 1)]
)
def test_progress_of_what_is_not_held_is_refused(event: object) -> None:
    borrower = connected(grant())
    assert borrower.step(event, 0) == []  # type: ignore[arg-type]
    assert borrower.refused == 1


def test_progress_is_reported_again_on_schedule_until_it_is_acknowledged() -> None:
    borrower = connected(
        grant(), config=BorrowerConfig(ping_interval=50_000, ping_timeout=90_000, session_timeout=90_000)
    )
    every = borrower.config.resend_interval
    for n in (1, 2, 3):
        assert borrower.step(Tick(), n * every - 1) == []
        (report,) = sent(borrower.step(Tick(), n * every), UpdateProgress)
        assert report.progress[0].offset == 10
    assert hear(borrower, committed(10), 3 * every) == [ProgressAcknowledged(STREAM, LEASE_EPOCH, 10)]
    assert borrower.step(Tick(), 20 * every) == []


def test_an_acknowledgement_of_less_does_not_end_the_reports() -> None:
    borrower = connected(grant())
    borrower.step(progressed(15), 0)
    hear(borrower, committed(10))
    (report,) = sent(borrower.step(Tick(), CONFIG.resend_interval), UpdateProgress)
    assert report.progress[0].offset == 15
    hear(borrower, committed(15), CONFIG.resend_interval)
    assert hear(borrower, committed(10), CONFIG.resend_interval) == []  # late
    assert borrower.streams[STREAM].acknowledged == 15


def test_final_progress_is_reported_again_until_the_stream_is_revoked() -> None:
    """Its first report may be lost while the plain progress before it was acknowledged."""
    borrower = connected(grant())
    hear(borrower, committed(10))
    hear(borrower, revoke())
    borrower.step(progressed(10, final=True), 0)  # the report is lost
    reports = sent(borrower.step(Tick(), CONFIG.resend_interval), UpdateProgress)
    again = sent(hear(borrower, revoke(), CONFIG.resend_interval), UpdateProgress)
    assert any(report.progress[0].final for report in [*reports, *again])


@given(st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=20))
def test_reports_and_acknowledgements_only_rise(steps: list[tuple[int, bool]]) -> None:
    borrower = connected(grant())
    reported, acknowledged = [10], [-1]
    for offset, is_report in steps:
        if is_report:
            effects = borrower.step(progressed(offset), 0)
            reported += [m.progress[0].offset for m in sent(effects, UpdateProgress)]
        else:
            effects = hear(borrower, committed(offset))
            acknowledged += [e.offset for e in effects if isinstance(e, ProgressAcknowledged)]
    assert reported == sorted(reported)
    assert acknowledged == sorted(set(acknowledged))


# ---------------------------------------------------------------- time


def test_a_silent_leader_ends_it_and_another_one_follows() -> None:
    borrower = connected(grant())
    hear(borrower, pong(), 500)
    assert borrower.state is BorrowerState.CONNECTED
    borrower.step(Tick(), 500 + CONFIG.ping_timeout - 1)
    assert borrower.state is BorrowerState.CONNECTED
    effects = borrower.step(Tick(), 500 + CONFIG.ping_timeout)
    assert effects == [StreamGone(STREAM, LEASE_EPOCH), Ended("the leader is silent", again=True)]


def test_a_process_that_stood_still_hears_what_came_before_it_gives_its_leader_up() -> None:
    """Else all borrowers of a process that is held up look for leaders at once, which holds it up more."""
    borrower = connected(grant())
    for now in range(100, 1100, 100):
        borrower.step(Tick(), now)
    back = 1000 + 2 * CONFIG.ping_timeout
    borrower.step(Tick(since=back - 1000), back)
    assert borrower.state is BorrowerState.CONNECTED
    hear(borrower, pong(), back + 50)
    for now in range(back + 100, back + 50 + CONFIG.ping_timeout, 100):
        borrower.step(Tick(), now)
    assert borrower.state is BorrowerState.CONNECTED
    effects = borrower.step(Tick(), back + 50 + CONFIG.ping_timeout)
    assert only(effects, Ended).reason == "the leader is silent"


def test_a_process_that_was_away_for_its_session_holds_nothing_from_then_on() -> None:
    borrower = connected(grant())
    for now in range(100, 1100, 100):
        borrower.step(Tick(), now)
    effects = borrower.step(Tick(since=CONFIG.session_timeout), 1000 + CONFIG.session_timeout)
    assert effects == [StreamGone(STREAM, LEASE_EPOCH), Ended("the leader is silent", again=True)]


def test_only_answers_to_pings_keep_it_alive() -> None:
    """A leader that still grants but has lost this borrower must be found out."""
    borrower = connected(grant())
    for now in range(0, CONFIG.ping_timeout, 100):
        hear(borrower, grant(), now)
        hear(borrower, committed(10), now)
        borrower.step(progressed(10 + now), now)
    effects = borrower.step(Tick(), CONFIG.ping_timeout)
    assert only(effects, Ended).reason == "the leader is silent"


def test_pings_keep_their_schedule_under_any_traffic() -> None:
    def pings(*, traffic: bool) -> list[int]:
        borrower, times = connected(grant()), []
        for now in range(0, 10 * CONFIG.ping_interval, 100):
            if traffic:
                hear(borrower, grant(), now)
                hear(borrower, connect_response(), now)
                borrower.step(progressed(10 + now), now)
            hear(borrower, pong(), now)
            if sent(borrower.step(Tick(), now), Ping):
                times.append(now)
        return times

    assert pings(traffic=True) == pings(traffic=False)
    assert pings(traffic=True) == [n * CONFIG.ping_interval for n in range(1, 10)]


@pytest.mark.parametrize(
    ("reason", "again"),
    [
        ("unknown", True),
        ("stale", True),
        ("revocation_timeout", True),
        ("stepped_down", True),
        ("replaced", False),
        ("deleted", False),
    ],
)
def test_an_invalidated_borrower_is_followed_by_another_unless_its_session_is_over(
    reason: str, again: bool
) -> None:
    assert hear(connected(grant()), invalidate(reason)) == [
        StreamGone(STREAM, LEASE_EPOCH),
        Ended(reason, again),
    ]


# ---------------------------------------------------------------- leaving


def test_unsubscribing_without_streams_ends_at_once() -> None:
    effects = connected().step(Unsubscribed(), 0)
    assert sent(effects) == [Disconnect(group=GROUP, borrower=ME, progress=())]
    assert effects[-1] == Ended("unsubscribed", again=False)


def test_unsubscribing_waits_for_final_progress_of_every_stream() -> None:
    borrower = connected(grant("s.0.0", 1), grant("s.0.1", 2))
    assert borrower.step(Unsubscribed(), 0) == [StreamRevoking("s.0.0", 1), StreamRevoking("s.0.1", 2)]
    first = borrower.step(progressed(20, final=True, stream="s.0.0", lease_epoch=1), 1)
    assert sent(first, UpdateProgress)[0].progress[0].final
    assert borrower.state is BorrowerState.UNSUBSCRIBING
    effects = borrower.step(progressed(30, final=True, stream="s.0.1", lease_epoch=2), 2)
    (goodbye,) = sent(effects, Disconnect)
    assert {entry.stream: entry.offset for entry in goodbye.progress} == {"s.0.0": 20, "s.0.1": 30}
    assert only(effects, Ended) == Ended("unsubscribed", again=False)


def test_who_leaves_says_with_the_last_stream_how_far_each_is() -> None:
    """What is committed already is told at once for the first, then in time, or with the goodbye."""
    borrower = connected(*(grant(f"s.0.{shard}", 1) for shard in range(4)))
    borrower.step(Unsubscribed(), 0)
    told = [
        sent(borrower.step(Progressed(f"s.0.{shard}", 1, 20, True, (), True), 1), UpdateProgress)
        for shard in range(3)
    ]
    assert [len(messages) for messages in told] == [1, 0, 0]
    (others,) = sent(borrower.step(Tick(), 1 + TELL_INTERVAL), UpdateProgress)
    assert [(entry.stream, entry.final) for entry in others.progress] == [("s.0.1", True), ("s.0.2", True)]
    (goodbye,) = sent(borrower.step(Progressed("s.0.3", 1, 20, True, (), True), 300), Disconnect)
    assert [(entry.offset, entry.final) for entry in goodbye.progress] == [(20, True)] * 4


def test_the_unsubscribe_timeout_gives_back_what_was_reached() -> None:
    borrower = connected(grant("s.0.0", 1), grant("s.0.1", 2))
    borrower.step(Unsubscribed(), 0)
    borrower.step(progressed(20, stream="s.0.0", lease_epoch=1), 1)
    for now in range(0, CONFIG.unsubscribe_timeout, 500):
        hear(borrower, pong(), now)
        assert not sent(borrower.step(Tick(), now), Disconnect)
    effects = borrower.step(Tick(), CONFIG.unsubscribe_timeout)
    (goodbye,) = sent(effects, Disconnect)
    assert {entry.stream: entry.offset for entry in goodbye.progress} == {"s.0.0": 20, "s.0.1": 10}
    assert only(effects, Ended) == Ended("unsubscribe timeout", again=False)


def test_a_second_unsubscribe_does_not_put_the_timeout_off() -> None:
    borrower = connected(grant())
    borrower.step(Unsubscribed(), 0)
    assert borrower.step(Unsubscribed(), 100) == []
    assert borrower.life.give_up_at == CONFIG.unsubscribe_timeout


def test_disconnecting_gives_all_streams_back_at_once() -> None:
    borrower = connected(grant())
    borrower.step(progressed(15), 0)
    effects = borrower.step(Disconnected(), 1)
    assert sent(effects, Disconnect)[0].progress[0].offset == 15
    assert effects[1:] == [StreamGone(STREAM, LEASE_EPOCH), Ended("disconnected", again=False)]


# ---------------------------------------------------------------- configuration


@pytest.mark.parametrize("name", sorted(BorrowerConfig.__dataclass_fields__))
@pytest.mark.parametrize("value", [0, -1])
def test_a_time_that_is_not_positive_is_refused(name: str, value: int) -> None:
    with pytest.raises(InvalidOption, match=f"{name} is {value} ms: it must be above 0"):
        BorrowerConfig(**{name: value})


@pytest.mark.parametrize("name", ["ping_timeout", "session_timeout"])
def test_a_timeout_that_ends_before_the_next_ping_is_refused(name: str) -> None:
    values = {"ping_interval": 1000, name: 1000}
    with pytest.raises(
        InvalidOption, match=rf"{name} is 1000 ms: it must be above ping_interval \(1000 ms\)"
    ):
        BorrowerConfig(**values)


def test_a_stream_that_an_operator_took_is_gone_and_nothing_of_it_is_durable_by_that() -> None:
    borrower = connected(grant())
    borrower.step(progressed(11), 0)
    forced = revoked().model_copy(update={"forced": True})
    effects = hear(borrower, forced)
    assert StreamGone(STREAM, LEASE_EPOCH) in effects
    assert not any(isinstance(effect, ProgressAcknowledged) for effect in effects)
    borrower = connected(grant())
    hear(borrower, revoke())
    borrower.step(progressed(11, final=True), 0)
    assert not any(isinstance(effect, ProgressAcknowledged) for effect in hear(borrower, forced))
