"""Where a member of a group is served, and who may serve it next.

A member is a session whose consumer speaks to gateways, of which any may get its next request. One gateway
*serves* it: it has the session, and with it the streams. The record says which one, and by which *arrival*.
That is a number of the counter from which every session of the group has one, taken in the same script that
writes the record (``lua/take_member.lua``). So one number decides everywhere:

* the record takes nothing from a gateway with an earlier arrival, which therefore hands out nothing more;
* the leader takes the later arrival of two with one name, and refuses the earlier one;
* leases that it grants then have higher lease epochs, so what the earlier one still commits is refused.

A gateway is alive as long as it says so (`GatewaySigns`). The record also has what was handed out and may not
be committed, each stream with the lease epoch under which that was: whoever serves the member next goes on
there if nobody had the stream meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from streamlease.protocol.errors import StreamleaseError
from streamlease.registry import keys
from streamlease.streams.redis.always import ask_always
from streamlease.streams.redis.connection import Argument, AsyncRedis, ask
from streamlease.streams.redis.scripts import load_script

_TAKE = load_script("streamlease.registry.members", "take_member")
_KEEP = load_script("streamlease.registry.members", "keep_member")
_END = load_script("streamlease.registry.members", "end_member")

_HANDED = "handed:"
"""What the fields of streams begin with."""


class HandedPlace(NamedTuple):
    """All below `end` was handed out under that lease epoch."""

    lease_epoch: int
    end: int


@dataclass(frozen=True, slots=True)
class MemberRecord:
    """A member, and where it is served."""

    arrival: int
    gateway: str
    """Empty: nobody serves it."""
    address: str
    """Where others reach that gateway; empty: they do not."""
    session: str
    name: str
    timeout_ms: int
    """After so long without a request it leaves the group."""
    start: str
    """Where the group was to begin, in the words of who made the record."""
    handed: Mapping[str, HandedPlace]


class MemberGone(StreamleaseError):
    """The member has left, or was silent for too long."""


class ServedElsewhere(StreamleaseError):
    """Another gateway serves the member now."""


class MemberRecords:
    """The record of one member of the group with identity `group` (``GROUP/FILTER``)."""

    def __init__(self, redis: AsyncRedis, group: str, member: str) -> None:
        self._redis = redis
        self._member = member
        self._key = keys.group_member(group, member)
        self._keys = [self._key, keys.arrivals(group), keys.progress(group)]

    async def read(self) -> MemberRecord:
        """The record.

        Raises:
            MemberGone: there is none.
            StoreUnavailable, StoreRefused.
        """
        (flat,) = await ask(self._redis, [("HGETALL", self._key)])
        texts = [text.decode("utf-8", "replace") for text in flat]
        found = dict(zip(texts[::2], texts[1::2], strict=True))
        try:
            return MemberRecord(
                int(found["arrival"]), found["gateway"], found["address"], found["session"], found["name"],
                int(found["timeout"]), found["start"],
                {
                    name.removeprefix(_HANDED): HandedPlace(*map(int, value.split(":")))
                    for name, value in found.items()
                    if name.startswith(_HANDED)
                },
            )  # fmt: skip
        except (KeyError, ValueError, TypeError):
            raise self._gone() from None

    async def begin(
        self, gateway: str, address: str, session: str, name: str, timeout_ms: int, start: str
    ) -> int:
        """Make the record of a new member, which is served here. Its arrival.

        Raises:
            StoreUnavailable, StoreRefused, Indefinite.
        """
        more = ("session", session, "name", name, "timeout", timeout_ms, "start", start)
        return int(await _TAKE.run(self._redis, self._keys, ["", gateway, address, timeout_ms, *more]))

    async def take(self, known: MemberRecord, gateway: str, address: str) -> int:
        """Serve the member from now on, in place of who served it when `known` was read. The new arrival.

        Raises:
            ServedElsewhere: somebody else was faster, or it is gone.
            StoreUnavailable, StoreRefused, Indefinite.
        """
        args: list[Argument] = [known.arrival, gateway, address, known.timeout_ms]
        arrival = int(await _TAKE.run(self._redis, self._keys, args))
        if not arrival:
            raise self._elsewhere()
        return arrival

    async def keep(
        self,
        arrival: int,
        timeout_ms: int,
        handed: Mapping[str, HandedPlace] | None = None,
        done: Collection[str] = (),
    ) -> None:
        """Keep the record for so long, and note what is handed out.

        Args:
            handed: streams of which more is handed out.
            done: streams of which nothing is that may not be committed.

        Raises:
            ServedElsewhere, MemberGone: nothing was noted, and nothing may be handed out.
            StoreUnavailable, StoreRefused, Indefinite.
        """
        fields = [
            part
            for stream, one in (handed or {}).items()
            for part in (_HANDED + stream, f"{one.lease_epoch}:{one.end}")
        ]
        args: list[Argument] = [
            arrival,
            timeout_ms,
            len(fields) // 2,
            *fields,
            *(_HANDED + stream for stream in done),
        ]
        stands = int(await _KEEP.run(self._redis, [self._key], args))
        if stands < 1:
            raise self._elsewhere() if stands == 0 else self._gone()

    async def end(self, arrival: int, *, free: bool = False) -> None:
        """Remove the record, if it is served by that arrival.

        Args:
            free: the member goes on, and anybody may serve it.

        Raises:
            StoreUnavailable, StoreRefused, Indefinite.
        """
        await _END.run(self._redis, [self._key], [arrival, 0 if free else 1])

    def _gone(self) -> MemberGone:
        return MemberGone(
            f"member {self._member} is not there: it has left, or made no request within its session "
            f"timeout; join again"
        )

    def _elsewhere(self) -> ServedElsewhere:
        return ServedElsewhere(f"member {self._member} is served by another gateway now: repeat the request")


class GatewaySigns:
    """Signs of life of gateways: one key for each, however many members it serves."""

    def __init__(self, redis: AsyncRedis) -> None:
        self._redis = redis

    async def give(self, gateway: str, milliseconds: int) -> None:
        """A gateway is alive, for so long at least.

        Raises:
            StoreUnavailable, StoreRefused, Indefinite.
        """
        await ask_always(self._redis, [("SET", keys.gateway(gateway), "", "PX", milliseconds)])

    async def withdraw(self, gateway: str) -> None:
        """A gateway ends.

        Raises:
            StoreUnavailable, StoreRefused, Indefinite.
        """
        await ask(self._redis, [("DEL", keys.gateway(gateway))])

    async def alive(self, gateway: str) -> bool:
        """Whether a gateway is.

        Raises:
            StoreUnavailable, StoreRefused.
        """
        (found,) = await ask(self._redis, [("EXISTS", keys.gateway(gateway))])
        return bool(found)
