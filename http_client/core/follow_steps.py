"""What happens to a follower, what it does about it, and how it is told to follow."""

from __future__ import annotations

from dataclasses import dataclass

from streamlease.http.core.gateway_pages import GatewayPage
from streamlease.http.core.given import is_number
from streamlease.protocol.errors import InvalidOption, StreamleaseError


@dataclass(frozen=True, slots=True)
class FollowOptions:
    """How to follow.

    Args:
        push: subscribe. pull: ask. One of them at least.
        quiet_least, quiet_most: seconds of silence of a subscription, after which the client asks.
        wait: seconds for which a question waits for something, while nothing pushes.
        limit: most messages of an answer.
        spread: from 0 to 1, other for each client, so that not all of them come back at once.
        patience: seconds without a good answer, after which the client gives up; None: never.
        fail_on_loss: give up where something is not there any more; otherwise go on with all that is left.
    """

    push: bool = True
    pull: bool = True
    quiet_least: float = 1.0
    quiet_most: float = 30.0
    wait: float = 20.0
    limit: int = 1000
    spread: float = 0.5
    patience: float | None = None
    fail_on_loss: bool = True

    def __post_init__(self) -> None:
        for name in ("quiet_least", "quiet_most", "wait", "limit", "patience"):
            given = getattr(self, name)
            if not is_number(given) and (given is not None or name != "patience"):
                raise InvalidOption(f"{name} is {ascii(given)[:80]}: give a number")
        if not (self.push or self.pull):
            raise InvalidOption("push and pull are both off: leave one of them on")
        if not 0 < self.quiet_least <= self.quiet_most:
            raise InvalidOption(
                f"quiet is {self.quiet_least} to {self.quiet_most} seconds: give two numbers above 0, "
                "the lower one first"
            )
        if not 0 <= self.wait <= 60:
            raise InvalidOption(f"wait is {self.wait}: give seconds from 0 to 60")
        if not 1 <= self.limit <= 10_000:
            raise InvalidOption(f"limit is {self.limit}: give a number of messages from 1 to 10000")
        if self.patience is not None and self.patience <= 0:
            raise InvalidOption(f"patience is {self.patience}: give seconds above 0, or None")


# -- events ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FollowBegun:
    """Somebody wants messages."""


@dataclass(frozen=True, slots=True)
class QuestionAnswered:
    """The gateway told what comes after the cursor that was asked with."""

    question: int
    page: GatewayPage


@dataclass(frozen=True, slots=True)
class QuestionFailed:
    """No answer came, or a problem."""

    question: int
    error: StreamleaseError


@dataclass(frozen=True, slots=True)
class SubscriptionMade:
    """The gateway told the cursor at which a subscription begins, before it pushed anything."""

    subscription: int
    begin: str


@dataclass(frozen=True, slots=True)
class PagePushed:
    """A callback or an event came; `after` is the mark of the cursor before it."""

    subscription: int
    after: str | None
    page: GatewayPage


@dataclass(frozen=True, slots=True)
class PushEnded:
    """A subscription could not be made, or ended by itself."""

    subscription: int
    error: StreamleaseError


@dataclass(frozen=True, slots=True)
class Woke:
    """The time `due` is over."""


FollowEvent = (
    FollowBegun | QuestionAnswered | QuestionFailed | SubscriptionMade | PagePushed | PushEnded | Woke
)

# -- effects -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HandOver:
    """Put the page into the queue."""

    page: GatewayPage


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask what comes after `since`."""

    question: int
    since: str
    wait: float


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Have pushed what comes after `since`."""

    subscription: int
    since: str


@dataclass(frozen=True, slots=True)
class Cancel:
    """End a subscription, on both sides."""

    subscription: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Tell who wants messages that there will be none."""

    error: StreamleaseError


FollowEffect = HandOver | Ask | Subscribe | Cancel | GiveUp
Effects = list[FollowEffect]
