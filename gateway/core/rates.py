"""Limits of what a client may ask for. Pure: the time is handed in."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from dataclasses import dataclass

from streamlease.protocol.errors import InvalidOption, StreamleaseError

MOST_CLIENTS = 100_000
"""So many clients are told apart; he who was longest silent is forgotten."""


class TooMuch(StreamleaseError):
    """A client asks for more than it may; `seconds` is how long to wait, `limit` names what refuses it."""

    retriable = True

    def __init__(self, message: str, seconds: float, limit: str = "other") -> None:
        super().__init__(message)
        self.seconds = seconds
        self.limit = limit


@dataclass(frozen=True, slots=True)
class GatewayLimits:
    """What one gateway bears; it refuses nonsense when it is made.

    Raises:
        InvalidOption: a limit is out of range.
    """

    body_bytes: int = 16 * 1024 * 1024
    requests_per_second: float = 0.0
    """Of one client; 0: as many as it can."""
    open_polls: int = 20_000
    """Long polls and event streams of all clients."""
    client_polls: int = 20_000
    """Those of one client."""
    members: int = 2_000
    """Members of groups that are served here."""
    client_members: int = 2_000
    """Those of one client."""
    member_bytes: int = 16 * 1024 * 1024
    """What a member may have been handed without a commit."""
    client_webhooks: int = 10_000
    """Those that one client may have made; 131,072 is what all gateways of a Redis bear."""
    keyed_seconds: float = 15.0
    """For which a request with an Idempotency-Key is tried."""

    def __post_init__(self) -> None:
        if not 1 <= self.body_bytes <= 1 << 30:
            raise InvalidOption(f"the limit of a body is {self.body_bytes}: give 1 to {1 << 30} bytes")
        if not 0 <= self.requests_per_second <= 1e9:
            raise InvalidOption(
                f"the limit of requests is {self.requests_per_second}: give 0 or more a second"
            )
        for polls in (self.open_polls, self.client_polls):
            if not 1 <= polls <= 1_000_000:
                raise InvalidOption(f"the limit of open polls is {polls}: give 1 to 1000000")
        for members in (self.members, self.client_members):
            if not 1 <= members <= 1_000_000:
                raise InvalidOption(f"the limit of members is {members}: give 1 to 1000000")
        if not 1 <= self.client_webhooks <= 1_000_000:
            raise InvalidOption(f"the limit of webhooks is {self.client_webhooks}: give 1 to 1000000")
        if not 0.5 <= self.keyed_seconds <= 300:
            raise InvalidOption(
                f"a request with an Idempotency-Key is tried for {self.keyed_seconds:g} s: give 0.5 to 300"
            )
        if not 1 <= self.member_bytes <= 1 << 30:
            raise InvalidOption(
                f"the limit of what a member has not committed is {self.member_bytes}: "
                f"give 1 to {1 << 30} bytes"
            )


class Rates:
    """Lets each client make so many requests a second, and save up those of one second."""

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._most = max(1.0, per_second)
        self._clients: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """How many requests each could make, and when that was so."""

    def take(self, client: str, now: float) -> None:
        """A client makes a request.

        Raises:
            TooMuch: it is one too many.
        """
        if not self._per_second:
            return
        saved, at = self._clients.pop(client, (self._most, now))
        saved = min(self._most, saved + (now - at) * self._per_second)
        self._clients[client] = (saved - 1 if saved >= 1 else saved, now)
        if len(self._clients) > MOST_CLIENTS:
            self._clients.popitem(last=False)
        if saved < 1:
            raise TooMuch(
                f"this client may make {self._per_second:g} requests a second: wait, or send more in one",
                (1 - saved) / self._per_second,
                "rate",
            )


class OpenPolls:
    """Counts polls that are open."""

    def __init__(self, most: int, most_of_client: int) -> None:
        self._most = most
        self._most_of_client = most_of_client
        self._clients: defaultdict[str, int] = defaultdict(int)
        self.count = 0

    def enter(self, client: str) -> None:
        """A client opens one; to be followed by `leave`.

        Raises:
            TooMuch: it is one too many.
        """
        if self.count >= self._most:
            raise TooMuch(
                f"this gateway has {self._most} open polls: ask again, or another gateway", 1.0, "polls"
            )
        if self._clients[client] >= self._most_of_client:
            raise TooMuch(
                f"this client has {self._most_of_client} open polls: close one first", 1.0, "client_polls"
            )
        self._clients[client] += 1
        self.count += 1

    def leave(self, client: str) -> None:
        """A client has closed one."""
        self.count -= 1
        self._clients[client] -= 1
        if not self._clients[client]:
            del self._clients[client]
