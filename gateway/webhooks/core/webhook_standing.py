"""How a webhook stands: how far it is, whether its callback answers, and when it is tried again. Pure.

::

    active <--> failing --> suspended
       |                        ^
       +------------------------+

A webhook is *active* while its callback takes what comes, *failing* while it does not and is tried again
after growing pauses, *suspended* when nothing is delivered until its subscriber asks for it again: because
the callback failed for too long or answered 410, because retention took what comes next, or because its token
may not read that any more. `TRANSITIONS` holds every legal move; only its subscriber leads out of
`suspended`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from streamlease.protocol.errors import InvalidOption


class WebhookState(Enum):
    """Where a webhook is in its life."""

    ACTIVE = "active"
    FAILING = "failing"
    SUSPENDED = "suspended"


class WebhookEvent(Enum):
    """What can move it."""

    TAKEN = "taken"
    """The callback answered 2xx."""
    FAILED = "failed"
    """It answered otherwise, or not at all."""
    GIVEN_UP = "given up"
    """It has failed for too long, or wants no more; or there is nothing that could be delivered."""


_S, _E = WebhookState, WebhookEvent

TRANSITIONS: dict[tuple[WebhookState, WebhookEvent], WebhookState] = {
    (_S.ACTIVE, _E.TAKEN): _S.ACTIVE,
    (_S.ACTIVE, _E.FAILED): _S.FAILING,
    (_S.ACTIVE, _E.GIVEN_UP): _S.SUSPENDED,
    (_S.FAILING, _E.TAKEN): _S.ACTIVE,
    (_S.FAILING, _E.FAILED): _S.FAILING,
    (_S.FAILING, _E.GIVEN_UP): _S.SUSPENDED,
}
"""Every other pair is refused, and changes nothing."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a callback is borne with.

    Raises:
        InvalidOption: a value is out of range.
    """

    first_pause_ms: int = 1000
    longest_pause_ms: int = 300_000
    suspend_after_ms: int = 86_400_000
    """After so long without a success it is suspended."""

    def __post_init__(self) -> None:
        if not 1 <= self.first_pause_ms <= self.longest_pause_ms:
            raise InvalidOption(
                f"the pauses of a callback are {self.first_pause_ms} to {self.longest_pause_ms} ms: give a "
                f"first one above 0, and a longest one not below it"
            )
        if not 1000 <= self.suspend_after_ms <= 365 * 86_400_000:
            raise InvalidOption(
                f"a callback is suspended after {self.suspend_after_ms} ms: give 1 second to 365 days"
            )

    def pause(self, failures: int) -> int:
        """How long to wait after so many failures in a row, in ms."""
        return min(self.longest_pause_ms, self.first_pause_ms << min(failures - 1, 32))


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why nothing was delivered the last time."""

    error: str
    """Its name, as in the type of a problem document."""
    detail: str
    at: int
    """When, in ms since 1970."""
    oldest: str | None = None
    """The cursor to go on from, where history was truncated."""


@dataclass(frozen=True, slots=True)
class WebhookStanding:
    """How one webhook stands."""

    position: str
    """The cursor from which on the log is read."""
    told: str
    """The cursor that the callback acknowledged last: what it gets next follows it."""
    state: WebhookState = WebhookState.ACTIVE
    failures: int = 0
    """In a row."""
    failing_since: int = 0
    again_at: int = 0
    """When it is tried again, in ms since 1970; 0: at once."""
    delivered: int = 0
    """Messages that were acknowledged."""
    trouble: Trouble | None = None

    def _moved(self, event: WebhookEvent) -> WebhookState | None:
        return TRANSITIONS.get((self.state, event))

    def taken(self, position: str, messages: int) -> WebhookStanding:
        """The callback has all before `position`."""
        state = self._moved(WebhookEvent.TAKEN)
        return (
            self
            if state is None
            else WebhookStanding(position, position, delivered=self.delivered + messages)
        )

    def looked(self, position: str) -> WebhookStanding:
        """Nothing before `position` is for it."""
        return self if position == self.position else replace(self, position=position)

    def failed(self, trouble: Trouble, patience: Patience, *, wants_no_more: bool = False) -> WebhookStanding:
        """The callback did not take a delivery.

        Args:
            wants_no_more: it said that none is to come again.
        """
        since = self.failing_since or trouble.at
        if wants_no_more or trouble.at - since >= patience.suspend_after_ms:
            return self.given_up(trouble)
        state = self._moved(WebhookEvent.FAILED)
        if state is None:
            return self
        failures = self.failures + 1
        return replace(
            self, state=state, failures=failures, failing_since=since, trouble=trouble,
            again_at=trouble.at + patience.pause(failures),
        )  # fmt: skip

    def given_up(self, trouble: Trouble) -> WebhookStanding:
        """Nothing more is delivered."""
        state = self._moved(WebhookEvent.GIVEN_UP)
        return self if state is None else replace(self, state=state, again_at=0, trouble=trouble)

    def overtaken(self, trouble: Trouble) -> WebhookStanding:
        """Retention took what comes next, while nothing was delivered anyway."""
        return replace(self, trouble=trouble)

    def went_on(self, position: str, trouble: Trouble) -> WebhookStanding:
        """Redis lost what comes next. What is delivered then does not follow what the callback has."""
        return (
            self
            if self.state is WebhookState.SUSPENDED
            else replace(self, position=position, told=position, trouble=trouble)
        )

    def resumed(self) -> WebhookStanding:
        """Its subscriber asked for it again: it goes on where it was."""
        return WebhookStanding(self.position, self.told, delivered=self.delivered)
