"""How far webhooks are, written together: while one exchange with Redis is under way, the next gathers."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from streamlease.protocol.errors import StreamleaseError
from streamlease.registry.webhooks.webhook_records import Say, SlotLease, WebhookName, WebhookRecords

MOST = 1000
"""Webhooks of a slot in one exchange."""


class _Waiting(NamedTuple):
    say: Say
    heard: asyncio.Future[bool]


class SettlingTogether:
    """Writes standings for all webhooks of a gateway."""

    def __init__(self, records: WebhookRecords) -> None:
        self._records = records
        self._waiting: dict[SlotLease, dict[WebhookName, _Waiting]] = {}
        self._some = asyncio.Event()

    async def settle(self, lease: SlotLease, name: WebhookName, turn: str, standing: bytes) -> bool:
        """Write how a webhook stands; whether it is kept: not if it was changed or deleted meanwhile.

        Raises:
            Fenced: a newer lease has the slot. StoreUnavailable, StoreRefused, Indefinite: safe to repeat.
        """
        heard: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        some = self._waiting.setdefault(lease, {})
        former = some.get(name)
        if former is not None and not former.heard.done():
            former.heard.set_result(False)  # one after the other: the former one does not wait any more
        some[name] = _Waiting((name, turn, standing), heard)
        self._some.set()
        return await heard

    async def work(self) -> None:
        """Write what gathers, for ever."""
        while True:
            await self._some.wait()
            self._some.clear()
            round: dict[SlotLease, list[_Waiting]] = {}
            for lease, waiting in [*self._waiting.items()]:
                round[lease] = [waiting.pop(name) for name in [*waiting][:MOST]]
                if not waiting:
                    del self._waiting[lease]
                else:
                    self._some.set()
            try:
                outcomes = await self._records.settle(
                    {lease: [one.say for one in some] for lease, some in round.items()}
                )
            except StreamleaseError as error:
                for some in round.values():
                    _fail(some, error)
                continue
            for lease, some in round.items():
                outcome = outcomes[lease]
                if isinstance(outcome, StreamleaseError):
                    _fail(some, outcome)
                    continue
                for one, kept in zip(some, outcome.kept, strict=True):
                    if not one.heard.done():
                        one.heard.set_result(kept)


def _fail(some: list[_Waiting], error: StreamleaseError) -> None:
    for one in some:
        if not one.heard.done():
            one.heard.set_exception(error)
