"""The slots that this gateway has: what is delivered of each, and under which lease.

A slot whose lease ended, without a word of another gateway that took it, is *in limbo*: nothing new is
delivered, what is under way may end, and is still written if nobody took the slot meanwhile. The fence in
Redis decides. When the lease comes back, and the fence shows that nobody had the slot in between, all goes
on.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

from streamlease.gateway.webhooks.core.webhook_standing import WebhookState
from streamlease.gateway.webhooks.delivering import DeliveryMeans, SlotWays, WebhookDelivery
from streamlease.gateway.webhooks.settling_together import SettlingTogether
from streamlease.gateway.webhooks.wakefulness import Wakefulness
from streamlease.protocol.errors import Fenced, StreamleaseError, Unsupported
from streamlease.protocol.ids import StreamId
from streamlease.registry.webhooks.webhook_records import ClaimedSlot, SlotLease, WebhookName, WebhookRecord
from streamlease.streams.tasks import Supervisor

_logger = logging.getLogger(__name__)


class WebhookSlot(SlotWays):
    """One slot.

    Args:
        stream: of which it is a part.
        former: the same slot under a lease that others followed: each webhook waits for its end there.
    """

    def __init__(
        self,
        means: DeliveryMeans,
        settling: SettlingTogether,
        tasks: Supervisor,
        claimed: ClaimedSlot,
        lease: SlotLease,
        stream: StreamId,
        wakefulness: Wakefulness,
        former: WebhookSlot | None,
    ) -> None:
        self.lease = lease
        self.stream = stream
        self.version = claimed.version
        self._means = means
        self._settling = settling
        self._tasks = tasks
        self._wakefulness = wakefulness
        self._held = asyncio.Event()
        self._held.set()
        self._lost = False
        self._deliveries: dict[WebhookName, WebhookDelivery] = {}
        self._former = {} if former is None else former._deliveries
        self.read(claimed)
        self._former = {}

    # ------------------------------------------------------------ for its webhooks

    async def may_deliver(self) -> None:
        """See ``SlotWays``."""
        await self._wakefulness.known()
        await self._held.wait()
        if self._lost:
            raise _taken(self.lease)

    def still_may(self) -> bool:
        """See ``SlotWays``."""
        return self._wakefulness.is_known() and self._held.is_set() and not self._lost

    async def settle(self, record: WebhookRecord, standing: bytes) -> bool:
        """See ``SlotWays``."""
        while True:
            lease = self.lease
            try:
                return await self._settling.settle(lease, record.name, record.turn, standing)
            except Fenced:
                if self.lease == lease:  # else it was fenced by this gateway's own newer lease
                    raise

    # ------------------------------------------------------------ its life

    def in_limbo(self) -> None:
        """The lease is over, and may come back."""
        self._held.clear()

    def goes_on(self, claimed: ClaimedSlot, lease: SlotLease, stream: StreamId) -> None:
        """It is held again, under another lease, and nobody had it in between."""
        self.lease, self.stream = lease, stream
        self.read(claimed)
        self._held.set()

    def read(self, claimed: ClaimedSlot) -> None:
        """Deliver what there is now."""
        self.version = claimed.version
        there = {record.name: record for record in claimed.webhooks}
        for name in self._deliveries.keys() - there.keys():
            self._deliveries.pop(name).leave()
        for name, record in there.items():
            former = self._deliveries.get(name)
            if former is None or former.record.turn != record.turn:
                self._begin(record, former or self._former.get(name))

    def _begin(self, record: WebhookRecord, former: WebhookDelivery | None) -> None:
        if former is not None:
            former.leave()
        try:
            delivery = WebhookDelivery(self._means, self, record)
        except Unsupported as error:
            _logger.error("%s", error)
            self._deliveries.pop(record.name, None)
            return
        self._deliveries[record.name] = delivery
        delivery.start(self._tasks, former)

    def leave(self, *, lost: bool = False) -> None:
        """Begin nothing more.

        Args:
            lost: another gateway has it.
        """
        self._lost = self._lost or lost
        for delivery in self._deliveries.values():
            delivery.leave()
        if lost:
            self._held.set()

    async def gone(self, seconds: float) -> None:
        """Wait until what was under way has ended; after `seconds` it is stopped."""
        await asyncio.gather(*(delivery.gone(seconds) for delivery in self._deliveries.values()))

    async def write_looks(self) -> None:
        """Write how far the quiet ones have looked, so that retention does not overtake them."""
        looks = [(one, looked) for one in self._deliveries.values() if (looked := one.looked()) is not None]
        for delivery, standing in looks:
            former = delivery.standing
            try:
                kept = await self.settle(delivery.record, delivery.written(standing))
            except StreamleaseError as error:
                _logger.info("slot %s of the webhooks: %s", self.lease.slot, error)
                return
            if kept and delivery.standing is former:
                delivery.standing = standing

    def count(self, into: Counter[WebhookState]) -> None:
        """Count its webhooks by their state."""
        into.update(delivery.standing.state for delivery in self._deliveries.values())


def _taken(lease: SlotLease) -> Fenced:
    return Fenced(f"slot {lease.slot} of the webhooks is another gateway's by now: it delivers them")
