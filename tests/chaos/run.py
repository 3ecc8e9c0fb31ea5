"""One run: rounds of faults, each followed by a calm in which everything must settle; then it is judged."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos import faults
from tests.chaos.epochs.epoch_judge import EpochVerdict, judge_epochs
from tests.chaos.judge import SLACK_SECONDS, Verdict, judge
from tests.chaos.stage import Shape, Stage
from tests.servers import Kind

ROUND = 20
"""Faults between two calms."""

AT_ONCE = 3
"""Most faults that are under way together."""

GAP = (0.3, 2.5)
"""Seconds between the beginnings of two faults."""

SETTLE_SECONDS = 90.0
"""After so long without any progress it will not settle."""

Say = Callable[[str], None]


@dataclass(slots=True)
class Result:
    """What came of a run."""

    kind: Kind
    seed: int
    verdict: Verdict
    epochs: EpochVerdict = field(default_factory=EpochVerdict)
    faults: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    settled: list[float] = field(default_factory=list)
    """Seconds that each calm took."""
    seconds: float = 0.0


async def run(
    kind: Kind,
    count: int,
    seed: int,
    directory: Path,
    say: Say,
    shape: Shape,
    slack: float = SLACK_SECONDS,
) -> Result:
    """Run `count` faults on a server of that kind. `say` is told what happens, line by line."""
    began = time.monotonic()
    rng = random.Random(f"pace {seed}")

    def tell(text: str) -> None:
        say(f"{time.monotonic() - began:6.1f} s  {text}")

    async with Stage(kind, directory, shape) as stage:
        stage.facts.slack_seconds = slack
        result = Result(kind, seed, Verdict())
        tell(f"{kind}: {len(stage.actors)} processes, {count} faults from seed {seed}")
        drawn = faults.plan(stage, seed, count)
        amiss = await stage.settled(SETTLE_SECONDS)
        for first in range(0, count, ROUND):
            if amiss:
                break
            await _round(stage, drawn, first, rng, result, tell)
            calm = time.monotonic()
            if first + ROUND >= count:
                await stage.stop_producers()
            amiss = await stage.settled(SETTLE_SECONDS)
            result.settled.append(time.monotonic() - calm)
            tell(f"calm after {result.settled[-1]:.1f} s; {_counts(stage)}")
        if amiss:
            await stage.stop_producers()
            result.wrong.append(f"did not settle: {amiss}")
        await stage.read_log()
    result.verdict = judge(stage.facts)
    stage.epochs.facts.restarts = result.faults["restart redis"]
    result.epochs = judge_epochs(stage.epochs.facts)
    result.wrong += [*stage.defects, *stage.tracebacks(), *result.verdict.wrong, *result.epochs.wrong]
    result.seconds = time.monotonic() - began
    return result


async def _round(
    stage: Stage, drawn: list[faults.Fault], first: int, rng: random.Random, result: Result, tell: Say
) -> None:
    under_way: dict[asyncio.Task[None], str] = {}
    for number, fault in enumerate(drawn[first : first + ROUND], first + 1):
        while len(under_way) >= AT_ONCE or fault.target in under_way.values():
            await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
            for task in [task for task in under_way if task.done()]:
                del under_way[task]
                task.result()
        tell(f"[{number:3d}/{len(drawn)}] {fault}; {_counts(stage)}")
        stage.note("run", {"event": "fault", "fault": str(fault), "at": time.time()})
        role = next((actor.role for actor in stage.actors if actor.name == fault.target), None)
        result.faults[f"{fault.kind} {role}" if role else f"{fault.kind} {fault.target.split('/')[0]}"] += 1
        under_way[asyncio.create_task(faults.carry_out(stage, fault))] = fault.target
        await asyncio.sleep(rng.uniform(*GAP))
    if under_way:
        await asyncio.gather(*under_way)
    await stage.heal()


def _counts(stage: Stage) -> str:
    facts = stage.facts
    text = f"sent {len(facts.acknowledged)}, got {sum(d.end - d.start for d in facts.deliveries)}"
    return f"{text}, DEFECTS {len(stage.defects)}" if stage.defects else text
