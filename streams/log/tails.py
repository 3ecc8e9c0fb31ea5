"""Which streams have something new: the ``next`` offsets of a changing set of streams.

The metas, read every `poll_interval` seconds, are the truth. Each append also publishes the new ``next``
on its stream's news channel; that push is only faster, and everything works without it. A push raises
an offset at once. A poll may also lower it, as after a failover that lost writes, unless a push came
while the poll was under way.

A poll reads all streams where nothing is pushed: with `push` off, until the subscription stands, and after
its connection was lost. While it stands, a poll reads what is new in the set and ``POLL_SHARE`` others in
turn, so its cost does not grow with the number of streams, and a push that got lost is made up for.

Both loops go on for ever: while Redis is away they try again with growing waits, and ``error`` says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any

from redis.exceptions import RedisError

from streamlease.protocol.errors import InvalidOption, StreamleaseError
from streamlease.protocol.ids import StreamId
from streamlease.streams.log.keys import stream_news
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.redis.connection import AsyncRedis, address, unavailable
from streamlease.streams.tasks import Supervisor, stop

POLL_SECONDS = 1.0
POLL_SHARE = 250
"""How many streams one poll reads while their news are pushed: 10,000 take 40 s."""

FIRST_WAIT = 0.05
LONGEST_WAIT = 2.0
QUIET_SECONDS = 5.0
"""How long the push connection may be silent before it is asked whether it lives."""

OnChange = Callable[[StreamId, int | None], None]

_logger = logging.getLogger(__name__)


class Tails:
    """Watches streams between ``start`` and ``close``, or in an ``async with``.

    Args:
        poll_interval: seconds between two reads of the metas.
        push: also listen to the news channels.
        on_change: called with the stream and its new ``next`` (None: it is gone), on the event loop.

    Raises:
        InvalidOption: the interval is not positive.
    """

    def __init__(
        self,
        redis: AsyncRedis,
        *,
        poll_interval: float = POLL_SECONDS,
        push: bool = True,
        on_change: OnChange | None = None,
    ) -> None:
        if poll_interval <= 0:
            raise InvalidOption(f"poll_interval is {poll_interval}: it must be above 0")
        self._redis = redis
        self._log = AsyncLog(redis)
        self._interval = poll_interval
        self._push = push
        self._on_change = on_change
        self._streams: dict[StreamId, str] = {}
        self._by_channel: dict[bytes, StreamId] = {}
        self._next: dict[StreamId, int] = {}
        self._changed: set[StreamId] = set()
        self._news = asyncio.Event()
        self._poll_now = asyncio.Event()
        self._due: set[StreamId] = set()
        """Streams that the next poll must read: they are new, or their news are pushed from now on."""
        self._turn: deque[StreamId] = deque()
        """The order in which polls read a share of the streams each."""
        self._pushed = False
        """Whether the news of all streams are pushed."""
        self._resubscribe = asyncio.Event()
        self._tasks = Supervisor("tails", self._ended)
        self._again: dict[str, asyncio.TimerHandle] = {}
        self.error: StreamleaseError | None = None
        """Why the last poll failed; None while all is well."""
        self._told: set[StreamId] = set()
        self.lowered: set[StreamId] = set()
        """Streams of which Redis lost the end; who has looked at one takes it out."""
        self.polls = 0
        """How many polls succeeded."""
        self.pushes = 0
        """How many pushed offsets arrived."""

    async def __aenter__(self) -> Tails:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def start(self) -> None:
        """Begin to watch, on the running event loop. A second call does nothing."""
        if not self._tasks:
            self._begin("poll")
            if self._push:
                self._begin("push")

    def _begin(self, loop: str) -> None:
        work = self._poll if loop == "poll" else self._listen
        self._tasks.start(loop, self._forever(loop, work), endless=True)

    def _ended(self, loop: str, error: StreamleaseError) -> None:
        """It goes on for ever, whatever ended it."""
        self.error = error
        self._again[loop] = asyncio.get_running_loop().call_later(LONGEST_WAIT, self._begin, loop)

    async def close(self) -> None:
        """Stop watching. A second call does nothing."""
        await self._tasks.close()
        for timer in self._again.values():
            timer.cancel()

    def set_streams(self, streams: Iterable[StreamId]) -> None:
        """Watch just these from now on; new ones are polled at once."""
        wanted = {stream: stream_news(stream) for stream in streams}
        if wanted.keys() == self._streams.keys():
            return
        self._due |= wanted.keys() - self._streams.keys()
        self._pushed = False
        self._streams = wanted
        self._turn = deque(wanted)
        self._by_channel = {channel.encode(): stream for stream, channel in wanted.items()}
        self._next = {stream: next for stream, next in self._next.items() if stream in wanted}
        self._changed &= wanted.keys()
        self.lowered &= wanted.keys()
        self._poll_now.set()
        self._resubscribe.set()

    def next_of(self, stream: StreamId) -> int | None:
        """The offset that the stream's next message will get, as far as known; None if it is not known."""
        return self._next.get(stream)

    async def changed(self) -> frozenset[StreamId]:
        """Wait until ``next_of`` changed for some stream; all for which it did since the last call.

        For one waiter; several use `on_change`.
        """
        while not self._changed:
            self._news.clear()
            await self._news.wait()
        changed = frozenset(self._changed)
        self._changed.clear()
        return changed

    def _set(self, stream: StreamId, next: int | None) -> None:
        known = self._next.get(stream)
        if stream not in self._streams or known == next:
            return
        if next is None:
            del self._next[stream]
        else:
            self._next[stream] = next
            if known is not None and next < known:
                self.lowered.add(stream)
        self._changed.add(stream)
        self._news.set()
        if self._on_change is not None:
            try:
                self._on_change(stream, next)
            except Exception:
                _logger.exception("tails: the callback for %s failed", stream, extra={"stream": str(stream)})

    async def _forever(self, what: str, work: Callable[[], Any]) -> None:
        failures = 0
        while True:
            began = asyncio.get_running_loop().time()
            try:
                await work()
            except (StreamleaseError, RedisError, OSError) as error:
                known = error if isinstance(error, StreamleaseError) else None
                self.error = known or unavailable(address(self._redis), error)
                _logger.log(logging.DEBUG if failures else logging.WARNING, "tails: %s: %s", what, self.error)
            except Exception as error:
                self.error = unavailable(address(self._redis), error)
                _logger.exception("tails: %s failed", what)
            if asyncio.get_running_loop().time() - began > LONGEST_WAIT:
                failures = 0
            wait = min(LONGEST_WAIT, FIRST_WAIT * 2**failures)
            failures = min(failures + 1, 16)
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))

    def _asked(self) -> list[StreamId]:
        """What the next poll reads."""
        if not self._pushed or self.error is not None or len(self._streams) <= POLL_SHARE:
            return list(self._streams)
        share = [self._turn.popleft() for _ in range(POLL_SHARE)]
        self._turn.extend(share)
        return [*share, *(self._due & self._streams.keys()).difference(share)]

    async def _poll(self) -> None:
        while True:
            self._poll_now.clear()
            asked = self._asked()
            self._due.difference_update(asked)  # after a failure all are read
            before = {stream: self._next.get(stream) for stream in asked}
            damaged: dict[StreamId, StreamleaseError] = {}
            found = await self._log.next_offsets(asked, damaged)
            self._tell(damaged)
            self.error = None
            self.polls += 1
            for stream in asked:
                polled, now = found.get(stream), self._next.get(stream)
                pushed_meanwhile = now != before[stream]
                if not pushed_meanwhile or (polled is not None and now is not None and polled > now):
                    self._set(stream, polled)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval):
                    await self._poll_now.wait()

    def _tell(self, damaged: Mapping[StreamId, StreamleaseError]) -> None:
        """Say once of each stream that it cannot be watched; the others are."""
        for stream in damaged.keys() - self._told:
            _logger.error("tails: %s", damaged[stream], extra={"stream": str(stream)})
        self._told = {*damaged}

    async def _listen(self) -> None:
        """One life of the push connection: read news, while a second task subscribes."""
        pubsub: Any = self._redis.pubsub()
        subscribed = asyncio.Event()
        # Looked at in every turn of the loop below, which ends with it.
        subscribing = asyncio.create_task(self._subscribe(pubsub, subscribed))
        try:
            while True:
                if subscribing.done():
                    await subscribing  # raises what went wrong
                if not pubsub.subscribed:
                    await self._first_subscription(subscribing, subscribed)
                    continue
                self._take(await pubsub.get_message(timeout=QUIET_SECONDS))
        finally:
            self._pushed = False
            await stop([subscribing])
            await pubsub.aclose()

    @staticmethod
    async def _first_subscription(subscribing: asyncio.Task[None], subscribed: asyncio.Event) -> None:
        subscribed.clear()
        waiting = asyncio.create_task(subscribed.wait())
        try:
            await asyncio.wait((subscribing, waiting), return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()

    async def _subscribe(self, pubsub: Any, subscribed: asyncio.Event) -> None:
        have: set[str] = set()
        while True:
            self._resubscribe.clear()
            wanted = set(self._streams.values())
            if wanted - have:
                await pubsub.subscribe(*sorted(wanted - have))
                subscribed.set()
            if have - wanted:
                await pubsub.unsubscribe(*sorted(have - wanted))
            have = wanted
            self._pushed = have == set(self._streams.values())
            await self._resubscribe.wait()

    def _take(self, message: Any) -> None:
        stream = self._by_channel.get(message["channel"]) if message is not None else None
        if stream is None or message["type"] not in ("message", "subscribe"):
            return
        if message["type"] == "subscribe":
            self._due.add(stream)  # for what was appended before the subscription took hold
            self._poll_now.set()
            return
        self.pushes += 1
        next = int(message["data"])
        if next > (self._next.get(stream) or 0):
            self._set(stream, next)
