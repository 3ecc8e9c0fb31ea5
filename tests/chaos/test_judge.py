"""The judge of a run finds what is wrong, and nothing else."""

from __future__ import annotations

from tests.chaos.judge import Commit, Delivery, Facts, Outage, Verdict, judge

STREAM = "s.0.0"
LOG = [f"p.0:{n}" for n in range(10)]


def got(at: float, consumer: str, start: int, end: int, ids: list[str] | None = None) -> Delivery:
    return Delivery(at, "g", consumer, STREAM, start, end, tuple(ids or LOG[start:end]))


def done(at: float, consumer: str, end: int) -> Commit:
    return Commit(at, "g", consumer, STREAM, end)


def verdict(*events: Delivery | Commit | Outage, log: list[str] | None = None) -> Verdict:
    facts = Facts(log={STREAM: LOG if log is None else log}, acknowledged=LOG, session_seconds=4.0)
    for event in events:
        match event:
            case Delivery():
                facts.deliveries.append(event)
            case Commit():
                facts.commits.append(event)
            case Outage():
                facts.outages.append(event)
    return judge(facts)


def test_a_hand_over_without_a_repetition_is_right() -> None:
    found = verdict(got(1, "a", 0, 4), done(2, "a", 4), got(3, "b", 4, 10), done(4, "b", 10))
    assert (found.wrong, found.delivered, found.again, found.stale) == ([], 10, 0, 0)


def test_what_nobody_got_is_lost() -> None:
    assert "never delivered" in verdict(got(1, "a", 0, 4)).wrong[0]
    assert "was not delivered yet" in verdict(got(1, "a", 0, 4), got(2, "a", 6, 10)).wrong[0]


def test_a_commit_above_what_was_delivered_is_wrong() -> None:
    (found,) = verdict(got(1, "a", 0, 10), done(2, "a", 11)).wrong
    assert "committed up to 11, delivered up to 10" in found


def test_a_repetition_without_a_fault_is_wrong() -> None:
    (found,) = verdict(got(1, "a", 0, 4), got(2, "b", 0, 10)).wrong
    assert "no fault explains it" in found


def test_a_killed_process_explains_a_repetition_above_the_commit() -> None:
    killed = Outage("a", 2, 2, final=True)
    found = verdict(got(1, "a", 0, 4), done(1.5, "a", 2), killed, got(3, "b", 2, 10))
    assert (found.wrong, found.again) == ([], 2)


def test_the_fault_of_another_process_explains_nothing() -> None:
    killed = Outage("c", 2, 2, final=True)
    assert len(verdict(got(1, "a", 0, 4), killed, got(3, "b", 2, 10)).wrong) == 1


def test_a_short_fault_explains_nothing_and_a_long_one_does() -> None:
    short, long = Outage("a", 2, 3), Outage("a", 2, 7)
    assert len(verdict(got(1, "a", 0, 4), short, got(8, "b", 0, 10)).wrong) == 1
    assert verdict(got(1, "a", 0, 4), long, got(8, "b", 0, 10)).wrong == []


def test_nothing_explains_a_repetition_below_the_commit() -> None:
    killed = Outage("a", 2, 2, final=True)
    (found,) = verdict(got(1, "a", 0, 4), done(1.5, "a", 4), killed, got(3, "b", 2, 10)).wrong
    assert "though 4 was committed" in found


def test_a_process_that_was_cut_off_may_see_what_it_had_fetched_before() -> None:
    stopped = Outage("a", 2, 8)
    found = verdict(got(1, "a", 0, 2), stopped, got(7, "b", 0, 10), done(7.5, "b", 10), got(8.1, "a", 2, 4))
    assert (found.wrong, found.again, found.stale) == ([], 2, 2)


def test_what_such_a_process_can_commit_is_wrong() -> None:
    stopped = Outage("a", 2, 8)
    found = verdict(
        got(1, "a", 0, 2),
        stopped,
        got(7, "b", 0, 10),
        done(7.5, "b", 10),
        got(8.1, "a", 2, 4),
        done(8.2, "a", 4),
    )
    (wrong,) = found.wrong
    assert "its commit was confirmed" in wrong


def test_such_a_process_may_be_the_first_that_sees_what_another_one_has() -> None:
    stopped = Outage("a", 2, 8)
    found = verdict(got(1, "a", 0, 2), done(1.5, "a", 2), stopped, got(9.5, "a", 2, 4), got(9.6, "b", 2, 10))
    assert (found.wrong, found.again) == ([], 2)


def test_a_process_that_stood_still_by_itself_was_away_for_that_time() -> None:
    short, long = Outage("a", 2, 3, by_itself=True), Outage("a", 2, 7, by_itself=True)
    found = verdict(got(1, "a", 0, 4), short, got(8, "b", 0, 10))
    assert (len(found.wrong), found.still) == (1, [1])
    assert verdict(got(1, "a", 0, 4), long, got(8, "b", 0, 10)).wrong == []


def test_the_log_has_each_acknowledged_message_once_and_in_order() -> None:
    log = [*LOG[:5], *LOG[6:], LOG[6]]
    found = verdict(got(1, "a", 0, 10, log), log=log).wrong
    assert "message p.0:6 stands 2 times in the log" in found
    assert "message p.0:5 was acknowledged and is not in the log" in found
    assert f"in {STREAM} message p.0:6 stands behind p.0:9" in found


def test_other_messages_than_in_the_log_are_wrong() -> None:
    (found,) = verdict(got(1, "a", 0, 10, [*LOG[:9], "p.0:99"])).wrong
    assert "has other messages than the log" in found
