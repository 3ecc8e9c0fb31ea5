"""The judge of epochs finds what is wrong, and nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tests.chaos.epochs.epoch_judge import EpochFacts, EpochVerdict, judge_epochs

TRUTH = {1: ["a/1/0", "a/1/1"], 2: ["a/2/0", "a/2/1", "b/2/0", "b/2/1"], 4: ["b/4/0", "b/4/1"]}
PARTS = {("a", 1), ("a", 2), ("b", 2), ("b", 4)}


def epoch(number: int, ids: list[str] | None = None, of: str | None = None, incarnation: int = 1) -> Any:
    return {"event": "epoch", "epoch": number, "ids": ids or TRUTH[number], "of": [of, of and incarnation]}


def frontier(*lower: int) -> Any:
    return {"event": "frontier", "lower": list(lower)}


def snapshot(lower: int, upper: int) -> Any:
    return {"event": "snapshot", "lower": [lower], "upper": [upper]}


def aborted(publisher: str, incarnation: int, *epochs: int) -> Any:
    return {"event": "aborted", "of": [publisher, incarnation], "epochs": list(epochs)}


WHOLE = [epoch(1), frontier(2), epoch(2), epoch(4), frontier(5)]


def verdict(
    *readings: list[Any],
    mode: str = "atomic",
    truth: Mapping[int, Sequence[str]] = TRUTH,
    giving_up: set[tuple[str, int]] = PARTS,
    given_up: set[tuple[str, int]] = PARTS,
) -> EpochVerdict:
    return judge_epochs(EpochFacts(giving_up, given_up, {"r": [*readings]}, {"r": mode}, truth, rows=2))


def test_whole_epochs_in_their_order_are_right() -> None:
    found = verdict(WHOLE, giving_up=PARTS | {("c", 3)})
    assert (found.wrong, found.epochs, found.messages, found.handed_out, found.aborted) == ([], 3, 8, 8, 1)


def test_a_reader_that_goes_on_from_its_last_boundary_is_right() -> None:
    assert verdict([epoch(1), frontier(2), epoch(2)], [snapshot(2, 4), epoch(2), epoch(4)]).wrong == []


def test_what_stands_twice_or_in_another_epoch_is_wrong() -> None:
    twice = TRUTH | {1: ["a/1/0", "a/1/0"]}
    assert "stands 2 times" in verdict([], truth=twice).wrong[0]
    assert verdict([], truth=TRUTH | {5: ["a/1/0"]}).wrong[0] == "a/1/0 stands in epoch 5"


def test_a_part_of_what_was_given_up_is_wrong() -> None:
    found = verdict([], truth=TRUTH | {4: ["b/4/0"]}).wrong
    assert found[0] == "epoch 4 has 1 of 2 messages of b"


def test_what_was_given_up_with_an_answer_is_there() -> None:
    (found, _) = verdict([], given_up=PARTS | {("c", 3)}).wrong
    assert found == "epoch 3 has nothing of c, which had given it up with an answer"


def test_what_was_never_given_up_is_not_there() -> None:
    (found, _) = verdict([], giving_up=PARTS - {("b", 4)}, given_up=set()).wrong
    assert found == "epoch 4 has messages of b, which never gave it up"


def test_an_atomic_reader_that_skips_or_repeats_an_epoch_is_wrong() -> None:
    assert verdict([epoch(1), epoch(4)]).wrong[0] == "r 1 was handed epoch 4 when 2 was due"
    assert verdict([epoch(1), epoch(1)]).wrong[0] == "r 1 was handed epoch 1 when 2 was due"
    assert verdict([*WHOLE, epoch(4)]).wrong == ["r 1 was handed epoch 4 when nothing was due"]


def test_a_frontier_in_front_of_what_it_completes_is_wrong() -> None:
    assert verdict([epoch(1), frontier(3)]).wrong[0] == "r 1 was told [3] without epoch 2"


def test_an_epoch_with_other_messages_is_wrong() -> None:
    found = verdict([epoch(1), epoch(2, ["a/2/0", "a/2/1"]), epoch(4)]).wrong
    assert found == ["r 1 was handed epoch 2 with other messages"]


def test_a_reader_that_begins_behind_what_it_never_got_is_wrong() -> None:
    found = verdict([epoch(1)], [snapshot(3, 4), epoch(4)]).wrong
    assert found[0] == "r 2 begins behind epochs [2], which nobody was handed"


def test_what_no_process_of_a_reader_got_is_lost() -> None:
    assert verdict([epoch(1), epoch(2)]).wrong == ["r never got epochs [4]"]


def eager(*events: Any) -> list[str]:
    return verdict([*events], mode="eager").wrong


FIRST = [epoch(1, of="a"), epoch(2, ["a/2/0"], of="a"), epoch(2, ["b/2/0", "b/2/1"], of="b")]


def test_an_eager_reader_has_at_each_frontier_what_the_truth_has() -> None:
    rest = epoch(2, ["a/2/1"], of="a")
    assert eager(*FIRST, frontier(2), rest, frontier(3)) == []
    (found,) = eager(*FIRST, frontier(3))
    assert found == "r 1 was handed 3 messages of epoch 2, which has 4: ['a/2/1']"
    (found,) = eager(*FIRST, rest, rest, frontier(3))
    assert found.startswith("r 1 was handed 5 messages of epoch 2, which has 4")
    (found,) = eager(*FIRST, rest, frontier(3), rest)
    assert found == "r 1 was handed something of epoch 2, too late"


def test_what_an_eager_reader_was_told_to_drop_does_not_count() -> None:
    former, now = epoch(2, ["x/2/0"], of="a"), epoch(2, ["a/2/0", "a/2/1"], of="a", incarnation=2)
    others = [epoch(1, of="a"), epoch(2, ["b/2/0", "b/2/1"], of="b")]
    assert eager(former, *others, aborted("a", 1, 2), now, frontier(3)) == []
    assert "handed 5 messages" in eager(former, *others, now, frontier(3))[0]
    assert "handed 5 messages" in eager(former, *others, aborted("a", 1, 3), now, frontier(3))[0]
    assert "handed 2 messages" in eager(former, *others, now, aborted("a", 2, 2), frontier(3))[0]


def test_an_eager_reader_that_begins_late_gets_nothing_of_what_was_active() -> None:
    assert eager(snapshot(2, 3), epoch(4, of="b"), frontier(5)) == []
    found, *_ = eager(snapshot(2, 3), epoch(2, of="b"), frontier(3))
    assert found == "r 1 was handed something of epoch 2, too late"


def test_an_eager_reader_begins_anew_only_if_redis_was_restarted() -> None:
    facts = EpochFacts(lost=Counter({"r": 1}), restarts=1)
    assert judge_epochs(facts).wrong == []
    facts.restarts = 0
    assert judge_epochs(facts).wrong == ["r was told 1 times of a loss; restarts: 0"]
