"""A leader in a wanted state, and the messages that borrowers, sessions and operators send it."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, TypeVar

from streamlease.leader.core.events import (
    Effect,
    Event,
    LeasesWritten,
    Persist,
    Received,
    Recovered,
    Send,
    StreamsListed,
    Tick,
)
from streamlease.leader.core.machine import Leader, LeaderConfig
from streamlease.leader.core.parts.mirror import MirrorChange
from streamlease.leader.core.state.group_state import GroupState
from streamlease.leader.core.state.records import Record, decode_records, encode_records
from streamlease.protocol.acts import parse
from streamlease.protocol.cuts import CutRange, Ranges
from streamlease.protocol.group_options import GroupOptions
from streamlease.protocol.messages import (
    Command,
    Disconnect,
    FinishCut,
    FixCut,
    FromLeader,
    LeaderWanted,
    MessageFailed,
    Ping,
    Progress,
    ResumeCut,
    Revoke,
    RevokeFinished,
    ToLeader,
    UpdateProgress,
)

GROUP = "g/a"
CONFIG = LeaderConfig()
OPTIONS = GroupOptions()
S0, S1, S2, S3 = (f"s.0.{shard}" for shard in range(4))
_Kind = TypeVar("_Kind")


def wanted(
    borrower: str,
    name: str = "",
    session: str = "",
    arrival: int = 1,
    attempt: int = 1,
    timeout: int = 10_000,
    attested: tuple[Progress, ...] = (),
) -> LeaderWanted:
    name = name or f"n-{borrower}"
    return LeaderWanted(
        group=GROUP,
        borrower=borrower,
        session=session or f"s-{name}",
        name=name,
        arrival=arrival,
        attempt=attempt,
        host="here",
        session_timeout_ms=timeout,
        attested=attested,
    )


def ping(borrower: str, term: int = 1) -> Ping:
    return Ping(group=GROUP, borrower=borrower, term=term)


def progress(
    borrower: str, stream: str, lease_epoch: int, offset: int, *, final: bool = False
) -> UpdateProgress:
    entry = Progress(stream=stream, lease_epoch=lease_epoch, offset=offset, final=final)
    return UpdateProgress(group=GROUP, borrower=borrower, progress=(entry,))


def finished(borrower: str, stream: str, lease_epoch: int) -> RevokeFinished:
    return RevokeFinished(group=GROUP, borrower=borrower, stream=stream, lease_epoch=lease_epoch)


def failed(
    borrower: str, stream: str, lease_epoch: int, offset: int, failure: str = "f1", cause: str = "bad"
) -> MessageFailed:
    return MessageFailed(
        group=GROUP,
        borrower=borrower,
        stream=stream,
        lease_epoch=lease_epoch,
        offset=offset,
        failure=failure,
        cause=cause,
    )


def goodbye(borrower: str, *entries: tuple[str, int, int]) -> Disconnect:
    said = tuple(Progress(stream=s, lease_epoch=e, offset=o, final=True) for s, e, o in entries)
    return Disconnect(group=GROUP, borrower=borrower, progress=said)


def part(stream: str, lease_epoch: int, start: int, end: int) -> CutRange:
    return CutRange(stream=stream, lease_epoch=lease_epoch, start=start, end=end)


def fix(session: str, cut: int, *ranges: CutRange, finished: int | None = None, arrival: int = 1) -> FixCut:
    done = cut - 1 if finished is None else finished
    return FixCut(
        group=GROUP, session=session, arrival=arrival, cut=cut, finished=done, ranges=Ranges.of(ranges)
    )


def finish(session: str, cut: int, *ranges: CutRange, arrival: int = 1) -> FinishCut:
    return FinishCut(group=GROUP, session=session, arrival=arrival, finished=cut, ranges=Ranges.of(ranges))


def resume(session: str, cut: int, *ranges: CutRange, arrival: int = 1) -> ResumeCut:
    return ResumeCut(group=GROUP, session=session, arrival=arrival, cut=cut, ranges=Ranges.of(ranges))


def command(
    act: Any, *, dry_run: bool = False, who: str = "me", request: str = "r1", at: int = 0, **more: Any
) -> Command:
    return Command(group=GROUP, request=request, act=parse(act, **more), dry_run=dry_run, who=who, at=at)


def stepped(leader: Leader, event: Event, now: int, *, more: bool = False) -> list[Effect]:
    """Step a leader, and say what its runner says once it has written the leases that begin."""
    effects = leader.step(event, now, more=more)
    while leader.leases.begun.unwritten:
        effects += leader.step(LeasesWritten(), now, more=more)
    return effects


class Rig:
    """A leader with its clock, everything it sent, and a journal that is written as it asks for."""

    def __init__(
        self,
        term: int = 1,
        state: GroupState | None = None,
        config: LeaderConfig = CONFIG,
        lineage: str = "",
        options: GroupOptions = OPTIONS,
        deaf: int = 0,
    ) -> None:
        begin = state if state is not None else GroupState()
        self.leader = Leader(GROUP, "host", term, config, begin, options, lineage=lineage)
        self.now = 0
        self.effects: list[Effect] = []
        self.journal: list[Record] = []
        self.step(Recovered(deaf))

    def step(self, event: Any) -> list[Effect]:
        effects = stepped(self.leader, event, self.now)
        self.effects += effects
        for effect in effects:
            if isinstance(effect, Persist):
                self.journal += effect.records
        return effects

    def hear(self, message: ToLeader, sender: str = "box") -> list[Effect]:
        return self.step(Received(sender, message))

    def streams(self, *streams: str, start: int = 0) -> list[Effect]:
        return self.step(StreamsListed(dict.fromkeys(streams, start)))

    def generations(
        self, ends: dict[str, int], *open: str, order: dict[str, tuple[str, ...]] | None = None
    ) -> list[Effect]:
        """A listing with sealed streams; every open one follows all that are sealed, unless `order` says."""
        before = order or {**dict.fromkeys(ends, ()), **dict.fromkeys(open, tuple(ends))}
        return self.step(StreamsListed(dict.fromkeys((*ends, *open), 0), {}, ends, before))

    def give_back(self, stream: str, offset: int) -> None:
        """Answer the revocation of `stream` to its end."""
        owner, lease_epoch = self.owners[stream], self.lease_epoch(stream)
        self.hear(progress(owner, stream, lease_epoch, offset, final=True), f"box-{owner}")
        self.hear(finished(owner, stream, lease_epoch), f"box-{owner}")

    def tick(self, milliseconds: int = 0) -> list[Effect]:
        self.now += milliseconds
        return self.step(Tick())

    def settle(self) -> list[Effect]:
        """Let the rebalance that is due be made."""
        return self.tick(self.leader.config.rebalance_delay)

    def join(self, borrower: str, **more: Any) -> list[Effect]:
        return self.hear(wanted(borrower, **more), f"box-{borrower}")

    def accept(self, borrower: str | None = None) -> None:
        """Acknowledge all grants (of one borrower) by progress at their beginning."""
        for stream, lease in list(self.leader.leases.items()):
            owner = self.leader.peers[lease.name].borrower
            if lease.state.value == "granting" and owner and borrower in (None, owner):
                offset = self.leader.durable.streams[stream].committed
                self.hear(progress(owner, stream, lease.lease_epoch, offset), f"box-{owner}")

    @property
    def owners(self) -> dict[str, str]:
        """Stream -> borrower id."""
        leases = self.leader.leases
        return {stream: self.leader.peers[lease.name].borrower for stream, lease in sorted(leases.items())}

    def lease_epoch(self, stream: str) -> int:
        return self.leader.leases[stream].lease_epoch

    def lease_state(self, stream: str) -> str:
        lease = self.leader.leases.get(stream)
        return lease.state.value if lease is not None else "free"

    def committed(self, stream: str) -> int:
        return self.leader.durable.streams[stream].committed

    def moved(self) -> MirrorChange:
        """What changes beside the journal since the last call."""
        return self.leader.ledger.mirror.take(self.leader.durable)

    def replayed(self) -> GroupState:
        """What the next leader would read from the journal."""
        state = GroupState()
        for record in decode_records(encode_records(self.journal)):
            state.apply(record)
        return state

    def crash(self, deaf: int = 0) -> Rig:
        """The next leader, begun from what was journalled, after `deaf` ms without one."""
        leader = self.leader
        return Rig(leader.term + 1, self.replayed(), leader.config, options=leader.options, deaf=deaf)

    def frozen(self) -> Leader:
        """All that the leader is, but for the count of what it refused and when it heard from whom."""
        leader = copy.deepcopy(self.leader)
        leader.ledger.refused = 0
        for peer in leader.peers.values():
            peer.last_seen = 0
        return leader


def led(streams: Iterable[str] = (S0, S1), borrowers: Iterable[str] = ("b1",), **more: Any) -> Rig:
    """A leader whose borrowers joined at once and hold the streams."""
    rig = Rig(**more)
    for borrower in borrowers:
        rig.join(borrower)
    rig.streams(*streams)
    rig.settle()
    rig.accept()
    rig.effects.clear()
    return rig


def sent(effects: Iterable[Effect], kind: type[_Kind]) -> list[_Kind]:
    """The messages of one type among `effects`."""
    messages: list[FromLeader] = [e.message for e in effects if isinstance(e, Send)]
    return [m for m in messages if isinstance(m, kind)]


def only(effects: Iterable[Effect], kind: type[_Kind]) -> _Kind:
    (found,) = sent(effects, kind)
    return found


def revoking() -> Rig:
    """b1 is asked for S1, which b2 shall have."""
    rig = led()
    rig.join("b2")
    assert only(rig.settle(), Revoke).stream == S1
    return rig


def keep_alive(rig: Rig, milliseconds: int, *borrowers: str) -> list[Effect]:
    """Time passes, and only these borrowers are heard."""
    effects: list[Effect] = []
    for _ in range(0, milliseconds, 1000):
        for borrower in borrowers:
            rig.hear(ping(borrower))
        effects += rig.tick(1000)
    return effects
