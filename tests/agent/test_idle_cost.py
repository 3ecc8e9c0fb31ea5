"""What groups at rest cost Redis grows with hosts and processes, not with groups: commands of a minute."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack

import pytest

from streamlease.borrower.events import Effect
from streamlease.borrower.events import Event as BorrowerEvent
from streamlease.borrower.machine import Borrower
from streamlease.hosts.host import HostConfig, LeaderHost
from streamlease.leader.core.events import Effect as LeaderEffect
from streamlease.leader.core.events import Event as LeaderEvent
from streamlease.leader.core.machine import Leader
from streamlease.leader.runner import Runner
from streamlease.streams.spaces.definitions import Space
from streamlease.streams.spaces.known import Known
from streamlease.testing.memory.memory_connection import connect, connect_redis
from streamlease.testing.memory.memory_server import MemoryServer
from streamlease.testing.timelines.loops import Timeline

STREAMS = 4
MINUTE = 60.0
GROUPS = 100
MOST = 200
"""So many commands a second at most they may cost, all hosts and processes together."""
MORE = 16
"""So many commands a second more, by each host and process, are about some groups in turn, not about each:
hosts share the groups, and each looks at some of its own in turn, and at some of the others'."""
QUEUE = 1.5
"""So many commands a second of each host are not counted here: in a thread its worker waits for spawn jobs,
one second after another, and shows every ten that it is alive."""
LAYOUTS = {
    "embedded": (0, 1),
    "shared": (0, 2),
    "host": (1, 1),
    "hosts": (3, 1),
    "processes": (1, 4),
    "many": (3, 4),
}
"""Leader hosts, and processes of consumers that share the groups; without hosts each consumes all of them."""


class Stage:
    """Groups at rest, each with a space and a consumer of its own."""

    def __init__(self, timeline: Timeline, groups: int, hosts: int, processes: int) -> None:
        self.timeline = timeline
        self.server = MemoryServer(lambda: 1_700_000_000 + timeline.now)
        self.wanted = 0
        self.subscribed = 0
        for number in range(hosts):
            timeline.process(f"host{number}").start(self.lead(number))
        timeline.run(timeline.now + 1.0)
        for place in range(processes):
            numbers = range(place, groups, processes) if hosts else range(groups)
            timeline.process(f"consumers{place}").start(self.consume(numbers))
            self.wanted += len(numbers)

    async def lead(self, number: int) -> None:
        host = LeaderHost(connect_redis(self.server), HostConfig(name=f"host{number}"))
        await host.start()
        await asyncio.Event().wait()

    async def consume(self, numbers: range) -> None:
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(connect(self.server))
            for number in numbers:
                await client.create_space(f"s{number}", [f"t/{number}/#"], streams=STREAMS)
                await stack.enter_async_context(client.subscribe(f"$shared/g{number}/t/{number}/#"))
                self.subscribed += 1
            await asyncio.Event().wait()

    def rest(self) -> None:
        """Until all is quiet."""
        assert self.timeline.run(self.timeline.now + MINUTE, lambda: self.subscribed == self.wanted)
        self.timeline.run(self.timeline.now + MINUTE)

    def commands(self) -> int:
        """Those of a minute, once all is quiet."""
        self.rest()
        before = self.server.commands
        self.timeline.run(self.timeline.now + MINUTE)
        return self.server.commands - before


def commands(groups: int, layout: str) -> int:
    with Timeline() as timeline:
        return Stage(timeline, groups, *LAYOUTS[layout]).commands()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.slow
def test_what_a_hundred_groups_cost_at_rest_is_little_more_than_what_one_costs(layout: str) -> None:
    hosts, processes = LAYOUTS[layout]
    few, many = commands(processes, layout), commands(GROUPS, layout)
    assert many - few <= MORE * (hosts + processes) * MINUTE
    assert many <= (MOST - QUEUE * hosts) * MINUTE


def test_a_leader_that_begins_has_only_its_own_streams_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """All leaders are looked at once a second, however many begin in it."""
    looked = 0
    look = Runner.look

    async def counted(self: Runner, known: Known, passed: int) -> None:
        nonlocal looked
        looked += 1
        await look(self, known, passed)

    monkeypatch.setattr(Runner, "look", counted)
    with Timeline() as timeline:
        began = timeline.now
        stage = Stage(timeline, 40, 0, 1)
        assert timeline.run(timeline.now + MINUTE, lambda: stage.subscribed == stage.wanted)
        assert 0 < looked <= 40 * (2 + int(timeline.now - began)), "each by itself, and all once a second"


def test_groups_at_rest_are_not_compared_with_spaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand of both would be a million filters, again and again; a new space is compared with few."""
    compared = 0
    intersects = Space.intersects

    def counted(self: Space, filter: str) -> bool:
        nonlocal compared
        compared += 1
        return intersects(self, filter)

    with Timeline() as timeline:
        stage = Stage(timeline, 20, 1, 1)
        stage.rest()
        monkeypatch.setattr(Space, "intersects", counted)
        timeline.run(timeline.now + MINUTE)
        assert compared == 0

        async def create() -> None:
            async with connect(stage.server) as client:
                await client.create_space("one_more", ["t/more/#"], streams=STREAMS)

        timeline.process("operator").start(create())
        timeline.run(timeline.now + MINUTE)
        assert 20 <= compared <= 60, "each leader looked which of all are its own"


def test_at_rest_borrowers_and_leaders_are_stepped_only_where_something_is_due(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A ping a second and its answer; and each leader's look at the time, twice a second."""
    steps: Counter[tuple[str, str]] = Counter()
    step, taken = Borrower.step, Leader.step

    def stepped(self: Borrower, event: BorrowerEvent, now: int) -> list[Effect]:
        steps["borrower", type(event).__name__] += 1
        return step(self, event, now)

    def taking(self: Leader, event: LeaderEvent, now: int, *, more: bool = False) -> list[LeaderEffect]:
        steps["leader", type(event).__name__] += 1
        return taken(self, event, now, more=more)

    monkeypatch.setattr(Borrower, "step", stepped)
    monkeypatch.setattr(Leader, "step", taking)
    groups = 20
    with Timeline() as timeline:
        stage = Stage(timeline, groups, 0, 1)
        stage.rest()
        steps.clear()
        timeline.run(timeline.now + MINUTE)
        seconds = {what: count / groups / MINUTE for what, count in steps.items()}
    assert seconds.pop(("leader", "Tick")) <= 2.1
    assert seconds.keys() == {("borrower", "Tick"), ("borrower", "Received"), ("leader", "Received")}
    assert max(seconds.values()) <= 1.05


def epochs_at_rest(spaces: int) -> int:
    """What a host and that many spaces with epochs, to which nobody publishes, send in a minute."""
    with Timeline() as timeline:
        server, hosts = MemoryServer(lambda: 1_700_000_000 + timeline.now), list[LeaderHost]()

        async def work() -> None:
            async with connect(server) as client:
                for number in range(spaces):
                    await client.create_space(f"s{number}", [f"t/{number}/#"], streams=STREAMS, epochs=1)
            host = LeaderHost(connect_redis(server), HostConfig(name="host"))
            hosts.append(host)
            await host.start()
            await asyncio.Event().wait()

        timeline.process("host").start(work())
        timeline.run(timeline.now + MINUTE)
        assert [len(host.keeps) for host in hosts] == [spaces]
        before = server.commands
        timeline.run(timeline.now + MINUTE)
        return server.commands - before


def test_spaces_with_epochs_at_rest_cost_little() -> None:
    few, many = epochs_at_rest(2), epochs_at_rest(42)
    assert many - few <= 8 * 40 * MINUTE, "its claim is renewed once a second, and its lines are pushed"
