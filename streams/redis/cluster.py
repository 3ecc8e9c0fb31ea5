"""A client of a Redis Cluster: one of each of its nodes, and who owns what, as last heard.

Which node gets which command, and what is repeated, is decided in `cluster_slots`; each part of an exchange
is one write with the exact border of ``wire``. A client is one of asyncio or a blocking one; they differ in
the clients of their nodes, and in how they wait (:class:`Pauses`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from itertools import count
from typing import Any, Generic, NamedTuple, TypeVar

from redis.exceptions import ResponseError

from streamlease.protocol.addresses import shown_address
from streamlease.protocol.errors import Indefinite, StoreUnavailable, StreamleaseError, Unsupported
from streamlease.streams.redis.cluster_slots import (
    Address,
    Answer,
    LookAgain,
    Outcome,
    Step,
    Topology,
    route,
    slot_of,
    split,
    together,
)
from streamlease.streams.redis.exchange_failures import reason
from streamlease.streams.redis.wire import (
    AsyncServer,
    BlockingServer,
    Command,
    Server,
    exchange_one,
)

S = TypeVar("S", bound=Server)


def _no_cluster(where: str, reply: ResponseError) -> Unsupported:
    return Unsupported(
        f"Redis at {where} is no cluster ({reason(reply)}): write redis:// instead of redis+cluster://"
    )


async def _side_by_side(works: Sequence[Awaitable[Outcome]]) -> list[Outcome]:
    return list(await asyncio.gather(*works))


async def _stand_still(seconds: float) -> None:
    time.sleep(seconds)  # noqa: ASYNC251 - a blocking client has no loop to wait on


async def _in_turn(works: Sequence[Awaitable[Outcome]]) -> list[Outcome]:
    return [await work for work in works]


class Pauses(NamedTuple):
    """How a client of a cluster waits: for time to pass, for several nodes, for its own turn."""

    pause: Callable[[float], Awaitable[None]]
    all: Callable[[Sequence[Awaitable[Outcome]]], Awaitable[list[Outcome]]]
    lock: Callable[[], AbstractAsyncContextManager[Any]]


ON_A_LOOP = Pauses(asyncio.sleep, _side_by_side, asyncio.Lock)
BLOCKING = Pauses(_stand_still, _in_turn, nullcontext)


class Cluster(Generic[S]):
    """A client of a Redis Cluster: a plain client for each node, made at its first use.

    Args:
        seeds: nodes to ask for the others.
        make: a client of one node.
        address: for messages.
    """

    def __init__(
        self, seeds: tuple[Address, ...], make: Callable[[Address], S], address: str, pauses: Pauses
    ) -> None:
        self.address = address
        self.topology = Topology()
        self._seeds = seeds
        self._make = make
        self._pauses = pauses
        self._asking = pauses.lock()
        self._nodes: dict[Address, S] = {}

    def _forget_nodes(self) -> list[S]:
        """The clients of all nodes, which are to be closed."""
        nodes, self._nodes = self._nodes, {}
        return [*nodes.values()]

    def node(self, address: Address) -> S:
        """The client of one node."""
        client = self._nodes.get(address)
        if client is None:
            client = self._nodes[address] = self._make(address)
        return client

    def owner(self, command: Command) -> S | None:
        """The node that owns the keys of `command`, as last heard."""
        slot = slot_of(command)
        address = self.topology.owners[slot] if slot is not None else None
        return self.node(address) if address is not None else None

    async def primaries(self) -> list[S]:
        """Clients of all nodes that own slots.

        Raises:
            StoreUnavailable: no node answers.
            Unsupported: it is no cluster.
        """
        await self.refresh()
        return [self.node(address) for address in self.topology.primaries()]

    async def refresh(self) -> None:
        """Ask who owns what.

        Raises:
            StoreUnavailable: no node answers.
            Unsupported: it is no cluster.
        """
        error: StreamleaseError | None = None
        async with self._asking:
            for address in dict.fromkeys((*self.topology.primaries(), *self._seeds)):
                try:
                    (reply,) = await exchange_one(self.node(address), [("CLUSTER", "SLOTS")])
                except (StoreUnavailable, Indefinite) as failed:
                    error = failed
                    continue
                if isinstance(reply, ResponseError):
                    raise _no_cluster(shown_address(*address), reply)
                self.topology.learn(reply, address)
                return
        raise StoreUnavailable(f"no node of {self.address} answers: {error}")

    async def exchange_behind(
        self, before: Sequence[Command], commands: Sequence[Command], behind: Sequence[Command]
    ) -> list[Answer]:
        """See ``connection.exchange_behind``."""
        steps = route(self.topology, before, commands, behind)
        answer: list[Outcome] | None = None
        while True:
            try:
                step = next(steps) if answer is None else steps.send(answer)
            except StopIteration as end:
                answers: list[Answer] = end.value
                return answers
            answer = await self._do(step)

    async def _do(self, step: Step) -> list[Outcome]:
        if isinstance(step, LookAgain):
            await self._pauses.pause(step.seconds)
            try:
                await self.refresh()
            except StoreUnavailable:
                if not self.topology.known:
                    raise
            return []
        if len(step.writes) == 1:
            return [await self._one(*step.writes[0])]
        return await self._pauses.all([self._one(*write) for write in step.writes])

    async def _one(self, address: Address, commands: list[Command]) -> Outcome:
        try:
            return await exchange_one(self.node(address), commands)
        except StreamleaseError as error:
            return error

    async def exchange(self, commands: Sequence[Command]) -> list[Any]:
        """See ``connection.exchange``."""
        keyed, others = split(commands)
        if not keyed:
            return await self._anywhere(commands)
        answers = await self.exchange_behind(
            (), [commands[place] for place in keyed], [commands[place] for place in others]
        )
        return together(commands, keyed, others, answers)

    async def _anywhere(self, commands: Sequence[Command]) -> list[Any]:
        error: StreamleaseError | None = None
        for node in await self.primaries():
            try:
                return await exchange_one(node, commands)
            except StoreUnavailable as failed:
                error = failed
        raise error or StoreUnavailable(f"no node of {self.address} owns a slot: create the cluster first")


class AsyncCluster(Cluster[AsyncServer]):
    """A client of a cluster for one event loop."""

    def __init__(
        self, seeds: tuple[Address, ...], make: Callable[[Address], AsyncServer], address: str
    ) -> None:
        super().__init__(seeds, make, address, ON_A_LOOP)
        self._subscriptions = count(int(time.monotonic()))

    async def __aenter__(self) -> AsyncCluster:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections."""
        for node in self._forget_nodes():
            await node.aclose()

    def next_node(self) -> AsyncServer:
        """Any node to subscribe at, the next one each time, as the last one may be silent.

        What is published on one node reaches all of them.
        """
        known = self.topology.primaries() or list(self._seeds)
        return self.node(known[next(self._subscriptions) % len(known)])


class BlockingCluster(Cluster[BlockingServer]):
    """A client of a cluster for one thread at a time; its methods are run by ``run_blocking``."""

    def __init__(
        self, seeds: tuple[Address, ...], make: Callable[[Address], BlockingServer], address: str
    ) -> None:
        super().__init__(seeds, make, address, BLOCKING)

    def __enter__(self) -> BlockingCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        for node in self._forget_nodes():
            node.close()
