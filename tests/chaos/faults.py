"""The faults of a run under chaos: what each does to whom, for how long, and how it ends.

A fault is *short* if every session outlives it, and *long* if none does. Which comes when is drawn from one
seed; when exactly a process notices is not, so a seed repeats the plan of a run and not its every step.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.chaos.proxy import Mode
from tests.chaos.stage import COMMAND, SESSION_SECONDS, Actor, Stage

SHORT = (0.2, 1.0)
LONG = (SESSION_SECONDS + 1.5, SESSION_SECONDS + 4.0)
GONE = (0.0, 3.0)
"""How long a killed process is not there."""

COMMAND_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault that is to come."""

    kind: str
    target: str
    """Name of an actor, ``redis``, or a group."""
    seconds: float
    count: int = 1

    def __str__(self) -> str:
        text = f"{self.kind} {self.target}"
        if self.kind == "lose replies to":
            return f"{text}, {self.count} of them"
        return f"{text}, {self.seconds:.1f} s" if self.seconds else text


Act = Callable[[Stage, Fault], Awaitable[None]]
Span = tuple[float, float]
NONE = (0.0, 0.0)


def plan(stage: Stage, seed: int, count: int) -> list[Fault]:
    """The faults of a run, in order; the same for the same stage and seed."""
    rng = random.Random(seed)
    drawn: list[Fault] = []
    while len(drawn) < count:
        ((role, kind, span),) = rng.choices(list(KINDS), list(KINDS.values()))
        match role:
            case "redis":
                target = "redis"
            case "group":
                target = rng.choice(stage.groups)
            case _:
                target = rng.choice([actor.name for actor in stage.actors if actor.role == role])
        drawn.append(Fault(kind, target, round(rng.uniform(*span), 2), rng.randint(1, 4)))
    return drawn


async def carry_out(stage: Stage, fault: Fault) -> None:
    """Begin the fault, wait for its time, end it."""
    await ACTS[fault.kind](stage, fault)


# ---------------------------------------------------------------- processes


def _actor(stage: Stage, fault: Fault) -> Actor:
    return next(actor for actor in stage.actors if actor.name == fault.target)


async def _kill(stage: Stage, fault: Fault) -> None:
    actor = _actor(stage, fault)
    life, began = actor.life, time.time()
    await stage.end(actor, signal.SIGKILL)
    stage.outage(life, began, time.time(), final=True)
    await asyncio.sleep(fault.seconds)
    await stage.start(actor)


async def _leave(stage: Stage, fault: Fault) -> None:
    actor = _actor(stage, fault)
    await stage.end(actor, signal.SIGTERM)
    await asyncio.sleep(fault.seconds)
    await stage.start(actor)


async def _stop(stage: Stage, fault: Fault) -> None:
    actor = _actor(stage, fault)
    began = time.time()
    actor.signal(signal.SIGSTOP)
    await asyncio.sleep(fault.seconds)
    actor.signal(signal.SIGCONT)
    stage.outage(actor.life, began, time.time())


def _cut(mode: Mode) -> Act:
    async def act(stage: Stage, fault: Fault) -> None:
        actor = _actor(stage, fault)
        began = time.time()
        actor.proxy.set(mode)
        await asyncio.sleep(fault.seconds)
        actor.proxy.set(Mode.PASS)
        stage.outage(actor.life, began, time.time())

    return act


async def _lose_replies(stage: Stage, fault: Fault) -> None:
    actor = _actor(stage, fault)
    actor.proxy.cut_replies(fault.count)
    await asyncio.sleep(1.0)
    actor.proxy.cut_replies(0)


# ---------------------------------------------------------------- Redis and groups


async def _restart_redis(stage: Stage, fault: Fault) -> None:
    began = time.time()
    await asyncio.to_thread(stage.server.kill)
    await asyncio.sleep(fault.seconds)
    await asyncio.to_thread(stage.server.start)
    stage.outage("redis", began, time.time())


async def _stop_redis(stage: Stage, fault: Fault) -> None:
    began = time.time()
    await asyncio.to_thread(stage.server.pause)
    await asyncio.sleep(fault.seconds)
    stage.server.resume()
    stage.outage("redis", began, time.time())


def _group_act(*words: str) -> Act:
    async def act(stage: Stage, fault: Fault) -> None:
        process = await asyncio.create_subprocess_exec(
            str(COMMAND), "group", *words, fault.target, "--redis", stage.server.url,
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        async with asyncio.timeout(COMMAND_SECONDS):
            _, said = await process.communicate()
        # Without a leader, or with a silent one, an act fails, and says so in one line.
        if process.returncode not in (0, 1) or b"Traceback" in said:
            stage.defects.append(f"group {words[0]} ended with {process.returncode}: {said.decode()[-300:]}")

    return act


ACTS: dict[str, Act] = {
    "kill": _kill,
    "end": _leave,
    "stop": _stop,
    "cut off": _cut(Mode.DROP),
    "stall": _cut(Mode.STALL),
    "mute": _cut(Mode.MUTE),
    "half-close": _cut(Mode.HALF),
    "lose replies to": _lose_replies,
    "restart": _restart_redis,
    "freeze": _stop_redis,
    "rebalance": _group_act("rebalance"),
    "step down": _group_act("step-down"),
}

KINDS: dict[tuple[str, str, Span], float] = {
    ("consumer", "kill", GONE): 8,
    ("consumer", "end", GONE): 6,
    ("consumer", "stop", SHORT): 4,
    ("consumer", "stop", LONG): 5,
    ("consumer", "cut off", SHORT): 4,
    ("consumer", "cut off", LONG): 3,
    ("consumer", "stall", SHORT): 3,
    ("consumer", "stall", LONG): 3,
    ("consumer", "mute", SHORT): 3,
    ("consumer", "mute", LONG): 2,
    ("consumer", "half-close", SHORT): 2,
    ("consumer", "lose replies to", NONE): 6,
    ("host", "kill", GONE): 8,
    ("host", "end", GONE): 5,
    ("host", "stop", SHORT): 3,
    ("host", "stop", LONG): 4,
    ("host", "cut off", SHORT): 3,
    ("host", "cut off", LONG): 3,
    ("host", "stall", SHORT): 2,
    ("host", "stall", LONG): 2,
    ("host", "mute", LONG): 2,
    ("host", "half-close", SHORT): 2,
    ("host", "lose replies to", NONE): 5,
    ("producer", "kill", GONE): 2,
    ("producer", "stop", SHORT): 1,
    ("producer", "cut off", SHORT): 1,
    ("producer", "lose replies to", NONE): 3,
    ("epoch publisher", "kill", GONE): 4,
    ("epoch publisher", "end", GONE): 2,
    ("epoch publisher", "stop", SHORT): 1,
    ("epoch publisher", "stop", LONG): 3,
    ("epoch publisher", "cut off", SHORT): 2,
    ("epoch publisher", "cut off", LONG): 2,
    ("epoch publisher", "stall", LONG): 1,
    ("epoch publisher", "lose replies to", NONE): 4,
    ("epoch reader", "kill", GONE): 3,
    ("epoch reader", "stop", LONG): 1,
    ("epoch reader", "cut off", SHORT): 1,
    ("epoch reader", "mute", LONG): 1,
    ("epoch reader", "lose replies to", NONE): 2,
    ("redis", "restart", (0.0, 1.5)): 3,
    ("redis", "freeze", SHORT): 2,
    ("redis", "freeze", LONG): 1,
    ("group", "rebalance", NONE): 3,
    ("group", "step down", NONE): 3,
}
"""(whom, what, for how long) -> how often, relative to the others."""
