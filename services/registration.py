"""Who serves what, as it stands in the catalog: one script for all of it (``lua/services.lua``).

A process holds one lease for all that it serves. The acts of a process that serves change its rows and its
lease together; every act, of anybody, forgets those whose lease has passed; whoever waits for a service hears
the name on the channel of news, in the same act. The rows are the truth, and the news only say when to look.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from streamlease.protocol.errors import InvalidInput, ServiceConflict
from streamlease.services import keys
from streamlease.services.handlers import ServiceTypes
from streamlease.streams.catalog.keys import CATALOG, OWNED, PROCESSES
from streamlease.streams.redis.connection import AsyncRedis, ask
from streamlease.streams.redis.scripts import load_script

_SERVICES = load_script("streamlease.services", "services")
_KEYS = [keys.SERVICES, keys.ALIVE, keys.TYPES, CATALOG.changes, PROCESSES, OWNED]


class ServiceRow(BaseModel):
    """One service of one process, as it stands in the catalog."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    service: str
    server: str
    """Its address."""
    digest: str
    """Of its types."""
    types: tuple[tuple[str, str], ...] = ()
    """The requests that it takes: name and fingerprint."""
    leaving: bool = False
    """It takes nothing more, and answers what it has."""
    process: str = ""
    host: str = ""
    pid: int = 0


class ServedRow(NamedTuple):
    """What a process serves under a name."""

    row: ServiceRow
    types: ServiceTypes


class Seen(NamedTuple):
    """What one look has seen."""

    at: int
    """In milliseconds of the clock of Redis."""
    until: dict[str, int]
    """Of each address the end of its lease."""
    rows: list[ServiceRow]


class LeaseGone(NamedTuple):
    """A process has no lease, at that time."""

    at: int


async def hold(
    redis: AsyncRedis, address: str, lease_ms: int, served: Iterable[ServedRow], *, renew: bool = False
) -> int | LeaseGone:
    """Hold the lease of `address`, with exactly what is served now.

    Args:
        renew: only if it has a lease.

    Returns:
        The time of Redis (ms).

    Raises:
        ServiceConflict: somebody serves such a name with types that do not agree.
        StoreUnavailable, StoreRefused, Indefinite: safe to repeat.
    """
    rows = [*served]
    judged: dict[str, set[str]] = {one.row.service: set() for one in rows}
    told = not renew
    while True:
        words: list[str | int] = [keys.NEWS, CATALOG.told, "hold", address, lease_ms, int(renew)]
        for one in rows:
            agreed = f",{','.join(sorted(judged[one.row.service]))},"
            types = one.types.text if told else ""
            words += [one.row.service, one.row.model_dump_json(), one.types.digest, types, agreed]
        word, at, *rest = await _SERVICES.run(redis, _KEYS, words)
        if word == b"held":
            return int(at)
        if word == b"gone":
            return LeaseGone(int(at))
        if word == b"types":
            told = True
            continue
        name, digest, text = rest[0].decode(), rest[1].decode(), rest[2]
        _judge(next(one for one in rows if one.row.service == name), text)
        judged[name].add(digest)


def _judge(one: ServedRow, text: bytes) -> None:
    """Whether others may serve the same name with these types; types that cannot be read bind nobody.

    Raises:
        ServiceConflict: no.
    """
    try:
        theirs = ServiceTypes.parse(text)
    except InvalidInput:
        return
    found = one.types.difference(theirs)
    if found is not None:
        raise ServiceConflict(
            f"service '{one.row.service}' is served with other types: {found}; "
            f"use another name, or the same types"
        )


async def leave(redis: AsyncRedis, address: str) -> None:
    """Give up the lease of `address`, and all that is served under it.

    Raises:
        StoreUnavailable, StoreRefused, Indefinite: safe to repeat.
    """
    await _SERVICES.run(redis, _KEYS, [keys.NEWS, CATALOG.told, "leave", address])


async def look(redis: AsyncRedis, names: Iterable[str] = ()) -> Seen:
    """Who serves these names; without names, all there is. Rows that cannot be read are left out.

    Raises:
        StoreUnavailable, StoreRefused, Indefinite: safe to repeat.
    """
    _, at, alive, rows = await _SERVICES.run(redis, _KEYS, [keys.NEWS, CATALOG.told, "look", *names])
    until = {address.decode(): int(float(end)) for address, end in _pairs(alive)}
    seen = [found for _, value in _pairs(rows) if (found := _parsed(value)) is not None]
    return Seen(int(at), until, seen)


def _pairs(flat: list[bytes]) -> Iterable[tuple[bytes, bytes]]:
    return zip(flat[::2], flat[1::2], strict=True)


def _parsed(value: bytes) -> ServiceRow | None:
    try:
        return ServiceRow.model_validate_json(value)
    except ValidationError:
        return None


async def read_types(redis: AsyncRedis, digests: Iterable[str]) -> Mapping[str, ServiceTypes]:
    """The types with these digests; those that are gone, or cannot be read, are left out.

    Raises:
        StoreUnavailable, StoreRefused.
    """
    wanted = [*digests]
    if not wanted:
        return {}
    (found,) = await ask(redis, [("HMGET", keys.TYPES, *wanted)])
    types: dict[str, ServiceTypes] = {}
    for digest, text in zip(wanted, found, strict=True):
        try:
            types[digest] = ServiceTypes.parse(text or b"")
        except InvalidInput:
            continue
    return types
