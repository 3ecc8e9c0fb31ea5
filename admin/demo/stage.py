"""The play: two leader hosts, two Spark queries, one publisher, and what befalls them.

::

    published   0 %   the first query begins
               10 %   the second query joins
               40 %   the first query is killed (SIGKILL), with all that it started
               65 %   the first query comes back, with its checkpoint
               85 %   the leader host is killed (SIGKILL)
              100 %   all is drained, the queries stop, Spark and the file are compared

Publishing goes on through every act. It slows down before an act that would make no sense yet: a query is
killed only once it holds something. Meanwhile the hosts move what is older than some seconds from the memory
of Redis into an archive, an Iceberg table in a folder; at the end a Spark batch reads all of it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from streamlease.admin.demo.flight_query import SUBSCRIPTION
from streamlease.admin.demo.flights import Flights, event_time, load
from streamlease.admin.demo.processes import DemoProcess
from streamlease.admin.demo.report import DemoOutcome, DemoProgress, Reporter
from streamlease.admin.redis.embedded import EmbeddedRedis
from streamlease.agent.client import Client
from streamlease.protocol.acts import DescribeGroup
from streamlease.protocol.errors import InvalidOption, StreamleaseError
from streamlease.protocol.ids import StreamId
from streamlease.protocol.topics import SharedSubscription
from streamlease.registry import hosts, leadership
from streamlease.streams.archive.iceberg_table import SpaceTable
from streamlease.streams.publish.publisher import Publisher
from streamlease.streams.redis.connection import connect_blocking
from streamlease.streams.spaces.archive_settings import ArchiveSettings
from streamlease.streams.spaces.definitions import Space
from streamlease.streams.tasks import first_of, stop

STREAMS = 12
KEEP_MS = 20_000
"""How long flights stay in the memory of Redis; older ones are in the archive only."""

SPACE = "flights"
SECONDS_TO_PUBLISH = 60.0
STEP_SECONDS = 0.1
SLOWER = 10
"""By how much publishing slows down while the next act is due but would make no sense yet."""

HELD_BACK = 0.97
"""Share of the flights of which the rest is published only once every act has begun."""

ACT_SECONDS = 180.0
"""How long one act may take before the demo gives up."""

JUDGE_SECONDS = 300.0
"""How long Spark may take to say what arrived: 15 s, and many times that on a machine with other work."""

Condition = Callable[[], Awaitable[Any]]


def run(redis_url: str | None, as_json: bool) -> int:
    """Play the demo; 0 if nothing was lost, nothing came twice, and the figures are equal."""
    reporter = Reporter(as_json=as_json)
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="streamlease-demo-")))
        if redis_url is None:
            redis_url = stack.enter_context(EmbeddedRedis.throw_away())
        outcome = asyncio.run(_play(redis_url, directory, reporter))
    reporter.show(outcome)
    return 0 if outcome.good else 1


async def _play(url: str, directory: Path, reporter: Reporter) -> DemoOutcome:
    flights = load()
    async with Client(url, embedded=False) as client:
        if any(space.name == SPACE for space in (await client.spaces.look()).listed):
            raise InvalidOption(
                f"space '{SPACE}' exists in this Redis already, and the demo would mix with it: "
                f"delete it with 'streamlease space delete {SPACE}', or use another Redis"
            )
        stage = Stage(client, url, directory, flights, reporter)
        try:
            with reporter:
                return await stage.play()
        finally:
            await stage.clear()


@dataclass(frozen=True, slots=True)
class DemoAct:
    """Something that happens once `share` of the flights are published and `ready` holds."""

    share: float
    what: str
    ready: Condition
    play: Callable[[], Coroutine[Any, Any, None]]


@dataclass(slots=True)
class Stage:
    """Everything that is on."""

    client: Client
    url: str
    directory: Path
    flights: Flights
    reporter: Reporter
    hosts: list[DemoProcess] = field(default_factory=list)
    queries: dict[str, DemoProcess] = field(default_factory=dict)
    sessions: dict[str, str] = field(default_factory=dict)
    """Session -> name of its query."""
    progress: DemoProgress = field(default_factory=DemoProgress)
    both_held: bool = False
    take_over_seconds: float | None = None
    leader_seconds: float | None = None

    @property
    def group(self) -> SharedSubscription:
        """The subscription that both queries share."""
        return SharedSubscription.parse(SUBSCRIPTION)

    async def play(self) -> DemoOutcome:
        """From the first host to the judgement."""
        began = time.monotonic()
        kept = ArchiveSettings.of(str(self.directory / "archive"), keep_ms=KEEP_MS)
        space = await self.client.create_space(SPACE, [f"{SPACE}/#"], streams=STREAMS, archive=kept)
        for number in (1, 2):
            self.hosts.append(self._start(f"host-{number}", "streamlease.admin", "serve", "--http-port", "0"))
        self.progress.total = len(self.flights)
        await self._until("two leader hosts", self._two_hosts)
        self._start_query("first")
        await first_of(self._watch(), self._play())
        last = await self._describe()
        for query in self.queries.values():
            await asyncio.to_thread(query.stop)
        self._say("asking Spark what arrived")
        judged = await asyncio.to_thread(self._judge)
        archived = await asyncio.to_thread(self._archived, space)
        return DemoOutcome.of(
            published=len(self.flights),
            judged=judged,
            archived=archived,
            truth=self.flights.mean_delays(),
            group=last,
            both_held=self.both_held,
            take_over_seconds=self.take_over_seconds,
            leader_seconds=self.leader_seconds,
            seconds=time.monotonic() - began,
        )

    async def _play(self) -> None:
        await self._publish()
        self._say("all flights are published; waiting until both queries have drained them")
        await self._until("all flights to be consumed", self._drained)

    def _say(self, event: str) -> None:
        self.progress.say(event)
        self.reporter.update(self.progress)

    async def clear(self) -> None:
        """End every process that still runs, and remove what the demo made in Redis."""
        for process in [*self.queries.values(), *self.hosts]:
            await asyncio.to_thread(process.kill)
        with contextlib.suppress(StreamleaseError):
            # What cannot be removed now is named by the next run of the demo.
            await self.client.spaces.delete(SPACE)
            await self.client.groups.forget(self.group)

    # ------------------------------------------------------------ acts

    def _acts(self) -> list[DemoAct]:
        return [
            DemoAct(0.10, "the first query to consume", lambda: self._consumes("first"), self._second_joins),
            DemoAct(0.40, "both queries to hold streams", self._both_hold, self._first_is_killed),
            DemoAct(0.65, "nothing", _at_once, self._first_returns),
            DemoAct(0.85, "both queries to hold streams again", self._both_hold, self._leader_is_killed),
        ]

    async def _second_joins(self) -> None:
        self._start_query("second")
        self._say("the second query joins")

    async def _first_is_killed(self) -> None:
        self.both_held = True
        ends = {stream["stream"]: stream["committed"] for stream in (await self._describe())["streams"]}

        async def second_consumes() -> bool:
            now = await self._describe()
            held = self._held_by(now, "second")
            return any(s["committed"] > ends[s["stream"]] for s in now["streams"] if s["stream"] in held)

        await self._until("the second query to consume", second_consumes)
        before = await self._describe()
        lost = {
            stream["stream"]: stream["committed"]
            for stream in before["streams"]
            if stream["stream"] in self._held_by(before, "first")
        }
        await asyncio.to_thread(self.queries.pop("first").kill)
        killed = time.monotonic()
        self._say(f"the first query was killed; it held {len(lost)} streams")

        async def taken_over() -> bool:
            now = await self._describe()
            second = set(self._held_by(now, "second"))
            ends = await self.client.next_offsets([StreamId.parse(stream) for stream in lost])
            return all(
                stream["stream"] in second
                and stream["committed"]
                >= min(lost[stream["stream"]] + 1, ends[StreamId.parse(stream["stream"])])
                for stream in now["streams"]
                if stream["stream"] in lost
            )

        await self._until("the second query to consume the streams of the first", taken_over)
        self.take_over_seconds = time.monotonic() - killed
        self._say(f"the second query consumes its streams after {self.take_over_seconds:.1f} s")

    async def _first_returns(self) -> None:
        self._start_query("first")
        self._say("the first query comes back with its checkpoint")

    async def _leader_is_killed(self) -> None:
        record = await leadership.read(self.client.redis, self.group.id)
        pids = {info.host: info.pid for info in await hosts.alive(self.client.redis)}
        victim = next(host for host in self.hosts if host.pid == pids.get(record.host))
        self.hosts.remove(victim)
        await asyncio.to_thread(victim.kill)
        killed = time.monotonic()
        self._say(f"the leader host {record.host} was killed in term {record.term}")

        async def replaced() -> bool:
            now = await leadership.read(self.client.redis, self.group.id)
            return now.term > record.term and now.held and await self._both_hold()

        await self._until("another leader to serve both queries", replaced)
        self.leader_seconds = time.monotonic() - killed
        self._say(f"another host leads and both queries hold streams after {self.leader_seconds:.1f} s")

    # ------------------------------------------------------------ publishing

    async def _publish(self) -> None:
        acts = self._acts()
        rows = max(1, round(len(self.flights) * STEP_SECONDS / SECONDS_TO_PUBLISH))
        total = len(self.flights)
        acting: asyncio.Task[None] | None = None
        loop = asyncio.get_running_loop()
        try:
            async with self.client.publisher() as publisher:
                next_step = loop.time()
                for batch in self.flights.batches(rows):
                    due = bool(acts) and self.progress.published >= acts[0].share * total
                    if due and self.progress.published >= HELD_BACK * total:
                        if acting is not None:
                            await acting
                        await self._until(acts[0].what, acts[0].ready)
                    if due and (acting is None or acting.done()) and await self._holds(acts[0].ready):
                        acting = asyncio.create_task(acts.pop(0).play())
                        due = False
                    if acting is not None and acting.done():
                        acting.result()
                    await self._publish_batch(publisher, batch)
                    next_step = max(next_step + STEP_SECONDS * (SLOWER if due else 1), loop.time())
                    await asyncio.sleep(next_step - loop.time())
                await publisher.flush()
            if acting is not None:
                await acting
        finally:
            if acting is not None:
                await stop([acting])

    async def _publish_batch(self, publisher: Publisher, batch: list[dict[str, Any]]) -> None:
        for flight in batch:
            await publisher.submit(
                f"flights/{flight['origin']}/{flight['dest']}",
                json.dumps(flight),
                key=flight["tailnum"] or None,
                timestamp=event_time(flight["time_hour"]),
            )
        self.progress.published += len(batch)

    # ------------------------------------------------------------ watching

    async def _watch(self) -> None:
        while True:
            with contextlib.suppress(StreamleaseError):
                # No leader at this moment; the next look tells.
                group = await self._describe()
                self.progress.see(group, self._owners(group))
            self.reporter.update(self.progress)
            self._check_processes()
            await asyncio.sleep(0.5)

    async def _describe(self) -> dict[str, Any]:
        return await self.client.command(self.group, DescribeGroup(), seconds=2.0)

    def _owners(self, group: dict[str, Any]) -> dict[str, int]:
        """How many streams each query holds. Sessions get their query's name in the order of appearance."""
        for stream in group["streams"]:
            session = stream["session"]
            if session is not None and session not in self.sessions and len(self.sessions) < 2:
                self.sessions[session] = ("first", "second")[len(self.sessions)]
        return {name: len(self._held_by(group, name)) for name in ("first", "second")}

    def _held_by(self, group: dict[str, Any], query: str) -> list[str]:
        return [
            stream["stream"]
            for stream in group["streams"]
            if stream["state"] == "granted" and self.sessions.get(stream["session"] or "") == query
        ]

    # ------------------------------------------------------------ conditions

    async def _until(self, what: str, condition: Condition) -> None:
        give_up = time.monotonic() + ACT_SECONDS
        while True:
            try:
                if await condition():
                    return
            except StreamleaseError as error:
                last: StreamleaseError | None = error
            else:
                last = None
            self._check_processes()
            if time.monotonic() > give_up:
                raise StreamleaseError(
                    f"the demo waited {ACT_SECONDS:.0f} s in vain for {what}"
                    + (f" ({last})" if last is not None else "")
                )
            await asyncio.sleep(0.1)

    def _check_processes(self) -> None:
        """Raise if one has ended that no act has killed."""
        for process in [*self.queries.values(), *self.hosts]:
            process.check()

    @staticmethod
    async def _holds(condition: Condition) -> bool:
        try:
            return bool(await condition())
        except StreamleaseError:
            return False  # no leader at this moment; it is asked again

    async def _two_hosts(self) -> bool:
        return len(await hosts.alive(self.client.redis)) >= 2

    async def _consumes(self, query: str) -> bool:
        group = await self._describe()
        return bool(self._owners(group)[query]) and any(s["committed"] for s in group["streams"])

    async def _both_hold(self) -> bool:
        return all(self._owners(await self._describe()).values())

    async def _drained(self) -> bool:
        group = await self._describe()
        consumed: int = sum(stream["committed"] for stream in group["streams"])
        return consumed >= len(self.flights)

    # ------------------------------------------------------------ processes

    def _start(self, name: str, *arguments: str) -> DemoProcess:
        return DemoProcess(name, [*arguments], self.directory, {"STREAMLEASE_REDIS_URL": self.url})

    def _start_query(self, name: str) -> None:
        self.queries[name] = self._start(
            f"query-{name}",
            "streamlease.admin.demo.flight_query",
            str(self.directory / "flights"),
            str(self.directory / f"checkpoint-{name}"),
        )

    def _judge(self) -> dict[str, Any]:
        judge = self._start("judge", "streamlease.admin.demo.judge", str(self.directory / "flights"), SPACE)
        lines = judge.wait(JUDGE_SECONDS).strip().splitlines()
        judged: dict[str, Any] = json.loads(lines[-1])
        return judged

    def _archived(self, space: Space) -> int:
        """How many flights are in the files of the table."""
        assert space.archive is not None
        with closing(connect_blocking(self.url)) as redis:
            table = SpaceTable.open(redis, space, space.archive)
            return sum(file.next - file.first for some in table.files().values() for file in some.values())


async def _at_once() -> bool:
    return True
