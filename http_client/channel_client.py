"""A channel of a gateway: any number of subscriptions over one long poll, also over the death of gateways.

::

    async with ChannelClient("http://one:8640", "http://two:8640") as channel:
        channel.subscribe("JFK", "flights/JFK/#")
        channel.subscribe("delays", "delays/#", policy="lossy", limit=100)
        async for event in channel:
            match event:
                case ChannelMessage(key, message, cursor): ...
                case ChannelDropped(key, dropped): ...
                case ChannelFailed(key, error, cursor): ...

A message is acknowledged when the next one is asked for. A gateway that does not answer is left for the next
address, and every key goes on there from its cursor. What decides is in ``core.channel_machine``.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import deque
from contextlib import suppress
from types import TracebackType
from typing import Any, Literal
from urllib.parse import quote

from streamlease.http.core.channel_machine import ChannelBegun, ChannelEvent, ChannelFailed, ChannelMachine
from streamlease.http.core.gateway_errors import GatewayDefect, GatewayRefused
from streamlease.http.core.given import check_text
from streamlease.http.http_transport import GatewayConnection, Trust
from streamlease.protocol.errors import (
    InvalidInput,
    InvalidOption,
    InvalidTopic,
    StreamleaseError,
    UnknownSpace,
)
from streamlease.protocol.ids import random_token
from streamlease.streams.tasks import Supervisor

ANSWER_SECONDS = 10.0
"""So long an answer may take beyond what a poll waits."""

PAUSE_SECONDS, MOST_PAUSE_SECONDS = 0.1, 5.0
UNAUTHENTICATED, UNKNOWN = 401, 404
ENDS = "gateway-ends"


class ChannelClient:
    """A channel: a context manager, and an iterator of what comes.

    Args:
        urls: addresses of gateways; the next one is tried when one does not answer. A load balancer will do.
        name: of the client; a random one serves, for another process must not use the same.
        wait: seconds of a long poll.

    Raises:
        InvalidOption: there is no address, or one is none.
    """

    def __init__(
        self,
        *urls: str,
        name: str | None = None,
        token: str | None = None,
        trust: Trust = True,
        wait: float = 20.0,
    ) -> None:
        if not urls:
            raise InvalidOption("a channel needs an address of a gateway, such as http://127.0.0.1:8640")
        self._connections = [GatewayConnection(url, token, trust) for url in urls]
        self._connection = 0
        self.name = name or random_token()
        self._path = f"/v1/channels/{quote(self.name, safe='')}"
        self._wait = wait
        self._machine = ChannelMachine()
        self._events: deque[ChannelEvent] = deque()
        self._begun: dict[str, asyncio.Future[str | None]] = {}
        self._wanted = asyncio.Event()
        """Something is subscribed to."""
        self._commanded = asyncio.Event()
        self._news = asyncio.Event()
        self._taken = asyncio.Event()
        """All events were."""
        self._tasks = Supervisor(f"channel {self.name}", self._failed)
        self._error: StreamleaseError | None = None
        self._entered = self._closed = False

    async def __aenter__(self) -> ChannelClient:
        if self._entered:
            raise InvalidOption("the channel was entered before, and is entered once: make another one")
        self._entered = True
        self._tasks.start("commands", self._command(), endless=True)
        self._tasks.start("polls", self._poll(), endless=True)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        self._news.set()
        await self._tasks.close()
        try:
            if self._machine.gateway is not None:
                with suppress(StreamleaseError):  # the gateway finds out by itself that nobody polls
                    await self._here().exchange("DELETE", self._path, seconds=1.0)
        finally:
            for begun in self._begun.values():
                begun.cancel()
            for connection in self._connections:
                await connection.close()

    # ------------------------------------------------------------ what is wanted

    def subscribe(
        self,
        key: str,
        filter: str,
        since: str = "latest",
        *,
        policy: Literal["lossy", "critical"] = "critical",
        limit: int = 1000,
    ) -> asyncio.Future[str | None]:
        """Have all that comes after a point, under a name; a former subscription of that name ends.

        Args:
            since: a cursor, a time with its zone, ``earliest`` or ``latest``.
            policy: when more than `limit` messages wait at the gateway, ``lossy`` drops the oldest and says
                how many; ``critical`` leaves them in the log, and they come later.

        Raises:
            InvalidInput, InvalidOption: an argument is of another kind, or the channel is closed.

        Returns:
            The cursor at which it began, once a gateway took it; None if it ended before, or failed. It need
            not be awaited.
        """
        self._check_open()
        for what, given in (("key", key), ("filter", filter), ("since", since)):
            check_text(what, given)
        if policy not in ("lossy", "critical"):
            raise InvalidOption(f"policy is {ascii(policy)[:80]}: use lossy or critical")
        if isinstance(limit, bool) or not isinstance(limit, int):
            raise InvalidOption(f"limit is {ascii(limit)[:80]}: give a number of messages")
        self._end(key)
        self._machine.subscribe(key, filter, since, policy, limit)
        return self._wanting(key)

    def follow(self, key: str) -> asyncio.Future[str | None]:
        """Have the states of a key, as the console has them (``docs/console.md``): at first the whole, then
        what differs. A former subscription of that key ends.

        Returns:
            Done once somebody took it, or it ended; without a cursor. It need not be awaited.
        """
        self._check_open()
        check_text("key", key)
        self._end(key)
        self._machine.follow(key)
        return self._wanting(key)

    def unsubscribe(self, key: str) -> None:
        """Have nothing of that key any more; also not what came already and was not handed on."""
        self._end(key)
        self._machine.unsubscribe(key)
        if any(event.key == key for event in self._events):
            self._events = deque(event for event in self._events if event.key != key)
        self._commanded.set()

    @property
    def keys(self) -> list[str]:
        """What is subscribed to."""
        return [*self._machine.keys]

    def cursor(self, key: str) -> str | None:
        """Where a subscription to that key would go on, behind all that was handed on or waits here."""
        return self._machine.cursor(key)

    # ------------------------------------------------------------ what comes

    def __aiter__(self) -> ChannelClient:
        return self

    async def __anext__(self) -> ChannelEvent:
        """The next message, notice, state or failure.

        Raises:
            GatewayRefused: the token is unknown, or there are no channels at the address.
            GatewayDefect: a poll failed by a defect of the gateway. TaskFailed: by one of this client.
            InvalidOption: it is not entered.
        """
        if not self._entered:
            raise InvalidOption("the channel is not open: write 'async with ChannelClient(...) as channel'")
        while not self._events:
            self._taken.set()
            if self._error is not None:
                raise self._error
            if self._closed:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        return self._events.popleft()

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidOption("the channel is closed: make another one")

    # ------------------------------------------------------------ the two conversations

    async def _command(self) -> None:
        pause = PAUSE_SECONDS
        while True:
            self._commanded.clear()
            while batch := self._machine.next_commands():
                try:
                    answer = await self._exchange("commands", batch, 30.0)
                except (InvalidInput, InvalidOption, InvalidTopic, UnknownSpace, GatewayRefused) as error:
                    if isinstance(error, GatewayRefused) and (error.retriable or _is_final(error)):
                        pause = await self._lost(error, pause)
                    else:
                        self._came(self._machine.commands_refused(_document(error)))
                except StreamleaseError as error:
                    pause = await self._lost(error, pause)
                else:
                    pause = PAUSE_SECONDS
                    for one in self._machine.commands_taken(answer):
                        self._begin(one)
            await self._commanded.wait()

    async def _lost(self, error: StreamleaseError, pause: float) -> float:
        self._machine.commands_lost()
        return await self._rest(error, pause)

    async def _poll(self) -> None:
        pause = PAUSE_SECONDS
        while True:
            if self._machine.is_idle:
                self._wanted.clear()
                await self._wanted.wait()
            here = self._connection
            asked = self._machine.next_poll(self._wait)
            began = asyncio.get_running_loop().time()
            try:
                answer = await self._exchange("poll", asked, self._wait + ANSWER_SECONDS)
            except StreamleaseError as error:
                if isinstance(error, GatewayDefect):
                    raise
                ends = isinstance(error, GatewayRefused) and error.problem == ENDS
                if here == self._connection and (ends or not isinstance(error, GatewayRefused)):
                    self._connection = (here + 1) % len(self._connections)
                pause = await (self._breathe(pause) if ends else self._rest(error, pause))
                continue
            former, same = self._machine.gateway, answer["gateway"] == self._machine.gateway
            self._came(self._machine.polled(answer))
            if former is not None and not same:
                pause = await self._breathe(
                    pause
                )  # or gateways in turns would be asked for everything, each time
            else:
                pause = PAUSE_SECONDS
            self._commanded.set()  # what is to be subscribed to at another gateway
            if self._events:
                self._taken.clear()
                await self._taken.wait()
            elif same and asyncio.get_running_loop().time() - began < min(PAUSE_SECONDS, self._wait):
                await asyncio.sleep(PAUSE_SECONDS)  # somebody else polls under this name

    async def _exchange(self, what: str, body: Any, seconds: float) -> Any:
        content = json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        answer = await self._here().exchange(
            "POST", f"{self._path}/{what}", headers=headers, body=content, seconds=seconds
        )
        return answer.json()

    def _here(self) -> GatewayConnection:
        return self._connections[self._connection]

    async def _rest(self, error: StreamleaseError, pause: float) -> float:
        """Wait before the next attempt; the pause after the one behind it."""
        if isinstance(error, GatewayRefused):
            if _is_final(error):
                raise error
            pause = max(pause, error.pause or 0.0)
        return await self._breathe(pause)

    async def _breathe(self, pause: float) -> float:
        """Wait; how long the next time."""
        await asyncio.sleep(pause * (0.5 + random.random()))
        return min(2 * pause, MOST_PAUSE_SECONDS)

    # ------------------------------------------------------------ telling

    def _came(self, events: list[ChannelFailed] | list[ChannelEvent]) -> None:
        for event in events:
            if isinstance(event, ChannelFailed):
                self._end(event.key)
            self._events.append(event)
        if events:
            self._news.set()

    def _begin(self, begun: ChannelBegun) -> None:
        future = self._begun.pop(begun.key, None)
        if future is not None and not future.done():
            future.set_result(begun.cursor)

    def _wanting(self, key: str) -> asyncio.Future[str | None]:
        self._begun[key] = future = asyncio.get_running_loop().create_future()
        self._commanded.set()
        self._wanted.set()
        return future

    def _end(self, key: str) -> None:
        future = self._begun.pop(key, None)
        if future is not None and not future.done():
            future.set_result(None)

    def _failed(self, task: str, error: StreamleaseError) -> None:
        self._error = error
        for key in [*self._begun]:
            self._end(key)
        self._news.set()
        self._taken.set()


def _is_final(error: GatewayRefused) -> bool:
    return error.status in (UNAUTHENTICATED, UNKNOWN)


def _document(error: StreamleaseError) -> dict[str, Any]:
    status = error.status if isinstance(error, GatewayRefused) else 400
    name = error.problem if isinstance(error, GatewayRefused) else type(error).__name__
    return {"type": name, "status": status, "detail": str(error)}
