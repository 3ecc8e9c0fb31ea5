"""Which node of a cluster gets which command, and what to do when it was the wrong one: decided without I/O.

All keys of one command carry one hash tag, so each command belongs to one slot and so to one node. An
exchange is split by node. These replies mean that a command did *not* run, so it is sent again, a bounded
number of times::

    MOVED        the slot has another owner: take note, go there
    ASK          this key has moved already: go there once, behind ASKING
    TRYAGAIN     some keys of the command have moved, others not: wait
    CLUSTERDOWN  the slot has no owner now: wait, and ask who has what

The same holds for a node that nothing could be sent to. What fails after sending is ``Indefinite`` and is
never repeated here. The decisions are one generator, :func:`route`; `cluster` does what it says.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from redis.crc import key_slot
from redis.exceptions import AskError, ClusterDownError, MovedError, TryAgainError

from streamlease.protocol.errors import Indefinite, InvalidInput, StoreUnavailable, StreamleaseError
from streamlease.streams.redis.command_keys import keys_of
from streamlease.streams.redis.exchange_failures import reason
from streamlease.streams.redis.wire import Command

Address = tuple[str, int]
SLOTS = 16_384
ATTEMPTS = 8
FIRST_WAIT = 0.02
LONGEST_WAIT = 0.5


class Answer(NamedTuple):
    """The reply to one command, and those to what was sent behind it on the same connection."""

    reply: Any
    waited: tuple[Any, ...]


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


class Writes(NamedTuple):
    """To be sent: a write for each of these nodes; the driver answers with replies, or an error, for each."""

    writes: list[tuple[Address, list[Command]]]


class LookAgain(NamedTuple):
    """Wait for that many seconds, then ask anew who owns what."""

    seconds: float


Step = Writes | LookAgain
Outcome = list[Any] | StreamleaseError


def route(
    topology: Topology, before: Sequence[Command], commands: Sequence[Command], behind: Sequence[Command]
) -> Generator[Step, list[Outcome], list[Answer]]:
    """Bring every command to its node; the answers, in order."""
    slots = [slot_of(command) for command in commands]
    answers: list[Answer | None] = [None] * len(commands)
    asked: dict[int, Address] = {}
    waiting = list(range(len(commands)))
    why = "no node owns the slot"
    if not topology.known:
        yield LookAgain(0.0)
    for attempt in range(ATTEMPTS):
        groups: dict[Address, list[int]] = {}
        for place in waiting:
            owner = asked.get(place) or topology.owners[slots[place] or 0]
            if owner is not None:
                groups.setdefault(owner, []).append(place)
        writes = [(node, _write(before, commands, behind, places, asked)) for node, places in groups.items()]
        outcomes = (yield Writes(writes)) if writes else []
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
            yield LookAgain(min(LONGEST_WAIT, FIRST_WAIT * 2**attempt))
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
    outcome: Outcome, places: list[int], asked: dict[int, Address], before: int, behind: int
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


def split(commands: Sequence[Command]) -> tuple[list[int], list[int]]:
    """The places of the commands with a key, and of those without."""
    keyed = [place for place, command in enumerate(commands) if keys_of(command)]
    return keyed, [place for place in range(len(commands)) if place not in set(keyed)]


def together(
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
