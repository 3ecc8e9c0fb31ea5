"""Judges what readers of epochs were handed under chaos: a pure function of what every process said.

The truth is what an atomic reader gets in the end, from the earliest on. Then:

* what was given up with an answer is in it, and of each attempt and epoch there is all or nothing; each
  message stands there once, in the epoch at which it was sent;
* an atomic reader gets the epochs of the truth in their order, each with all its messages, without a hole;
  one that begins where the last one ended misses nothing in between;
* what an eager reader was handed, and not told to be dropped, is at each frontier what the truth has below;
  it begins anew once after a restart of Redis at most, when what it was handed may be lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

EpochEvent = Mapping[str, Any]
"""What a program says: `reader_program.tell`."""


@dataclass(slots=True)
class EpochFacts:
    """All that was observed."""

    giving_up: set[tuple[str, int]] = field(default_factory=set)
    """(attempt, epoch) of which all was sent."""
    given_up: set[tuple[str, int]] = field(default_factory=set)
    """Those with an answer."""
    readings: dict[str, list[list[EpochEvent]]] = field(default_factory=dict)
    """Reader -> of each of its subscriptions what it was handed."""
    modes: dict[str, str] = field(default_factory=dict)
    """Reader -> how it reads."""
    truth: Mapping[int, Sequence[str]] = field(default_factory=dict)
    """Epoch -> its messages."""
    rows: int = 0
    """Messages of one attempt in one epoch."""
    lost: Counter[str] = field(default_factory=Counter)
    """Eager reader -> how often it was told that what was open may be lost."""
    restarts: int = 0
    """Of Redis."""


@dataclass(slots=True)
class EpochVerdict:
    """What the judge found. `wrong` is empty after a good run."""

    wrong: list[str] = field(default_factory=list)
    epochs: int = 0
    messages: int = 0
    handed_out: int = 0
    """Messages to all readers."""
    aborted: int = 0
    """Attempts at an epoch that were sent whole, and are in no epoch."""


def judge_epochs(facts: EpochFacts) -> EpochVerdict:
    """The verdict on one run."""
    parts = {(id.split("/")[0], int(id.split("/")[1])) for ids in facts.truth.values() for id in ids}
    verdict = EpochVerdict(
        epochs=len(facts.truth),
        messages=sum(map(len, facts.truth.values())),
        aborted=len(facts.giving_up - parts),
    )
    _judge_truth(facts, verdict)
    for reader, times in facts.lost.items():
        if times > facts.restarts:
            verdict.wrong.append(f"{reader} was told {times} times of a loss; restarts: {facts.restarts}")
    for reader, readings in facts.readings.items():
        handed: set[int] = set()
        for number, events in enumerate(readings, 1):
            what = f"{reader} {number}"
            verdict.handed_out += sum(len(one["ids"]) for one in events if one["event"] == "epoch")
            if facts.modes[reader] == "atomic":
                _judge_atomic(what, events, handed, facts, verdict)
            else:
                _judge_eager(what, events, facts, verdict)
        if facts.modes[reader] == "atomic" and (missing := sorted({*facts.truth} - handed)):
            verdict.wrong.append(f"{reader} never got epochs {missing[:5]}")
    return verdict


def _judge_truth(facts: EpochFacts, verdict: EpochVerdict) -> None:
    found: Counter[tuple[str, int]] = Counter()
    for epoch, ids in facts.truth.items():
        for id, count in Counter(ids).items():
            attempt, at, _ = id.split("/")
            found[attempt, int(at)] += 1
            if count > 1:
                verdict.wrong.append(f"{id} stands {count} times in epoch {epoch}")
            if int(at) != epoch:
                verdict.wrong.append(f"{id} stands in epoch {epoch}")
    for (attempt, epoch), count in found.items():
        if count != facts.rows:
            verdict.wrong.append(f"epoch {epoch} has {count} of {facts.rows} messages of {attempt}")
        if (attempt, epoch) not in facts.giving_up:
            verdict.wrong.append(f"epoch {epoch} has messages of {attempt}, which never gave it up")
    for attempt, epoch in sorted(facts.given_up - found.keys()):
        verdict.wrong.append(f"epoch {epoch} has nothing of {attempt}, which had given it up with an answer")


def _judge_atomic(
    what: str, events: Sequence[EpochEvent], handed: set[int], facts: EpochFacts, verdict: EpochVerdict
) -> None:
    order = sorted(facts.truth)
    at = 0
    """How many epochs of the truth are behind the reading."""
    for event in events:
        match event["event"]:
            case "snapshot":
                at = sum(_below(epoch, event["lower"]) for epoch in order)
                if missed := sorted({*order[:at]} - handed):
                    verdict.wrong.append(f"{what} begins behind epochs {missed[:5]}, which nobody was handed")
            case "epoch":
                if at == len(order) or order[at] != event["epoch"]:
                    due = order[at] if at < len(order) else "nothing"
                    verdict.wrong.append(f"{what} was handed epoch {event['epoch']} when {due} was due")
                    return
                if sorted(event["ids"]) != sorted(facts.truth[order[at]]):
                    verdict.wrong.append(f"{what} was handed epoch {event['epoch']} with other messages")
                handed.add(order[at])
                at += 1
            case "frontier" if at < len(order) and _below(order[at], event["lower"]):
                verdict.wrong.append(f"{what} was told {event['lower']} without epoch {order[at]}")
                return


def _judge_eager(what: str, events: Sequence[EpochEvent], facts: EpochFacts, verdict: EpochVerdict) -> None:
    upper: list[int] = []
    told: set[int] = set()
    """Epochs that are completed and were looked at, or that were before the reading."""
    open: dict[int, list[tuple[str, int, Sequence[str]]]] = {}
    for event in events:
        match event["event"]:
            case "snapshot":
                upper = event["upper"]
                told = {
                    epoch
                    for epoch in facts.truth
                    if epoch <= max(upper, default=-1) or _below(epoch, event["lower"])
                }
            case "epoch":
                if any(event["epoch"] <= one for one in upper) or event["epoch"] in told:
                    verdict.wrong.append(f"{what} was handed something of epoch {event['epoch']}, too late")
                open.setdefault(event["epoch"], []).append((*event["of"], event["ids"]))
            case "aborted":
                name, incarnation = event["of"]
                for epoch in [one for one in open if not _below(one, event["epochs"])]:
                    open[epoch] = [one for one in open[epoch] if one[0] != name or one[1] > incarnation]
            case "frontier":
                for epoch in [one for one in {*open, *facts.truth} - told if _below(one, event["lower"])]:
                    got = sorted(id for _, _, ids in open.pop(epoch, []) for id in ids)
                    told.add(epoch)
                    if got != (due := sorted(facts.truth.get(epoch, ()))):
                        verdict.wrong.append(
                            f"{what} was handed {len(got)} messages of epoch {epoch}, which has {len(due)}: "
                            f"{sorted({*got} ^ {*due})[:3]}"
                        )


def _below(epoch: int, frontier: Sequence[int]) -> bool:
    """Whether an epoch is completed at a lower frontier."""
    return all(epoch < one for one in frontier)
