"""What must be true of epochs, whatever goes wrong (invariant 13 of the design).

* Nothing that was acknowledged and then given up is missing in the end: all of it stands in its epoch.
* Nothing is there that its publisher never tried to give up, and nothing twice, and all of it in its epoch.
* What stands in an epoch is the same for all readers; an epoch is handed out once, whole, while it is not
  behind a frontier that was told before; a frontier never goes back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from streamlease.protocol.epochs.antichains import Antichain, goes_on, is_open
from streamlease.protocol.epochs.order import Epoch
from tests.simulation.judge import Violation


@dataclass
class Sent:
    """One message."""

    text: str
    epoch: Epoch
    acknowledged: bool = False
    tried: bool = False
    """Whether its publisher began to give its epoch up after it was sent."""
    certain: bool = False
    """Whether that was answered, and so holds."""


@dataclass
class Chain:
    """What one reader, and those that went on at its positions, were handed out."""

    name: str
    handed: set[Epoch] = field(default_factory=set)
    lower: Antichain | None = None
    kept: tuple[dict[str, int], frozenset[Epoch], Antichain | None] = ({}, frozenset(), None)
    """Positions, what had been handed out there, and the frontier."""

    def keep(self, positions: dict[str, int]) -> None:
        """These are the positions now."""
        if positions != self.kept[0]:
            self.kept = dict(positions), frozenset(self.handed), self.lower

    def back(self) -> dict[str, int]:
        """Another process goes on at the positions."""
        positions, handed, self.lower = self.kept
        self.handed = set(handed)
        return positions


class EpochTruth:
    """Follows what is sent, given up and handed out."""

    def __init__(self) -> None:
        self.sent: dict[str, Sent] = {}
        self.epochs: dict[Epoch, list[str]] = {}
        """What any reader was handed out, by epoch."""
        self.handed_out = 0

    def send(self, text: str, epoch: Epoch) -> Sent:
        """A publisher is about to send a message."""
        self.sent[text] = one = Sent(text, epoch)
        return one

    def gives_up(self, mine: Iterable[Sent], to: Antichain) -> list[Sent]:
        """A publisher is about to hold `to`; of its messages, those that this completes."""
        given = [one for one in mine if not is_open(to, one.epoch)]
        for one in given:
            one.tried = True
        return given

    def given_up(self, given: Iterable[Sent]) -> None:
        """It was answered."""
        for one in given:
            one.certain |= one.acknowledged

    def frontier(self, chain: Chain, lower: Antichain) -> None:
        """A reader is told the frontier."""
        if chain.lower is not None and not goes_on(chain.lower, lower):
            raise Violation(f"[13] the frontier of {chain.name} goes back from {chain.lower} to {lower}")
        chain.lower = lower

    def epoch(self, chain: Chain, epoch: Epoch, texts: list[str]) -> None:
        """A reader is handed out an epoch."""
        self.handed_out += 1
        if epoch in chain.handed:
            raise Violation(f"[13] {chain.name} gets epoch {epoch} a second time: a completed one got more")
        if chain.lower is not None and not is_open(chain.lower, epoch):
            raise Violation(f"[13] {chain.name} gets epoch {epoch} behind its frontier {chain.lower}")
        chain.handed.add(epoch)
        for text, times in Counter(texts).items():
            known = self.sent.get(text)
            if known is None or times > 1:
                raise Violation(f"[13] {text} stands {times} times in epoch {epoch}")
            if known.epoch != epoch:
                raise Violation(f"[13] {text} was sent at {known.epoch} and stands in epoch {epoch}")
            if not known.tried:
                raise Violation(f"[13] {text} of epoch {epoch} was never given up, and was handed out")
        others = self.epochs.setdefault(epoch, texts)
        if others != texts:
            raise Violation(f"[13] readers disagree on epoch {epoch}: {sorted({*others} ^ {*texts})}")

    def ended(self, chain: Chain) -> None:
        """A reader was handed out all that there is."""
        missing = [
            one
            for one in self.sent.values()
            if one.certain and one.text not in self.epochs.get(one.epoch, ())
        ]
        if missing:
            one = missing[0]
            raise Violation(f"[13] {one.text} was given up at epoch {one.epoch}, and is not there")
        if {*self.epochs} - chain.handed:
            raise Violation(f"[13] {chain.name} lacks epochs {sorted({*self.epochs} - chain.handed)[:3]}")
