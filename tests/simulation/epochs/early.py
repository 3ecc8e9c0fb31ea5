"""What a reader of staged messages may be handed out, and what it must have been."""

from __future__ import annotations

from streamlease.protocol.epochs.antichains import Antichain, goes_on, is_open, is_seen
from streamlease.protocol.epochs.order import Epoch
from tests.simulation.epochs.truth import EpochTruth
from tests.simulation.judge import Violation


class EarlyChain:
    """What one subscription was handed out and what of it counts.

    Each message comes once, never behind the frontier, and an abort takes back what came of an incarnation.
    What is left of an epoch behind the frontier is what stands in it, and perhaps messages that were never
    acknowledged.
    """

    def __init__(self, name: str, truth: EpochTruth) -> None:
        self.name = name
        self.lower: Antichain | None = None
        self.handed: dict[Epoch, dict[str, tuple[str, int]]] = {}
        """Of each epoch, the messages that count, with publisher and incarnation."""
        self.has_losses = False
        self._truth = truth
        self._began: Antichain | None = None
        self._upper: Antichain = ()
        self._aborted: dict[tuple[str, int], Antichain] = {}

    def begins(self, lower: Antichain, upper: Antichain) -> None:
        """The snapshot: nothing comes of what is completed, nor of what is at or below `upper`."""
        self.lower = self._began = lower
        self._upper = upper

    def _wanted(self, epoch: Epoch) -> bool:
        return (self._began is None or is_open(self._began, epoch)) and not is_seen(self._upper, epoch)

    def batch(self, epoch: Epoch, name: str, inc: int, texts: list[str]) -> None:
        """Messages of one epoch and publisher."""
        if self.lower is not None and not is_open(self.lower, epoch):
            raise Violation(f"[13] {self.name} gets {texts[0]} behind its frontier {self.lower}")
        if not self._wanted(epoch):
            raise Violation(f"[13] {self.name} gets {texts[0]}, which was active when it began")
        if is_open(self._aborted.get((name, inc), ()), epoch):
            raise Violation(f"[13] {self.name} gets {texts[0]} of {name} {inc}, which was aborted")
        mine = self.handed.setdefault(epoch, {})
        for text in texts:
            known = self._truth.sent.get(text)
            if known is None or known.epoch != epoch or known.publisher != name:
                raise Violation(f"[13] {self.name} gets {text} of {name} in epoch {epoch}")
            if text in mine and not self.has_losses:
                raise Violation(f"[13] {self.name} gets {text} a second time")
            mine[text] = name, inc

    def aborted(self, name: str, inc: int, epochs: Antichain) -> bool:
        """What came of that incarnation at these epochs does not count; whether anything did."""
        self._aborted[name, inc] = epochs
        gone = [
            (epoch, text)
            for epoch, texts in self.handed.items()
            if is_open(epochs, epoch)
            for text, by in texts.items()
            if by == (name, inc)
        ]
        for epoch, text in gone:
            if self.lower is not None and not is_open(self.lower, epoch):
                raise Violation(f"[13] {self.name} is told that {text} of a completed epoch was aborted")
            del self.handed[epoch][text]
        return bool(gone)

    def frontier(self, lower: Antichain, *, begins: bool = False) -> None:
        """All that belongs to what is completed was handed out."""
        if self.lower is not None and not goes_on(self.lower, lower):
            raise Violation(f"[13] the frontier of {self.name} goes back from {self.lower} to {lower}")
        before, self.lower = self.lower, lower
        if begins:
            self._began = lower
            return
        wrong = [self._lacking(history.epochs(), before, lower) for history in self._truth.written.histories]
        if all(wrong):
            raise Violation(f"[13] {self.name} is told {lower}, and lacks {wrong[0][:3]}")

    def _lacking(
        self, epochs: dict[Epoch, list[str]], before: Antichain | None, lower: Antichain
    ) -> list[str]:
        return [
            text
            for epoch, texts in epochs.items()
            if (before is None or is_open(before, epoch)) and not is_open(lower, epoch)
            if self._wanted(epoch)
            for text in texts
            if text not in self.handed.get(epoch, ())
        ]

    def ended(self) -> None:
        """All is completed."""
        epochs = self._truth.epochs
        if lacking := self._lacking(epochs, None, self.lower or ()):
            raise Violation(f"[13] {self.name} lacks {lacking[:3]}")
        for epoch, texts in self.handed.items():
            for text in texts.keys() - {*epochs.get(epoch, ())}:
                one = self._truth.sent[text]
                # Who has lost that it is there stages until it is told so; all of that counts for nothing.
                nobody = self._truth.is_lossy and not one.tried
                if one.acknowledged and not nobody and not self.has_losses:
                    raise Violation(f"[13] {self.name} was handed out {text}, which is not there")
