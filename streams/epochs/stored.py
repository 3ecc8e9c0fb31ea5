"""Reading what stands of a space's epochs: lines, boundaries, ends, and the fold of all of it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from streamlease.protocol.errors import EpochsTruncated, Fenced, StoreRefused
from streamlease.protocol.ids import StreamId
from streamlease.streams.epochs import keys
from streamlease.streams.epochs.core.boundaries import Boundary
from streamlease.streams.epochs.core.fold import Fold
from streamlease.streams.epochs.core.lines import Line, parse_line
from streamlease.streams.redis.connection import Command, Redis, ask
from streamlease.streams.redis.damaged import number, parsing

PAGE = 1000
"""Lines or boundaries in one reply."""

MOST_BACK = 50
"""Boundaries that are looked at to find where the frontier moved."""

READS = 5
"""So often a fold begins anew because a keeper trimmed the lines under it."""


class Numbered(NamedTuple):
    """A line with its number."""

    number: int
    line: Line
    stamp: str = ""
    """When it was written."""
    follows: str = ""
    """When the line before it was written."""


class Stored(NamedTuple):
    """What the keeper has written down of itself."""

    term: int
    boundary: int
    """The number of the newest boundary; 0 for none."""
    pending: tuple[int, int] | None
    """A boundary that was decided and not recorded: its number, and the line up to which it folds."""
    folded: int
    """The last line in the snapshot."""
    snapshot: bytes | None
    stamp: str = ""
    """When the last line in the snapshot was written."""


def state_command(space: str) -> Command:
    """Asks for what `parse_state` takes."""
    return ("HMGET", keys.state(space), "term", "boundary", "pending", "folded", "snapshot", "stamp")


def parse_state(space: str, reply: Sequence[bytes | None]) -> Stored:
    """What the reply to `state_command` says.

    Raises:
        Unsupported: it cannot be read.
    """
    term, boundary, pending, folded, snapshot, stamp = reply
    number, _, upto = (pending or b"").partition(b" ")
    with parsing(f"what the keeper of space {space} notes", keys.state(space)):
        return Stored(
            int(term or 0),
            int(boundary or 0),
            (int(number), int(upto)) if pending else None,
            int(folded or 0),
            snapshot,
            (stamp or b"").decode(),
        )


class Newest(NamedTuple):
    """What readers look at again and again."""

    boundary: int
    """The newest one."""
    lineage: str
    """That of the data in which a keeper wrote last, or a publisher entered, or the space was made
    (`registry/leadership.py`); empty if nobody tells."""


def newest_command(space: str) -> Command:
    """Asks for what `parse_newest` takes."""
    return ("HMGET", keys.state(space), "boundary", "lineage")


def parse_newest(space: str, reply: Sequence[bytes | None]) -> Newest:
    """What the reply to `newest_command` says.

    Raises:
        Unsupported: it cannot be read.
    """
    boundary, lineage = reply
    with parsing(f"what the keeper of space {space} notes", keys.state(space)):
        return Newest(int(boundary or 0), (lineage or b"").decode())


def lines_command(space: str, after: int, count: int = PAGE) -> Command:
    """Asks for the lines behind number `after`."""
    return ("XRANGE", keys.lines(space), f"{after + 1}-0", "+", "COUNT", count)


def parse_lines(space: str, reply: Sequence[tuple[bytes, Sequence[bytes]]]) -> list[Numbered]:
    """What the reply to `lines_command` says.

    Raises:
        Unsupported: one cannot be read.
    """
    with parsing(f"a line of the epochs of space {space}", keys.lines(space)):
        return [
            Numbered(
                int(id.partition(b"-")[0]), parse_line(fields[1]), *(one.decode() for one in fields[3:6:2])
            )
            for id, fields in reply
        ]


class Behind(NamedTuple):
    """What stands behind a line that somebody has folded."""

    lines: list[Numbered]
    stamp: str | None
    """When that line was written; None: it is not there."""
    boundary: int
    """The number of the newest boundary."""


async def read_behind(redis: Redis, space: str, line: int, count: int = PAGE) -> Behind:
    """The lines behind number `line`, at most `count`, and whether that one is still there.

    Raises:
        Unsupported: one cannot be read.
        StoreUnavailable, StoreRefused.
    """
    asked = [
        lines_command(space, line - 1, count + 1),
        ("HMGET", keys.state(space), "boundary", "folded", "stamp"),
    ]
    reply, (newest, folded, stamp) = await ask(redis, asked)
    lines = parse_lines(space, reply)
    stored = parse_state(space, (None, newest, None, folded, None, stamp))
    if lines and lines[0].number == line:
        return Behind(lines[1:], lines[0].stamp, stored.boundary)
    return Behind(lines[:count], stored.stamp if stored.folded == line else None, stored.boundary)


class Writer(NamedTuple):
    """What stands of the newest incarnation of a publisher's name."""

    inc: int
    sequence: int
    line: int
    """The number of its newest line."""
    seen: int
    """Its last sign of life, in milliseconds of the Redis clock."""
    state: str
    """``here``, ``left`` or ``lost``."""

    @property
    def is_here(self) -> bool:
        """Whether it neither left nor was given up."""
        return self.state == "here"


async def read_writers(redis: Redis, space: str) -> dict[str, Writer]:
    """All publishers that a space ever had, by name.

    Raises:
        Unsupported: what stands of one cannot be read.
        StoreUnavailable, StoreRefused.
    """
    (reply,) = await ask(redis, [("HGETALL", keys.writers(space))])
    found: dict[str, Writer] = {}
    for name, record in zip(reply[::2], reply[1::2], strict=True):
        if not name.startswith(b"!"):
            with parsing(f"publisher {ascii(name)[2:-1][:80]} of space {space}", keys.writers(space)):
                inc, _, sequence, line, seen, state = record.decode().split(" ")
                found[name.decode()] = Writer(int(inc), int(sequence), int(line), int(seen), state)
    return found


def bounds_command(space: str, after: int, count: int = PAGE) -> Command:
    """Asks for the boundaries behind number `after`."""
    return ("XRANGE", keys.bounds(space), f"{after + 1}-0", "+", "COUNT", count)


def parse_bounds(space: str, reply: Sequence[tuple[bytes, Sequence[bytes]]]) -> list[Boundary]:
    """What the reply to `bounds_command` says.

    Raises:
        Unsupported: one cannot be read.
    """
    with parsing(f"a boundary of space {space}", keys.bounds(space)):
        return [
            Boundary.parse(int(id.partition(b"-")[0]), fields[1], int(fields[3]) if len(fields) > 3 else 0)
            for id, fields in reply
        ]


async def read_bounds(redis: Redis, space: str, after: int, count: int = PAGE) -> list[Boundary]:
    """The next boundaries behind number `after`, at most `count`.

    Raises:
        EpochsTruncated: those right behind it are not there any more.
        StoreUnavailable, StoreRefused.
    """
    (reply,) = await ask(redis, [bounds_command(space, after, count)])
    found = parse_bounds(space, reply)
    if found and found[0].number != after + 1:
        raise EpochsTruncated(
            f"the boundaries {after + 1} to {found[0].number - 1} of space {space} are not there any more: "
            f"retention removed them; read from the earliest"
        )
    return found


async def read_newest(redis: Redis, space: str) -> Boundary | None:
    """The newest boundary; None: there is none.

    Raises:
        Unsupported: it cannot be read.
        StoreUnavailable, StoreRefused.
    """
    (reply,) = await ask(redis, [("XREVRANGE", keys.bounds(space), "+", "-", "COUNT", 1)])
    return next(iter(parse_bounds(space, reply)), None)


class Joined(NamedTuple):
    """Where somebody begins who wants all that comes behind a boundary."""

    boundary: int
    ends: dict[StreamId, int]
    """Where each stream that has messages of epochs ends at that boundary; others are empty."""


def joined_commands(space: str) -> list[Command]:
    """Asks for what `parse_joined` takes. All in one transaction, or in one script."""
    return [("HGET", keys.state(space), "boundary"), ("HGETALL", keys.ends(space))]


async def read_frontier_since(redis: Redis, space: str) -> int | None:
    """Since when the lower frontier is where it is at the newest boundary: milliseconds of the Redis clock.

    Without a boundary, since the first publisher came; None: none ever did. Of more than `MOST_BACK`
    boundaries with the same frontier, since the oldest of so many.

    Raises:
        Unsupported: a boundary cannot be read.
        StoreUnavailable, StoreRefused.
    """
    back, first = await ask(
        redis,
        [
            ("XREVRANGE", keys.bounds(space), "+", "-", "COUNT", MOST_BACK),
            ("HGET", keys.writers(space), "!since"),
        ],
    )
    found = parse_bounds(space, back)
    same = list(takewhile(lambda one: one.lower == found[0].lower, found))
    if same:
        return same[-1].at
    return None if first is None else number(keys.writers(space), first)


async def read_base(redis: Redis, space: str) -> dict[StreamId, int]:
    """Where streams ended at the last boundary that was forgotten; others were empty, or have all they had.

    Raises:
        StoreUnavailable, StoreRefused.
    """
    (reply,) = await ask(redis, [("HGETALL", keys.base(space))])
    return _by_stream(keys.base(space), reply)


def parse_joined(space: str, boundary: bytes | None, ends: Sequence[bytes]) -> Joined:
    """What the replies to `joined_commands` say.

    Raises:
        Unsupported: they cannot be read.
    """
    return Joined(number(keys.state(space), boundary), _by_stream(keys.ends(space), ends))


def _by_stream(key: str, reply: Sequence[bytes]) -> dict[StreamId, int]:
    with parsing("where streams ended", key):
        return {
            StreamId.parse(one.decode()): int(end) for one, end in zip(reply[::2], reply[1::2], strict=True)
        }


async def read_joined(redis: Redis, space: str) -> Joined:
    """The newest boundary, with the ends of all streams at it.

    Raises:
        StoreUnavailable, StoreRefused.
    """
    while True:
        # The ends change only with the boundary: the same number before and behind them vouches for them.
        boundary, ends, again = await ask(redis, [*joined_commands(space), joined_commands(space)[0]])
        if boundary == again:
            return parse_joined(space, boundary, ends)


async def read_fold(redis: Redis, space: str, dimensions: int, least: int = 0) -> Fold:
    """What all lines come to; boundaries are not taken.

    What was moved since the snapshot still waits in it, and what was dropped since is still to be dropped.

    Args:
        least: the number of a line that was written: it is in what is returned.

    Raises:
        Unsupported: something cannot be read.
        StoreUnavailable, StoreRefused: try again; also if that line is not there.
    """
    fold = Fold(dimensions)
    for _ in range(READS):
        (reply,) = await ask(redis, [state_command(space)])
        stored = parse_state(space, reply)
        fold = Fold.load(dimensions, stored.snapshot) if stored.snapshot else Fold(dimensions)
        if await catch_up(redis, space, fold) and fold.line >= least:
            return fold
    raise StoreRefused(
        f"the lines of the epochs of space {space} end at {fold.line}, and line {least} was written: "
        f"Redis lost some, or a keeper trims them right now; try again"
    )


async def catch_up(redis: Redis, space: str, fold: Fold) -> bool:
    """Fold the lines behind those that it has; False if the next one is gone: there is a newer snapshot."""
    while True:
        (reply,) = await ask(redis, [lines_command(space, fold.line)])
        if not reply:
            return True
        for one in parse_lines(space, reply):
            if one.number != fold.line + 1:
                return False
            fold.apply(one.number, one.line)


def expect(reply: Any, good: bytes) -> int:
    """The number behind a good reply.

    Raises:
        Fenced: another keeper has a higher term.
        StoreRefused: it is none.
    """
    if reply[0] == good:
        return int(reply[1]) if len(reply) > 1 else 0
    if reply[0] == b"fenced":
        raise Fenced(f"a keeper of term {int(reply[1])} is there: this one ends")
    raise StoreRefused(f"the keeper is answered {reply!r}: Redis lost writes, or another keeper is there")
