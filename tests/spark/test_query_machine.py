"""What a query decides, on made-up events."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from streamlease.borrower.events import Progressed, StreamRevoking
from streamlease.protocol.cuts import NO_RANGES, Ranges
from streamlease.protocol.errors import (
    Fenced,
    Halted,
    HistoryTruncated,
    StoreUnavailable,
    UnknownSpace,
)
from streamlease.protocol.messages import (
    CutRead,
    FinishCut,
    FixCut,
    Progress,
    ResumeCut,
)
from streamlease.spark.core import query_events as q
from streamlease.spark.core.available import FIRST_SECONDS
from streamlease.spark.core.conversations import resuming
from streamlease.spark.core.conversations.query_desk import (
    ANSWER_SECONDS,
    CONNECT_SECONDS,
    NEWS_SECONDS,
    RESEND_SECONDS,
)
from streamlease.spark.core.limits import Limits
from tests.spark.query_rig import (
    FRESH,
    GROUP,
    OLD,
    SESSION,
    TERM,
    A,
    B,
    Rig,
    S,
    lose_for_good,
    offset,
    part,
    rig_in,
)

# ---------------------------------------------------------------- the beginning


def test_a_query_that_cannot_begin_says_why_and_begins_at_the_next_call() -> None:
    rig = rig_in(S.STARTING)
    rig.step(q.NotFoundOut(rig.wanted.number, UnknownSpace("no space")))
    assert isinstance(rig.answer, UnknownSpace)
    assert rig.machine.state is S.NEW
    effects = rig.begin(led=False).done
    assert q.OpenSession(SESSION, 3, TERM) in effects


@pytest.mark.parametrize("finished", [True, False])
def test_what_the_checkpoint_says_is_attested_for_a_leader_that_has_lost_it(finished: bool) -> None:
    rig = Rig().begin(finished=finished)
    assert q.Attest(Ranges.of([part(A, 0, 5), part(B, 0, 5)]), finished) in rig.done


# ---------------------------------------------------------------- what follows a cut


def test_what_waits_is_proposed_and_given_out_once_it_is_fixed() -> None:
    rig = Rig().begin_anew().grant(A, B).ends(5, A, B).ask()
    asked = rig.told
    assert isinstance(asked, FixCut)
    assert (asked.cut, set(asked.ranges)) == (1, {part(A, 0, 5), part(B, 0, 5)})
    rig.fix(part(A, 0, 5), part(B, 0, 5))
    assert rig.answer == offset(1, part(A, 0, 5), part(B, 0, 5), session=FRESH)


def test_a_query_without_news_answers_soon_and_takes_what_comes_meanwhile() -> None:
    rig = rig_in(S.LOOKING)
    rig.wait(FIRST_SECONDS + NEWS_SECONDS)
    assert rig.answer == offset(0, session=FRESH, term=TERM) or rig.answer.cut == 0
    rig.ask()
    assert rig.machine.state is S.LOOKING
    rig.grant(A).ends(1, A)
    assert isinstance(rig.told, FixCut)


def test_the_first_question_waits_for_streams_that_are_on_their_way() -> None:
    """Spark makes a first micro-batch of any answer: an empty one would delay the first row."""
    rig = rig_in(S.LOOKING)
    rig.wait(10 * NEWS_SECONDS)
    assert rig.machine.state is S.LOOKING
    rig.grant(A, B).wait(10 * NEWS_SECONDS)
    assert rig.machine.state is S.LOOKING, "their ends are not known"
    rig.ends(5, A, B)
    assert isinstance(rig.told, FixCut)
    assert set(rig.told.ranges.streams) == {A, B}


def test_the_first_question_waits_no_longer_once_it_is_known_that_nothing_waits() -> None:
    rig = rig_in(S.LOOKING)
    rig.grant(A, B).ends(0, A, B)
    rig.wait(NEWS_SECONDS)
    assert (rig.machine.state, rig.answer.cut) == (S.SERVING, 0)


def test_only_the_first_question_waits_for_streams_and_not_for_ever() -> None:
    rig = rig_in(S.LOOKING)
    rig.wait(FIRST_SECONDS + NEWS_SECONDS)
    assert (rig.machine.state, rig.answer.cut) == (S.SERVING, 0)
    rig.ask().wait(NEWS_SECONDS)
    assert rig.machine.state is S.SERVING


def test_a_restarted_query_does_not_wait_for_its_streams() -> None:
    """Spark makes no micro-batch then."""
    rig = Rig().begin(OLD).ask(OLD).finished(4).resumed(5)
    assert rig.machine.state is S.LOOKING
    rig.wait(NEWS_SECONDS)
    assert rig.machine.state is S.SERVING


def test_what_comes_together_is_proposed_together() -> None:
    rig = Rig().begin_anew().grant(A, B)
    rig.ask()
    rig.step(q.EndMoved(A, 5), q.EndMoved(B, 5))
    assert rig.machine.due == rig.now
    rig.soon()
    assert isinstance(rig.told, FixCut)
    assert set(rig.told.ranges.streams) == {A, B}


def test_a_question_is_sent_again_until_it_is_answered_and_asked_again_by_the_next_call() -> None:
    rig = rig_in(S.ASKING)
    first = rig.told
    sent = [effect for effect in rig.wait(ANSWER_SECONDS) if isinstance(effect, q.Tell)]
    assert [effect.message for effect in sent] == [first] * 3
    assert rig.answer.cut == 0
    assert rig.machine.state is S.SERVING
    rig.ask()
    assert rig.told == first, "the same proposal"


def test_without_a_leader_nothing_is_sent_until_there_is_one() -> None:
    rig = Rig().begin(offset(0, session=FRESH), led=False).grant(A).ends(5, A)
    rig.ask()
    assert not [effect for effect in rig.wait(RESEND_SECONDS) if isinstance(effect, q.Tell)]
    rig.step(q.Surroundings(connected=True, term=TERM))
    rig.wait(CONNECT_SECONDS)
    assert isinstance(rig.told, FixCut)


def test_being_asked_for_more_finishes_the_cut_and_the_leader_is_told_until_it_confirms() -> None:
    rig = Rig()
    cut = rig.open()
    effects = rig.ask(cut).done
    assert isinstance(effects[-1], q.Attest) or q.CountMessages(committed=10) in effects
    finish = next(e.message for e in effects if isinstance(e, q.Tell) and isinstance(e.message, FinishCut))
    assert (finish.finished, finish.ranges) == (1, None)
    again = [e for e in rig.wait(2 * RESEND_SECONDS) if isinstance(e, q.Tell)]
    assert [effect.message for effect in again] == [finish] * 2
    rig.finished(1)
    assert not [e for e in rig.wait(2 * RESEND_SECONDS) if isinstance(e, q.Tell)]


def test_a_stream_that_is_asked_back_leaves_with_the_end_of_its_cut() -> None:
    rig = Rig()
    cut = rig.open()
    rig.step(StreamRevoking(A, 1))
    assert not [effect for effect in rig.done if isinstance(effect, q.ReportProgress)]
    rig.ask(cut)
    reports = [effect for effect in rig.done if isinstance(effect, q.ReportProgress)]
    assert reports == [q.ReportProgress(0, Progressed(A, 1, 5, final=True))]
    posted = [type(effect) for effect in rig.done if isinstance(effect, q.ReportProgress | q.Tell)]
    assert posted.index(q.ReportProgress) > 1, "the leader hears of the end of the cut first"


def test_a_cut_that_no_checkpoint_names_comes_next_as_it_was() -> None:
    rig = rig_in(S.FOLLOWING)
    assert isinstance(rig.told, ResumeCut)
    assert rig.told.cut == 5
    rig.resumed(5, part(A, 5, 9))
    assert rig.answer == offset(5, part(A, 5, 9))


def test_a_late_answer_about_another_cut_is_not_taken_for_the_answer() -> None:
    rig = rig_in(S.FOLLOWING)
    rig.resumed(4, part(A, 0, 5))
    assert rig.machine.state is S.FOLLOWING
    assert rig.machine.cuts.open is None


def test_an_older_checkpoint_is_refused_unless_it_is_written_later() -> None:
    refused = rig_in(S.OVERTAKEN)
    refused.found(False)
    assert isinstance(refused.answer, Fenced)
    assert "checkpoint is older than its progress" in str(refused.answer)
    later = rig_in(S.OVERTAKEN)
    later.found(True)
    assert isinstance(later.told, ResumeCut)
    assert later.told.cut == 7
    later.resumed(7)
    assert "the checkpoint ends with cut 4: the query goes on behind cut 6" in later.said
    assert later.machine.cuts.finished.newest == 6


def test_a_limit_of_bytes_asks_for_the_sizes_of_what_waits() -> None:
    rig = Rig().begin_anew().grant(A, B).ends(100, A).ask(limits=Limits(max_bytes=50))
    assert rig.wanted.what == q.MeanSizes((A,))
    rig.ends(100, B)
    rig.found({A: 5.0})
    rig.soon()
    asked = rig.told
    assert isinstance(asked, FixCut)
    assert list(asked.ranges) == [part(A, 0, 10)]


def test_few_messages_wait_for_more_but_not_for_ever() -> None:
    rig = Rig()
    limits = Limits(min_rows=10, max_delay_ms=4000)
    cut = rig.open()
    rig.ends(6, A).ask(cut, limits)
    rig.wait(1.0)
    assert rig.answer == cut
    rig.wait(3.0)
    rig.ask(cut, limits)
    assert isinstance(rig.told, FixCut)


# ---------------------------------------------------------------- what is lost


def test_a_stream_that_ends_below_what_was_read_goes_on_behind_it() -> None:
    rig = Rig()
    rig.open()
    rig.ends(3, A)
    assert q.GoBehind(A, 5) in rig.step(q.Moment(frozenset([A])))
    assert not [e for e in rig.step(q.Moment()) if isinstance(e, q.GoBehind)], "once at a time"
    rig.step(q.WentBehind(A, StoreUnavailable("away")))
    assert q.GoBehind(A, 5) in rig.step(q.Moment())
    rig.step(q.WentBehind(A))
    assert not [e for e in rig.step(q.Moment()) if isinstance(e, q.GoBehind)]
    assert "away" in rig.said


@pytest.mark.parametrize("fail", [True, False])
def test_what_retention_took_from_under_the_query_is_told_once(fail: bool) -> None:
    rig = Rig(fail_on_data_loss=fail).begin_anew().grant(A, B).ends(5, A, B).ask()
    rig.fix(part(A, 0, 5), progress=(Progress(stream=B, lease_epoch=1, offset=3),))
    assert rig.wanted.what == q.Floors((B,))
    rig.found({B: 3})
    if not fail:
        assert "the oldest left is 3" in rig.said
        assert rig.answer.cut == 1
        return
    assert rig.wanted.what == q.Untold({B: 0})
    rig.found({B: 0})
    assert isinstance(rig.answer, HistoryTruncated)
    rig.ask()
    rig.fix(part(A, 0, 5))
    assert rig.answer.cut == 1, "it is told once"


def test_a_loss_that_an_earlier_process_told_is_not_told_again() -> None:
    rig = rig_in(S.CHECKING)
    rig.found({B: 3})
    rig.found({})
    assert rig.answer.cut == 1


# ---------------------------------------------------------------- an unfinished cut


def test_an_unfinished_cut_that_is_still_the_query_s_is_read_as_it_was() -> None:
    rig = rig_in(S.RESUMING)
    assert isinstance(rig.told, ResumeCut)
    assert rig.told.ranges == OLD.ranges
    rig.resumed(4, *OLD.ranges)
    assert rig.answer == OLD.ranges
    rig.step(q.ReadAgain(OLD))
    assert rig.answer == OLD.ranges, "and again, without a question"


def test_a_cut_that_was_given_up_is_fixed_again_where_nobody_took_it_over() -> None:
    rig = rig_in(S.REGAINING)
    rig.grant(A, B, lease_epoch=2, pinned=5, follows=1)
    asked = rig.told
    assert isinstance(asked, FixCut)
    assert (asked.cut, set(asked.ranges)) == (4, {part(A, 0, 5, 2), part(B, 0, 5, 2)})
    rig.fix()
    assert rig.answer == OLD.ranges


def test_a_cut_is_read_in_part_once_its_loss_cannot_be_lost() -> None:
    rig = rig_in(S.LOSING)
    rig.step(q.Moment())
    rig.found({"streams": [{"stream": B, "lease_epoch": 1}]})
    assert rig.machine.state is S.LOSING
    rig.wait(NEWS_SECONDS)
    lose_for_good(rig)
    assert rig.answer == (part(A, 0, 5),)
    assert "1 of the 2 ranges of cut 4 were taken over by others" in rig.said


def test_a_take_over_that_another_leader_may_not_know_is_asked_for_again() -> None:
    rig = rig_in(S.LOSING)
    lose_for_good(rig, term=TERM + 1)
    assert rig.machine.state is S.RESUMING


def test_a_cut_whose_streams_nobody_gets_is_not_read_in_part() -> None:
    rig = rig_in(S.LOSING)
    for _ in range(3):
        rig.step(q.Moment())
        rig.found(None)
        rig.wait(resuming.RESUME_SECONDS / 2)
    assert isinstance(rig.answer, StoreUnavailable)
    assert "were not settled" in str(rig.answer)


@pytest.mark.parametrize("late", [True, False])
def test_a_cut_that_went_through_is_never_read_as_empty_unless_it_is_written_later(late: bool) -> None:
    rig = rig_in(S.RESUMING)
    rig.resumed(4).finished(4)
    assert rig.wanted.what == q.WrittenLate()
    rig.found(late)
    assert rig.answer == NO_RANGES if late else isinstance(rig.answer, Fenced)


def test_an_unfinished_cut_without_a_leader_ends_with_what_is_missing() -> None:
    rig = Rig().begin(finished=False, led=False)
    rig.step(q.ReadAgain(OLD))
    rig.wait(resuming.RESUME_SECONDS)
    assert isinstance(rig.answer, StoreUnavailable)
    assert "no leader of $shared/g/t answered within 60 s" in str(rig.answer)


# ---------------------------------------------------------------- what is available now


def view(*rows: tuple[str, str | None, int], state: str = "stable", **more: Any) -> dict[str, Any]:
    streams = [
        {"stream": one, "session": owner, "committed": done, "state": "granted", "why": "", "open_cut": False}
        for one, owner, done in rows
    ]
    borrower = {"session": FRESH, "id": "b", "name": "me", "host": "h", "last_seen_ms": 0, "drained": False}
    return {"state": state, "streams": streams, "borrowers": [borrower | {"streams": 1}]} | more


def available(**more: Any) -> Rig:
    rig = Rig(**more)
    rig.step(q.TargetsKnown({A: 5, B: 5}, False))
    return rig.begin_anew()


def test_what_is_available_now_is_read_to_its_targets_and_then_it_is_the_end() -> None:
    rig = available().grant(A, B).ends(9, A, B).ask()
    assert isinstance(rig.told, FixCut)
    assert {one.end for one in rig.told.ranges} == {5}
    rig.fix()
    cut = rig.answer
    rig.ask(cut).wait(NEWS_SECONDS)
    assert rig.wanted.what == q.GroupView()
    rig.found(view((A, FRESH, 5), (B, FRESH, 5)))
    assert rig.answer == cut


def test_the_end_is_not_taken_for_it_before_the_streams_have_come() -> None:
    rig = available().ask()
    rig.wait(NEWS_SECONDS)
    rig.found(view(state="rebalancing"))
    assert rig.machine.state is S.LOOKING
    rig.grant(A, B).ends(5, A, B)
    assert isinstance(rig.told, FixCut)


def test_a_paused_group_ends_the_query() -> None:
    rig = available().ask()
    rig.wait(NEWS_SECONDS)
    paused = {"who": "ann", "at_ms": 0, "until_ms": None}
    rig.found(view((A, None, 0), (B, None, 0), state="paused", paused=paused))
    assert isinstance(rig.answer, Halted)


def test_a_silent_leader_is_asked_again_as_long_as_the_streams_may_come() -> None:
    rig = available().grant(A, B).ends(5, A, B).ask()
    rig.wait(2.0)
    assert rig.machine.state is S.ASKING, "not taken for the end"
    rig.wait(2.0)
    assert rig.answer.cut == 0, "the first question of a fresh query may have none"
    rig.ask()
    rig.wait(70.0)
    assert isinstance(rig.answer, StoreUnavailable)


def test_the_only_cut_waits_until_all_is_at_hand() -> None:
    rig = Rig()
    rig.step(q.TargetsKnown({A: 5, B: 5}, True))
    assert "trigger(once=True)" in rig.said
    rig.begin_anew().grant(A).ends(5, A).ask()
    rig.wait(NEWS_SECONDS)
    rig.found(view((A, FRESH, 0), (B, FRESH, 0)))
    assert rig.machine.state is S.LOOKING
    rig.grant(B).ends(5, B)
    rig.wait(NEWS_SECONDS)
    rig.found(view((A, FRESH, 0), (B, FRESH, 0)))
    assert isinstance(rig.told, FixCut)
    assert set(rig.told.ranges.streams) == {A, B}


def test_what_was_at_hand_when_nothing_was_to_be_read_is_not_at_hand_for_good() -> None:
    rig = Rig()
    rig.step(q.TargetsKnown({A: 5, B: 5}, True))
    rig.begin_anew().ask()
    rig.wait(NEWS_SECONDS)
    behind = view((A, None, 0), (B, None, 0))
    for row in behind["streams"]:
        row["state"] = "waiting"
    rig.found(behind)
    rig.grant(A).ends(5, A)
    assert rig.machine.state is S.LOOKING, "B is still to come"
    rig.grant(B)
    rig.wait(NEWS_SECONDS)
    rig.found(view((A, FRESH, 0), (B, FRESH, 0)))
    assert isinstance(rig.told, FixCut)
    assert set(rig.told.ranges.streams) == {A, B}


# ---------------------------------------------------------------- outages, and the end


def test_a_redis_that_is_away_for_too_long_ends_the_call_and_one_that_comes_back_does_not() -> None:
    rig = Rig(redis_timeout=2.0).begin_anew()
    away = q.Surroundings(connected=True, term=TERM, store_error=StoreUnavailable("refused"))
    rig.step(away)
    rig.now += 1.5
    rig.step(q.Surroundings(connected=True, term=TERM))
    rig.now += 1.5
    rig.ask()
    assert rig.machine.state is S.LOOKING
    rig.wait(NEWS_SECONDS)
    rig.step(away)
    rig.now += 2.0
    rig.ask()
    assert isinstance(rig.answer, StoreUnavailable)
    assert "Redis was away for 2 s" in str(rig.answer)
    assert rig.machine.state is S.SERVING, "Spark may ask again"


def test_a_query_without_a_leader_says_so_and_says_when_one_is_back() -> None:
    rig = Rig().begin_anew()
    rig.step(q.Surroundings(connected=False, trouble="nobody is there"))
    for _ in range(7):
        rig.now += 1.0
        rig.step(q.Moment())
    assert "reads nothing new: nobody is there (for 5 s)" in rig.said
    assert rig.machine.report()["error"].endswith("nobody is there")
    assert rig.machine.holding() == (None, None)
    rig.step(q.Surroundings(connected=True, term=TERM), q.Moment())
    assert "a leader answers again" in rig.said


def test_every_call_of_a_query_whose_session_failed_ends_with_its_error() -> None:
    rig = rig_in(S.ASKING)
    rig.step(q.SessionOver(Fenced("replaced")))
    for _ in range(2):
        assert isinstance(rig.answer, Fenced)
        rig.ask()
    rig.step(q.StopQuery())
    assert rig.machine.state is S.ENDED


def test_a_query_that_stops_in_a_cut_falls_silent() -> None:
    rig = Rig()
    rig.open()
    assert rig.step(q.StopQuery()) == [q.Reply()]
    assert rig.machine.state is S.ENDED


def test_a_query_that_stops_between_two_cuts_waits_for_the_leader_s_word_and_leaves() -> None:
    rig = rig_in(S.CONFIRMING)
    assert q.LeaveGroup() in rig.finished(1).done
    assert rig.machine.state is S.LEAVING
    assert rig.step(q.SessionOver()) == [q.Reply()]


def test_a_query_that_stops_before_its_last_cut_is_known_to_be_finished_falls_silent() -> None:
    rig = Rig().begin().grant(A)
    assert rig.step(q.StopQuery()) == [q.Reply()]


def test_who_waits_for_a_call_of_a_query_that_stops_is_refused_before_it_leaves() -> None:
    rig = rig_in(S.LOOKING)
    effects = rig.step(q.StopQuery())
    assert [type(effect) for effect in effects] == [q.Refuse, q.LeaveGroup]


def test_a_call_that_is_given_up_makes_room_for_the_next_and_its_late_answer_is_dropped() -> None:
    rig = rig_in(S.CHECKING)
    late = rig.wanted.number
    rig.step(q.GivenUp())
    rig.ask()
    refused = rig.machine.refused
    rig.step(q.FoundOut(late, {B: 3}))
    assert rig.machine.refused == refused + 1


def test_what_tasks_read_is_counted_and_a_late_attempt_is_not() -> None:
    rig = Rig()
    rig.open()

    def read(attempt: int, messages: int) -> Any:
        return CutRead(
            group=GROUP,
            session=FRESH,
            cut=1,
            slot=0,
            attempt=attempt,
            messages=messages,
            bytes=1,
            milliseconds=1,
        )

    assert q.CountMessages(read=7) in rig.hear(read(1, 7))
    assert not rig.hear(read(0, 5))


def test_a_report_is_made_anew_only_if_something_changed() -> None:
    rig = Rig().begin_anew().grant(A).ends(5, A)
    first = rig.machine.report()
    words = "holds 1 stream, 5 messages behind"
    assert first == {
        "said": words, "streams": {A: 5}, "held": 1, "lag": 5, "rebalances": 0, "error": None
    }  # fmt: skip
    rig.step(q.Moment())
    assert rig.machine.report() is first
    rig.ends(6, A)
    assert rig.machine.report()["lag"] == 6


def test_what_is_said_has_a_level_of_python_s() -> None:
    rig = rig_in(S.OVERTAKEN)
    rig.found(True)
    rig.resumed(7)
    assert [effect.level for effect in rig.done if isinstance(effect, q.Say)] == [logging.INFO]
