"""A process that calls and serves: one stream of answers, one of requests, one blocking read for both.

::

    caller                          Redis                              server
    post, gather  -- XADD -->  requests:LIFE  -- XREAD -->  new? in time? room?  -> a task per request
    future        <-- XREAD --    answers     <-- XADD --  gather, post

Rules:

* A request is taken at most once: by its stream's reader, which never goes back, and by the number of its
  entry.
* The stream of requests lasts as long as the lease, and the lease is renewed three times in its length.
  When it has passed, by Redis or by the process' own clock, that *life* is over: what came under it and was
  not begun is dropped, for its callers know nothing but that it may have been done. The process goes on in
  its next life, with a new stream and a new address, and serves what it served before. What is at work goes
  on.
* A request whose caller has given up by the clock of Redis is not begun.
* Who ends takes its rows away first, answers what it has, and then ends its stream and refuses what is in
  it, in one act (``lua/unbind.lua``).

Not promised: that a request is done (a server may die), that requests of one caller are done in order, or
that an answer survives the loss of Redis' data. All of that is ``Indefinite`` to the caller.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Mapping

from streamlease.protocol.errors import (
    Indefinite,
    InvalidInput,
    InvalidOption,
    StoreRefused,
    StoreUnavailable,
    StreamleaseError,
)
from streamlease.protocol.ids import random_token
from streamlease.protocol.seldom import Seldom
from streamlease.services import keys, metrics
from streamlease.services.binding import Binding, refuse
from streamlease.services.caller import Caller
from streamlease.services.core.frames import (
    REFUSED_LEAVING,
    CancelFrame,
    FrameEntry,
    RequestFrame,
    parse_entry,
)
from streamlease.services.directory import Directory
from streamlease.services.handlers import ServiceTypes, TypedHandler
from streamlease.services.lives import NOTHING_READ, Lives, ReadStream, make_stream
from streamlease.services.outbox import Outbox
from streamlease.services.registration import ServedRow, ServiceRow
from streamlease.streams.redis.connection import AsyncRedis, Command, ask
from streamlease.streams.redis.lines.direct_lines import DirectLines
from streamlease.streams.tasks import Supervisor

LEASE_MS = 6000
"""How long a server counts after its last sign of life."""

ANSWERS_MS = 60_000
"""How long a stream of answers outlives its reader."""

KEEP_SECONDS = 5.0
"""How often the life of the stream of answers is prolonged, where no lease is renewed."""

BLOCK_MS = 2000
READ_ENTRIES = 64
TRIM_ENTRIES = 32
"""So many entries are read until they are removed."""

ANSWER_SECONDS = 5.0
"""How long Redis may take to answer on a line."""

RETRY_SECONDS = 0.2

_UNANSWERED = (StoreUnavailable, StoreRefused, Indefinite)

_logger = logging.getLogger(__name__)


class Endpoint:
    """Of one client. Made and used on one event loop.

    Args:
        lease_ms: how long it counts after its last sign of life.
        process: name of the process in the catalog; one of its own if it is empty.
    """

    def __init__(self, redis: AsyncRedis, lease_ms: int, process: str = "") -> None:
        self._redis = redis
        self._seldom = Seldom(_logger)
        self._loop = asyncio.get_running_loop()
        self.id = random_token()
        self._process = process or self.id
        self.error: StreamleaseError | None = None
        """Why it is over, unless it was closed."""
        self._tasks = Supervisor(f"services {self.id}", self._ended)
        self._reading = DirectLines(redis, self._tasks, ANSWER_SECONDS)
        self._writing = DirectLines(redis, self._tasks, ANSWER_SECONDS)
        self._outbox = Outbox(redis, self.id, self._writing, self._tasks)
        self._directory = Directory(redis, self._tasks)
        self.caller = Caller(self.id, self._outbox, self._directory, self._tasks)
        self._bindings: dict[str, Binding] = {}
        self._lives = Lives(redis, self.id, lease_ms, self._directory)
        self._answers = ReadStream(keys.answers(self.id))
        self._changing = asyncio.Lock()
        self._renew_now = asyncio.Event()
        self.damaged = 0
        """Frames and entries that did not parse."""
        self.dropped = 0
        """Requests that came too late to be begun."""

    @property
    def address(self) -> str:
        """Where it takes requests now."""
        return self._lives.address

    async def start(self) -> None:
        """Make the stream of answers, and begin to read.

        Raises:
            StoreUnavailable, StoreRefused: nothing was begun.
        """
        await make_stream(self._redis, self._answers.key, self.id, ANSWERS_MS)
        self._reading.want(self._answers.key)
        self._writing.want(self._answers.key)
        self._tasks.start("receive", self._receive(), endless=True)
        self._tasks.start("renew", self._renew_all(), endless=True)

    async def close(self, drain: float = 0.0) -> None:
        """Leave in good order, and end."""
        for service in [*self._bindings]:
            await self.unbind(service, drain)
        try:
            async with asyncio.timeout(2.0):
                await self._outbox.empty()
                await ask(self._redis, [("DEL", self._answers.key)])
        except (TimeoutError, *_UNANSWERED):
            pass  # what cannot leave in time is lost, which is Indefinite to callers; the rest expires
        self.caller.asking.end(InvalidInput("the client was closed"))
        self._outbox.close()
        await self._tasks.close()
        await self._reading.close()
        await self._writing.close()

    # ------------------------------------------------------------ what is served

    async def bind(self, service: str, handlers: Mapping[str, TypedHandler], limit: int) -> None:
        """Serve that from now on.

        Raises:
            InvalidOption: this process serves that name already.
            ServiceConflict: others serve it with types that do not agree.
            StoreUnavailable, StoreRefused, Indefinite: it is not served.
        """
        types = ServiceTypes.of({name: handler.shapes for name, handler in handlers.items()})
        row = ServiceRow(
            service=service,
            server="",
            digest=types.digest,
            types=tuple(sorted((name, one.shapes.request.fingerprint) for name, one in handlers.items())),
            process=self._process,
            host=socket.gethostname(),
            pid=os.getpid(),
        )
        async with self._changing:
            if service in self._bindings:
                raise InvalidOption(
                    f"this client serves '{service}' already: pass all its handlers at once, "
                    f"or connect another client"
                )
            self._lives.served[service] = ServedRow(row, types)
            self._bindings[service] = Binding(
                service, handlers, limit, self._outbox, lambda: self._lives.has_lapsed
            )
            try:
                if self._lives.holds:
                    await self._lives.hold()
                else:
                    await self._lives.begin()
                    self._renew_now.set()  # from now on it is renewed more often
            except BaseException:
                del self._lives.served[service], self._bindings[service]
                raise

    async def unbind(self, service: str, drain: float) -> None:
        """Serve that no more: nobody is sent here any more; what is at work is answered, for so many seconds.

        It is over then in any case. A Redis that does not answer learns of it by the end of the lease.
        """
        binding = self._bindings[service]
        binding.leaving = True
        row, types = self._lives.served[service]
        self._lives.served[service] = ServedRow(row.model_copy(update={"leaving": True}), types)
        try:
            await self._try_to_hold()
            await binding.drain(drain)
        finally:
            if binding:
                await binding.break_off()
            self._lives.served.pop(service, None)
            async with self._changing:
                await self._forget(service)

    async def _forget(self, service: str) -> None:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._outbox.empty()
                if self._lives.served:
                    await self._lives.hold()
                elif self._lives.holds:
                    for fields in await self._lives.end():
                        self._take_requests(fields)
                    await self._outbox.empty()
        except (TimeoutError, StreamleaseError) as error:
            _logger.warning("service %s ends, and Redis does not know: %s", service, error)
        finally:
            self._bindings.pop(service, None)

    # ------------------------------------------------------------ leases

    async def _try_to_hold(self) -> None:
        try:
            async with self._changing:
                if self._lives.holds:
                    await self._lives.hold(renew=True)
        except StreamleaseError as error:
            self._seldom.warning("services %s: %s", self.id, error)

    async def _renew_all(self) -> None:
        while True:
            try:
                async with asyncio.timeout(
                    self._lives.lease_ms / 3000 if self._lives.holds else KEEP_SECONDS
                ):
                    await self._renew_now.wait()
            except TimeoutError:
                pass
            self._renew_now.clear()
            try:
                await self._renew()
            except _UNANSWERED as error:
                self._seldom.warning("services %s: %s", self.id, error)
                await asyncio.sleep(RETRY_SECONDS)
                self._renew_now.set()
            except StreamleaseError as error:
                # Others took the name meanwhile, with other types: until they leave, nobody is sent here.
                self._seldom.error("services %s: %s", self.id, error)

    async def _renew(self) -> None:
        async with self._changing:
            requests = self._lives.requests
            prolong: list[Command] = [
                ("PEXPIRE", self._answers.key, ANSWERS_MS),
                ("PEXPIRE", requests.key, self._lives.lease_ms),
                *self._trims(1),
            ]
            has, stands, *_ = await ask(self._redis, prolong)
            if not has:
                self._answers.last = NOTHING_READ
                await make_stream(self._redis, self._answers.key, self.id, ANSWERS_MS)
            if self._lives.holds and await self._lives.renew(stands=bool(stands)):
                _logger.warning("services %s: the lease had passed, and another life has begun", self.id)
        now = self._directory.redis_ms()
        for binding in self._bindings.values():
            binding.expire(now)
        self._lives.admission.forget(self._loop.time())

    # ------------------------------------------------------------ what comes

    async def _receive(self) -> None:
        while True:
            try:
                try:
                    await self._read()
                except StoreRefused as error:
                    if "WRONGTYPE" not in str(error):
                        raise
                    await self._make_anew(error)
            except StreamleaseError as error:
                self._seldom.warning("services %s: %s", self.id, error)
                await asyncio.sleep(RETRY_SECONDS)
                self._renew_now.set()

    async def _make_anew(self, error: StoreRefused) -> None:
        """A stranger has written something else under these names."""
        _logger.error("services %s: its streams are spoilt, and made anew: %s", self.id, error)
        async with self._changing:
            await ask(self._redis, [("DEL", self._answers.key, self._lives.requests.key)])
            self._answers.last = NOTHING_READ
            await make_stream(self._redis, self._answers.key, self.id, ANSWERS_MS)
            if self._lives.holds:
                await self._lives.begin()

    async def _read(self) -> None:
        requests, answers = self._lives.requests, self._answers
        commands = self._trims(TRIM_ENTRIES)
        commands.append(
            (
                "XREAD", "COUNT", READ_ENTRIES, "BLOCK", BLOCK_MS, "STREAMS",
                requests.key, answers.key, requests.last, answers.last,
            )
        )  # fmt: skip
        replies = await self._reading.read(answers.key, commands)
        if replies is None:
            self._renew_now.set()  # whatever ended the line, the streams may have gone with it
            replies = await ask(self._redis, commands)
        for key, entries in replies[-1] or ():
            stream = requests if key == requests.key.encode() else answers
            stream.read += len(entries)
            for id, fields in entries:
                stream.last = id
                if stream is answers:
                    self._take_answers(fields)
                elif stream is self._lives.requests:
                    self._take_requests(fields)

    def _trims(self, least: int) -> list[Command]:
        """What removes entries that were read, if there are so many."""
        read = [stream for stream in (self._lives.requests, self._answers) if stream.read >= least]
        for stream in read:
            stream.read = 0
        return [("XTRIM", stream.key, "MINID", _behind(stream.last)) for stream in read]

    def _take_answers(self, fields: list[bytes]) -> None:
        for frame in self._parsed(fields).frames:
            if isinstance(frame, RequestFrame | CancelFrame):
                self.damaged += 1
            else:
                self.caller.asking.heard(frame)

    def _take_requests(self, fields: list[bytes]) -> None:
        entry = self._parsed(fields)
        now = self._loop.time()
        if not entry.frames or not self._lives.admission.is_new(entry.sender, entry.number, now):
            return
        lapsed = self._lives.has_lapsed
        if lapsed:
            self._renew_now.set()
        redis_ms = self._directory.redis_ms(now)
        for frame in entry.frames:
            if isinstance(frame, CancelFrame):
                any(binding.cancel(entry.sender, frame.call) for binding in self._bindings.values())
            elif not isinstance(frame, RequestFrame):
                self.damaged += 1
            elif lapsed or frame.expires <= redis_ms:
                self.dropped += 1
                metrics.LATE.inc()
            else:
                seconds = (frame.expires - redis_ms) / 1000
                binding = self._bindings.get(frame.service)
                if binding is None:
                    why = "it is not served there any more"
                    refuse(self._outbox, entry.sender, frame.call, REFUSED_LEAVING, why, seconds)
                else:
                    binding.take(entry.sender, frame, seconds)

    def _parsed(self, fields: list[bytes]) -> FrameEntry:
        entry = parse_entry(fields)
        if entry is None:
            self.damaged += 1
            return FrameEntry("", 0, [], 1)
        self.damaged += entry.damaged
        return entry

    def _ended(self, task: str, error: StreamleaseError) -> None:
        self.error = self.error or error
        self.caller.asking.end(error)


def _behind(id: bytes) -> str:
    milliseconds, _, sequence = id.decode("ascii").partition("-")
    return f"{milliseconds}-{int(sequence) + 1}"
