"""The consumer's book: what goes on from lease to lease, and what begins anew."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlease.borrower.book import MOST_HOLES, ConsumerBook, Held
from streamlease.borrower.events import (
    Effect,
    FailureAnswered,
    ProgressAcknowledged,
    StreamGone,
    StreamGranted,
    StreamRevoking,
)
from streamlease.borrower.lease import StreamEvent, StreamState
from streamlease.protocol.messages import Verdict
from tests.borrower.make import LEASE_EPOCH, STREAM, connected, grant, hear, in_state, revoke, revoked
from tests.borrower.make import BorrowerState as B


def granted(
    book: ConsumerBook,
    epoch: int,
    progress: int = 0,
    resumes: int | None = None,
    pinned_end: int | None = None,
) -> Held:
    return book.granted(0, StreamGranted(STREAM, epoch, progress, pinned_end, resumes)).held


def at_work(*, position: int = 8, delivered: int = 6, committed: int = 4) -> tuple[ConsumerBook, Held]:
    """A stream under lease 1, with some of it read, delivered and committed."""
    book = ConsumerBook()
    held = granted(book, 1)
    assert held.read(0, position)
    held.delivered = delivered
    held.advance(committed)
    return book, held


def carry_out(book: ConsumerBook, effects: list[Effect]) -> None:
    """What a session does with a borrower's effects."""
    for effect in effects:
        match effect:
            case StreamGranted():
                book.granted(0, effect)
            case StreamRevoking():
                book.revoking(effect)
            case StreamGone():
                book.gone(effect)


# -- leases --------------------------------------------------------------------------------------------------


def test_a_stream_is_moved_by_its_borrower_and_by_the_table_only() -> None:
    book, borrower = ConsumerBook(), connected()
    carry_out(book, hear(borrower, grant()))
    held = book.streams[STREAM]
    assert held.lease is borrower.streams[STREAM]
    carry_out(book, hear(borrower, revoke()))
    assert held.revoking
    carry_out(book, hear(borrower, revoked()))
    assert held.lease.state is StreamState.GONE
    assert not any(held.lease.move(event) for event in StreamEvent)


def test_a_session_that_leaves_is_asked_for_all_its_streams_back() -> None:
    leaving = in_state(B.UNSUBSCRIBING, [grant()])
    assert leaving.streams[STREAM].state is StreamState.REVOKING


@pytest.mark.parametrize("epoch", [LEASE_EPOCH - 1, LEASE_EPOCH + 1])
def test_a_word_about_another_lease_changes_nothing(epoch: int) -> None:
    book = ConsumerBook()
    held = granted(book, LEASE_EPOCH)
    assert book.revoking(StreamRevoking(STREAM, epoch)) is None
    assert book.gone(StreamGone(STREAM, epoch)) is None
    assert book.acknowledged(ProgressAcknowledged(STREAM, epoch, 3)) is None
    assert held.lease.state is StreamState.GRANTED


@pytest.mark.parametrize(
    ("state", "is_read"), [("granted", True), ("revoking", False), ("gone", False)], ids=str
)
def test_only_what_is_granted_is_read(state: str, *, is_read: bool) -> None:
    book, held = at_work()
    if state == "revoking":
        book.revoking(StreamRevoking(STREAM, 1))
    if state == "gone":
        book.gone(StreamGone(STREAM, 1))
    assert held.is_read is is_read


def test_what_is_committed_is_final_once_all_that_was_delivered_is() -> None:
    book, held = at_work()
    assert not held.progress().final
    book.revoking(StreamRevoking(STREAM, 1))
    assert not held.progress().final
    assert held.progress(leaving=True).final, "who leaves commits nothing more"
    held.advance(6)
    assert held.progress().final


def test_it_is_said_whether_what_is_committed_is_durable() -> None:
    _, held = at_work()
    held.acknowledge(held.committed)
    assert held.progress().durable
    held.advance(6)
    assert not held.progress().durable
    held.acknowledge(5)
    assert (held.progress().offset, held.progress().durable) == (6, False)
    held.acknowledge(6)
    assert (held.progress().offset, held.progress().durable) == (6, True)


# -- what goes on --------------------------------------------------------------------------------------------


def test_the_work_goes_on_under_the_next_lease_if_nobody_else_had_the_stream() -> None:
    book, held = at_work()
    book.gone(StreamGone(STREAM, 1))
    assert held.limbo
    again = book.granted(0, StreamGranted(STREAM, 3, 2, None, 1))
    assert again.held is held
    assert (held.position, held.delivered, held.committed, held.acknowledged) == (8, 6, 4, 2)
    assert (held.lease_epoch, held.since, held.turn) == (3, 1, 0)
    assert again.behind is None


@pytest.mark.parametrize("resumes", [None, 3])
def test_it_begins_anew_if_somebody_else_had_it(resumes: int | None) -> None:
    book, held = at_work()
    book.gone(StreamGone(STREAM, 1))
    again = book.granted(0, StreamGranted(STREAM, 4, 2, None, resumes))
    assert again.former is held
    assert not book.holds(held)
    assert (again.held.position, again.held.committed) == (2, 2)
    assert again.held.since == (resumes or 4)


def test_what_was_not_delivered_when_the_stream_was_asked_back_is_read_again() -> None:
    book, held = at_work()
    book.revoking(StreamRevoking(STREAM, 1))
    book.gone(StreamGone(STREAM, 1))
    assert granted(book, 2, resumes=1) is held
    assert (held.position, held.delivered) == (6, 6)


def test_a_stream_that_was_given_back_goes_on_if_the_leader_did_not_hear_it() -> None:
    book, held = at_work(committed=6)
    book.revoking(StreamRevoking(STREAM, 1))
    book.gone(StreamGone(STREAM, 1))
    assert book.streams == {}
    assert granted(book, 2, 4, resumes=1) is held
    assert (held.committed, held.position) == (6, 6)


def test_a_stream_of_which_the_consumer_is_not_done_is_not_given_back() -> None:
    book, held = at_work(committed=6)
    book.revoking(StreamRevoking(STREAM, 1))
    assert book.gone(StreamGone(STREAM, 1), busy=True) is held
    assert book.holds(held)


def test_what_was_decided_elsewhere_voids_what_was_handed_out() -> None:
    book, held = at_work()
    book.gone(StreamGone(STREAM, 1))
    again = book.granted(0, StreamGranted(STREAM, 2, 5, None, 1))
    assert again.behind == 4
    assert (held.committed, held.delivered, held.position, held.turn) == (5, 5, 5, 1)


def test_a_pinned_end_is_forgotten_once_all_before_it_is_committed() -> None:
    held = granted(ConsumerBook(), 1, pinned_end=5)
    held.advance(4)
    assert held.pinned_end == 5
    held.advance(5)
    assert held.pinned_end is None


# -- reading and committing ----------------------------------------------------------------------------------


def test_the_direct_successor_is_read_or_nothing() -> None:
    _, held = at_work()
    assert not held.read(7, 9)
    assert not held.read(9, 12)
    assert held.read(8, 9)


def test_what_is_skipped_counts_once_all_before_it_is_committed() -> None:
    _, held = at_work()
    assert not held.skip(6, 8)
    held.advance(6)
    assert held.committed == 8
    assert held.read(8, 9)
    assert held.skip(8, 9)
    assert held.committed == 9


def test_a_read_ends_before_a_hole_that_is_known() -> None:
    _, held = at_work()
    held.holes = {10: 12, 20: 21, 8: 9}
    assert held.read_up_to(30) == 10


def test_many_holes_are_told_as_fewer() -> None:
    held = granted(ConsumerBook(), 1)
    held.holes = {start: start + 1 for start in range(0, 4 * MOST_HOLES, 2)}
    held.advance(4 * MOST_HOLES)
    told = held.lost()
    assert len(told) == MOST_HOLES
    assert sum(end - start for start, end in told) == 2 * MOST_HOLES


STEPS = ["read", "skip", "deliver", "commit", "ack", "revoke", "gone", "again"]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(STEPS),
            st.integers(1, 5),
        ),
        max_size=60,
    )
)
def test_offsets_stay_in_order_whatever_happens(steps: list[tuple[str, int]]) -> None:
    book = ConsumerBook()
    held, epoch = granted(book, 1), 1
    for what, much in steps:
        match what:
            case "read":
                held.read(held.position, held.position + much)
            case "skip":
                start = held.position
                assert held.read(start, start + much)
                held.skip(start, start + much)
            case "deliver":
                held.delivered = min(held.position, held.delivered + much)
            case "commit":
                held.advance(min(held.delivered, held.committed + much))
            case "ack":
                held.acknowledge(min(held.committed, held.acknowledged + much))
            case "revoke":
                book.revoking(StreamRevoking(STREAM, held.lease_epoch))
            case "gone":
                book.gone(StreamGone(STREAM, held.lease_epoch))
            case "again":
                epoch += 1
                held = granted(book, epoch, held.acknowledged, resumes=epoch - 1)
        assert held.acknowledged <= held.committed <= held.delivered <= held.position
        assert held.progress().offset == held.committed


# -- failures ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("verdict", "next"), [("retry", 5), ("stopped", 5), ("passed", 6)])
def test_a_failure_voids_what_was_handed_out_behind_it(verdict: Verdict, next: int) -> None:
    book, held = at_work()
    held.fail(5, "f1", "bad")
    assert not held.is_read
    told = held.failure()
    assert told is not None
    assert (told.offset, told.failure, told.lease_epoch) == (5, "f1", 1)
    assert book.answered(FailureAnswered(STREAM, 1, 5, "f0", verdict)) is None, "of another failure"
    assert book.answered(FailureAnswered(STREAM, 1, 5, "f1", verdict)) is held
    held.settle(verdict)
    assert (held.committed, held.delivered, held.position, held.acknowledged) == (next,) * 4
    assert (held.turn, held.failing) == (1, None)


def test_a_failure_is_told_again_under_the_next_lease() -> None:
    book, held = at_work()
    held.fail(5, "f1", "bad")
    book.gone(StreamGone(STREAM, 1))
    again = book.granted(0, StreamGranted(STREAM, 2, 5, None, 1))
    told = held.failure()
    assert (again.passed, told and told.lease_epoch) == (None, 2)


def test_a_failure_that_was_answered_meanwhile_is_settled() -> None:
    book, held = at_work()
    held.fail(5, "f1", "bad")
    book.gone(StreamGone(STREAM, 1))
    again = book.granted(0, StreamGranted(STREAM, 2, 6, None, 1))
    assert again.passed is not None
    assert again.passed.failure == "f1"
    assert (held.failing, held.committed, held.position) == (None, 6, 6)


@pytest.mark.parametrize(("to", "pinned"), [(3, 8), (5, 8), (8, None), (9, None)])
def test_a_stream_follows_its_leader_who_may_have_lost_what_was_committed(
    to: int, pinned: int | None
) -> None:
    held = Held.begin(0, "s.0.0", 1, 5)
    held.pinned_end = 8
    held.follow(to)
    assert (held.committed, held.delivered, held.position, held.pinned_end) == (to, to, to, pinned)
