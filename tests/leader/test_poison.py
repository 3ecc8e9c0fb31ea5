"""Messages that cannot be processed: counted once each, and dead letters or stopped streams in the end."""

from __future__ import annotations

import pytest

from streamlease.leader.core.events import (
    DeadLetter,
    DeadLetterRefused,
    DeadLetterWritten,
    Effect,
    Persist,
    Send,
)
from streamlease.leader.core.state.records import DeadLettered, Failed
from streamlease.leader.core.view import of_leader
from streamlease.protocol.errors import InvalidOption
from streamlease.protocol.group_options import GroupOptions, OnPoison, check_options
from streamlease.protocol.messages import FailureTaken, Grant, Revoke, Revoked
from tests.leader.make import S0, S1, Rig, command, failed, finished, goodbye, led, only, progress, sent

TWICE = GroupOptions(max_failures=2)
STOP = GroupOptions(max_failures=2, on_poison="stop")


def group(options: GroupOptions = TWICE) -> Rig:
    """Borrower b1 holds S0 alone, has consumed it up to 5, and two messages behind that."""
    rig = led([S0], ["b1"], options=options)
    rig.hear(progress("b1", S0, 1, 5), "box-b1")
    rig.effects.clear()
    return rig


def crashed(rig: Rig) -> Rig:
    """The next leader, with the whole journal behind it."""
    after = rig.crash()
    after.journal = [*rig.journal, *after.journal]
    return after


def fail(rig: Rig, failure: str, offset: int = 7, borrower: str = "b1") -> list[Effect]:
    return rig.hear(failed(borrower, S0, rig.lease_epoch(S0), offset, failure), f"box-{borrower}")


def verdicts(effects: list[Effect]) -> list[str]:
    return [message.verdict for message in sent(effects, FailureTaken)]


def letters(effects: list[Effect]) -> list[DeadLetter]:
    return [effect for effect in effects if isinstance(effect, DeadLetter)]


def written(rig: Rig, offset: int = 7) -> list[Effect]:
    return rig.step(DeadLetterWritten(S0, offset, "dead-letters.0.0", 3))


def test_a_failure_commits_what_is_before_it_and_is_durable_before_the_answer() -> None:
    rig = group()
    first, second = fail(rig, "f1")
    assert isinstance(first, Persist)
    assert isinstance(second, Send)
    assert (rig.committed(S0), verdicts([second])) == (7, ["retry"])
    assert [type(record) for record in first.records][-1] is Failed


def test_the_same_failure_counts_once_however_often_it_is_told() -> None:
    rig = group()
    assert [verdicts(fail(rig, "f1")) for _ in range(5)] == [["retry"]] * 5
    failure = rig.leader.durable.streams[S0].failure
    assert failure is not None
    assert failure.failures == ("f1",)


def test_the_last_failure_makes_a_dead_letter_and_the_answer_waits_for_it() -> None:
    rig = group()
    fail(rig, "f1")
    effects = fail(rig, "f2")
    assert letters(effects) == [DeadLetter(S0, 7, 1, 2, "b1", "bad")]
    assert isinstance(effects[0], Persist), "decided durably before anything is written"
    assert verdicts(effects) == verdicts(fail(rig, "f2")) == []
    done = written(rig)
    assert isinstance(done[0], Persist)
    assert isinstance(done[0].records[0], DeadLettered)
    assert verdicts(done) == ["passed"]
    assert rig.committed(S0) == 8
    assert rig.leader.durable.streams[S0].dead_letters == 1
    assert verdicts(fail(rig, "f2")) == ["passed"], "the answer was lost, and is asked for again"
    assert written(rig) == []


def test_counts_and_decisions_survive_the_leader() -> None:
    rig = group()
    fail(rig, "f1")
    rig = crashed(rig)
    rig.join("b1x", name="n-b1", session="s-n-b1", attempt=2)
    effects = fail(rig, "f2", borrower="b1x")
    assert letters(effects)
    rig = crashed(rig)
    assert letters(rig.effects) == [DeadLetter(S0, 7, 2, 2, "b1x", "bad")], "decided, perhaps not written"
    rig.join("b1y", name="n-b1", session="s-n-b1", attempt=3)
    assert verdicts(fail(rig, "f2", borrower="b1y")) == []
    assert verdicts(written(rig)) == ["passed"]
    rig = crashed(rig)
    assert letters(rig.effects) == []
    assert rig.committed(S0) == 8


def test_a_failure_told_to_two_leaders_counts_once() -> None:
    rig = group()
    fail(rig, "f1")
    rig = crashed(rig)
    rig.join("b1x", name="n-b1", session="s-n-b1", attempt=2)
    assert verdicts(fail(rig, "f1", borrower="b1x")) == ["retry"]
    assert letters(rig.effects) == []


def test_nobody_else_gets_the_stream_before_the_dead_letter_is_written() -> None:
    rig = group()
    fail(rig, "f1")
    fail(rig, "f2")
    rig.join("b2")
    rig.hear(goodbye("b1", (S0, 1, 7)), "box-b1")
    rig.effects.clear()
    rig.settle()
    assert rig.owners == {}
    written(rig)
    rig.settle()
    assert only(rig.effects, Grant).progress == 8
    assert rig.owners == {S0: "b2"}


def test_another_program_under_the_same_name_waits_as_well() -> None:
    rig = group()
    fail(rig, "f1")
    fail(rig, "f2")
    rig.join("b2", name="n-b1", session="another", arrival=2)
    assert rig.owners == {}
    written(rig)
    rig.settle()
    assert rig.owners == {S0: "b2"}


def test_progress_forgets_the_failures_and_other_streams_have_their_own() -> None:
    rig = led([S0, S1], ["b1"], options=TWICE)
    for stream in (S0, S1):
        rig.hear(failed("b1", stream, 1, 4, f"f-{stream}"), "box-b1")
    rig.hear(progress("b1", S0, 1, 5), "box-b1")
    assert rig.leader.durable.streams[S0].failure is None
    assert rig.leader.durable.streams[S1].failure is not None
    assert verdicts(rig.hear(failed("b1", S0, 1, 5, "f2"), "box-b1")) == ["retry"]


def test_a_late_failure_of_a_former_lease_counts_nothing() -> None:
    rig = group()
    rig.join("b2", name="n-b1", session="another", arrival=2)
    refused = rig.leader.ledger.refused
    rig.hear(failed("b2", S0, 1, 7, "f1"), "box-b2")
    assert rig.leader.ledger.refused == refused + 1
    assert rig.leader.durable.streams[S0].failure is None
    assert rig.committed(S0) == 5


def test_a_stream_stops_where_the_group_says_so_until_an_operator_decides() -> None:
    rig = group(STOP)
    rig.join("b2")
    rig.settle()
    fail(rig, "f1")
    effects = fail(rig, "f2")
    assert verdicts(effects) == ["stopped"]
    assert only(effects, Revoke).stream == S0
    only(rig.hear(progress("b1", S0, 1, 7, final=True), "box-b1"), Revoked)
    rig.hear(finished("b1", S0, 1), "box-b1")
    rig.settle()
    assert rig.owners == {}
    rig = crashed(rig)
    rig.join("b3")
    rig.settle()
    assert rig.owners == {}
    rig.hear(command("retry", stream=S0))
    rig.settle()
    assert rig.owners == {S0: "b3"}
    assert verdicts(fail(rig, "f3", borrower="b3")) == ["retry"]


def test_an_operator_may_pass_a_stopped_message_to_the_dead_letters() -> None:
    rig = group(STOP)
    fail(rig, "f1")
    fail(rig, "f2")
    rig.hear(goodbye("b1", (S0, 1, 7)), "box-b1")
    assert letters(rig.hear(command("dead_letter", stream=S0))) == [DeadLetter(S0, 7, 1, 2, "b1", "bad")]
    rig.join("b2")
    rig.settle()
    assert rig.owners == {}
    written(rig)
    rig.settle()
    assert (rig.owners, rig.committed(S0)) == ({S0: "b2"}, 8)


@pytest.mark.parametrize("on_poison", ["dead-letter", "stop"])
def test_one_failure_may_be_enough(on_poison: OnPoison) -> None:
    rig = group(GroupOptions(max_failures=1, on_poison=on_poison))
    effects = fail(rig, "f1")
    assert len(letters(effects)) == (on_poison == "dead-letter")
    assert verdicts(effects) == (["stopped"] if on_poison == "stop" else [])


def test_describe_says_why_a_stream_waits() -> None:
    rig = group()
    fail(rig, "f1")
    fail(rig, "f2")
    rig.step(DeadLetterRefused(S0, 7, "no space covers it"))
    (stream,) = of_leader(rig.leader, rig.now)["streams"]
    assert stream["failure"] == {
        "offset": 7,
        "failures": 2,
        "cause": "bad",
        "borrower": "b1",
        "fate": "dead_letter",
        "refused": "no space covers it",
    }
    assert stream["dead_letters"] == 0
    written(rig)
    (stream,) = of_leader(rig.leader, rig.now)["streams"]
    assert (stream["failure"], stream["dead_letters"]) == (None, 1)


# -- a message waits before it is tried again ----------------------------------------------------------------

SLOWLY = GroupOptions(max_failures=100, retry_delay_ms=1000, max_retry_delay_ms=5000)


def delay(effects: list[Effect]) -> int:
    (answer,) = sent(effects, FailureTaken)
    return answer.retry_after_ms


def test_each_further_failure_waits_twice_as_long_up_to_the_limit() -> None:
    rig = group(SLOWLY)
    assert [delay(fail(rig, f"f{n}")) for n in range(6)] == [1000, 2000, 4000, 5000, 5000, 5000]
    for number in range(6, 99):
        assert delay(fail(rig, f"f{number}")) == 5000


def test_the_same_failure_told_again_waits_no_longer() -> None:
    rig = group(SLOWLY)
    fail(rig, "f1")
    rig.now += 300
    assert delay(fail(rig, "f1")) == 700
    rig.now += 900
    assert delay(fail(rig, "f1")) == 0


def test_the_next_message_waits_for_its_own_failures_only() -> None:
    rig = group(SLOWLY)
    fail(rig, "f1")
    fail(rig, "f2")
    rig.hear(progress("b1", S0, 1, 8), "box-b1")
    assert delay(fail(rig, "f3", offset=9)) == 1000


def test_a_delay_goes_with_the_stream_to_its_next_owner() -> None:
    rig = group(SLOWLY)
    fail(rig, "f1")
    fail(rig, "f2")
    rig.join("b2")
    rig.now += 400
    grant = only(rig.hear(goodbye("b1", (S0, 1, 7)), "box-b1"), Grant)
    assert (grant.borrower, grant.progress, grant.retry_after_ms) == ("b2", 7, 1600)


def test_the_next_leader_knows_how_often_it_failed_and_lets_it_wait_anew() -> None:
    rig = group(SLOWLY)
    fail(rig, "f1")
    fail(rig, "f2")
    rig.now += 1900
    rig = crashed(rig)
    rig.join("b1x", name="n-b1", session="s-n-b1", attempt=2)
    assert only(rig.effects, Grant).retry_after_ms == 2000
    assert delay(fail(rig, "f3", borrower="b1x")) == 4000


def test_other_streams_do_not_wait() -> None:
    rig = led([S0, S1], ["b1"], options=SLOWLY)
    rig.hear(failed("b1", S0, 1, 4, "f"), "box-b1")
    rig.join("b2")
    grants = sent(rig.hear(goodbye("b1", (S0, 1, 4), (S1, 1, 0)), "box-b1"), Grant)
    assert {grant.stream: grant.retry_after_ms for grant in grants} == {S0: 1000, S1: 0}


def test_a_dead_letter_and_an_operators_retry_wait_for_nothing() -> None:
    rig = group(GroupOptions(max_failures=2, retry_delay_ms=1000))
    fail(rig, "f1")
    fail(rig, "f2")
    assert delay(written(rig)) == 0
    rig = group(GroupOptions(max_failures=1, on_poison="stop"))
    assert delay(fail(rig, "f1")) == 0
    rig.give_back(S0, 7)
    assert only(rig.hear(command("retry", stream=S0)), Grant).retry_after_ms == 0


def test_a_group_may_want_no_delay() -> None:
    rig = group(GroupOptions(retry_delay_ms=0))
    assert [delay(fail(rig, f"f{n}")) for n in range(4)] == [0, 0, 0, 0]


@pytest.mark.parametrize("delays", [(-1, 5), (6, 5), (1, 3_600_001)])
def test_delays_that_make_no_sense_are_refused(delays: tuple[int, int]) -> None:
    options = GroupOptions(retry_delay_ms=delays[0], max_retry_delay_ms=delays[1])
    with pytest.raises(InvalidOption, match="a failed message is tried again after"):
        check_options(options)


def test_describe_says_for_how_long_a_message_waits() -> None:
    rig = group(SLOWLY)
    fail(rig, "f1")
    fail(rig, "f2")
    rig.now += 500
    (stream,) = of_leader(rig.leader, rig.now)["streams"]
    assert stream["why"] == "offset 7 failed 2 times, it is tried again in 1.5 s"
    rig.now += 1500
    (stream,) = of_leader(rig.leader, rig.now)["streams"]
    assert stream["why"] == ""
