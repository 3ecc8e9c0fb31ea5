"""Large groups are shown in slices, and what else is to be done goes on between them."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

from streamlease.leader.core.events import Describe
from streamlease.leader.core.view import of_leader
from streamlease.leader.describing import SLICE, Describer
from streamlease.protocol.errors import StreamleaseError
from streamlease.protocol.messages import CommandDone, CommandRefused, CommandReply
from streamlease.streams.tasks import Supervisor
from tests.leader.make import GROUP, Rig, led

SLICES = 5
STREAMS = [f"s.0.{shard}" for shard in range(SLICE * SLICES - 1)]


class Asked:
    """A leader that is asked for its view, and what it answered to whom."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.answers: dict[str, CommandReply] = {}
        self.kind: type[CommandReply] = CommandDone
        self.failed: list[StreamleaseError] = []
        self.supervisor = Supervisor("the rig", lambda _, error: self.failed.append(error))
        self.describer = Describer(GROUP, self.answered, lambda: rig.now, self.supervisor)

    def answered(self, mailbox: str, reply: CommandReply) -> None:
        assert reply.request not in self.answers
        assert (reply.group, type(reply), mailbox) == (GROUP, self.kind, f"of-{reply.request}")
        self.answers[reply.request] = reply

    def ask(self, request: str) -> None:
        self.describer.answer(Describe(f"of-{request}", request), self.rig.leader)

    async def rest(self) -> None:
        """Until nothing is under way; nothing may have failed."""
        while len(self.supervisor):  # noqa: ASYNC110 (tasks, which are not known by name)
            await asyncio.sleep(0)
        assert self.failed == []

    def body(self, request: str) -> dict[str, Any]:
        reply = self.answers[request]
        assert isinstance(reply, CommandDone)
        found: dict[str, Any] = json.loads(reply.body)
        return found


async def test_a_small_group_is_shown_at_once() -> None:
    asked = Asked(led(STREAMS[:SLICE], ("b1", "b2")))
    asked.ask("r")
    assert asked.body("r") == of_leader(asked.rig.leader, asked.rig.now)
    assert len(asked.supervisor) == 0


async def test_a_large_group_is_shown_in_slices_and_others_get_their_turns() -> None:
    asked = Asked(led(STREAMS, ("b1", "b2")))
    asked.ask("r")
    turns = 0
    while not asked.answers:
        await asyncio.sleep(0)
        turns += 1
    assert turns >= SLICES
    assert asked.body("r") == of_leader(asked.rig.leader, asked.rig.now)
    assert [one["stream"] for one in asked.body("r")["streams"]] == STREAMS


async def test_who_asks_meanwhile_gets_the_next_answer() -> None:
    asked = Asked(led(STREAMS, ("b1",)))
    asked.ask("r1")
    await asyncio.sleep(0)
    asked.ask("r2")
    asked.ask("r3")
    async with asyncio.timeout(60):
        await asked.rest()
    assert sorted(asked.answers) == ["r1", "r2", "r3"]
    assert asked.answers["r2"].body is asked.answers["r3"].body
    asked.ask("r4")
    await asked.rest()
    assert len(asked.body("r4")["streams"]) == len(STREAMS)


async def test_a_stream_that_leaves_meanwhile_is_left_out() -> None:
    asked = Asked(led(STREAMS, ("b1",)))
    asked.ask("r")
    await asyncio.sleep(0)
    last = STREAMS[-1]
    del asked.rig.leader.durable.streams[last]
    await asked.rest()
    assert [one["stream"] for one in asked.body("r")["streams"]] == STREAMS[:-1]


@pytest.mark.parametrize("streams", [STREAMS, STREAMS[:2]])
async def test_a_view_that_cannot_be_made_is_told(
    streams: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Who asked waited in vain, and of a small group the question ended the leader."""

    def broken(*_: object) -> None:
        raise ValueError("this view is broken")

    monkeypatch.setattr("streamlease.leader.core.view.around", broken)
    asked = Asked(led(streams, ("b1",)))
    asked.kind = CommandRefused
    with caplog.at_level(logging.ERROR, "streamlease"):
        asked.ask("r")
        await asked.rest()
    assert "this view is broken" in caplog.text
    assert "the view ended by a defect (ValueError: this view is broken)" in asked.answers["r"].error


async def test_a_view_that_ends_by_a_defect_is_told_to_the_owner_of_its_task(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where nobody could be answered: a task that ends in silence leaves its leader without views."""
    asked = Asked(led(STREAMS, ("b1",)))

    def broken(*_: object) -> None:
        raise ValueError("no way out")

    asked.describer.send = broken
    with caplog.at_level(logging.ERROR, "streamlease"):
        asked.ask("r")
        while len(asked.supervisor):  # noqa: ASYNC110 (as in `rest`)
            await asyncio.sleep(0)
    assert [str(error.__cause__) for error in asked.failed] == ["no way out"]
