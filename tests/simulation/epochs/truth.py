"""What must be true of epochs and collections, whatever goes wrong (invariants 13 and 14 of the design).

* Nothing that was acknowledged and then given up is missing in the end: all of it stands in its epoch. What a
  failover took away of a space that keeps its messages in memory only is missing, and told.
* Nothing is there that its publisher never tried to give up, and nothing twice, and all of it in its epoch.
* What stands in an epoch is the same for all readers; an epoch is handed out once, whole, while it is not
  behind a frontier that was told before; a frontier never goes back. A reader that was handed out what a
  failover took away is told before anything else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from streamlease.protocol.epochs.antichains import Antichain, goes_on, is_open
from streamlease.protocol.epochs.order import Epoch
from streamlease.streams.collections.core.multiset import Item
from tests.simulation.epochs.written import Stood, Written
from tests.simulation.judge import Violation


@dataclass
class Sent:
    """One message."""

    text: str
    epoch: Epoch | None
    publisher: str
    item: Item
    diff: int
    acknowledged: bool = False
    tried: bool = False
    """Whether its publisher began to give its epoch up after it was sent."""
    certain: bool = False
    """Whether that was answered, and so holds."""
    since: float = 0.0
    """When it was acknowledged, certain, or vouched for."""
    at_risk: bool = False
    """Whether it was acknowledged, and a failover may have lost it since."""
    vouched: bool = False
    """Whether its publisher has written a line since then: so it is there, or its loss is told."""


@dataclass
class Chain:
    """What one reader, and those that went on at its positions, were handed out."""

    name: str
    handed: dict[Epoch, list[str]] = field(default_factory=dict)
    lower: Antichain | None = None
    began: Antichain | None = None
    """The first frontier that it was told: what was completed there it does not get."""
    losses: set[str] = field(default_factory=set)
    """What it was told that completed epochs lack."""
    is_suspect: bool = False
    """Whether a failover may have taken away what was handed out: who follows begins anew."""
    kept: tuple[dict[str, int], dict[Epoch, list[str]], Antichain | None, Antichain | None] = (
        {}, {}, None, None,
    )  # fmt: skip
    """Positions; what had been handed out there, the frontier, and the first one."""

    def keep(self, positions: dict[str, int]) -> None:
        """These are the positions now."""
        if positions != self.kept[0]:
            self.kept = dict(positions), dict(self.handed), self.lower, self.began

    def back(self) -> dict[str, int]:
        """Another process goes on at the positions."""
        if self.is_suspect:
            self.anew()
        positions, handed, self.lower, self.began = self.kept
        self.handed = dict(handed)
        return positions

    def anew(self) -> None:
        """It begins at the earliest, as if it had never been."""
        self.kept, self.is_suspect = ({}, {}, None, None), False
        self.handed, self.lower, self.began = {}, None, None
        self.losses.clear()


class EpochTruth:
    """Follows what is sent, given up and handed out.

    Args:
        durable: whether what was acknowledged is never lost.
    """

    def __init__(self, written: Written, *, durable: bool) -> None:
        self.written = written
        self.sent: dict[str, Sent] = {}
        self.handed_out = 0
        self.losses = 0
        """How many failovers have lost what was acknowledged."""
        self._durable = durable
        written.came = self._came

    @property
    def is_lossy(self) -> bool:
        """Whether something was lost that was acknowledged."""
        return not self._durable and bool(self.written.former)

    @property
    def epochs(self) -> dict[Epoch, list[str]]:
        """All completed epochs with messages."""
        return self.written.now.epochs()

    # ------------------------------------------------------------ publishers

    def send(self, one: Sent) -> None:
        """A publisher is about to send a message."""
        self.sent[one.text] = one

    def _came(self, stood: Stood) -> None:
        one = self.sent[stood.text]
        if (stood.epoch, stood.item, stood.diff) != (one.epoch, one.item, one.diff):
            raise Violation(f"[14] {stood.text} was sent as {one.item}, {one.diff}, and stands as {stood}")

    def acknowledged(self, one: Sent, now: float) -> None:
        """It was answered."""
        one.acknowledged, one.since = True, now

    def gives_up(self, mine: Iterable[Sent], to: Antichain) -> list[Sent]:
        """A publisher is about to hold `to`; of its messages, those that this completes."""
        given = [one for one in mine if one.epoch is not None and not is_open(to, one.epoch)]
        for one in given:
            one.tried = True
        return given

    def given_up(self, given: Iterable[Sent], now: float, losses: int) -> None:
        """It was answered, and so are all lines before it.

        Args:
            losses: those before it was asked: since then its line may be lost, though it was answered.
        """
        if losses != self.losses:
            return
        for one in given:
            if one.at_risk:
                if one.acknowledged and not one.vouched:
                    one.vouched, one.since = True, now
            elif one.acknowledged and not one.certain:
                one.certain, one.since = True, now

    def failed_over(self, border: float) -> None:
        """The store lost what was written behind `border`, unless it was confirmed."""
        self.written.failed_over()
        if self._durable:
            return
        self.losses += 1
        for one in self.sent.values():
            if not one.acknowledged or one.since > border:
                one.at_risk, one.certain, one.vouched = True, False, False

    # ------------------------------------------------------------ readers

    def frontier(self, chain: Chain, lower: Antichain, *, begins: bool = False) -> None:
        """A reader is told the frontier; perhaps the one at which it begins."""
        if chain.lower is not None and not goes_on(chain.lower, lower):
            raise Violation(f"[13] the frontier of {chain.name} goes back from {chain.lower} to {lower}")
        if begins:
            chain.began = lower
        chain.lower = lower

    def epoch(self, chain: Chain, epoch: Epoch, texts: list[str]) -> None:
        """A reader is handed out an epoch."""
        self.handed_out += 1
        if epoch in chain.handed:
            raise Violation(f"[13] {chain.name} gets epoch {epoch} a second time: a completed one got more")
        if chain.lower is not None and not is_open(chain.lower, epoch):
            raise Violation(f"[13] {chain.name} gets epoch {epoch} behind its frontier {chain.lower}")
        chain.handed[epoch] = texts
        for text, times in Counter(texts).items():
            known = self.sent.get(text)
            if known is None or times > 1:
                raise Violation(f"[13] {text} stands {times} times in epoch {epoch}")
            if known.epoch != epoch:
                raise Violation(f"[13] {text} was sent at {known.epoch} and stands in epoch {epoch}")
            if not known.tried:
                raise Violation(f"[13] {text} of epoch {epoch} was never given up, and was handed out")
        histories = [one.of_epoch(epoch) for one in self.written.histories]
        if texts not in histories:
            raise Violation(
                f"[13] {chain.name} is handed out an epoch {epoch} that differs from what stands there: "
                f"{sorted({*histories[0]} ^ {*texts})}"
            )

    def ended(self, chain: Chain) -> None:
        """A reader was handed out all that there is."""
        epochs = self.epochs
        began = chain.began or ()
        expected = {
            epoch: texts for epoch, texts in epochs.items() if chain.began is None or is_open(began, epoch)
        }
        if wrong := [one for one in expected if one in chain.handed and expected[one] != chain.handed[one]]:
            raise Violation(f"[13] {chain.name} was handed out another epoch {wrong[0]}, and never told")
        if missing := expected.keys() - chain.handed.keys():
            raise Violation(f"[13] {chain.name} lacks epochs {sorted(missing)[:3]}")
        if others := chain.handed.keys() - epochs.keys():
            raise Violation(
                f"[13] {chain.name} has epochs {sorted(others)[:3]} that are lost, and never told"
            )
        parts = sum(parts for parts, _ in self.written.now.lost.values())
        if chain.began is None and len(chain.losses) < parts:
            raise Violation(f"[13] {chain.name} was told {len(chain.losses)} losses of {parts}")

    def all_there(self) -> None:
        """Everybody is well: nothing that was promised is missing, and what was lost was told."""
        texts = self.written.texts
        missing = [one for one in self.sent.values() if one.certain and one.text not in texts]
        if missing:
            raise Violation(f"[13] {missing[0].text} was given up, and is not there")
        lost = [one for one in self.sent.values() if one.vouched and one.text not in texts]
        told = sum(rows for _, rows in self.written.now.lost.values())
        if len(lost) > told:
            raise Violation(f"[13] {len(lost)} messages are lost, as {lost[0].text}, and {told} were told")
