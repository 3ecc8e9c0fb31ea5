"""Webhooks in Redis: what was subscribed, how far each is, and which lease may say so.

They stand in `SLOTS` slots, each with a hash tag of its own::

    sl:{w:SLOT}:subscriptions  hash  OWNER NUL ID -> 24 characters of its turn, and its definition
    sl:{w:SLOT}:standings      hash  OWNER NUL ID -> how far it is, and whether it works
    sl:{w:SLOT}:fence          hash  generation, epoch: the lease of whoever delivers; version
    sl:{w:SLOT}:owners         hash  OWNER -> how many it has there

A slot belongs to a stream of the space `SPACE`, which holds no messages: the group `GROUP` leases its
streams to gateways, and the lease epoch of a stream fences what is said of its slots. Whoever takes a slot
writes its lease first, in one act with reading; from then on what an earlier lease says is refused. Each
definition has a *turn*, another one with every change: what was delivered by a former definition does not
move the new one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from streamlease.protocol.errors import Fenced, StreamleaseError
from streamlease.protocol.ids import StreamId, random_token
from streamlease.protocol.topics import SharedSubscription
from streamlease.streams.redis.connection import AsyncRedis, ask, refusal
from streamlease.streams.redis.damaged import number
from streamlease.streams.redis.scripts import load_script, run_each

SPACE = "webhooks"
TOPICS = ("$webhooks/#",)
GROUP = SharedSubscription("webhooks", "$webhooks/#")
SLOTS = 32
"""Slots, and streams at first; part of the format: it cannot be changed while there are webhooks."""

MOST_IN_SLOT = 4096
TURN = 24
"""Characters of a turn."""

_CLAIM = load_script("streamlease.registry.webhooks", "claim_webhooks")
_SETTLE = load_script("streamlease.registry.webhooks", "settle_webhooks")
_PUT = load_script("streamlease.registry.webhooks", "put_webhook")
_DROP = load_script("streamlease.registry.webhooks", "drop_webhook")


class WebhookName(NamedTuple):
    """Whose webhook, and which."""

    owner: str
    """Name of a token; empty: made where no token is needed."""
    id: str

    @property
    def field(self) -> str:
        """In its hashes."""
        return f"{self.owner}\0{self.id}"

    @property
    def slot(self) -> int:
        """Where it stands."""
        digest = hashlib.blake2b(self.field.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") % SLOTS

    @classmethod
    def of_field(cls, field: bytes) -> WebhookName:
        """Of the field in a hash."""
        owner, _, id = field.decode("utf-8", "replace").partition("\0")
        return cls(owner, id)


@dataclass(frozen=True, slots=True)
class WebhookRecord:
    """What stands in Redis of one webhook, as JSON documents."""

    name: WebhookName
    turn: str
    definition: bytes
    standing: bytes

    @property
    def value(self) -> bytes:
        """Turn and definition."""
        return self.turn.encode() + self.definition


class SlotLease(NamedTuple):
    """Under which lease the webhooks of a slot are delivered."""

    slot: int
    generation: int
    epoch: int


class ClaimedSlot(NamedTuple):
    """The webhooks of a slot, as they are when it is taken."""

    version: int
    webhooks: list[WebhookRecord]
    before: SlotLease
    """The lease that had them before; of generation 0 if none did."""


class Settled(NamedTuple):
    """What came of saying how far some webhooks are."""

    version: int
    kept: list[bool]
    """Of each; False: it was changed or deleted meanwhile."""


Say = tuple[WebhookName, str, bytes]
"""A webhook, the turn of its definition, its standing."""


class WebhookRecords:
    """The webhooks of one Redis."""

    def __init__(self, redis: AsyncRedis) -> None:
        self._redis = redis

    async def claim(self, lease: SlotLease) -> ClaimedSlot:
        """Take a slot: from now on no earlier lease can say anything of it.

        Raises:
            Fenced: a newer lease has it.
            StoreUnavailable, StoreRefused, Indefinite: safe to repeat.
        """
        what, *more = await _CLAIM.run(self._redis, _keys(lease.slot), (lease.generation, lease.epoch))
        if what != b"held":
            raise _fenced(lease)
        version, subscriptions, standings, *before = more
        webhooks = [*_records(_pairs(subscriptions), _pairs(standings))]
        return ClaimedSlot(int(version), webhooks, SlotLease(lease.slot, *map(int, before)))

    async def settle(
        self, sayings: Mapping[SlotLease, Sequence[Say]]
    ) -> dict[SlotLease, Settled | StreamleaseError]:
        """Say how far webhooks are, in one exchange.

        Returns:
            of each lease what came of it: ``Fenced`` if a newer one has the slot, an error of its server, or
            which were kept.

        Raises:
            StoreUnavailable, Indefinite: safe to repeat.
        """
        calls = [
            _SETTLE.call(
                _keys(lease.slot),
                (
                    lease.generation,
                    lease.epoch,
                    *_said(some),
                ),
            )
            for lease, some in sayings.items()
        ]
        return {
            lease: _settled(lease, reply)
            for lease, reply in zip(sayings, await run_each(self._redis, calls), strict=True)
        }

    async def versions(self, leases: Sequence[SlotLease]) -> list[int | None]:
        """How often each slot was changed; None where a newer lease has it.

        Raises:
            StoreUnavailable, StoreRefused.
        """
        asked = [("HMGET", _keys(one.slot)[2], "generation", "epoch", "version") for one in leases]
        found = []
        for lease, (generation, epoch, version) in zip(leases, await ask(self._redis, asked), strict=True):
            mine = (generation, epoch) == (b"%d" % lease.generation, b"%d" % lease.epoch)
            found.append(int(version or 0) if mine else None)
        return found

    async def read(self, name: WebhookName) -> WebhookRecord | None:
        """One webhook; None: there is none.

        Raises:
            StoreUnavailable, StoreRefused.
        """
        subscriptions, standings, _ = _keys(name.slot)
        value, standing = await ask(
            self._redis, [("HGET", subscriptions, name.field), ("HGET", standings, name.field)]
        )
        return None if value is None else _record(name, value, standing)

    async def of_owner(self, owner: str) -> list[WebhookRecord]:
        """All of an owner, by id.

        Raises:
            StoreUnavailable, StoreRefused.
        """
        commands = [("HGETALL", key) for slot in range(SLOTS) for key in _keys(slot)[:2]]
        replies = await ask(self._redis, commands)
        found = [
            one
            for place in range(0, len(replies), 2)
            for one in _records(_pairs(replies[place]), _pairs(replies[place + 1]))
            if one.name.owner == owner
        ]
        return sorted(found, key=lambda one: one.name.id)

    async def count_of(self, owner: str) -> int:
        """How many an owner has.

        Raises:
            Unsupported: a number is damaged. StoreUnavailable, StoreRefused.
        """
        counts = await ask(self._redis, [("HGET", _owners(slot), owner) for slot in range(SLOTS)])
        return sum(number(_owners(slot), count) for slot, count in enumerate(counts))

    async def put(
        self,
        name: WebhookName,
        seen: WebhookRecord | None,
        definition: bytes,
        standing: bytes | None,
        *,
        exact: bool = False,
    ) -> WebhookRecord | None:
        """Make a webhook, or change it if it still is as it was `seen`.

        Args:
            standing: how far it is from now on; None: it stays where it is.
            exact: only if it still stands as it was seen, too.

        Returns:
            what stands there now; None: it was changed meanwhile, and nothing was done.

        Raises:
            SlotFull: there is no room.
            StoreUnavailable, StoreRefused: nothing was done. Indefinite: it was, or it was not.
        """
        turn = random_token()
        reply = await _PUT.run(
            self._redis, [*_keys(name.slot), _owners(name.slot)],
            (
                name.field, b"" if seen is None else seen.value,
                seen.standing if exact and seen is not None else b"",
                turn.encode() + definition, standing or b"", MOST_IN_SLOT, name.owner,
            ),
        )  # fmt: skip
        if reply[0] == b"changed":
            return None
        if reply[0] == b"full":
            raise SlotFull(
                f"there are {MOST_IN_SLOT} subscriptions beside {ascii(name.id)[:80]}: delete some, or take "
                f"another id"
            )
        return WebhookRecord(name, turn, definition, standing or (b"" if seen is None else seen.standing))

    async def drop(self, name: WebhookName) -> bool:
        """Delete a webhook; whether there was one.

        Raises:
            StoreUnavailable, StoreRefused: nothing was done. Indefinite: it was, or it was not.
        """
        keys = [*_keys(name.slot), _owners(name.slot)]
        return bool(await _DROP.run(self._redis, keys, (name.field, name.owner)))


class SlotFull(StreamleaseError):
    """There are as many webhooks as can be."""


def slots_of(stream: StreamId, streams: int) -> list[int]:
    """The slots that belong to a stream of a generation with so many."""
    return [*range(stream.shard, SLOTS, streams)]


def _keys(slot: int) -> list[str]:
    return [f"sl:{{w:{slot}}}:{part}" for part in ("subscriptions", "standings", "fence")]


def _owners(slot: int) -> str:
    return f"sl:{{w:{slot}}}:owners"


def _pairs(flat: Sequence[bytes] | Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    return dict(flat) if isinstance(flat, Mapping) else dict(zip(flat[::2], flat[1::2], strict=True))


def _records(
    subscriptions: Mapping[bytes, bytes], standings: Mapping[bytes, bytes]
) -> Iterable[WebhookRecord]:
    for field, value in subscriptions.items():
        yield _record(WebhookName.of_field(field), value, standings.get(field))


def _record(name: WebhookName, value: bytes, standing: bytes | None) -> WebhookRecord:
    return WebhookRecord(name, value[:TURN].decode("utf-8", "replace"), value[TURN:], standing or b"{}")


def _settled(lease: SlotLease, reply: Any) -> Settled | StreamleaseError:
    if isinstance(reply, StreamleaseError):
        return reply
    if isinstance(reply, ResponseError):
        return refusal(reply)
    what, *more = reply
    if what != b"held":
        return _fenced(lease)
    return Settled(int(more[0]), [one == 1 for one in more[1:]])


def _said(some: Sequence[Say]) -> Iterable[str | bytes]:
    for name, turn, standing in some:
        yield name.field
        yield turn
        yield standing


def _fenced(lease: SlotLease) -> Fenced:
    return Fenced(f"slot {lease.slot} of the webhooks is another gateway's by now: it delivers them")
