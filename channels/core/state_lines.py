"""Keys of states: of each the newest one goes out, as what differs from the one that the client has. Pure.

::

    state 1, 2, 3 ...           the client has none                  gets 3, whole, under sequence 7
    state 4, 5                  7 is acknowledged: it has 3          gets what differs from 3 to 5, "after": 7
    state 6, before an answer   nothing is acknowledged: it has 3    gets what differs from 3 to 6, "after": 7

So nothing waits: a client that is slow, or comes back after long, gets one state and not a line of old ones,
and nothing of it is kept but the state that it has. `after` is the sequence under which the client got that
one, 0 if it has none. A client that has another one cannot use the difference, and subscribes anew.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol


class StateSource(Protocol):
    """Where the states of a key come from."""

    def now(self) -> Any | None:
        """The newest state, the same object as long as it is the newest; None: nothing is known yet."""

    def difference(self, before: Any | None, now: Any) -> bytes | None:
        """As JSON what makes `now` of `before`, or the whole, if that is None; None: they are equal."""


class ToldState(NamedTuple):
    """What goes out of a state."""

    state: Any
    body: bytes
    """As JSON, without braces."""


class StateLine:
    """A key's state, as one client has it."""

    __slots__ = ("_after", "_known", "_source")

    def __init__(self, source: StateSource) -> None:
        self._source = source
        self._known: Any | None = None
        self._after = 0

    @property
    def has_news(self) -> bool:
        """Whether there is another state than the one that the client has."""
        now = self._source.now()
        return now is not None and now is not self._known

    def tell(self) -> ToldState | None:
        """What the client has to be told; None: nothing."""
        now = self._source.now()
        if now is None or now is self._known:
            return None
        told = self._source.difference(self._known, now)
        if told is None:
            self._known = now
            return None
        return ToldState(now, b'"state":%b,"after":%d' % (told, self._after))

    def acknowledge(self, state: Any, sequence: int) -> None:
        """The client has it."""
        self._known, self._after = state, sequence
