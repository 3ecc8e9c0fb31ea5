"""Which streams have something new: the ``next`` offsets of the streams that the readers of a client hold.

The metas, read every `poll_interval` seconds, are the truth. Each append also publishes the new ``next``
on its stream's news channel; that push is only faster, and everything works without it. A push raises
an offset at once. A poll may also lower it, as after a failover that lost writes, unless a push came
while the poll was under way.

All readers of a client share one :class:`Tails`: one connection for what is pushed, and one question for a
stream that several of them watch. Each has a :class:`Watch`, with streams of its own.

A poll reads all streams where nothing is pushed: with `push` off, until the subscription stands, and after
its connection was lost. While it stands, a poll reads a share of them (`poll_order`). A connection on which
nothing comes is asked every second whether it lives. As long as it does not answer, or where a server hands
on what was appended at another one (a cluster), the share is larger.

In a cluster each server is polled for itself (``per_server``): one that is dead or stands still delays only
its own streams.

Both loops run for ever: while Redis is away they keep trying, and ``error`` says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

from redis.exceptions import RedisError

from streamlease.protocol.errors import InvalidOption, StreamleaseError
from streamlease.protocol.ids import StreamId
from streamlease.streams.log.keys import stream_meta, stream_news
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.log.poll_order import COMING_SECONDS, PollOrder
from streamlease.streams.log.watches import OnChange, OnPushed, Watch
from streamlease.streams.redis.connection import AsyncRedis, is_cluster
from streamlease.streams.redis.lines.channels import ChannelLine
from streamlease.streams.redis.per_server import PerServer
from streamlease.streams.tasks import Supervisor, task_failed

POLL_SECONDS = 1.0
PATIENCE_SECONDS = 0.25
"""How long a poll waits for the slowest server of a cluster before it leaves that to itself."""

GATHER_SECONDS = 0.005
"""How long a new subscription to news waits for more streams: many are granted in a row."""

FIRST_WAIT = 0.05
LONGEST_WAIT = 2.0

_logger = logging.getLogger(__name__)


class Tails:
    """Watches what any :class:`Watch` of it watches, from the first stream on until it is closed.

    Args:
        poll_interval: seconds between two reads of the metas.
        push: also listen to the news channels.

    Raises:
        InvalidOption: the interval is not positive.
    """

    def __init__(self, redis: AsyncRedis, *, poll_interval: float = POLL_SECONDS, push: bool = True) -> None:
        if poll_interval <= 0:
            raise InvalidOption(f"poll_interval is {poll_interval}: it must be above 0")
        self._redis = redis
        self._log = AsyncLog(redis)
        self._interval = poll_interval
        self._push = push
        self._next: dict[StreamId, int | None] = {}
        """The end of each stream that is watched, as far as it is known. What is kept of a stream stands in
        dictionaries, not in an object of its own: Python's garbage collector walks through objects."""
        self._watches: dict[StreamId, tuple[Watch, ...]] = {}
        self._by_channel: dict[bytes, StreamId] = {}
        self._poll_now = asyncio.Event()
        self._order = PollOrder(self._next.keys(), poll_interval)
        self._line = ChannelLine(
            redis, lambda: map(bytes.decode, self._by_channel), self._take, GATHER_SECONDS
        )
        """The push connection. What is new is due for a poll, again once it is subscribed."""
        self._relayed = is_cluster(redis)
        """Whether what is pushed may come from another server than the one that the connection is to."""
        self._tasks = Supervisor("tails", self._failed)
        self._servers = PerServer(redis, self._tasks, stream_meta, self._read, PATIENCE_SECONDS)
        self._unread: dict[StreamId, StreamleaseError] = {}
        """Why the last poll did not read these."""
        self._defect: StreamleaseError | None = None
        self._told: set[StreamId] = set()
        self._closed = False
        self.polls = 0
        """How many polls were made."""
        self.pushes = 0
        """How many pushed offsets arrived."""

    async def __aenter__(self) -> Tails:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def watch(self, on_change: OnChange | None = None, on_pushed: OnPushed | None = None) -> Watch:
        """The share of one reader, which watches nothing yet.

        Args:
            on_change: called with the stream and its new ``next`` (None: it is gone), on the event loop.
            on_pushed: called instead of a poll, if many streams are new at once, when the news of one are
                pushed: the reader reads the stream, and then calls `Watch.learn`.
        """
        return Watch(self, on_change, on_pushed)

    def _start(self) -> None:
        if not self._tasks and not self._closed:
            self._tasks.start("poll", self._forever("poll", self._poll), endless=True)
            if self._push:
                self._tasks.start("push", self._forever("push", self._line.live), endless=True)

    async def close(self) -> None:
        """Stop watching, for good. A second call does nothing."""
        self._closed = True
        await self._tasks.close()

    def error_of(self, streams: Iterable[StreamId]) -> StreamleaseError | None:
        """Why some of `streams` could not be read by the last poll; None while all is well."""
        if self._defect is not None or not self._unread:
            return self._defect
        return next((self._unread[stream] for stream in streams if stream in self._unread), None)

    # ------------------------------------------------------------ what is watched

    def join(self, stream: StreamId, watch: Watch) -> None:
        """`watch` watches this stream from now on."""
        watches = self._watches.get(stream)
        if watches is None:
            self._next[stream] = None
            self._watches[stream] = watch.alone
            self._by_channel[stream_news(stream).encode()] = stream
            self._order.joins(stream, asyncio.get_running_loop().time(), pushed=self._push)
            self._line.changed.set()
        else:
            self._watches[stream] = (*watches, watch)
        self._start()
        self.poll_soon(stream)
        if watches is not None and self._next[stream] is not None:  # news to this reader
            self._tell(stream, (watch,))

    def leave(self, stream: StreamId, watch: Watch) -> None:
        """`watch` watches this stream no longer."""
        left = tuple(one for one in self._watches[stream] if one is not watch)
        if left:
            self._watches[stream] = left
            return
        del self._watches[stream], self._next[stream], self._by_channel[stream_news(stream).encode()]
        self._unread.pop(stream, None)
        self._order.leaves(stream)
        self._line.changed.set()

    def poll_soon(self, stream: StreamId) -> None:
        """Let the next poll, which begins at once, read this stream."""
        self._order.due.add(stream)
        self._poll_now.set()

    def next_of(self, stream: StreamId) -> int | None:
        """The end of a stream that somebody watches, as far as it is known."""
        return self._next.get(stream)

    def set_end(self, stream: StreamId, next: int | None, *, but: Watch | None = None) -> None:
        """The end of a stream is known; all who watch it are told, but for one who knows."""
        known = self._next.get(stream, next)
        if known == next:
            return
        self._next[stream] = next
        watches = self._watches[stream]
        if known is not None and next is not None and next < known:
            for watch in watches:
                watch.lowered.add(stream)
        self._tell(stream, watches if but is None else [one for one in watches if one is not but])

    def _tell(self, stream: StreamId, watches: Iterable[Watch]) -> None:
        for watch in watches:
            if watch.on_change is None:
                continue
            try:
                watch.on_change(stream, self._next.get(stream))
            except Exception:
                extra = {"stream": str(stream)}
                _logger.exception("tails: the callback for %s failed", stream, extra=extra)

    def _is_pushed(self, stream: StreamId, *, many: bool) -> None:
        """From now on the news of a stream are pushed; it is looked for what was appended before that.

        Args:
            many: many streams are new.
        """
        watches = self._watches[stream]
        if not many or any(watch.on_pushed is None for watch in watches):
            self._order.is_pushed(stream)
            self._poll_now.set()
            return
        self._order.is_read(stream)
        for watch in watches:
            if watch.on_pushed is not None:
                watch.on_pushed(stream)

    # ------------------------------------------------------------ going on for ever

    async def _forever(self, what: str, work: Callable[[], Awaitable[None]]) -> None:
        failures = 0
        while True:
            began = asyncio.get_running_loop().time()
            try:
                await work()
            except (StreamleaseError, RedisError, OSError) as error:
                _logger.log(logging.DEBUG if failures else logging.WARNING, "tails: %s: %s", what, error)
            except (Exception, asyncio.CancelledError) as error:
                task = asyncio.current_task()
                if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                    raise
                _logger.exception("tails: %s failed", what)
                self._failed(what, task_failed("tails", what, error))
            if asyncio.get_running_loop().time() - began > LONGEST_WAIT:
                failures = 0
            wait = min(LONGEST_WAIT, FIRST_WAIT * 2**failures)
            failures = min(failures + 1, 16)
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))

    def _failed(self, task: str, error: StreamleaseError) -> None:
        """A defect: it is shown until a poll is well."""
        self._defect = error

    # ------------------------------------------------------------ polling

    async def _poll(self) -> None:
        while True:
            self._poll_now.clear()
            coming = self._order.coming(asyncio.get_running_loop().time())
            asked = [stream for stream in self._asked() if stream not in coming]
            self._order.due.difference_update(asked)
            try:
                self._order.due.update(await self._servers.turn(asked))
            except StreamleaseError as error:  # no node of a cluster says which server has what
                self._missed(asked, error)
            self.polls += 1
            wait = min(self._interval, COMING_SECONDS) if coming else self._interval
            if self._unread:
                wait = min(wait, LONGEST_WAIT) * random.uniform(0.5, 1.0)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._poll_now.wait()

    def _asked(self) -> list[StreamId]:
        """What the next poll reads."""
        if not self._pushed:
            return list(self._next)
        trusted = not self._relayed and self._line.speaks
        return self._order.next(self._unread, asyncio.get_running_loop().time(), trusted=trusted)

    async def _read(self, asked: Sequence[StreamId]) -> None:
        """Read the ends of streams of one server."""
        before = {stream: self.next_of(stream) for stream in asked}
        damaged: dict[StreamId, StreamleaseError] = {}
        try:
            found = await self._log.next_offsets(asked, damaged)
        except StreamleaseError as error:
            self._missed(asked, error)
            return
        self._say_damaged(asked, damaged)
        self._defect = None
        for stream in asked:
            self._unread.pop(stream, None)
            polled, now = found.get(stream), self.next_of(stream)
            pushed_meanwhile = now != before[stream]
            if not pushed_meanwhile or (polled is not None and now is not None and polled > now):
                self.set_end(stream, polled)

    def _missed(self, asked: Sequence[StreamId], error: StreamleaseError) -> None:
        known = any(stream in self._unread for stream in asked)
        _logger.log(logging.DEBUG if known else logging.WARNING, "tails: poll: %s", error)
        self._unread.update((stream, error) for stream in asked if stream in self._next)

    def _say_damaged(self, asked: Iterable[StreamId], damaged: Mapping[StreamId, StreamleaseError]) -> None:
        """Say once of each stream that it cannot be watched; the others are."""
        for stream in damaged.keys() - self._told:
            _logger.error("tails: %s", damaged[stream], extra={"stream": str(stream)})
        self._told = self._told.difference(asked) | damaged.keys()

    # ------------------------------------------------------------ what is pushed

    @property
    def _pushed(self) -> bool:
        """Whether news are pushed."""
        return self._line.stands

    def _take(self, replies: list[Any]) -> None:
        """What came together; of each stream, only how far it is now."""
        ends: dict[bytes, int] = {}
        many = len(self._order.coming(self._line.heard_at)) > 0
        for reply in replies:
            if not isinstance(reply, list):
                continue  # the answer to a question, before there is a subscription
            kind, channel = reply[0], reply[1]
            if kind == b"message":
                self.pushes += 1
                ends[channel] = max(ends.get(channel, 0), int(reply[2]))
            elif kind == b"subscribe" and (subscribed := self._by_channel.get(channel)) is not None:
                self._is_pushed(subscribed, many=many)
        for channel, next in ends.items():
            stream = self._by_channel.get(channel)
            if stream is not None and next > (self._next[stream] or 0):
                self.set_end(stream, next)
