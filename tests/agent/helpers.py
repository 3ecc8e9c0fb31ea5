"""What the tests of subscriptions need: publishing known messages, collecting them, waiting."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from streamlease.agent.client import Client
from streamlease.agent.subscription import Batch, SharedReader
from streamlease.protocol.errors import StreamleaseError
from streamlease.streams.log.tails import Tails
from streamlease.streams.tasks import stop

SUB = "$shared/g/a/#"
SECONDS = 60.0


async def until(condition: Callable[[], bool], seconds: float = SECONDS) -> None:
    """Wait until `condition` holds; fail after `seconds`."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 (a condition of any kind)
            await asyncio.sleep(0.01)


async def publish(client: Client, numbers: Iterable[int], topics: int = 8, root: str = "a") -> None:
    """Message n goes to topic ``root/(n mod topics)``."""
    async with client.publisher() as publisher:
        for number in numbers:
            await publisher.submit(f"{root}/{number % topics}", str(number))


async def take(reader: SharedReader, count: int, *, commit: bool = True) -> list[int]:
    """The numbers of the next `count` messages or a few more, committed batch by batch."""
    got: list[int] = []
    async with asyncio.timeout(SECONDS):
        while len(got) < count:
            batch = await anext(reader)
            got.extend(int(message.payload) for message in batch.messages)
            if commit:
                await batch.commit()
    return got


def in_order(numbers: Iterable[int], topics: int = 8) -> bool:
    """Whether the numbers of each topic rise."""
    last: dict[int, int] = defaultdict(lambda: -1)
    for number in numbers:
        if number <= last[number % topics]:
            return False
        last[number % topics] = number
    return True


@dataclass(eq=False)
class Consumer:
    """Consumes and commits in a task until it is cancelled; remembers what was committed."""

    reader: SharedReader
    got: list[int] = field(default_factory=list)
    fenced: list[Batch] = field(default_factory=list)
    error: StreamleaseError | None = None
    task: asyncio.Task[None] | None = None

    def start(self) -> Consumer:
        self.task = asyncio.create_task(self._consume())
        return self

    async def stop(self) -> None:
        """Cancel it; whatever ended it before is an error of the test."""
        assert self.task is not None
        assert not self.task.done(), f"it ended: {self.error or self.task}"
        await stop([self.task])
        assert self.task.cancelled()

    async def _consume(self) -> None:
        try:
            async for batch in self.reader:
                await batch.commit()
                self.got.extend(int(message.payload) for message in batch.messages)
        except StreamleaseError as error:
            self.error = error


def resting_tails() -> Tails:
    """Tails that ask nobody, for what runs without a Redis."""
    tails = Tails(None)  # type: ignore[arg-type]
    tails._closed = True
    return tails
