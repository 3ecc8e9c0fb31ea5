"""``streamlease doctor`` on spaces whose epochs are held back."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
import redis

from streamlease.admin.doctor.held_epochs import held_back
from streamlease.admin.facts.epochs import EpochPublisherRow, SpaceEpochs
from streamlease.agent.client import connect
from streamlease.protocol.ids import StreamId
from streamlease.streams.epochs.writing import LineWriter
from streamlease.streams.log.keys import stream_meta
from tests.admin.command import Command


def publisher(name: str, held: int, *, late: bool, silent: float = 1.0, host: str = "") -> EpochPublisherRow:
    return EpochPublisherRow(
        name=name,
        host=host,
        frontier=[[held]],
        last_seen=None,
        silent_seconds=silent,
        staged=0,
        holds_back=[[held]] if late else [],
    )


@dataclass
class Case:
    publishers: tuple[EpochPublisherRow, ...]
    said: tuple[str, str] | None
    age: float | None = 600.0
    behind: bool = False


AHEAD = publisher("ahead", 9, late=False)
CASES = {
    "nobody is there": Case((), None),
    "one that is alone takes its time": Case((publisher("a", 4, late=True),), None),
    "not for long": Case((AHEAD, publisher("a", 4, late=True)), None, age=59.0),
    "no publisher ever came": Case((), None, age=None),
    "one is late": Case(
        (AHEAD, publisher("a", 4, late=True, host="there:7")),
        (
            "space s: the frontier has stood at 4 for 600 s, held by a (there:7), "
            "and 1 publisher waits for that",
            "let it advance or end, or give it up: streamlease epochs abort s a",
        ),
    ),
    "two are, and one of them is silent": Case(
        (AHEAD, AHEAD, publisher("a", 4, late=True), publisher("b", 4, late=True, silent=31, host="h")),
        (
            "space s: the frontier has stood at 4 for 600 s, held by a, b (h, not heard of for 31 s), "
            "and 2 publishers wait for that",
            "let it advance or end, or give it up: streamlease epochs abort s a",
        ),
    ),
    "one that is alone and silent": Case(
        (publisher("a", 4, late=True, silent=31),),
        (
            "space s: the frontier has stood at 4 for 600 s, held by a (not heard of for 31 s)",
            "let it advance or end, or give it up: streamlease epochs abort s a",
        ),
    ),
    "no keeper": Case(
        (),
        (
            "space s: what its publishers gave up is not completed, for it has no keeper",
            "run a leader host: streamlease serve; if one runs, its log says why",
        ),
        age=0.1,
        behind=True,
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_holds_a_space_up_is_said_with_its_remedy(case: Case) -> None:
    seen = SpaceEpochs(
        space="s",
        dimensions=1,
        lower=[[4]],
        frontier_seconds=case.age,
        upper=[],
        boundary=1,
        behind=case.behind,
        lost=0,
        publishers=[*case.publishers],
    )
    found = held_back(seen, 60.0, 30.0)
    assert (None if found is None else (f"space {found.space}: {found.why}", found.remedy)) == case.said
    if found is not None:
        assert (found.publisher is None) == case.behind
    assert len(CASES) == 8


def _line(command: Command, *words: str) -> str:
    (line,) = [one for one in command("doctor", *words).out.splitlines() if " epochs: " in one]
    return line


async def _publish(url: str) -> None:
    """Two publishers, of which one is ahead, and a keeper that folds that."""
    async with connect(url) as client:
        writers = [LineWriter(client.redis, "s", name, host=f"host of {name}") for name in ("ahead", "late")]
        for writer in writers:
            await writer.enter()
        await writers[0].advance(((5,),), [])


def test_the_doctor_names_who_holds_the_frontier_back(command: Command) -> None:
    assert _line(command) == "ok   epochs: no space has any"
    command.ok("space", "create", "s", "--topics", "s/#", "--epochs", "1")
    well = "ok   epochs: nobody in 1 space waits for longer than 60 s for another"
    assert _line(command) == well
    asyncio.run(_publish(command.url))
    assert _line(command) == well, "not yet for a minute"
    line = _line(command, "--stuck-after", "0.001")
    assert line.startswith("warn epochs: space s: the frontier has stood at 0 for ")
    assert " s, held by late (host of late), and 1 publisher waits for that; " in line
    assert line.endswith("give it up: streamlease epochs abort s late")
    text = command.ok("epochs", "show", "s").out
    assert " s it is held back by late\n" in text
    command.ok("epochs", "abort", "s", "late", "--yes")
    assert "no keeper" in _line(command), "nobody is there to complete what 'ahead' gave up"
    shown = command.ok("epochs", "show", "s", "--json").document
    (ahead,) = shown["publishers"]
    assert ahead["silent_seconds"] >= 0 and shown["frontier_seconds"] >= 0


def test_the_doctor_names_a_space_whose_streams_are_open_to_all(command: Command) -> None:
    command.ok("space", "create", "s", "--topics", "s/#", "--epochs", "1", "--streams", "2")
    with redis.Redis.from_url(command.url) as plain:
        plain.hset(stream_meta(StreamId("s", 0, 1)), "state", "open")
    line = _line(command)
    assert line.startswith(
        "warn epochs: space s: an older version made it, and 1 of its streams takes messages"
    )
    assert line.endswith("streamlease epochs close s")
    assert command.ok("epochs", "close", "s", "--json").document == {"space": "s", "closed": 1}
    assert _line(command).startswith("ok   epochs: nobody in 1 space waits")
    assert "0 streams were open" in command.ok("epochs", "close", "s").out
