"""The rows of a collection of the catalog, and what changed behind a point.

A point is the id of a change. Whoever has it goes on behind it as long as that change stands in the log: then
nothing before it was lost or left out. Where a failover lost it, or the log was cut past it, it is absent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from streamlease.streams.catalog.keys import Home
from streamlease.streams.redis.connection import AsyncRedis, ask
from streamlease.streams.redis.scripts import load_script

BEGINNING = "0-0"
"""The point before the first change."""

FIELDS = [b"c", b"k", b"o", b"n", b"i"]
PAGE = 1000
"""Changes read at once."""

_ROWS = load_script("streamlease.streams.catalog", "rows")


class ChangesGone(Exception):
    """The change at a point does not stand in the log any more: what came behind it is not known."""


class DamagedChange(ChangesGone):
    """A change cannot be read, so what changed is not known, either; which one it is."""


class Listed(NamedTuple):
    """All rows of a collection at one point."""

    at: str
    rows: dict[str, str]
    over: int
    """Who is dead, but whose rows nobody removed yet."""


class RowChange(NamedTuple):
    """A row that changed: JSON before and after, each empty where there is none."""

    at: str
    collection: str
    key: str
    former: str
    row: str


class Owners(NamedTuple):
    """Who it is of whom rows are: a row counts as long as he lives."""

    key: str
    """Of a zset: until when he does, or when he was seen last."""
    seen_ms: int = 0
    """For how long who was seen is alive; 0: the zset says until when."""


async def list_rows(redis: AsyncRedis, home: Home, rows: str, owners: Owners | None = None) -> Listed:
    """All rows, and the point at which they are so; not those of who is dead.

    Args:
        rows: key of the hash in which they stand.
        owners: of whom they are; None: all of them count.

    Raises:
        StoreUnavailable, StoreRefused.
    """
    keys = [rows, home.changes, *([owners.key] if owners is not None else [])]
    at, pairs, over = await _ROWS.run(redis, keys, [owners.seen_ms if owners is not None else 0])
    gone = {one + b"/" for one in over}
    return Listed(
        at.decode(),
        {
            _text(key): _text(row)
            for key, row in zip(pairs[::2], pairs[1::2], strict=True)
            if not gone or key.partition(b"/")[0] + b"/" not in gone
        },
        len(gone),
    )


async def changes_behind(redis: AsyncRedis, home: Home, at: str, upto: str = "+") -> list[RowChange]:
    """What changed behind a point, in order; `PAGE` changes at most.

    Args:
        upto: the last change that is wanted.

    Raises:
        ChangesGone: the change at the point is gone.
        DamagedChange: it, or one behind it, cannot be read.
        StoreUnavailable, StoreRefused.
    """
    first = "-" if at == BEGINNING else at
    (entries,) = await ask(redis, [("XRANGE", home.changes, first, upto, "COUNT", PAGE + 1)])
    found = [_change(home, entry_id, fields) for entry_id, fields in entries]
    if at == BEGINNING:
        if found and found[0][1] != 1:
            raise ChangesGone(at)
        return [change for change, _ in found]
    if not found or found[0][0].at != at:
        raise ChangesGone(at)
    return [change for change, _ in found[1:]]


def _change(home: Home, entry_id: bytes, fields: Sequence[bytes]) -> tuple[RowChange, int]:
    try:
        names, (collection, key, former, row, number) = fields[::2], fields[1::2]
        if names != FIELDS:
            raise ValueError("these are not the fields of a change")
        texts = (entry_id.decode(), collection.decode(), _text(key), _text(former), _text(row))
        return RowChange(*texts), int(number)
    except ValueError:
        raise DamagedChange(
            f"the change {entry_id.decode('ascii', 'replace')} in {home.changes} is damaged"
        ) from None


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
