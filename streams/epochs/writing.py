"""Writing lines: a publisher enters, advances, leaves and shows that it lives; a keeper gives one up.

A line is written once: it has a sequence within its incarnation, and a repetition is answered with the
number of the first one. A publisher has one line in flight.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any, Literal

from streamlease.protocol.epochs.antichains import Antichain
from streamlease.protocol.errors import (
    Fenced,
    InvalidInput,
    NotDurable,
    StoreRefused,
    StreamleaseError,
    StreamSealed,
)
from streamlease.protocol.ids import Token, check_name, random_token
from streamlease.streams.epochs import keys
from streamlease.streams.epochs.core.lines import (
    AdvanceLine,
    LeaveLine,
    Line,
    LoseLine,
    StagedPart,
    dump_line,
)
from streamlease.streams.redis.connection import Argument, Redis
from streamlease.streams.redis.durability import MEMORY, Durability
from streamlease.streams.redis.durable import run_durably
from streamlease.streams.redis.scripts import load_script

_ROOM = "streamlease.streams.epochs"

KEPT = 1000
"""So many of its lines a publisher can write again, should Redis lose them."""

SHORTEST_LEAP = 1 << 16
"""Incarnations rise by at least so much when Redis may have lost some: more than a lost tail ever has."""

LONGEST_LEAP = 1 << 21
"""At least 2^12 leaps of this length fit into the 2^33 incarnations that there are."""


class LinesLost(StreamleaseError):
    """Redis lost that this publisher entered, or more of its lines than it keeps: it must enter anew."""


class LineWriter:
    """The lines of one incarnation of one publisher. `enter` first; one call at a time.

    Args:
        name: of the publisher.
        host: who it is, for people.
        durability: what must hold before a line counts as written.

    Raises:
        InvalidInput: `name` is none.
    """

    def __init__(
        self,
        redis: Redis,
        space: str,
        name: str,
        *,
        host: str = "",
        durability: Durability = MEMORY,
        token: Token = random_token,
    ) -> None:
        self.space = space
        self.name = check_name("publisher", name)
        self.inc = 0
        """The incarnation; 0 before it entered."""
        self.entered_at = 0
        """The number of the line with which it entered."""
        self._redis = redis
        self._host = host
        self._durability = durability
        self._token = token()
        self._kept: list[Line] = []
        """The newest lines, of which the last one has sequence `_sequence`."""
        self._sequence = 0

    async def enter(self, above: int = 0) -> int:
        """Enter under an incarnation that the name never had; the number of the line.

        It is the next one, unless Redis goes on with other data than before, or somebody has seen a higher
        one than stands there: then it is further away than those that may be lost.

        Args:
            above: an incarnation that somebody has seen, should Redis have lost it.

        Raises:
            StreamSealed: the space takes no more.
            InvalidInput: there are no incarnations any more.
            StoreUnavailable, StoreRefused: it was not written.
            NotDurable, Indefinite: it may have been; repeat it.
        """
        leap = random.randrange(SHORTEST_LEAP, LONGEST_LEAP)
        args: list[Argument] = [
            self.name, self._token, above, json.dumps(self._host), keys.news(self.space), leap
        ]  # fmt: skip
        verdict, *numbers = await self._run("enter", args)
        if verdict == b"sealed":
            raise StreamSealed(f"space {self.space} is sealed and takes no more messages: use another space")
        if verdict == b"resting":
            raise StoreRefused(f"space {self.space} gets other streams right now: enter afterwards")
        if verdict == b"spent":
            raise InvalidInput(
                f"publisher {self.name} of space {self.space} cannot come back: {int(numbers[0])} is the "
                f"highest incarnation that there is; make the space anew"
            )
        inc, number = numbers
        self.inc, self.entered_at = int(inc), int(number)
        return self.entered_at

    async def advance(self, to: Antichain, parts: Sequence[StagedPart]) -> int:
        """Hold `to` from now on; the number of the line.

        Raises:
            As `leave`.
        """
        return await self._write(AdvanceLine(self.name, self.inc, to, (*parts,)))

    async def leave(self, upper: Antichain, parts: Sequence[StagedPart]) -> int:
        """End well; the number of the line. Nothing more is written.

        Raises:
            Fenced: another process has this name now, or it was given up.
            LinesLost: Redis lost that it entered.
            StoreUnavailable, StoreRefused: it was not written.
            NotDurable, Indefinite: it may have been; the same call again writes it once.
        """
        return await self._write(LeaveLine(self.name, self.inc, upper, (*parts,)))

    async def touch(self) -> None:
        """Show that it lives.

        Raises:
            As `leave`.
        """
        _, last = await self._ask(0, "here", "", "alive")
        if int(last) < self._sequence:
            await self._again(int(last))

    async def _write(self, line: Line) -> int:
        """Write `line`, unless a former call with it, without an answer, is to be repeated."""
        if not self._kept or self._kept[-1] != line:
            self._kept = [*self._kept[-KEPT + 1 :], line]
            self._sequence += 1
        return await self._put(self._sequence, line)

    async def _put(self, sequence: int, line: Line) -> int:
        state = "left" if isinstance(line, LeaveLine) else "here"
        while True:
            verdict, number = await self._ask(sequence, state, dump_line(line), "written")
            if verdict == b"written":
                return int(number)
            await self._again(int(number), sequence)

    async def _again(self, last: int, below: int | None = None) -> None:
        """Redis lost the lines behind sequence `last`: write them again, those below `below`."""
        until = self._sequence + 1 if below is None else below
        first = self._sequence - len(self._kept) + 1
        if last < 0 or last + 1 < first:
            raise LinesLost(
                f"Redis lost that publisher {self.name} of space {self.space} entered, as in a failover, or "
                f"too many of its lines: open the publisher again; it goes on from its last durable frontier"
            )
        for sequence in range(last + 1, until):
            line = self._kept[sequence - first]
            state = "left" if isinstance(line, LeaveLine) else "here"
            verdict, number = await self._ask(sequence, state, dump_line(line), "written")
            if verdict != b"written":
                raise StoreRefused(
                    f"publisher {self.name} of space {self.space} finds its line {sequence} missing again "
                    f"({number}): Redis loses writes; try again"
                )

    async def _ask(self, sequence: int, state: str, text: str, good: str) -> tuple[bytes, Any]:
        """What line.lua says: `good`, or a gap.

        Raises:
            Fenced: it is not there any more.
        """
        args: list[Argument] = [
            self.name, self.inc, self._token, sequence, state, keys.news(self.space), text
        ]  # fmt: skip
        reply = await self._run("line", args)
        match reply[0]:
            case b"fenced" if int(reply[1]) == self.inc and reply[2] == b"lost":
                raise Fenced(
                    f"publisher {self.name} of space {self.space} was given up, silent or by an operator: "
                    f"what it had not given up was dropped; open it again, and send those epochs again"
                )
            case b"fenced":
                raise Fenced(
                    f"publisher {self.name} of space {self.space} of incarnation {self.inc} was replaced by "
                    f"incarnation {int(reply[1])}: stop this one; two processes must not have one name"
                )
            case verdict if verdict in (good.encode(), b"gap"):
                return verdict, reply[1]
            case _:
                raise StoreRefused(f"the line script answered {reply!r}: client and script do not fit")

    async def _run(self, script: str, args: Sequence[Argument]) -> Any:
        named = [keys.writers(self.space), keys.lines(self.space)]
        if script == "enter":
            named.append(keys.state(self.space))
        call = load_script(_ROOM, script).call(named, args)
        reply, why = await run_durably(self._redis, call, [self._durability])
        if why:
            raise NotDurable(
                f"a line of publisher {self.name} of space {self.space} is written, but not as durably as "
                f"{self._durability} demands: {why}; the same call again writes it once"
            )
        return reply


async def lose(
    redis: Redis,
    space: str,
    name: str,
    inc: int,
    why: Literal["silent", "operator"],
    seen: str = "",
) -> bool:
    """Give an incarnation of a publisher up; whether this call, or one before, did.

    Args:
        seen: its last sign of life as it was read; empty: whatever it is.

    Raises:
        StoreUnavailable, StoreRefused: it was not.
        Indefinite: it was, or it was not; repeat it.
    """
    text = dump_line(LoseLine(name, inc, why))
    args: list[Argument] = [name, inc, seen, keys.news(space), text]
    reply = await load_script(_ROOM, "lose").run(redis, [keys.writers(space), keys.lines(space)], args)
    return bool(reply[0] == b"lost" or (reply[0] == b"other" and reply[1] == b"lost"))
