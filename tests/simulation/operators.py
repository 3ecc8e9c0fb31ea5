"""Operators in the simulated world: any act at any moment, and what the judge makes of it.

A reset is the one thing that lets progress go back: the judge begins a new line there. What an operator ends
without its owner's word, a release or a reset, explains that messages come twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from streamlease.agent.client import Client
from streamlease.leader.core.state.group_state import GroupState
from streamlease.leader.core.state.operated import Acted, DoneAct, RefusedAct
from streamlease.leader.core.state.outcomes import Reset, StreamTaken
from streamlease.protocol.acts import parse
from streamlease.protocol.errors import ActRefused, Indefinite, NotLeader, StoreUnavailable, StreamleaseError
from streamlease.protocol.messages import Command, CommandReply
from streamlease.testing.memory.memory_connection import connect
from tests.simulation.programs import names_of

if TYPE_CHECKING:
    from tests.simulation.judge import Judge
    from tests.simulation.world import Host, World

ACTS = (
    "rebalance", "step_down", "describe", "pause", "resume", "drain", "undrain", "move", "release", "reset",
    "expire", "retry", "dead_letter",
)  # fmt: skip
DECISIONS = ("retry", "dead_letter")
"""About the message at which a stream stopped."""

AGAIN_MS = 400


class Operators:
    """Do anything, beside each other, by ``client.act``: a leader is found, asked, and asked again."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.last: Command | None = None
        self.spare: Host | None = None
        """Is to lead nothing, once all is healed."""
        self.answers: dict[str, CommandReply] = {}
        self.process, self.line = world.process("operator")
        self._client: Client | None = None

    def act(self) -> None:
        """Any act; now and then the last one once more, as if its answer had been lost."""
        world, random = self.world, self.world.random
        if self.last is not None and random.random() < 0.2:
            world.sometimes["an operator asks twice"] += 1
            self._send(self.last)
            return
        streams = sorted(world.store.streams)
        if world.staying and random.random() < 0.15:
            host = random.choice(world.staying)
            self._drain(host, undo=host.drained)
            return
        names = sorted({name for consumer in world.consumers for name in names_of(consumer)})
        stopped = [s for s, progress in world.judge.truth.streams.items() if progress.blocked]
        act: Any = random.choice(DECISIONS if stopped and random.random() < 0.4 else ACTS)
        more: dict[str, Any] = {}
        if act in ("move", "release"):
            more["stream"] = random.choice([*streams, "s.0.99"])
        if act in DECISIONS:
            more["stream"] = random.choice(stopped or streams)
        if act in ("move", "drain", "undrain"):
            more["borrower"] = random.choice([*names, "nobody"])
        if act == "reset":
            chosen = [stream for stream in streams if random.random() < 0.5]
            more["offsets"] = {s: random.randint(0, world.store.streams[s]) for s in chosen}
        self._do(act, **more)

    def heal(self) -> None:
        """Take back what was set, until nothing is; but one host more than needed is drained for good."""
        world = self.world
        if len(world.staying) > 1 and self.spare is None and world.random.random() < 0.5:
            self.spare = world.random.choice(world.staying)
        for host in world.staying:
            if host.drained != (host is self.spare):
                self._drain(host, undo=host.drained)
        operated = self.world.judge.truth.operated
        if operated.paused is not None:
            self._do("resume")
        for name in operated.drained:
            self._do("undrain", borrower=name)
        if operated.pins or _released(operated.acts):
            self._do("rebalance")
        for stream, progress in self.world.judge.truth.streams.items():
            if progress.failure is not None and progress.failure.fate == "stop":
                self._do("retry" if self.world.random.random() < 0.3 else "dead_letter", stream=stream)
        self.world.kernel.after(AGAIN_MS, self.heal)

    def forget_answers(self) -> None:
        """A failover has lost writes: what was done may be unknown, and done once more."""
        self.answers.clear()

    # ------------------------------------------------------------ what they send

    def _do(self, act: Any, **more: Any) -> None:
        kernel = self.world.kernel
        self.last = Command(
            group=self.world.group,
            request=kernel.token(),
            act=parse(act, **more),
            who="operator",
            at=kernel.now + 1,
        )
        self._send(self.last)

    def _send(self, command: Command) -> None:
        self.process.start(self._ask(command), name=f"act {command.act.act}")

    async def _ask(self, command: Command) -> None:
        world, act = self.world, command.act.act
        try:
            reply = await (await self._connected().agent()).commands.act(command, 4.5)
        except (NotLeader, Indefinite, StoreUnavailable) as error:
            world.sometimes[f"an operator's act ends with {type(error).__name__}"] += 1
        except StreamleaseError as error:
            world.defects.append(f"an operator's {act} ended with {error!r}")
        else:
            world.sometimes["an operator is answered"] += 1
            again = self.answers.setdefault(command.request, reply)
            if again != reply and act != "describe":  # which tells how it is each time
                world.defects.append(f"request {command.request} was answered in two ways")

    def _drain(self, host: Host, *, undo: bool) -> None:
        """Have a host lead nothing, or lead again."""

        async def ask() -> None:
            sometimes = self.world.sometimes
            try:
                await self._connected().drain_host(host.real.id, undo=undo)
                sometimes[f"an operator {'undrains' if undo else 'drains'} a host"] += 1
            except ActRefused:
                sometimes["an operator may not drain the last host"] += 1
            except (Indefinite, StoreUnavailable):
                sometimes["an operator's drain of a host is not answered"] += 1

        self.process.start(ask(), name=f"drain {host.real.id}")

    def _connected(self) -> Client:
        if self._client is None:
            self._client = connect(self.world.server, self.line, embedded=False)
        return self._client


def acted(judge: Judge, record: Acted | RefusedAct) -> None:
    """An act stands in the journal, and is about to be applied to the truth."""
    if isinstance(record, RefusedAct):
        judge.sometimes["an operator is refused"] += 1
        return
    judge.sometimes[f"an operator's {record.outcome.act}"] += 1
    if isinstance(record.outcome, StreamTaken):
        _broken(judge, record.outcome.stream)
    if isinstance(record.outcome, Reset):
        for stream in record.outcome.behind:
            judge.sometimes["a stream waits again for one that was reset"] += 1
            _broken(judge, stream)
        for stream, (_, offset) in record.outcome.moves.items():
            _broken(judge, stream)
            _new_line(judge, record.request, stream, offset)


def _released(acts: Iterable[DoneAct | RefusedAct]) -> bool:
    """Whether a stream was released since the last rebalance.

    Another consumer keeps it then, however little the old one has, who may be stuck: until somebody
    comes or goes, or an operator says that all are well again.
    """
    placed = [act.act for act in acts if act.act in ("release", "rebalance") and isinstance(act, DoneAct)]
    return placed[-1:] == ["release"]


def healed(judge: Judge, state: GroupState) -> None:
    """A snapshot takes the place of a lost tail: it may hold resets whose records are lost."""
    known = {act.request for act in judge.truth.operated.acts}
    for act in state.operated.acts:
        if isinstance(act, RefusedAct) or act.request in known:
            continue
        if act.act == "release":
            _broken(judge, act.what)
        if act.act == "reset":
            for move in json.loads(act.body)["moves"]:
                _broken(judge, move["stream"])
                _new_line(judge, act.request, move["stream"], move["to"])


def lost(judge: Judge, state: GroupState) -> None:
    """A failover has lost resets: what came out before them counts again, beside what came out since."""
    kept = {act.request for act in state.operated.acts}
    known = {act.request for act in judge.truth.operated.acts}
    for line in reversed(judge.lines):
        request, stream, before, passed = line
        if request in known - kept:
            judge.sometimes["a reset is lost"] += 1
            judge.seen[stream] = before | judge.seen[stream]
            judge.passed[stream] = max(passed, judge.passed[stream])
    judge.lines = [line for line in judge.lines if line[0] not in known - kept]


def _new_line(judge: Judge, request: str, stream: str, offset: int) -> None:
    seen = judge.seen.setdefault(stream, {})
    judge.sometimes["progress is reset back"] += offset < judge.committed.get(stream, 0)
    judge.sometimes["progress is reset on"] += offset > judge.committed.get(stream, 0)
    # A reset lost in a failover that comes back has its lease epoch already: what came out under it counts.
    progress = judge.truth.streams.get(stream)
    spent = progress.lease_epoch + 1 if progress is not None else 1 << 60
    lease_epoch = judge.line_lease_epochs.setdefault((request, stream), spent)
    before = {n: seen.pop(n) for n, (_, under) in list(seen.items()) if n >= offset and under < lease_epoch}
    judge.lines.append((request, stream, before, judge.passed.get(stream, 0)))
    for number in range(judge.passed.get(stream, 0), offset):
        seen.setdefault(number, ("nobody", 0))
    judge.committed[stream] = judge.passed[stream] = offset
    judge.said_committed[stream] = max(offset, judge.said_committed.get(stream, 0))
    judge.reset[stream] = max(lease_epoch, judge.reset.get(stream, 0))


def _broken(judge: Judge, stream: str) -> None:
    """The lease of now ends without a word of its owner; a reset spends the next lease epoch as well."""
    progress = judge.truth.streams.get(stream)
    lease_epoch = progress.lease_epoch if progress is not None else 0
    judge.broken.setdefault(stream, set()).update((lease_epoch, lease_epoch + 1))
