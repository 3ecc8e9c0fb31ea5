"""Mailboxes: one Redis stream per process, on which it gets all its control messages.

A mailbox exists as long as its owner keeps it alive. Sending to one that is gone is noticed by the sender and
creates nothing, so dead processes leave no keys. A mailbox is bounded: the oldest messages of an owner that
does not read are dropped, which is the same to the protocol as a message lost on the way.

Redis makes the ids of letters from its clock. If that went back, and the mailbox was lost meanwhile, new
letters come below the last one read: the first of them is lost, the others are heard.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import NamedTuple

from streamlease.protocol.errors import StoreRefused
from streamlease.protocol.messages import Message, decode, encode
from streamlease.protocol.plurals import counted
from streamlease.protocol.seldom import Seldom
from streamlease.registry import keys
from streamlease.streams.redis.always import ask_always
from streamlease.streams.redis.connection import AsyncRedis, Command, Redis, ask

log = logging.getLogger(__name__)

LIFETIME_MS = 60_000
"""How long a mailbox outlives the last sign of life of its owner."""

KEEP_ALIVE_MS = 10_000
"""How often its owner prolongs its life."""

MAX_ENTRIES = 20_000
"""About how many entries a mailbox holds; older ones are dropped."""

BLOCK_MS = 2000
"""How long one blocking read waits, if its owner does not say otherwise."""

MOST_READ = 64
"""So many entries that were read are removed with the next read; fewer when a read has found nothing."""


_NOTHING = b"0-0"
_MOST = 2**64 - 1
_SPOILT = ("WRONGTYPE", "exhausted the last possible ID", "equal or smaller than the target")
"""Redis' words for a key in which nobody can leave letters: only a stranger makes such a one."""


class Letter(NamedTuple):
    """One message and the mailbox to answer to."""

    sender: str
    message: Message


class Mailbox:
    """The receiving end: one reader, one blocking read."""

    def __init__(self, redis: AsyncRedis, owner: str, block_ms: int = BLOCK_MS) -> None:
        self._redis = redis
        self.block_ms = block_ms
        """How long a read waits for the first message."""
        self.owner = owner
        self._key = keys.mailbox(owner)
        self._last = _NOTHING
        self._read = 0
        """How many entries that were read are to be removed."""
        self._rested = False
        """Whether the last read found nothing."""
        self._may_be_lost = False
        """Whether the last read failed: after a failover, or in an empty Redis, nobody can leave letters."""
        self.dropped = 0
        """Messages that did not parse."""
        self._seldom = Seldom(log)

    async def open(self) -> None:
        """Create the mailbox, or prolong its life.

        Raises:
            StoreUnavailable: Redis does not answer.
        """
        lifetime: Command = ("PEXPIRE", self._key, LIFETIME_MS)
        exists: Command = ("XADD", self._key, "MAXLEN", "~", MAX_ENTRIES, "*", "f", "", "m", "[]")
        try:
            _, prolonged = await ask_always(self._redis, [exists, lifetime])
        except StoreRefused as error:
            if not any(sign in str(error) for sign in _SPOILT):
                raise
            log.warning("mailbox %s takes no letters and is made anew: %s", self.owner, error)
            self._last, self._read = _NOTHING, 0
            _, _, prolonged = await ask_always(self._redis, [("DEL", self._key), exists, lifetime])
        if not prolonged:  # it was made a moment later, because Redis is out of memory
            await ask(self._redis, [lifetime])

    async def receive(self) -> list[Letter]:
        """Wait for messages; an empty list after a while without any.

        Raises:
            StoreUnavailable: Redis does not answer.
            StoreRefused, Indefinite: of `open`, behind a read that failed.
        """
        if self._may_be_lost:
            await self.open()
        commands: list[Command] = [
            ("XREAD", "COUNT", 500, "BLOCK", self.block_ms, "STREAMS", self._key, self._last)
        ]
        if self._last != _NOTHING and (self._rested or self._read >= MOST_READ):
            commands.insert(0, ("XTRIM", self._key, "MINID", _after(self._last)))
        self._may_be_lost = True
        *trimmed, reply = await ask(self._redis, commands)
        self._may_be_lost = False
        letters: list[Letter] = []
        for id, fields in reply[0][1] if reply else ():
            self._last = id
            letters.extend(self._open_entry(fields))
        if not reply and trimmed and trimmed[0] > self._read:
            # More was below the last id than had been read: the ids began anew, below it.
            self._last = _NOTHING
        self._read = (0 if trimmed else self._read) + (len(reply[0][1]) if reply else 0)
        self._rested = not reply
        return letters

    def _open_entry(self, fields: list[bytes]) -> Iterable[Letter]:
        entry = dict(zip(fields[::2], fields[1::2], strict=False))
        messages, bad = decode(entry.get(b"m", b""))
        sender = entry.get(b"f", b"").decode("utf-8", "replace")
        if bad:
            self.dropped += bad
            self._seldom.warning(
                "%s from %s cannot be read, and are left out: is that a process of another version?",
                counted(bad, "message"), ascii(sender)[:80],
            )  # fmt: skip
        return [Letter(sender, message) for message in messages]

    async def close(self) -> None:
        """Remove the mailbox."""
        await ask(self._redis, [("DEL", self._key)])


def _after(id: bytes) -> str:
    milliseconds, sequence = map(int, id.decode("ascii").split("-"))
    if sequence < _MOST:
        return f"{milliseconds}-{sequence + 1}"
    return f"{min(milliseconds + 1, _MOST)}-0"


def key_of(letter: tuple[str, Message]) -> str:
    """The key of Redis into which a letter goes."""
    return keys.mailbox(letter[0])


async def send(redis: Redis, sender: str, letters: Iterable[tuple[str, Message]]) -> set[str]:
    """Send messages in order; one entry per receiver.

    Args:
        sender: the mailbox owner to answer to; empty for nobody.
        letters: pairs (receiving owner, message).

    Returns:
        The receivers that are gone; what was for them is dropped.

    Raises:
        StoreUnavailable: Redis does not answer; some or all of it may have been sent.
    """
    by_receiver: dict[str, list[Message]] = {}
    for receiver, message in letters:
        by_receiver.setdefault(receiver, []).append(message)
    if not by_receiver:
        return set()
    replies = await ask_always(
        redis,
        [
            (
                "XADD", keys.mailbox(receiver), "NOMKSTREAM", "MAXLEN", "~", MAX_ENTRIES, "*",
                "f", sender, "m", encode(messages),
            )
            for receiver, messages in by_receiver.items()
        ],
    )  # fmt: skip
    return {receiver for receiver, reply in zip(by_receiver, replies, strict=True) if reply is None}
