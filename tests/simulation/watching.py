"""Lets the judge see what happens inside the real shells, for as long as a world runs.

Nothing here changes what they do: each method is called as it is, and the judge is told before or behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

from streamlease.agent.dividing import News
from streamlease.agent.fetching import Fetching
from streamlease.agent.membership.limbo import Limbo
from streamlease.agent.settling import Settling
from streamlease.agent.subscription import SharedReader
from streamlease.borrower import leases
from streamlease.borrower.book import Held
from streamlease.hosts import compactor, renewing
from streamlease.hosts.candidates import Candidates
from streamlease.leader import journal
from streamlease.leader.core import events as e
from streamlease.leader.core import in_turns
from streamlease.leader.core.machine import Leader
from streamlease.leader.core.parts import telling
from streamlease.leader.journal import Journal
from streamlease.leader.runner import Runner
from streamlease.protocol.messages import (
    FailureTaken,
    Grant,
    Grants,
    Invalidate,
    LeaderConnectResponse,
    LeaderToSession,
    PingResponse,
    ProgressCommitted,
    Revoke,
    Revoked,
)
from streamlease.registry.leadership import LeaderWatch
from streamlease.registry.mail.postbox import Postbox
from streamlease.spark.core.query_cuts import QueryCuts
from streamlease.spark.query.borrowing import SessionEvents
from streamlease.streams.log import compacting, merging
from streamlease.streams.log.state import MissingOffsets
from tests.simulation import poison

if TYPE_CHECKING:
    from tests.simulation.world import World

SAID = (
    LeaderConnectResponse | PingResponse | Grant | Grants | Revoke | Revoked | ProgressCommitted
    | FailureTaken | Invalidate | LeaderToSession
)  # fmt: skip
"""What only a leader says, and names its term."""

KEPT = 20
SNAPSHOT_EVERY = 25
TELL_INTERVAL = 1000
RUN_ROWS = 4


@contextmanager
def watched(world: World) -> Iterator[None]:
    """The shells speak to the judge of `world`, and what is rare in production happens often."""
    with ExitStack() as stack:
        enter = stack.enter_context
        enter(mock.patch.object(journal, "ENTRIES_KEPT", KEPT))
        enter(mock.patch.object(journal, "SNAPSHOT_EVERY", SNAPSHOT_EVERY))
        enter(mock.patch.object(leases, "TELL_INTERVAL", TELL_INTERVAL))
        if world.kernel.seed % 3:
            enter(mock.patch.object(telling, "MANY", 2))
        if world.kernel.seed % 5 == 2:
            enter(mock.patch.object(in_turns, "MOST_AT_ONCE", 1))
        enter(mock.patch.object(merging, "ENOUGH_ROWS", RUN_ROWS))
        enter(mock.patch.object(compacting, "LEAST_ENTRIES", 2))
        enter(mock.patch.object(compactor, "INTERVAL_SECONDS", 0.7 if world.compacts else 5.0))
        if world.kernel.seed % 2:
            enter(mock.patch.object(renewing, "FEW", 0))
        _watch_leaders(world, enter)
        _watch_hosts(world, enter)
        _watch_readers(world, enter)
        _watch_queries(world, enter)
        yield


def _watch_leaders(world: World, enter: Any) -> None:
    real, judge = Leader.step, world.judge
    inside: list[int] = []

    def step(leader: Leader, event: e.Event, now: int, *, more: bool = False) -> list[e.Effect]:
        if world.over or id(leader) in inside or leader.ledger.group != world.group:
            return real(leader, event, now, more=more)
        if isinstance(event, e.Recovered):
            world.machines[leader.term] = leader
            judge.recovered(leader)
            if world.hosted and world.embedded:
                hosted = any(host.real.id == world.store.record.host for host in world.hosts)
                who = (
                    "a host leads where consumers may, too"
                    if hosted
                    else "a consumer leads where hosts come and go"
                )
                world.sometimes[who] += 1
        inside.append(id(leader))
        try:
            return judge.step_leader(leader, event, now, more=more)
        finally:
            inside.pop()

    written, post = Runner._written, Postbox.post

    async def on_written(runner: Runner, machine: Leader, journal: Journal, write: Any) -> dict[str, int]:
        further = await written(runner, machine, journal, write)
        if runner.group == world.group and not world.over:
            judge.written(machine)
        return further

    def on_post(box: Postbox, receiver: str, message: Any) -> None:
        if message.group == world.group and isinstance(message, SAID) and not world.over:
            judge.said(box._sender, message)
        post(box, receiver, message)

    enter(mock.patch.object(Leader, "step", step))
    enter(mock.patch.object(Runner, "_written", on_written))
    enter(mock.patch.object(Postbox, "post", on_post))


def _watch_hosts(world: World, enter: Any) -> None:
    real = Candidates._stand

    async def stand(candidates: Candidates, group: str, watch: LeaderWatch | None = None) -> None:
        world.judge.candidate(candidates._host, +1)
        try:
            await real(candidates, group, watch)
        finally:
            world.judge.candidate(candidates._host, -1)

    enter(mock.patch.object(Candidates, "_stand", stand))


def _session(reader: SharedReader) -> str:
    session = reader._settling.session
    assert session is not None
    return session.config.session


def _watch_readers(world: World, enter: Any) -> None:
    judge, sometimes = world.judge, world.sometimes
    granted, acknowledged = SharedReader.granted, Settling.acknowledged
    skip, missing, look = Held.skip, Fetching._missing, Limbo.look

    def on_grant(reader: SharedReader, slot: int, grant: Any) -> None:
        session = _session(reader)
        judge.believes(session, grant.stream, grant.lease_epoch)
        before = reader.book.streams.get(grant.stream)
        turn = before.turn if before is not None else 0
        granted(reader, slot, grant)
        if before is not None and reader.book.streams[grant.stream] is before:
            if before.turn != turn:
                sometimes["a stream comes back behind what was decided elsewhere"] += 1
                poison.void(judge, session, grant.stream, before.committed)
            sometimes["a consumer goes on where it was"] += 1

    def on_acknowledged(settling: Settling, slot: int, ack: Any) -> None:
        judge.acknowledged(ack.stream, ack.offset)
        acknowledged(settling, slot, ack)

    def on_skip(held: Held, start: int, end: int) -> bool:
        judge.skipped(held.stream, held.lease_epoch, start, end)
        sometimes["messages of other topics are passed over"] += 1
        return skip(held, start, end)

    def on_missing(fetching: Fetching, one: News, hole: MissingOffsets) -> None:
        judge.missing(str(one.stream), one.start, hole.oldest)
        missing(fetching, one, hole)

    def on_look(limbo: Limbo, now: float) -> None:
        before = dict(limbo._book.streams)
        look(limbo, now)
        for stream, held in before.items():
            if stream not in limbo._book.streams:
                sometimes["a commit is given up: its stream did not come back"] += 1
                judge.broken.setdefault(stream, set()).add(held.lease_epoch)

    enter(mock.patch.object(SharedReader, "granted", on_grant))
    enter(mock.patch.object(Limbo, "look", on_look))
    enter(mock.patch.object(Settling, "acknowledged", on_acknowledged))
    enter(mock.patch.object(Held, "skip", on_skip))
    enter(mock.patch.object(Fetching, "_missing", on_missing))


def _watch_queries(world: World, enter: Any) -> None:
    judge, sometimes = world.judge, world.sometimes
    granted, acknowledged = SessionEvents.granted, SessionEvents.acknowledged
    resumed, take_up = QueryCuts.resumed, QueryCuts.take_up

    def on_grant(events: SessionEvents, slot: int, grant: Any) -> None:
        where = asyncio.get_running_loop().process  # type: ignore[attr-defined]
        session = events._step.__self__.machine.cuts.who.session  # type: ignore[attr-defined]
        judge.believes(f"{session} in {where.name}", grant.stream, grant.lease_epoch)
        granted(events, slot, grant)

    def on_acknowledged(events: SessionEvents, slot: int, ack: Any) -> None:
        judge.acknowledged(ack.stream, ack.offset)
        acknowledged(events, slot, ack)

    def on_resumed(cuts: QueryCuts, cut: Any, term: int, mine: set[str]) -> Any:
        ranges = resumed(cuts, cut, term, mine)
        sometimes["a cut is resumed"] += len(ranges) == len(cut.ranges)
        sometimes["a cut is resumed in part"] += 0 < len(ranges) < len(cut.ranges)
        return ranges

    def on_take_up(cuts: QueryCuts, following: Any) -> Any:
        cut = take_up(cuts, following)
        sometimes["a cut that no checkpoint names is taken up"] += cut is not None
        return cut

    enter(mock.patch.object(SessionEvents, "granted", on_grant))
    enter(mock.patch.object(SessionEvents, "acknowledged", on_acknowledged))
    enter(mock.patch.object(QueryCuts, "resumed", on_resumed))
    enter(mock.patch.object(QueryCuts, "take_up", on_take_up))
