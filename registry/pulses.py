"""Pulses: one sign of life of a host that keeps many leaderships.

::

    sl:{p:TAG}:pulses              HOST -> when its newest pulse was, for each server on which it leads groups
    sl:{g:GROUP/FILTER}:leader     host HOST, pulse TAG: renewed when that was, if later than renewed_at

A host that leads many groups does not renew them one by one. It gives one pulse per server and renewal
interval, and the record of each group names the pulse that keeps it. So what leaders cost at rest does not
grow with them. These rules make a pulse as good as a renewal:

* Whoever asks when a leadership was renewed reads the record and the pulse that it names
  (`leadership.read_all`).
* Between two pulses that are less than a ttl apart, by the clock of Redis and by that of the host, nobody can
  have taken over. Otherwise the pulse is *broken*: the host renews each record by itself, which tells it what
  it leads no more. A candidate that has seen no pulse for a ttl compares the record in the script that takes
  over, so of it and the host exactly one is first.
* A pulse keeps no leadership of which the host knows nothing: what it leads no more, and could not resign, it
  resigns before its next pulse.
* Records may be lost or changed by hand: the host looks at some of them each time, all in turn, and renews by
  themselves those that are not as it left them.

In a cluster a record and its pulse lie on one server, so one that is down hurts its own groups only.
The tag is a number: the lowest whose slot belongs to the server. Other hosts need not know that: they read
the number in the record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from typing import Any, NamedTuple

from redis.crc import key_slot

from streamlease.protocol.errors import StoreRefused, StreamleaseError
from streamlease.registry import keys
from streamlease.streams.redis.cluster import AsyncCluster
from streamlease.streams.redis.connection import AsyncRedis, Command, ask_each
from streamlease.streams.redis.scripts import load_script

_PULSE = load_script("streamlease.registry", "pulse")

FORGOTTEN_MS = 600_000
"""After so long nobody can wait for a host any more."""


class Pulse(NamedTuple):
    """Where a pulse stands, and whose it is."""

    tag: str
    host: str


class Given(NamedTuple):
    """What Redis said to a pulse; times in milliseconds of its clock."""

    former: int | None
    """When the pulse before was; None: there is none."""
    at: int
    lineage: str
    """Of the data; empty if the server does not tell."""


def tag_beside(redis: AsyncRedis, key: str) -> str:
    """The tag of pulses on the server that keeps `key`."""
    if not isinstance(redis, AsyncCluster):
        return "0"
    owners = redis.topology.owners
    server = owners[key_slot(key.encode())]
    return next(str(tag) for tag in count() if owners[key_slot(f"p:{tag}".encode())] == server)


async def give(redis: AsyncRedis, pulse: Pulse, *, tidy: bool = False) -> Given:
    """Show that the host is alive.

    Args:
        tidy: forget hosts that have been silent for long.

    Raises:
        StoreUnavailable, StoreRefused, Indefinite.
    """
    limit = FORGOTTEN_MS if tidy else ""
    former, at, lineage = await _PULSE.run(redis, [keys.pulses(pulse.tag)], [pulse.host, limit])
    return Given(_number(former), int(at), lineage.decode())


async def read(redis: AsyncRedis, wanted: Iterable[Pulse]) -> dict[Pulse, int]:
    """When the newest of these pulses were; those that were never given are left out.

    Raises:
        StoreUnavailable.
    """
    asked = list(dict.fromkeys(wanted))
    if not asked:
        return {}
    found = await ask_each(redis, [("HGET", keys.pulses(pulse.tag), pulse.host) for pulse in asked])
    times = {pulse: _number(_unless_damaged(reply)) for pulse, reply in zip(asked, found, strict=True)}
    return {pulse: at for pulse, at in times.items() if at is not None}


def all_with(tag: str) -> Command:
    """The command whose reply `times_of` reads."""
    return ("HGETALL", keys.pulses(tag))


async def changed(redis: AsyncRedis, terms: Mapping[str, int], pulse: Pulse) -> list[str]:
    """The groups whose records a pulse no longer keeps as they were renewed: to be renewed by themselves.

    Args:
        terms: group -> term in which the host of the pulse leads it.

    Raises:
        StoreUnavailable: Redis does not answer.
    """
    asked: list[Command] = [
        ("HMGET", keys.leader(group), "term", "host", "pulse", "renewed_at") for group in terms
    ]
    host, tag = pulse.host.encode(), pulse.tag.encode()
    found: list[str] = []
    for (group, term), reply in zip(terms.items(), await ask_each(redis, asked), strict=True):
        *held, renewed_at = _unless_damaged(reply) or [None]  # of a damaged one, renewing says what is wrong
        if held != [b"%d" % term, host, tag] or not (renewed_at or b"").isdigit():
            found.append(group)
    return found


def times_of(tag: str, reply: Any) -> dict[Pulse, int]:
    """When the newest pulse of each host with this tag was.

    Raises:
        StoreUnavailable: that is the reply.
    """
    return {
        Pulse(tag, host.decode("utf-8", "replace")): at
        for host, text in _pairs(reply)
        if (at := _number(text)) is not None
    }


def _pairs(reply: Any) -> Iterator[tuple[bytes, bytes]]:
    flat = _unless_damaged(reply) or []
    return zip(flat[::2], flat[1::2], strict=True)


def _unless_damaged(reply: Any) -> Any:
    """A reply; None if the key holds something else: then nothing is kept by these pulses.

    Raises:
        StoreUnavailable: the server does not answer.
    """
    if isinstance(reply, StoreRefused):
        return None
    if isinstance(reply, StreamleaseError):
        raise reply
    return reply


def _number(held: bytes | None) -> int | None:
    return int(held) if held is not None and held.isdigit() else None
