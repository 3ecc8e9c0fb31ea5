"""Calls without a pause, each number once, and a judge of what became of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from streamlease.agent.client import Client
from streamlease.protocol.errors import Indefinite, NoService, StoreRefused, StoreUnavailable
from tests.services.models import Score, Scored


async def until(holds: Callable[[], object]) -> None:
    """Wait for what other processes bring about."""
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 - it is about other processes
            await asyncio.sleep(0.02)


class Load:
    """Calls one after the other in several lanes; each number once."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._next = 0
        self._over = False
        self.answers: list[tuple[float, str]] = []
        """When, and by whom."""
        self.indefinite: list[int] = []
        self.undone: list[int] = []
        self.answered: list[int] = []

    async def run(self, lanes: int = 20) -> None:
        await asyncio.gather(*(self._lane() for _ in range(lanes)))

    def end(self) -> None:
        self._over = True

    async def _lane(self) -> None:
        while not self._over:
            self._next += 1
            x = self._next
            try:
                answer = await self._client.call("scorer", Score(x=x), answer=Scored, wait=30, timeout=20)
            except Indefinite:
                self.indefinite.append(x)
            except (StoreUnavailable, StoreRefused, NoService):
                self.undone.append(x)
                await asyncio.sleep(0.05)
            else:
                assert answer.y == x / 2
                self.answered.append(x)
                self.answers.append((asyncio.get_running_loop().time(), answer.by))

    async def until_answered_by(self, *names: str) -> None:
        """Wait until all of these have answered since now."""
        since = asyncio.get_running_loop().time()
        await until(lambda: {by for at, by in self.answers if at > since} >= {*names})

    def judge(self, ran: Counter[int]) -> None:
        """Nothing ran twice, what was answered ran, and what is known as not done did not."""
        twice = {x: count for x, count in ran.items() if count > 1}
        assert twice == {}
        assert [x for x in self.answered if not ran[x]] == []
        assert [x for x in self.undone if ran[x]] == []
