"""What the bridge is told: checked when it is built, relations between values included. Pure.

A broker may send a message once for each filter of a client that selects it, and a message that goes out
under a topic that also comes in goes round for ever. So neither filters nor ways may overlap.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal, NamedTuple

from streamlease.protocol.addresses import shown_address
from streamlease.protocol.errors import InvalidOption
from streamlease.protocol.ids import check_name
from streamlease.protocol.topics import SHARED_PREFIXES, SharedSubscription, check_filter, intersect

PORTS = {"mqtt": 1883, "mqtts": 8883}
MOST_WINDOW = 32_767
"""Half of the packet identifiers: what is in hand is told from what comes."""

_URL = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::(\d{1,5}))?/?\Z")

Protocol = Literal["5", "3.1.1"]
Unfit = Literal["stop", "drop"]


class BrokerAddress(NamedTuple):
    """Where a broker is."""

    host: str
    port: int
    tls: bool
    user: str | None = None

    def __str__(self) -> str:
        return shown_address(self.host, self.port)


def parse_address(url: str) -> BrokerAddress:
    """The address in a URL such as ``mqtts://USER@HOST:8883``.

    Raises:
        InvalidOption: it is none, or holds a password, which the error does not repeat.
    """
    scheme, found, rest = url.partition("://")
    if not found or scheme not in PORTS:
        raise InvalidOption(
            f"the URL of the broker begins with {ascii(scheme)[:20] if found else 'no scheme'}: "
            f"use mqtt://HOST:1883, or mqtts://HOST:8883 with TLS"
        )
    login, at, place = rest.rpartition("@")
    if ":" in login:
        raise InvalidOption(
            "the URL of the broker holds a password, which everybody on this machine can see: "
            "give it with --password-file, or as STREAMLEASE_MQTT_PASSWORD"
        )
    parts = _URL.match(place)
    if parts is None or (at and not login):
        shown = ascii(place)[:80] if not at else "behind the '@'"
        raise InvalidOption(f"the URL of the broker names no host ({shown}): write {scheme}://HOST:PORT")
    port = int(parts[3]) if parts[3] else PORTS[scheme]
    if not 0 < port <= 65_535:
        raise InvalidOption(f"the port of the broker is {port}: it must be from 1 to 65535")
    return BrokerAddress(parts[1] or parts[2], port, scheme == "mqtts", login or None)


@dataclass(frozen=True, slots=True)
class BridgeSettings:
    """Settings of ``streamlease bridge mqtt``.

    Args:
        filters: what comes in, such as ``sensors/#`` or ``$share/GROUP/sensors/#``.
        out: the group whose messages go out.
        client_id: names the session at the broker; two processes must not have one.
        window: how many messages may be under way, in each direction.
        unfit: what becomes of a message that no space can take.

    Raises:
        InvalidInput: a value is not acceptable, or two of them contradict each other.
    """

    address: BrokerAddress
    filters: tuple[str, ...]
    out: SharedSubscription | None
    client_id: str
    protocol: Protocol = "5"
    user: str | None = None
    password: str | None = None
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    window: int = 1000
    unfit: Unfit = "stop"

    def __post_init__(self) -> None:
        check_name("--client-id", self.client_id)
        if not 1 <= self.window <= MOST_WINDOW:
            raise InvalidOption(f"--window is {self.window}: give 1 to {MOST_WINDOW} messages")
        if not self.filters and self.out is None:
            raise InvalidOption("nothing is to be bridged: give --filter, --out, or both")
        if not self.address.tls and (self.ca or self.certificate or self.key):
            raise InvalidOption(
                f"--ca, --cert and --key are for TLS, and the URL has none: use mqtts://{self.address.host}"
            )
        if bool(self.certificate) != bool(self.key):
            raise InvalidOption("--cert and --key belong together: give both, or none")
        if self.password is not None and self.login is None:
            raise InvalidOption("there is a password, and no user: add --user NAME")
        topics = inner_filters(self.filters)
        for (one, first), (other, second) in combinations(zip(self.filters, topics, strict=True), 2):
            if intersect(first, second):
                raise InvalidOption(
                    f"--filter {one} and --filter {other} select the same topics, whose messages could come "
                    f"twice: leave one out"
                )
        for one, inner in zip(self.filters, topics, strict=True):
            if self.out is not None and intersect(inner, self.out.filter):
                raise InvalidOption(
                    f"--filter {one} brings in what --out {self.out} sends, so messages would go round: "
                    f"let them select different topics"
                )

    @property
    def login(self) -> str | None:
        """The user at the broker."""
        return self.user if self.user is not None else self.address.user

    @property
    def source(self) -> str:
        """The name under which the bridge appends: of the broker and the session."""
        return f"mqtt:{self.address}:{self.client_id}"


def inner_filters(filters: Sequence[str]) -> list[str]:
    """The topics that filters of the broker select, without ``$share/GROUP/``.

    Raises:
        InvalidTopic, InvalidOption: one is malformed.
    """
    return [_inner(one) for one in filters]


def _inner(filter: str) -> str:
    first, _, rest = filter.partition("/")
    if first in SHARED_PREFIXES:
        raise InvalidOption(
            f"--filter {ascii(filter)[:80]} is a group of Streamlease: the broker's are "
            f"$share/GROUP/FILTER; groups go out with --out"
        )
    if first != "$share":
        return check_filter(filter)
    group, _, inner = rest.partition("/")
    if not group or not inner or set(group) & set("+#"):
        raise InvalidOption(f"--filter {ascii(filter)[:80]} is malformed: write $share/GROUP/FILTER")
    return check_filter(inner)
