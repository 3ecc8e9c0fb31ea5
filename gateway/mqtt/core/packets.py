"""Which deliveries of an MQTT session are new, and which came before. Pure.

A broker sends a message of QoS 1 under a packet identifier, from 1 to 65535, and keeps both until it has the
acknowledgement. If the connection ends before that, it sends the message again in the next one, with the same
identifier and the flag DUP. So there are three cases of a delivery with DUP:

=============================== ==========================================================================
This process holds the packet,  It is the same message: the broker cannot have given the identifier away.
and never acknowledged it       Nothing is appended; it is acknowledged once it is durable.
It was acknowledged, or another It is the same message if the acknowledgement was lost, and *another one* if
process had it before a crash   the broker got it and gave the identifier away. Nothing in MQTT tells.
Nobody had it                   It is new: the first delivery did not arrive.
=============================== ==========================================================================

In the second case the content decides, and only where it can. Two messages with the same content under the
same identifier, a short time after each other, are one message if the broker counts its identifiers up: then
it needs 65,534 others before it comes back to one. Most brokers do. One that takes the lowest free identifier
uses 1 all the time, and a switch that says ``ON``, ``OFF``, ``ON`` would lose messages. So the broker has to
show that it counts: `TRUST` times as many first deliveries as were ever in hand at once must have come, each
with a higher identifier than the one before it. Until then such a delivery counts as new: rather twice than
never.

Not promised: that a broker which forgot what it had sent (a crash with an old snapshot) is seen through. What
it sends again under other identifiers, or without DUP, is new.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")

LARGEST = 65_535
TRUST = 2


class PacketKind(Enum):
    """What a delivery is."""

    NEW = "new"
    UNDER_WAY = "under way"
    """It came before, and is not durable yet."""
    DURABLE = "durable"
    """It came before, and is durable: acknowledge it."""
    SUSPECT = "suspect"
    """The process before this one noted the same; whether it came to append it, the log knows."""


class FormerDelivery(NamedTuple):
    """A delivery that the process before this one had."""

    packet: int
    digest: bytes
    position: tuple[int, int]
    """Where it was noted: incarnation and sequence."""


class TakenMessage(Generic[T]):
    """A message in hand.

    Args:
        packet: its identifier; 0 at QoS 0, where there is none.
        digest: stands for its content.
        content: what is to be appended.
    """

    __slots__ = ("connection", "content", "digest", "durable", "former", "packet")

    def __init__(self, packet: int, digest: bytes, content: T, connection: int) -> None:
        self.packet = packet
        self.digest = digest
        self.content: T | None = content
        self.connection = connection
        """The connection that brought it last."""
        self.durable = False
        self.former: FormerDelivery | None = None
        """What the process before this one noted of it."""


class Packets(Generic[T]):
    """The deliveries of one session.

    Args:
        most: how many the broker may have sent without an acknowledgement.
        former: what the process before this one noted, in the order in which it came.
        counted: as `counted` was then.
    """

    def __init__(
        self, most: int, former: Iterable[FormerDelivery] = (), counted: tuple[int, int] = (0, 0)
    ) -> None:
        self._most = most
        self._in_hand: dict[int, TakenMessage[T]] = {}
        self._past: OrderedDict[int, bytes] = OrderedDict()
        """Packets that were acknowledged, with their digests; the last ones."""
        self._former = {one.packet: one for one in former}
        self._risen, self._last = counted
        """How many first deliveries came in a row, each with a higher identifier; and the last one."""
        self._connection = 0
        self._connected = False

    def __len__(self) -> int:
        """How many wait to be durable, or to be acknowledged."""
        return len(self._in_hand)

    @property
    def counted(self) -> tuple[int, int]:
        """What the process after this one is to know of how the broker counts."""
        return self._risen, self._last

    @property
    def trusted(self) -> bool:
        """Whether the broker has shown that it counts its identifiers up."""
        return self._risen >= TRUST * self._most

    def connected(self, *, session_present: bool) -> None:
        """A connection stands. Without a session on the broker its identifiers begin anew."""
        self._connection += 1
        self._connected = True
        if not session_present:
            self._in_hand.clear()
            self._forget()

    def disconnected(self) -> None:
        """Nothing can be acknowledged before its packet has come again."""
        self._connected = False

    def came(
        self, packet: int, digest: bytes, content: T, *, again: bool
    ) -> tuple[PacketKind, TakenMessage[T]]:
        """A message came.

        Args:
            again: its flag DUP.
        """
        known = self._in_hand.get(packet) if again else None
        if known is not None and known.digest == digest:
            known.connection = self._connection
            return PacketKind.DURABLE if known.durable else PacketKind.UNDER_WAY, known
        delivery = TakenMessage(packet, digest, content, self._connection)
        if packet == 0:
            return PacketKind.NEW, delivery
        self._in_hand[packet] = delivery
        self._most = max(self._most, len(self._in_hand))
        if again and known is None and self.trusted:
            if self._past.get(packet) == digest:
                delivery.durable, delivery.content = True, None
                return PacketKind.DURABLE, delivery
            former = self._former.get(packet)
            if former is not None and former.digest == digest:
                delivery.former = former
                return PacketKind.SUSPECT, delivery
        self._count(packet, again=again)
        return PacketKind.NEW, delivery

    def settled(self, delivery: TakenMessage[T]) -> bool:
        """It is durable, or nobody wants it: whether to acknowledge it now, or when it comes again."""
        delivery.durable, delivery.content = True, None
        mine = self._in_hand.get(delivery.packet) is delivery
        return mine and self._connected and delivery.connection == self._connection

    def acknowledged(self, delivery: TakenMessage[T]) -> None:
        """Its acknowledgement was written."""
        del self._in_hand[delivery.packet]
        self._former.pop(delivery.packet, None)
        self._past.pop(delivery.packet, None)
        self._past[delivery.packet] = delivery.digest
        while len(self._past) > TRUST * self._most:
            self._past.popitem(last=False)

    def _count(self, packet: int, *, again: bool) -> None:
        ahead = (packet - self._last) % LARGEST if self._last else 1
        if 0 < ahead <= LARGEST // 2:
            self._risen += 1
        elif again:  # one that is not known any more, and says nothing of how the broker counts
            return
        else:
            self._forget()
            self._risen = 1
        self._last = packet

    def _forget(self) -> None:
        self._past.clear()
        self._former.clear()
        self._risen, self._last = 0, 0
