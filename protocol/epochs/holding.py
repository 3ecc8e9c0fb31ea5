"""Who may send at which epochs, and the lower frontier that all of them hold back together."""

from __future__ import annotations

from collections.abc import Mapping

from streamlease.protocol.epochs.antichains import Antichain, behind, changes, goes_on, is_open, maximal
from streamlease.protocol.epochs.counting import CountedFrontier
from streamlease.protocol.epochs.order import Epoch
from streamlease.protocol.errors import NotCapable


class Capabilities:
    """What one publisher may send at: at or above an element of `frontier`, an antichain.

    Args:
        name: of the publisher, for people.
        upper: the maximal epochs that it sent at.
    """

    def __init__(self, name: str, frontier: Antichain, upper: Antichain = ()) -> None:
        self.name = name
        self.frontier = frontier
        self.upper = upper

    def send(self, epoch: Epoch) -> None:
        """It sends at `epoch`.

        Raises:
            NotCapable: it has given that epoch up, or never had it.
        """
        if not is_open(self.frontier, epoch):
            raise NotCapable(
                f"publisher {self.name} holds {_shown(self.frontier)} and cannot send at epoch "
                f"{_one(epoch)}: what was given up does not come back; send at what it holds, or later"
            )
        if epoch not in self.upper:
            self.upper = maximal([*self.upper, epoch])

    def check_advance(self, frontier: Antichain) -> None:
        """Whether it may hold `frontier` from now on.

        Raises:
            NotCapable: some of that it has given up already, or it would hold nothing.
        """
        if not frontier:
            raise NotCapable(f"publisher {self.name} cannot advance to nothing: close it instead")
        if not goes_on(self.frontier, frontier):
            raise NotCapable(
                f"publisher {self.name} holds {_shown(self.frontier)} and cannot go back to "
                f"{_shown(frontier)}: advance to what is at or above an epoch that it holds"
            )

    def advance(self, frontier: Antichain) -> None:
        """It gives up what is not at or above an element of `frontier`.

        Raises:
            NotCapable: see `check_advance`. Nothing was changed.
        """
        self.check_advance(frontier)
        self.frontier = frontier


class HeldFrontier:
    """The lower frontier of a space: what its publishers hold, merged.

    While there is none, it is the minimal epochs that are not completed; a newcomer gets these. So it never
    goes back, whoever comes and goes. Each change returns the net changes of the frontier.

    Args:
        lower: the minimal epochs that are not completed.
        holders: what each publisher holds, by name.
        finished: the maximal epochs up to which publishers that ended well have sent all that they had.
    """

    def __init__(
        self, lower: Antichain, holders: Mapping[str, Antichain] | None = None, finished: Antichain = ()
    ) -> None:
        self._holders = dict(holders or {})
        self._held = CountedFrontier(epoch for held in self._holders.values() for epoch in held)
        self.lower = self._held.frontier if self._holders else lower
        self.finished = finished

    @property
    def holders(self) -> Mapping[str, Antichain]:
        """What each publisher holds."""
        return self._holders

    def holding_back(self) -> dict[str, Antichain]:
        """Who holds the frontier where it is, and by which epochs."""
        least = set(self.lower)
        found = {name: tuple(one for one in held if one in least) for name, held in self._holders.items()}
        return {name: epochs for name, epochs in found.items() if epochs}

    def enter(self, name: str) -> Antichain:
        """A publisher comes; what it holds: all that is not completed.

        Raises:
            ValueError: it is there already.
        """
        if name in self._holders:
            raise ValueError(f"publisher {name} is there already")
        self._holders[name] = self.lower
        self._held.update((epoch, 1) for epoch in self.lower)
        return self.lower

    def advance(self, name: str, frontier: Antichain) -> dict[Epoch, int]:
        """The publisher `name` holds `frontier` from now on.

        Raises:
            NotCapable: it had given some of that up. Nothing was changed.
        """
        Capabilities(name, self._holders[name]).check_advance(frontier)
        return self._hold(name, frontier)

    def leave(self, name: str, upper: Antichain) -> dict[Epoch, int]:
        """The publisher ends well: what is at or below its `upper` completes once nobody else holds it."""
        self.finished = maximal([*self.finished, *upper])
        return self._hold(name, None)

    def lose(self, name: str) -> dict[Epoch, int]:
        """The publisher is gone, and what it had not given up is dropped; epochs complete without it.

        If it was the last one, only those complete that others had finished: a newcomer may send at the rest.
        """
        return self._hold(name, None)

    def _hold(self, name: str, frontier: Antichain | None) -> dict[Epoch, int]:
        before = self.lower
        steps = [(epoch, -1) for epoch in self._holders[name]]
        if frontier is None:
            del self._holders[name]
        else:
            self._holders[name] = frontier
            steps += [(epoch, 1) for epoch in frontier]
        net = self._held.update(steps)
        if self._holders:
            self.lower = self._held.frontier
        else:
            self.lower = behind(before, self.finished)
            net = changes(before, self.lower)
        self.finished = tuple(one for one in self.finished if is_open(self.lower, one))
        return net


def _shown(frontier: Antichain) -> str:
    return ", ".join(map(_one, frontier)) or "nothing"


def _one(epoch: Epoch) -> str:
    return str(epoch[0]) if len(epoch) == 1 else str(epoch)
