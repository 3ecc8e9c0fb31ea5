"""Which webhooks this gateway delivers: the leases of an ordinary group say it.

The space of webhooks has streams without messages. The gateways are consumers of one group on it, and its
leader spreads the streams over them, moves them when one comes or goes, and takes them from one that is
silent. A stream stands for some slots of webhooks, its lease epoch is the fence of all that is written about
them (``registry/webhooks``). A gateway joins the group when there is a first subscription.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING

from streamlease.agent.membership.borrower_slot import SessionConfig
from streamlease.agent.membership.session import Session
from streamlease.borrower.events import (
    FailureAnswered,
    ProgressAcknowledged,
    Progressed,
    StreamGone,
    StreamGranted,
    StreamRevoking,
)
from streamlease.borrower.life import BorrowerConfig
from streamlease.gateway.webhooks import metrics
from streamlease.gateway.webhooks.core.webhook_standing import WebhookState
from streamlease.gateway.webhooks.delivering import DeliveryMeans
from streamlease.gateway.webhooks.settling_together import SettlingTogether
from streamlease.gateway.webhooks.wakefulness import Wakefulness
from streamlease.gateway.webhooks.webhook_slots import WebhookSlot
from streamlease.protocol.errors import Fenced, StreamleaseError, UnknownGroup
from streamlease.protocol.ids import StreamId, random_token
from streamlease.protocol.messages import CutRead, LeaderToSession
from streamlease.protocol.seldom import Seldom
from streamlease.registry.webhooks.webhook_records import (
    GROUP,
    SLOTS,
    SPACE,
    TOPICS,
    SlotLease,
    WebhookRecords,
    slots_of,
)
from streamlease.streams.tasks import Supervisor

if TYPE_CHECKING:
    from streamlease.agent.client import Client
    from streamlease.agent.membership.agent import Agent

LOOK_SECONDS = 1.0
WRITE_LOOKS_SECONDS = 30.0
RETRY_SECONDS = 0.5
END_SECONDS = 6.0

_logger = logging.getLogger(__name__)


class WebhookLeases:
    """The part of the webhooks that this gateway has; handler of its session.

    Args:
        last_seconds: how long a delivery may go on when its slot is to go to another gateway.
    """

    def __init__(
        self, client: Client, means: DeliveryMeans, records: WebhookRecords, last_seconds: float
    ) -> None:
        self._client = client
        self._means = means
        self._records = records
        self._last_seconds = last_seconds
        self._tasks = Supervisor("webhooks", self._task_failed)
        self._settling = SettlingTogether(records)
        self._session: Session | None = None
        self._agent: Agent | None = None
        self._streams: dict[str, StreamGranted] = {}
        """The leases that stand."""
        self._slots: dict[int, WebhookSlot] = {}
        self._former: dict[int, WebhookSlot] = {}
        """Such as others took, and in which something may still be under way."""
        self._taking: set[int] = set()
        self._wakefulness = Wakefulness()
        self._left = asyncio.Event()
        self._closing = False
        self._poked = asyncio.Event()
        self._seldom = Seldom(_logger)

    # ------------------------------------------------------------ life

    def start(self) -> None:
        """Begin to look for webhooks."""
        self._tasks.start("settling", self._settling.work(), endless=True)
        self._tasks.start("looking", self._look_often(), endless=True)

    async def close(self) -> None:
        """Give all back in good order."""
        self._closing = True
        session = self._session
        if session is not None and not session.over:
            self._left.clear()
            session.unsubscribe()
            try:
                async with asyncio.timeout(END_SECONDS):
                    await self._left.wait()
            except TimeoutError:
                session.end(Fenced("the gateway has ended"))
        if self._agent is not None:
            self._agent.remove_ticker(self._wakefulness.tick)
        await self._tasks.close()
        self._means.lines.close()

    async def have_space(self) -> None:
        """Have the space and the group of webhooks.

        Raises:
            SpaceConflict: another space has its name or topics. StoreUnavailable, StoreRefused, Indefinite.
        """
        known = await self._client.spaces.recent()
        if SPACE not in known.spaces:
            await self._client.create_space(SPACE, TOPICS, streams=SLOTS)

    def poke(self) -> None:
        """Something changed: look at once."""
        self._poked.set()

    # ------------------------------------------------------------ looking

    async def _look_often(self) -> None:
        written = asyncio.get_running_loop().time()
        while True:
            try:
                await self._look()
                now = asyncio.get_running_loop().time()
                self._means.lines.sweep(now)
                if now - written >= WRITE_LOOKS_SECONDS:
                    written = now
                    await asyncio.gather(*(slot.write_looks() for slot in [*self._slots.values()]))
            except StreamleaseError as error:
                self._seldom.warning("webhooks: %s", error)
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._poked.wait()
            except TimeoutError:
                pass
            self._poked.clear()

    async def _look(self) -> None:
        if self._session is None:
            if self._closing or SPACE not in (await self._client.spaces.recent()).spaces:
                return
            await self._join()
        await self._read_changed()
        counted: Counter[WebhookState] = Counter()
        for slot in self._slots.values():
            slot.count(counted)
        for state in WebhookState:
            metrics.HELD.labels(state.value).set(counted[state])
        metrics.SLOTS.set(len(self._slots))

    async def _join(self) -> None:
        agent = self._agent = await self._client.agent()
        groups = self._client.groups
        await groups.join(GROUP, "earliest")
        name = f"s-{random_token()}"
        arrival = await groups.arrive(GROUP)
        config = SessionConfig(GROUP, name, (f"{name}/0",), arrival, BorrowerConfig())
        session = self._session = Session(agent, config, self)

        async def declare_again() -> None:
            try:
                await groups.get(GROUP)
            except UnknownGroup:
                await groups.join(GROUP, "earliest", arrival=arrival)

        agent.leaders.keep_declared(GROUP.id, (lambda: not session.over, declare_again))
        session.start()
        agent.add_ticker(self._wakefulness.tick)  # behind the session's own, which finds out what it has lost

    async def _read_changed(self) -> None:
        """Read the slots that were changed, and leave those that another gateway took."""
        held = [(slot, slot.lease) for slot in self._slots.values()]
        if not held:
            return
        versions = await self._records.versions([lease for _, lease in held])
        for (slot, lease), version in zip(held, versions, strict=True):
            mine = self._slots.get(lease.slot) is slot and slot.lease == lease
            if not mine or version == slot.version or lease.slot in self._taking:
                continue
            if version is None:
                self._lose(slot)
                continue
            try:
                claimed = await self._records.claim(lease)
            except Fenced:
                if slot.lease == lease:
                    self._lose(slot)
            else:
                if slot.lease == lease and self._slots.get(lease.slot) is slot:
                    slot.read(claimed)

    def _lose(self, slot: WebhookSlot) -> None:
        if self._slots.get(slot.lease.slot) is slot:
            self._former[slot.lease.slot] = self._slots.pop(slot.lease.slot)
        slot.leave(lost=True)

    # ------------------------------------------------------------ handler of the session

    def granted(self, slot: int, grant: StreamGranted) -> None:
        """Deliver what belongs to the stream."""
        self._streams[grant.stream] = grant
        self._tasks.start(f"taking {grant.stream}", self._take(grant))

    def revoking(self, slot: int, revoking: StreamRevoking) -> None:
        """End what is under way, and give the stream back."""
        grant = self._streams.get(revoking.stream)
        if grant is not None and grant.lease_epoch == revoking.lease_epoch:
            self._tasks.start(f"giving back {revoking.stream}", self._give_back(grant))

    def gone(self, slot: int, gone: StreamGone) -> None:
        """Begin nothing more of the stream, unless it comes back."""
        grant = self._streams.get(gone.stream)
        if grant is not None and grant.lease_epoch == gone.lease_epoch:
            del self._streams[gone.stream]
            for held in self._of(StreamId.parse(gone.stream)):
                held.in_limbo()

    def acknowledged(self, slot: int, ack: ProgressAcknowledged) -> None:
        """There is no progress in streams without messages."""

    def answered(self, slot: int, answer: FailureAnswered) -> None:
        """Nothing fails in streams without messages."""

    def received(self, message: LeaderToSession | CutRead) -> None:
        """Cuts are not used here."""

    def failed(self, error: StreamleaseError) -> None:
        """The session is over; another one begins at the next look."""
        _logger.warning("webhooks: %s", error)
        self._over()

    def ended(self) -> None:
        """The session has left."""
        self._over()

    def _over(self) -> None:
        self._session = None
        self._streams.clear()
        for held in self._slots.values():
            held.in_limbo()
        self._left.set()

    # ------------------------------------------------------------ slots

    def _of(self, stream: StreamId) -> list[WebhookSlot]:
        return [held for held in self._slots.values() if held.stream == stream]

    async def _take(self, grant: StreamGranted) -> None:
        stream = StreamId.parse(grant.stream)
        while self._stands(grant):
            try:
                space = (await self._client.spaces.recent()).get(SPACE)
                if stream.generation != space.newest.number:
                    return  # its slots belong to streams of the newest one
                for number in slots_of(stream, space.newest.streams):
                    await self._take_slot(grant, stream, number)
                return
            except Fenced as error:
                _logger.warning("webhooks: %s", error)
                return
            except StreamleaseError as error:
                self._seldom.warning("webhooks: %s is taken later: %s", grant.stream, error)
                await asyncio.sleep(RETRY_SECONDS)

    async def _take_slot(self, grant: StreamGranted, stream: StreamId, number: int) -> None:
        lease = SlotLease(number, stream.generation, grant.lease_epoch)
        held = self._slots.get(number)
        if held is not None and held.lease == lease:
            return
        self._taking.add(number)
        try:
            claimed = await self._records.claim(lease)
        finally:
            self._taking.discard(number)
        if not self._stands(grant):
            return
        held = self._slots.get(number)
        if held is not None and held.lease == claimed.before:
            held.goes_on(claimed, lease, stream)
            return
        if held is not None:
            self._lose(held)
        self._slots[number] = WebhookSlot(
            self._means, self._settling, self._tasks, claimed, lease, stream, self._wakefulness,
            self._former.pop(number, None),
        )  # fmt: skip

    async def _give_back(self, grant: StreamGranted) -> None:
        given = self._of(StreamId.parse(grant.stream))
        for slot in given:
            slot.leave()
        await asyncio.gather(*(slot.gone(self._last_seconds) for slot in given))
        for slot in given:
            if self._slots.get(slot.lease.slot) is slot:
                del self._slots[slot.lease.slot]
        if self._stands(grant):
            del self._streams[grant.stream]
        session = self._session
        for one in session.slots if session is not None else ():
            one.step(Progressed(grant.stream, grant.lease_epoch, grant.progress, final=True))

    def _stands(self, grant: StreamGranted) -> bool:
        return self._streams.get(grant.stream) is grant

    def _task_failed(self, task: str, error: StreamleaseError) -> None:
        _logger.error("webhooks: %s failed: %s", task, error)
