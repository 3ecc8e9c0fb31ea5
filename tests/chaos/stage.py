"""The processes of a run: one Redis, and leader hosts, consumers and producers, each behind its proxy."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

import streamlease
from streamlease.agent.client import Client
from streamlease.protocol.acts import DescribeGroup
from streamlease.protocol.ids import StreamId
from streamlease.protocol.topics import SharedSubscription
from streamlease.streams.entries.delivered import to_messages
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.tasks import stop
from tests.chaos.epochs.epoch_stage import EpochStage
from tests.chaos.judge import Commit, Delivery, Facts, Outage
from tests.chaos.proxy import Mode, Proxy
from tests.servers import Kind, RedisServer

ROOT = Path(__file__).parents[2]
COMMAND = Path(sys.executable).with_name("streamlease")
SESSION_SECONDS = 4.0
COMPUTED_SECONDS = 0.4
"""A consumer whose loop the machine holds up computes less in that time: else its own code did."""

STILL_SECONDS = 1.0
"""Redis is away if it answers later than this, with no fault that was ordered."""

MOST_SECONDS = 600.0
"""The longest time to settle, however steadily."""

STREAMS = 6
KEYS = 8
END_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Shape:
    """How many of what."""

    hosts: int = 3
    consumers: tuple[int, ...] = (3, 2)
    """Of each group."""
    producers: int = 2
    rate: float = 60.0
    """Messages per second of each producer."""
    epoch_publishers: int = 2
    epoch_readers: tuple[str, ...] = ("atomic", "eager", "atomic")
    """How each reads."""


@dataclass(slots=True)
class Actor:
    """One role that a process plays; a killed process is followed by another one."""

    role: str
    name: str
    words: list[str]
    proxy: Proxy
    log: Path
    process: asyncio.subprocess.Process | None = None
    lives: int = 0
    log_begin: int = 0
    """Where the log of the present process begins."""
    sent: int = 0
    """Producers: the highest number that may have been sent."""
    said: bool = False
    """Whether the present process has said anything."""
    wanted: bool = True
    """Whether it should run: no fault has ended it."""
    reading: asyncio.Task[None] | None = None
    calls: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def life(self) -> str:
        """The name of the present process."""
        return f"{self.name}#{self.lives}"

    def signal(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(number)


class Stage:
    """Makes everything and ends everything. Used as an async context manager."""

    def __init__(self, kind: Kind, directory: Path, shape: Shape) -> None:
        self.shape = shape
        self.server = RedisServer(kind, directory / "redis", persistent=True)
        self.facts = Facts(session_seconds=SESSION_SECONDS)
        self.epochs = EpochStage()
        self.actors: list[Actor] = []
        self.defects: list[str] = []
        """What no fault explains: processes that ended by themselves, tracebacks."""
        self.redis_is_away = False
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._events = (directory / "events.jsonl").open("w")
        self._proxies: list[Proxy] = []
        self.closing = False

    @property
    def groups(self) -> list[str]:
        return [f"$shared/g{number}/a/#" for number in range(len(self.shape.consumers))]

    async def __aenter__(self) -> Stage:
        await asyncio.to_thread(self.server.start)
        async with streamlease.connect(self.server.url) as client:
            await client.create_space("s", ["a/#"], streams=STREAMS)
            await self.epochs.make(client)
        shape = self.shape
        for number in range(shape.hosts):
            await self._add("host", f"host{number}", [])
        for group, count in enumerate(shape.consumers):
            for number in range(count):
                words = [self.groups[group], str(SESSION_SECONDS)]
                if number == 0:
                    words.append(f"static{group}")  # one of each group comes back under its name
                await self._add("consumer", f"c{group}.{number}", words)
        for number in range(shape.producers):
            await self._add("producer", f"p{number}", [f"p{number}", str(KEYS), str(shape.rate)])
        for number in range(shape.epoch_publishers):
            await self._add("epoch publisher", f"ep{number}", [])
        for number, mode in enumerate(shape.epoch_readers):
            await self._add("epoch reader", f"er{number}", [mode])
        for actor in self.actors:
            await self.start(actor)
        self._watching = asyncio.create_task(self._watch_redis())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.closing = True
        await stop([self._watching])
        for actor in self.actors:
            actor.signal(signal.SIGKILL)
            await self._ended(actor)
        for proxy in self._proxies:
            await proxy.close()
        await asyncio.to_thread(self.server.stop)
        self._events.close()

    async def _add(self, role: str, name: str, words: list[str]) -> None:
        proxy = await Proxy(self.server.port).start()
        self._proxies.append(proxy)
        self.actors.append(Actor(role, name, words, proxy, self._directory / f"{name}.log"))

    # ------------------------------------------------------------ processes

    async def start(self, actor: Actor) -> None:
        """Start the actor's next process."""
        actor.lives += 1
        actor.wanted = True
        actor.said = False
        match actor.role:
            case "host":
                words = [str(COMMAND), "serve", "--name", actor.name, "--http-port", "0"]
            case "consumer":
                words = self._program("tests.chaos.consumer", actor, *actor.words)
            case "producer":
                first = [str(actor.sent + 1)] if actor.lives > 1 else []
                words = self._program("tests.chaos.producer", actor, *actor.words, *first)
            case _:
                module, *rest = self.epochs.module(actor.role, actor.name, actor.words)
                words = self._program(module, actor, *rest)
        actor.log_begin = actor.log.stat().st_size if actor.log.exists() else 0
        with actor.log.open("ab") as log:
            actor.process = await asyncio.create_subprocess_exec(
                *words,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env={**os.environ, "STREAMLEASE_REDIS_URL": actor.proxy.url},
                limit=16 * 1024 * 1024,
                cwd=ROOT,
            )
        actor.reading = asyncio.create_task(self._read(actor, actor.life, actor.process))

    def _program(self, module: str, actor: Actor, *words: str) -> list[str]:
        return [sys.executable, "-m", module, actor.proxy.url, *words]

    async def end(self, actor: Actor, number: signal.Signals) -> None:
        """End the actor's process by a signal and wait for it; after SIGTERM at most `END_SECONDS`."""
        actor.wanted = False
        actor.signal(signal.SIGCONT)
        actor.signal(number)
        if number is signal.SIGTERM and actor.process is not None:
            try:
                async with asyncio.timeout(END_SECONDS):
                    code = await actor.process.wait()
            except TimeoutError:
                self.defects.append(f"{actor.life} did not end within {END_SECONDS:.0f} s after SIGTERM")
                actor.signal(signal.SIGKILL)
            else:
                young = code == -signal.SIGTERM and not _has_begun(actor)
                if code != 0 and not young:
                    self.defects.append(f"{actor.life} ended with {code} after SIGTERM: {_last(actor.log)}")
        await self._ended(actor)

    async def _ended(self, actor: Actor) -> None:
        if actor.process is not None:
            await actor.process.wait()
        if actor.reading is not None:
            await actor.reading

    async def _read(self, actor: Actor, life: str, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            actor.said = True
            self._take(actor, life, json.loads(line))
        code = await process.wait()
        if not actor.wanted or self.closing:
            return
        if actor.role == "host" and code == 1 and not _has_begun(actor):
            # Without Redis it says so and ends; whoever started it starts it again.
            actor.reading = None
            await asyncio.sleep(1.0)
            if actor.wanted and not self.closing:
                await self.start(actor)
        else:
            self.defects.append(f"{life} ended by itself with {code}: {_last(actor.log)}")

    def _take(self, actor: Actor, life: str, event: dict[str, Any]) -> None:
        facts, group = self.facts, actor.words[0] if actor.words else ""
        self.note(life, event)
        match event["event"]:
            case "got":
                facts.deliveries.append(
                    Delivery(
                        event["at"], group, life, event["stream"], event["start"], event["end"],
                        tuple(event["ids"]),
                    )
                )  # fmt: skip
            case "committed":
                facts.commits.append(Commit(event["at"], group, life, event["stream"], event["end"]))
            case "stood still":
                self.outage(life, event["began"], event["at"], by_itself=True)
                if event["computed"] >= COMPUTED_SECONDS and facts.slack_seconds < SESSION_SECONDS:
                    self.defects.append(
                        f"{life} computed for {event['computed']:.2f} s without letting its loop run"
                    )
            case "acknowledged":
                facts.acknowledged.append(event["id"])
            case "unacknowledged":
                self.defects.append(f"{life} could not send {event['id']}: {event['error']}")
            case "sending":
                actor.sent = max(actor.sent, event["number"])
            case _ if actor.role.startswith("epoch"):
                self.epochs.take(actor.name, event)

    def note(self, who: str, event: dict[str, Any]) -> None:
        """Write down what happened, for whoever looks for a cause."""
        self._events.write(json.dumps({"who": who, **event}) + "\n")

    def outage(
        self, target: str, began: float, ended: float, *, final: bool = False, by_itself: bool = False
    ) -> None:
        """Note for the judge that `target` could not work, by a fault or by itself."""
        about = {"event": "outage", "began": began, "at": ended, "final": final, "by_itself": by_itself}
        self.note(target, about)
        self.facts.outages.append(Outage(target, began, ended, final, by_itself))

    async def _watch_redis(self) -> None:
        """Note when Redis, or this process with all its proxies, stood still without a fault."""
        async with aclosing(Redis(port=self.server.port, socket_timeout=END_SECONDS, retry=None)) as redis:
            while True:
                began = time.time()
                try:
                    await redis.ping()
                except RedisError:
                    await asyncio.sleep(STILL_SECONDS / 5)
                    continue
                await asyncio.sleep(STILL_SECONDS / 5)
                if time.time() - began > STILL_SECONDS:
                    self.outage("redis", began, time.time(), by_itself=True)

    def tracebacks(self) -> list[str]:
        """Defects that only the logs show."""
        found = []
        for actor in self.actors:
            text = actor.log.read_text(errors="replace") if actor.log.exists() else ""
            if "Traceback (most recent call last)" in text:
                begin = text.index("Traceback (most recent call last)")
                found.append(f"{actor.name}: {' | '.join(text[begin:].splitlines()[:40])[-600:]}")
        return found

    # ------------------------------------------------------------ looking

    async def stop_producers(self) -> None:
        """Let the producers send what they have and end."""
        for actor in self.actors:
            if actor.role in ("producer", "epoch publisher"):
                await self.end(actor, signal.SIGTERM)

    async def heal(self) -> None:
        """Everybody runs and reaches Redis."""
        for actor in self.actors:
            actor.proxy.set(Mode.PASS)
            actor.proxy.cut_replies(0)
            actor.signal(signal.SIGCONT)
            if not actor.wanted:
                await self.start(actor)

    async def settled(self, seconds: float) -> str:
        """Wait until every group is stable, with all its consumers, and has consumed what there was.

        Returns:
            what is amiss when nothing got better for `seconds`, or after `MOST_SECONDS`; "" if all is well.
        """
        last = time.monotonic() + MOST_SECONDS
        deadline = time.monotonic() + seconds
        least = None
        amiss = "not looked yet"
        async with streamlease.connect(self.server.url, embedded=False) as client:
            space = await client.spaces.get("s")
            nexts = {
                str(stream): next for stream, next in (await client.next_offsets(space.streams())).items()
            }
            goal = self.epochs.goal()
            while time.monotonic() < min(deadline, last):
                states = [
                    await _look(client, group, count, nexts)
                    for group, count in zip(self.groups, self.shape.consumers, strict=True)
                ]
                before = amiss
                amiss = next((state.amiss for state in states if state.amiss), self.epochs.amiss(goal))
                if amiss != before:
                    self.note("run", {"event": "settling", "amiss": amiss, "at": time.time()})
                if not amiss:
                    return ""
                left = sum(state.lag for state in states)
                if least is None or left < least:
                    least, deadline = left, time.monotonic() + seconds
                await asyncio.sleep(0.25)
        return amiss

    async def read_log(self) -> None:
        """Read everything that was published, for the judge."""
        async with streamlease.connect(self.server.url, embedded=False) as client:
            space = await client.spaces.get("s")
            log = AsyncLog(client.redis)
            found: dict[str, list[str]] = {}
            for stream, next in (await client.next_offsets(space.streams())).items():
                found[str(stream)] = await _payloads(log, stream, next)
            self.facts.log = found
            await self.epochs.read_truth(client)


async def _payloads(log: AsyncLog, stream: StreamId, next: int) -> list[str]:
    found: list[str] = []
    while len(found) < next:
        for batch in await log.read(stream, len(found), next, enough=2000):
            found.extend(message.payload.decode() for message in to_messages(batch))
    return found


@dataclass(frozen=True, slots=True)
class _State:
    """How a group is."""

    amiss: str
    """What is not well, nothing if all is."""
    lag: int
    """Messages that are not committed, all if nobody says."""


async def _look(client: Client, group: str, consumers: int, nexts: dict[str, int]) -> _State:
    try:
        view = await client.command(SharedSubscription.parse(group), DescribeGroup(), seconds=2.0)
    except streamlease.StreamleaseError as error:
        return _State(f"{group}: {error}", sum(nexts.values()))
    committed = {stream["stream"]: stream["committed"] for stream in view["streams"]}
    lag = sum(max(0, next - committed.get(stream, 0)) for stream, next in nexts.items())
    if view["state"] != "stable" or len(view["borrowers"]) != consumers:
        state = f"{view['state']} with {len(view['borrowers'])} of {consumers} consumers"
        return _State(f"{group} is {state}", lag)
    return _State(f"{group} still lags by {lag} messages" if lag else "", lag)


def _has_begun(actor: Actor) -> bool:
    """Whether the present process of a host serves, or that of a consumer or producer handles signals."""
    if actor.role != "host":
        return actor.said
    return b" serves; " in actor.log.read_bytes()[actor.log_begin :]


def _last(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][:300] if lines else "nothing in its log"
