"""Acts from two shells at once, as fast as people type or faster, and a mailbox full of garbage meanwhile.

The simulation spoils a letter now and then; here a mailbox is full of what does not parse.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from typing import Any

import pytest

from streamlease.admin.facts.group import Group, describe
from streamlease.agent.client import Client, connect
from streamlease.agent.subscription import SharedReader
from streamlease.leader.core.state.operated import RefusedAct
from streamlease.leader.journal import recover
from streamlease.protocol.acts import parse
from streamlease.protocol.errors import ActRefused, Fenced, Unsupported
from streamlease.protocol.topics import SharedSubscription
from streamlease.registry import keys, leadership
from streamlease.streams.tasks import stop
from tests.agent.helpers import SECONDS, SUB

SHARED = SharedSubscription.parse(SUB)
STREAMS = [f"s.0.{shard}" for shard in range(6)]
EACH = 60
"""Acts of each shell."""

GARBAGE: tuple[dict[str, Any], ...] = (
    {"f": b"\xff", "m": b"\xff"},
    {"x": "y"},
    {"f": "a", "m": "[1,2"},
    {"f": "a", "m": "[" * 5000},
    {"f": "a", "m": json.dumps([{"type": "command", "group": SHARED.id, "request": "", "act": "pause"}])},
    {"f": "a", "m": json.dumps([{"type": "command", "group": SHARED.id, "request": "g", "act": "explode"}])},
    {"f": "a", "m": json.dumps([{"type": "update_progress", "group": SHARED.id, "borrower": "b", "progress": [
        {"stream": STREAMS[0], "lease_epoch": 2**60, "offset": 2**60, "holes": [[0, 2**60]]}]}])},
    {"f": "a", "m": json.dumps([{"type": "fix_cut", "group": SHARED.id, "session": "x", "cut": -1}])},
)  # fmt: skip


async def consume(reader: SharedReader) -> None:
    while True:
        try:
            async for batch in reader:
                await batch.commit()
            return  # the test is over, well or not
        except Fenced:  # released or reset under its hands: what was not committed comes again
            continue


async def shell(client: Client, who: str, names: list[str], said: Counter[str]) -> None:
    """Acts at random; every fifth is a dry run."""
    rng = random.Random(who)
    for _ in range(EACH):
        act = rng.choice(["pause", "resume", "rebalance", "move", "drain", "undrain", "release", "reset"])
        more: dict[str, Any] = {}
        if act in ("move", "release"):
            more["stream"] = rng.choice(STREAMS)
        if act in ("move", "drain", "undrain"):
            more["borrower"] = rng.choice(names)
        if act == "reset":
            more["offsets"] = {rng.choice(STREAMS): 0}
        dry = rng.random() < 0.2
        try:
            await client.act(SHARED, parse(act, **more), who=who, dry_run=dry)
            said["dry" if dry else "done"] += 1
        except ActRefused:
            said["dry" if dry else "refused"] += 1


@pytest.mark.timeout(300)
async def test_acts_at_once_from_two_shells_are_each_done_once(embedded_redis_url: str) -> None:
    async with (
        connect(embedded_redis_url) as home,
        connect(embedded_redis_url) as one,
        connect(embedded_redis_url) as two,
    ):
        await home.create_space("s", ["a/#"], streams=len(STREAMS))
        async with home.publisher() as publisher:
            for number in range(300):
                await publisher.submit(f"a/{number % 50}", b"x")
        names = ["first", "second"]
        async with (
            home.subscribe(SUB, start="earliest", name=names[0]) as first,
            one.subscribe(SUB, name=names[1]) as second,
        ):
            consumers = [asyncio.create_task(consume(reader)) for reader in (first, second)]

            littered = 0

            async def litter() -> None:
                nonlocal littered
                while True:
                    box = keys.mailbox((await leadership.read(home.redis, SHARED.id)).mailbox)
                    for letter in GARBAGE:
                        await home.redis.xadd(box, letter)
                    littered += 1
                    await asyncio.sleep(0.05)

            async with asyncio.timeout(SECONDS):
                while len(first.streams) + len(second.streams) < len(STREAMS):  # noqa: ASYNC110 (of the leader)
                    await asyncio.sleep(0.02)
            littering = asyncio.create_task(litter())
            said: Counter[str] = Counter()
            await asyncio.gather(shell(one, "one", names, said), shell(two, "two", names, said))
            assert littered > 1 and not littering.done()
            await stop([littering])
            for act, more in (("resume", {}), *(("undrain", {"borrower": name}) for name in names)):
                try:
                    await home.act(SHARED, parse(act, **more), who="end")
                except ActRefused:
                    continue
            async with asyncio.timeout(SECONDS):
                while True:
                    seen = await describe(home, SHARED)
                    if seen.lag == 0 and {row.state for row in seen.streams} == {"granted"}:
                        break
                    await asyncio.sleep(0.05)
            state = (await recover(home.redis, SHARED.id)).state
            acts = [act for act in state.operated.acts if act.who in ("one", "two")]
            assert len({act.request for act in acts}) == len(acts)
            assert Counter("refused" if isinstance(act, RefusedAct) else "done" for act in acts) == {
                kind: said[kind] for kind in ("done", "refused")
            }
            assert said.total() == 2 * EACH and all(said[kind] for kind in ("done", "refused", "dry"))
            assert seen.leader is not None and seen.leader.term == 1, "the leader bore it all"
            assert not any(task.done() for task in consumers)
            await stop(consumers)


CASES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("pause", {}),
    ("pause", {"until": 2**52}),
    ("resume", {}),
    ("drain", {"borrower": "first"}),
    ("drain", {"borrower": "second"}),
    ("undrain", {"borrower": "first"}),
    ("undrain", {"borrower": "first"}),
    ("move", {"stream": STREAMS[0], "borrower": "second"}),
    ("move", {"stream": "s.0.99", "borrower": "second"}),
    ("release", {"stream": STREAMS[1]}),
    ("reset", {"offsets": dict.fromkeys(STREAMS, 0)}),
    ("reset", {"offsets": {}}),
    ("retry", {"stream": STREAMS[0]}),
    ("expire", {}),
    ("delete", {}),
)


@pytest.mark.slow
async def test_a_dry_run_says_what_is_then_done(embedded_redis_url: str) -> None:
    """Each act is asked for first and then done: the same answer or refusal, and no change in between."""
    async with connect(embedded_redis_url) as home, connect(embedded_redis_url) as one:
        await home.create_space("s", ["a/#"], streams=len(STREAMS))
        async with home.subscribe(SUB, name="first") as first, one.subscribe(SUB, name="second") as second:

            async def settled() -> Group:
                async with asyncio.timeout(SECONDS):
                    while True:
                        seen = await describe(home, SHARED)
                        states = {row.state for row in seen.streams}
                        at_rest = seen.state != "rebalancing" and states in ({"granted"}, {"free"})
                        if at_rest and len(seen.streams) == len(STREAMS):
                            return seen
                        await asyncio.sleep(0.02)

            async def outcome(act: str, *, dry: bool, **more: Any) -> Any:
                try:
                    return await home.act(SHARED, parse(act, **more), who="me", dry_run=dry)
                except ActRefused as refused:
                    return str(refused)

            async with asyncio.timeout(SECONDS):
                while not (first.streams and second.streams):  # noqa: ASYNC110 (of the leader)
                    await asyncio.sleep(0.02)
            for act, more in CASES:
                await settled()
                before = (await recover(home.redis, SHARED.id)).state
                said = await outcome(act, dry=True, **more)
                assert (await recover(home.redis, SHARED.id)).state == before, (
                    f"a dry run of {act} changed the group"
                )
                assert await outcome(act, dry=False, **more) == said, act


async def test_garbage_in_the_journal_of_a_live_leader_is_healed(client: Client) -> None:
    """It knows what it wrote: an entry that it did not write makes it put its whole state behind it."""
    await client.create_space("s", ["a/#"])
    async with client.publisher() as publisher, client.subscribe(SUB, start="earliest") as reader:
        for number in range(4):
            await publisher.send("a/x", b"%d" % number)
            async with asyncio.timeout(SECONDS):
                await (await anext(reader)).commit()
            await client.redis.xadd(keys.journal(SHARED.id), {"r": b"\xff", "t": "x", "n": b"\xff"})
        await publisher.send("a/x", b"4")
        async with asyncio.timeout(SECONDS):
            await (await anext(reader)).commit()
            while await _recorded(client) != 5:  # noqa: ASYNC110 - the leader learns of commits afterwards
                await asyncio.sleep(0.01)
        recovered = await recover(client.redis, SHARED.id)
        assert recovered.state.streams["s.0.0"].committed == 5
        assert (await leadership.read(client.redis, SHARED.id)).term == 1, "the same leader"


async def _recorded(client: Client) -> int | None:
    """How far the stream is by the journal; None while that is damaged."""
    try:
        return (await recover(client.redis, SHARED.id)).state.streams["s.0.0"].committed
    except Unsupported:
        return None
