"""A Redis Cluster: which node gets which command, and what to do when it was the wrong one.

All keys of one command carry one hash tag, so each command belongs to one slot and so to one node. An
exchange is split by node; each part is one write with the exact border of ``wire``. These replies mean that
a command did *not* run, so it is sent again, a bounded number of times::

    MOVED        the slot has another owner: take note, go there
    ASK          this key has moved already: go there once, behind ASKING
    TRYAGAIN     some keys of the command have moved, others not: wait
    CLUSTERDOWN  the slot has no owner now: wait, and ask who has what

The same holds for a node that nothing could be sent to. What fails after sending is ``Indefinite`` and is
never repeated here. The decisions are one generator without I/O, :func:`_route`.

A client is one of asyncio or a blocking one; they differ in the clients of their nodes, and in how they wait
(:class:`Pauses`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Generic, NamedTuple, TypeVar

from redis.crc import key_slot
from redis.exceptions import AskError, ClusterDownError, MovedError, ResponseError, TryAgainError

from streamlease.protocol.errors import (
    Indefinite,
    InvalidInput,
    StoreUnavailable,
    StreamleaseError,
    Unsupported,
)
from streamlease.streams.redis.wire import (
    AsyncServer,
    BlockingServer,
    Command,
    Server,
    exchange_one,
    reason,
)

Address = tuple[str, int]
S = TypeVar("S", bound=Server)
SLOTS = 16_384
ATTEMPTS = 8
FIRST_WAIT = 0.02
LONGEST_WAIT = 0.5

_NO_KEY = {
    "ACL", "AUTH", "CLIENT", "CLUSTER", "COMMAND", "CONFIG", "DBSIZE", "ECHO", "INFO", "PING", "PUBLISH",
    "ROLE", "SCAN", "SCRIPT", "TIME", "WAIT", "WAITAOF",
}  # fmt: skip
_KEY_SECOND = {"MEMORY", "OBJECT", "XINFO"}
_ALL_KEYS = {"DEL", "EXISTS", "TOUCH", "UNLINK"}


class Answer(NamedTuple):
    """The reply to one command, and those to what was sent behind it on the same connection."""

    reply: Any
    waited: tuple[Any, ...]


def keys_of(command: Command) -> list[str | bytes]:
    """The keys of a command of the kinds that this project sends; none for those that have no key."""
    name = str(command[0]).upper()
    if name in _NO_KEY:
        return []
    if name in ("EVALSHA", "EVAL"):
        found: Iterable[Any] = command[3 : 3 + int(command[2])]
    elif name in ("XREAD", "XREADGROUP"):
        words = [word.upper() if isinstance(word, str) else word for word in command]
        rest = command[words.index("STREAMS") + 1 :]
        found = rest[: len(rest) // 2]
    elif name in _ALL_KEYS:
        found = command[1:]
    else:
        found = command[2:3] if name in _KEY_SECOND else command[1:2]
    return [key if isinstance(key, bytes) else str(key) for key in found]


def slot_of(command: Command) -> int | None:
    """The slot of a command's keys; None if it has none.

    Raises:
        InvalidInput: the keys lie in different slots: a defect of whoever made the command.
    """
    slots = {key_slot(key if isinstance(key, bytes) else key.encode()) for key in keys_of(command)}
    if len(slots) > 1:
        raise InvalidInput(f"{command[0]!s} has keys in {len(slots)} slots: each act must stay in one")
    return slots.pop() if slots else None


@dataclass(slots=True)
class Topology:
    """Who owns which slot, as last heard."""

    owners: list[Address | None] = field(default_factory=lambda: [None] * SLOTS)
    known: bool = False

    def learn(self, reply: Any, asked: Address) -> None:
        """Take over the answer to CLUSTER SLOTS of the node `asked`."""
        owners: list[Address | None] = [None] * SLOTS
        for begin, end, primary, *_ in reply:
            host = bytes(primary[0] or b"").decode() or asked[0]
            owners[begin : end + 1] = [(host, int(primary[1]))] * (end - begin + 1)
        self.owners = owners
        self.known = True

    def move(self, slot: int, owner: Address) -> None:
        """One slot has another owner."""
        self.owners[slot] = owner

    def primaries(self) -> list[Address]:
        """All that own slots."""
        return sorted({owner for owner in self.owners if owner is not None})


class _Send(NamedTuple):
    """To be sent: a write for each of these nodes; the driver answers with replies, or an error, for each."""

    writes: list[tuple[Address, list[Command]]]


class _Refresh(NamedTuple):
    """Wait for that many seconds, then ask anew who owns what."""

    seconds: float


_Step = _Send | _Refresh
_Outcome = list[Any] | StreamleaseError


def _route(
    topology: Topology, before: Sequence[Command], commands: Sequence[Command], behind: Sequence[Command]
) -> Generator[_Step, list[_Outcome], list[Answer]]:
    """Bring every command to its node; the answers, in order."""
    slots = [slot_of(command) for command in commands]
    answers: list[Answer | None] = [None] * len(commands)
    asked: dict[int, Address] = {}
    waiting = list(range(len(commands)))
    why = "no node owns the slot"
    if not topology.known:
        yield _Refresh(0.0)
    for attempt in range(ATTEMPTS):
        groups: dict[Address, list[int]] = {}
        for place in waiting:
            owner = asked.get(place) or topology.owners[slots[place] or 0]
            if owner is not None:
                groups.setdefault(owner, []).append(place)
        writes = [(node, _write(before, commands, behind, places, asked)) for node, places in groups.items()]
        outcomes = (yield _Send(writes)) if writes else []
        quick = bool(writes)
        for (node, places), outcome in zip(groups.items(), outcomes, strict=True):
            for place, answer in _sorted_out(outcome, places, asked, len(before), len(behind)):
                asked.pop(place, None)
                if isinstance(answer.reply, MovedError):
                    topology.move(answer.reply.slot_id, (answer.reply.host or node[0], answer.reply.port))
                elif isinstance(answer.reply, AskError):
                    asked[place] = (answer.reply.host or node[0], answer.reply.port)
                elif isinstance(answer.reply, (TryAgainError, ClusterDownError, StoreUnavailable)):
                    why, quick = reason(answer.reply), False
                else:
                    answers[place] = answer
        waiting = [place for place in waiting if answers[place] is None]
        if not waiting:
            break
        if not quick or attempt % 4 == 3:
            yield _Refresh(min(LONGEST_WAIT, FIRST_WAIT * 2**attempt))
    failed = StoreUnavailable(
        f"the cluster does not take the command now ({why}): it was not done; try again"
    )
    return [answer if answer is not None else Answer(failed, ()) for answer in answers]


def _write(
    before: Sequence[Command],
    commands: Sequence[Command],
    behind: Sequence[Command],
    places: list[int],
    asked: dict[int, Address],
) -> list[Command]:
    middle: list[Command] = []
    for place in places:
        if place in asked:
            middle.append(("ASKING",))
        middle.append(commands[place])
    return [*before, *middle, *behind]


def _sorted_out(
    outcome: _Outcome, places: list[int], asked: dict[int, Address], before: int, behind: int
) -> list[tuple[int, Answer]]:
    """The answer to each command of one node's write."""
    if isinstance(outcome, StreamleaseError):
        return [(place, Answer(outcome, ())) for place in places]
    end = len(outcome) - behind
    replies, waited = iter(outcome[before:end]), tuple(outcome[end:])
    found = []
    for place in places:
        if place in asked:
            next(replies)
        found.append((place, Answer(next(replies), waited)))
    return found


def _split(commands: Sequence[Command]) -> tuple[list[int], list[int]]:
    """The places of the commands with a key, and of those without."""
    keyed = [place for place, command in enumerate(commands) if keys_of(command)]
    return keyed, [place for place in range(len(commands)) if place not in set(keyed)]


def _together(
    commands: Sequence[Command], keyed: list[int], others: list[int], answers: list[Answer]
) -> list[Any]:
    """The replies in the order of `commands`; raises what failed."""
    failed = [answer.reply for answer in answers if isinstance(answer.reply, StreamleaseError)]
    raise_failed(failed, len(answers))
    replies: list[Any] = [None] * len(commands)
    for place, answer in zip(keyed, answers, strict=True):
        replies[place] = answer.reply
    for number, place in enumerate(others):
        replies[place] = answers[0].waited[number]
    return replies


def raise_failed(failed: Sequence[StreamleaseError], commands: int) -> None:
    """Raise what the failures of some of `commands` commands mean for all of them together.

    Raises:
        StoreUnavailable: none of them ran.
        Indefinite: some ran or may have run.
    """
    if not failed:
        return
    if len(failed) == commands and all(isinstance(error, StoreUnavailable) for error in failed):
        raise failed[0]
    raise Indefinite(f"some of {commands} commands ran, or may have run, and others not: {failed[0]}")


def _no_cluster(where: str, reply: ResponseError) -> Unsupported:
    return Unsupported(
        f"Redis at {where} is no cluster ({reason(reply)}): write redis:// instead of redis+cluster://"
    )


async def _side_by_side(works: Sequence[Awaitable[_Outcome]]) -> list[_Outcome]:
    return list(await asyncio.gather(*works))


async def _stand_still(seconds: float) -> None:
    time.sleep(seconds)  # noqa: ASYNC251 - a blocking client has no loop to wait on


async def _in_turn(works: Sequence[Awaitable[_Outcome]]) -> list[_Outcome]:
    return [await work for work in works]


class Pauses(NamedTuple):
    """How a client of a cluster waits: for time to pass, for several nodes, for its own turn."""

    pause: Callable[[float], Awaitable[None]]
    all: Callable[[Sequence[Awaitable[_Outcome]]], Awaitable[list[_Outcome]]]
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
                    raise _no_cluster(f"{address[0]}:{address[1]}", reply)
                self.topology.learn(reply, address)
                return
        raise StoreUnavailable(f"no node of {self.address} answers: {error}")

    async def exchange_behind(
        self, before: Sequence[Command], commands: Sequence[Command], behind: Sequence[Command]
    ) -> list[Answer]:
        """See ``connection.exchange_behind``."""
        steps = _route(self.topology, before, commands, behind)
        answer: list[_Outcome] | None = None
        while True:
            try:
                step = next(steps) if answer is None else steps.send(answer)
            except StopIteration as end:
                answers: list[Answer] = end.value
                return answers
            answer = await self._do(step)

    async def _do(self, step: _Step) -> list[_Outcome]:
        if isinstance(step, _Refresh):
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

    async def _one(self, address: Address, commands: list[Command]) -> _Outcome:
        try:
            return await exchange_one(self.node(address), commands)
        except StreamleaseError as error:
            return error

    async def exchange(self, commands: Sequence[Command]) -> list[Any]:
        """See ``connection.exchange``."""
        keyed, others = _split(commands)
        if not keyed:
            return await self._anywhere(commands)
        answers = await self.exchange_behind(
            (), [commands[place] for place in keyed], [commands[place] for place in others]
        )
        return _together(commands, keyed, others, answers)

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
