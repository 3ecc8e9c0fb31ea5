"""The acts of a keeper of one space, under one term: fold, decide, move, drop, record.

::

    lines --fold--> due? --decide n--> move what is complete, stream by stream --> drop --> record n

Each step may be repeated: what was decided holds, a move that was done says so, and what is recorded is. So a
turn that failed in the middle is gone on with by the next turn, or by the next keeper, which finds what is
pending. Whoever has a higher term fences this one at the next decision or record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from redis.exceptions import ResponseError

from streamlease.protocol.errors import NotDurable, StoreRefused, StreamleaseError, Unsupported
from streamlease.protocol.ids import StreamId
from streamlease.streams.epochs import keys
from streamlease.streams.epochs.core.boundaries import Boundary, DroppedOpen, MovedPart
from streamlease.streams.epochs.core.fold import Dropped, Fold, Owned
from streamlease.streams.epochs.core.lines import Ranges
from streamlease.streams.epochs.core.silence import Sign, Silences
from streamlease.streams.epochs.stored import (
    Numbered,
    expect,
    parse_state,
    read_behind,
    read_bounds,
    read_writers,
    state_command,
)
from streamlease.streams.epochs.tidying import STREAMS_AT_ONCE, forgettable, orphans, to_drop
from streamlease.streams.epochs.writing import lose
from streamlease.streams.log.appends import refused_append
from streamlease.streams.log.keys import append_keys, stream_news
from streamlease.streams.redis.cluster import AsyncCluster
from streamlease.streams.redis.connection import Argument, AsyncRedis, ask, refusal
from streamlease.streams.redis.durability import Durability
from streamlease.streams.redis.durable import run_settled
from streamlease.streams.redis.scripts import Call, load_script, run_many

_ROOM = "streamlease.streams.epochs"

PIECE_ROWS = 4096
"""Messages in one piece of a move at most: with `MOVE_ENTRIES`, how long one script may take."""

MOVE_ENTRIES = 256
"""After so many entries a move leaves the rest to the next call."""

DROP_ENTRIES = 512
"""So many staged entries are looked at by one call."""

LINES_AT_ONCE = 1000
"""A boundary folds so many lines at most."""

SNAPSHOT_LINES = 2000
"""So many lines stand behind a snapshot before there is a new one."""

INCARNATIONS = 1 << 20
"""Incarnation I of a name appends to staged logs under the incarnations from I times so many on."""
_Piece = tuple[Owned, int, int]


@dataclass(slots=True)
class _Open:
    """A boundary between its decision and its record."""

    number: int
    upto: int
    complete: list[Owned]
    dropped: list[Dropped]
    moved: list[MovedPart] | None = None
    ends: dict[StreamId, int] = field(default_factory=dict)
    gaps: dict[StreamId, Ranges] = field(default_factory=dict)


class Keeper:
    """Keeps one space. `begin` first; then `turn` whenever there may be lines.

    Args:
        streams: all streams of the space.
        term: that of the claim under which it keeps.
        clock: this process' own clock, in milliseconds.
        timeout: milliseconds after which a silent publisher is given up; None: never.
    """

    def __init__(
        self,
        redis: AsyncRedis,
        space: str,
        dimensions: int,
        streams: Sequence[StreamId],
        term: int,
        clock: Callable[[], int],
        *,
        durability: Durability,
        timeout: int | None,
    ) -> None:
        self.space = space
        self._redis = redis
        self._streams = streams
        self._term = term
        self._clock = clock
        self._durability = durability
        self._silences = Silences(timeout) if timeout is not None else None
        self._fold = Fold(dimensions)
        self._open: _Open | None = None
        self._stamp = ""
        """When the last line that it has folded was written: another may stand there after a failover."""
        self._kept_line = 0
        """The last line in the newest snapshot."""
        self._kept_boundary = 0
        """The last boundary in it: those behind it are needed to go on from it."""

    @property
    def boundary(self) -> int:
        """The number of the newest boundary that it knows of."""
        return self._fold.boundary - (self._open is not None)

    @property
    def fold(self) -> Fold:
        """What the lines come to, as far as it has read them. Only to look at."""
        return self._fold

    async def begin(self) -> None:
        """Take over from whoever kept the space before.

        Raises:
            Fenced: another keeper has a higher term.
            Unsupported: what is there cannot be read.
            StoreUnavailable, StoreRefused, Indefinite: try again.
        """
        expect(await self._script("take_over", [keys.state(self.space)], [self._term]), b"taken")
        (reply,) = await ask(self._redis, [state_command(self.space)])
        stored = parse_state(self.space, reply)
        fold = self._fold
        if stored.snapshot:
            fold = Fold.load(fold.dimensions, stored.snapshot)
        self._fold, self._open, self._kept_line = fold, None, fold.line
        self._kept_boundary, self._stamp = fold.boundary, stored.stamp
        ahead: list[Numbered] = []
        while fold.boundary < stored.boundary:
            bounds = await read_bounds(self._redis, self.space, fold.boundary)
            if not bounds:
                raise self._hole(f"boundary {fold.boundary + 1}")
            # One that is newer was recorded since, by a call that comes late: it is the pending one.
            for bound in [one for one in bounds if one.number <= stored.boundary]:
                ahead = await self._fold_upto(bound.upto, ahead)
                fold.take_completed(bound.number)
        if stored.pending is not None:
            number, upto = stored.pending
            await self._fold_upto(upto, ahead)
            self._take(number, upto)

    async def turn(self) -> bool:
        """Fold what there is, and complete what is complete; whether a boundary was recorded.

        Raises:
            Fenced: another keeper has a higher term.
            Unsupported, StreamleaseError: something cannot be read, or a stream takes nothing.
            StoreUnavailable, StoreRefused, Indefinite, NotDurable: try again.
        """
        if self._open is None:
            self._apply(await self._lines(self._fold.boundary))
            if not self._fold.due:
                await self._keep()
                return False
            await self._decide()
        opened = self._open
        assert opened is not None
        if opened.moved is None:
            opened.moved = await self._move(opened)
            await self._drop(opened.dropped)
        await self._record(opened, opened.moved)
        self._open = None
        await self._keep()
        return True

    async def look(self) -> list[Sign]:
        """Give up the publishers that are silent; which.

        Raises:
            StoreUnavailable, StoreRefused, Indefinite: try again.
        """
        if self._silences is None:
            return []
        (time,) = await ask(self._redis, [("TIME",)])
        now = int(time[0]) * 1000 + int(time[1]) // 1000
        writers = await read_writers(self._redis, self.space)
        signs = [Sign(name, one.inc, one.seen) for name, one in writers.items() if one.is_here]
        return [
            sign
            for sign in self._silences.look(signs, now, self._clock())
            if await lose(self._redis, self.space, sign.name, sign.inc, "silent", str(sign.seen))
        ]

    async def tidy(self) -> None:
        """Clear away what leads nowhere; right after a turn that found nothing to do.

        Raises:
            Fenced: another keeper has a higher term.
            StoreUnavailable, StoreRefused, Indefinite, NotDurable: try again.
        """
        if self._open is not None:
            return
        if found := await orphans(self._redis, self.space, self._fold, self._streams):
            await self._lines(self._fold.boundary)  # what was read there is judged by what is still so
            await self._remove(found, "", -1)
        old = await forgettable(self._redis, self.space, self._kept_boundary)
        if old is not None:
            args: list[Argument] = [self._term, old.first_kept]
            for stream, end in old.ends.items():
                args += (str(stream), end)
            names = [keys.bounds(self.space), keys.base(self.space), keys.state(self.space)]
            expect(await self._script("forget", names, args), b"forgotten")

    # ------------------------------------------------------------ inside

    async def _lines(self, boundary: int | None = None) -> list[Numbered]:
        """Those that are not folded yet.

        Args:
            boundary: the newest one, if that is known.

        Raises:
            StoreRefused: the last line that is folded is not there, or another boundary is the newest.
        """
        line = self._fold.line
        found = await read_behind(self._redis, self.space, line, LINES_AT_ONCE)
        if found.stamp != self._stamp:
            raise self._hole(f"line {line}")
        if boundary is not None and found.boundary != boundary:
            raise self._hole(f"boundary {boundary}")
        return found.lines

    async def _fold_upto(self, upto: int, ahead: list[Numbered]) -> list[Numbered]:
        """Fold the lines up to `upto`, of which `ahead` was read before; what was read behind it."""
        while (more := upto - self._fold.line) > 0:
            if not (ahead := ahead or await self._lines()):
                raise self._hole(f"line {self._fold.line + 1}")
            self._apply(ahead[:more])
            ahead = ahead[more:]
        return ahead

    def _apply(self, lines: Iterable[Numbered]) -> None:
        for one in lines:
            if one.number != self._fold.line + 1 or one.follows != self._stamp:
                raise self._hole(f"line {self._fold.line + 1}")
            self._fold.apply(one.number, one.line)
            self._stamp = one.stamp

    def _take(self, number: int, upto: int) -> None:
        dropped = self._fold.dropped
        self._open = _Open(number, upto, self._fold.take_completed(number), dropped)

    async def _decide(self) -> None:
        number, upto = self._fold.boundary + 1, self._fold.line
        args: list[Argument] = [self._term, number, upto, self._stamp]
        reply = await self._script("decide", [keys.state(self.space), keys.lines(self.space)], args)
        if expect(reply, b"decided") != upto:
            raise self._hole(f"the decision about boundary {number}")
        self._take(number, upto)

    async def _move(self, opened: _Open) -> list[MovedPart]:
        """Have what is complete in its streams; how many messages of each publisher, in order."""
        pieces: dict[StreamId, list[_Piece]] = {}
        for owned in opened.complete:
            for first, to in owned.staged.ranges:
                for begin in range(first, to, PIECE_ROWS):
                    piece = owned, begin, min(to, begin + PIECE_ROWS)
                    pieces.setdefault(owned.staged.stream, []).append(piece)
        # A decision that Redis has lost since must not be carried out: no other one could be, then.
        beside = () if isinstance(self._redis, AsyncCluster) else (keys.state(self.space),)
        calls = {stream: _move_call(stream, opened, some, beside) for stream, some in pieces.items()}
        rows: dict[tuple[Owned, StreamId], int] = {}
        while calls:
            answers, waits = await run_settled(self._redis, [*calls.values()], [self._durability])
            for (stream, wanted), answer in zip([(one, pieces[one]) for one in calls], answers, strict=True):
                reply = self._moved(stream, answer.reply)
                if why := waits.failure(self._durability, answer.waited):
                    raise NotDurable(f"what was moved into stream {stream} is not durable yet: {why}")
                done = int(reply[1])
                if done < len(wanted):
                    continue
                del calls[stream]
                opened.ends[stream], *gaps = map(int, reply[2 + done :])
                if gaps:
                    opened.gaps[stream] = (*zip(gaps[::2], gaps[1::2], strict=True),)
                for (owned, _, _), moved in zip(wanted, reply[2 : 2 + done], strict=True):
                    rows[owned, stream] = rows.get((owned, stream), 0) + int(moved)
        return [
            MovedPart(it.epoch, owned.name, owned.inc, it.stream, got, it.rows - got, it.ranges)
            for owned in opened.complete
            if (it := owned.staged).rows and (got := rows[owned, it.stream]) >= 0
        ]

    def _moved(self, stream: StreamId, reply: Any) -> Sequence[Any]:
        if isinstance(reply, ResponseError):
            raise refused_append(stream, reply)
        if isinstance(reply, StreamleaseError):
            raise reply
        if reply[0] == b"moved":
            return list(reply)
        if reply[0] == b"undecided":
            raise self._hole("the decision about the next boundary")
        if reply[0] == b"past":
            raise Unsupported(
                f"stream {stream} has boundary {reply[1]} of space {self.space}, which Redis lost elsewhere: "
                f"look at the servers of the cluster; streamlease doctor says more"
            )
        raise StoreRefused(f"nothing can be moved into stream {stream}: {reply!r}")

    async def _drop(self, dropped: Sequence[Dropped]) -> None:
        """Fence incarnations in all staged logs, and then remove what they had not given up."""
        waiting = {(one.staged.epoch, one.name, one.inc) for one in self._fold.waiting} if dropped else set()
        for gone, begin in product(dropped, range(0, len(self._streams), STREAMS_AT_ONCE)):
            streams = self._streams[begin : begin + STREAMS_AT_ONCE]
            fence = (gone.inc + 1) * INCARNATIONS - 1
            # First: who does not know that it was given up stages on, at epochs that were not there.
            await self._remove(dict.fromkeys(streams, ()), gone.name, fence)
            await self._remove(await to_drop(self._redis, streams, gone, waiting), gone.name, fence)

    async def _remove(self, wanted: Mapping[StreamId, Sequence[bytes]], name: str, fence: int) -> None:
        """Remove these fields of `keys.staged_epochs` with their messages; fence lower incarnations."""
        script = load_script(_ROOM, "drop")
        behind: dict[StreamId, Argument] = dict.fromkeys(wanted, "-")
        while behind:
            calls = [
                script.call(
                    [keys.staged_publishers(stream), keys.staged_log(stream), keys.staged_epochs(stream)],
                    [name, fence, after, DROP_ENTRIES, *wanted[stream]],
                )
                for stream, after in behind.items()
            ]
            replies = await run_many(self._redis, calls)
            for reply in replies:
                if isinstance(reply, ResponseError):
                    raise refusal(reply)
            behind = {stream: reply[2] for stream, reply in zip(behind, replies, strict=True) if reply[2]}

    async def _record(self, opened: _Open, moved: Sequence[MovedPart]) -> None:
        boundary = Boundary(
            opened.number,
            opened.upto,
            self._term,
            self._fold.lower,
            self._fold.upper,
            opened.ends,
            (*moved,),
            tuple(DroppedOpen(one.name, one.inc, one.frontier) for one in opened.dropped),
            gaps=opened.gaps,
        )
        args: list[Argument] = [self._term, opened.number, boundary.dump(), keys.news(self.space)]
        args += [opened.upto, self._stamp]
        for stream, end in opened.ends.items():
            args += (str(stream), end)
        names = [key(self.space) for key in (keys.state, keys.bounds, keys.ends, keys.lines)]
        expect(await self._script("record", names, args), b"recorded")

    async def _keep(self) -> None:
        """Have a new snapshot, if there are many lines behind the last one. Nothing is due now."""
        fold = self._fold
        if fold.line - self._kept_line < SNAPSHOT_LINES:
            return
        args: list[Argument] = [self._term, fold.line, fold.dump(), fold.boundary, self._stamp]
        names = [keys.state(self.space), keys.lines(self.space)]
        expect(await self._script("snapshot", names, args), b"kept")
        self._kept_line, self._kept_boundary = fold.line, fold.boundary

    async def _script(self, name: str, names: Sequence[str], args: Sequence[Argument]) -> Any:
        call = load_script(_ROOM, name).call(names, args)
        answers, waits = await run_settled(self._redis, [call], [self._durability])
        reply = answers[0].reply
        if isinstance(reply, ResponseError):
            raise refusal(reply)
        if isinstance(reply, StreamleaseError):
            raise reply
        if why := waits.failure(self._durability, answers[0].waited):
            raise NotDurable(f"what the keeper of space {self.space} wrote is not durable yet: {why}")
        return reply

    def _hole(self, what: str) -> StoreRefused:
        return StoreRefused(
            f"{what} of the epochs of space {self.space} is not what its keeper knows: Redis lost writes, or "
            f"another keeper is there; it begins again"
        )


def _move_call(stream: StreamId, opened: _Open, pieces: Sequence[_Piece], beside: Sequence[str]) -> Call:
    meta, publishers, log = append_keys(stream)
    args: list[Argument] = [keys.MOVER, opened.number, opened.upto, MOVE_ENTRIES, stream_news(stream)]
    for owned, first, to in pieces:
        args += (keys.staged_field(owned.staged.epoch, owned.name, owned.inc), first, to)
    names = [meta, publishers, log, keys.staged_log(stream), keys.staged_epochs(stream), *beside]
    return load_script(_ROOM, "move").call(names, args)
