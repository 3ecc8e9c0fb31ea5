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
from streamlease.protocol.messages import CommandDone, CommandRefused, CommandReply
from tests.leader.make import GROUP, Rig, led

SLICES = 5
STREAMS = [f"s.0.{shard}" for shard in range(SLICE * SLICES - 1)]


class Asked:
    """A leader that is asked for its view, and what it answered to whom."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.answers: dict[str, CommandReply] = {}
        self.kind: type[CommandReply] = CommandDone
        self.describer = Describer(GROUP, self.answered, lambda: rig.now)

    def answered(self, mailbox: str, reply: CommandReply) -> None:
        assert reply.request not in self.answers
        assert (reply.group, type(reply), mailbox) == (GROUP, self.kind, f"of-{reply.request}")
        self.answers[reply.request] = reply

    def ask(self, request: str) -> None:
        self.describer.answer(Describe(f"of-{request}", request), self.rig.leader)

    def body(self, request: str) -> dict[str, Any]:
        reply = self.answers[request]
        assert isinstance(reply, CommandDone)
        found: dict[str, Any] = json.loads(reply.body)
        return found


async def test_a_small_group_is_shown_at_once() -> None:
    asked = Asked(led(STREAMS[:SLICE], ("b1", "b2")))
    asked.ask("r")
    assert asked.body("r") == of_leader(asked.rig.leader, asked.rig.now)
    assert asked.describer.tasks() == []


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
        await asyncio.gather(*asked.describer.tasks())
    assert sorted(asked.answers) == ["r1", "r2", "r3"]
    assert asked.answers["r2"].body is asked.answers["r3"].body
    asked.ask("r4")
    await asyncio.gather(*asked.describer.tasks())
    assert len(asked.body("r4")["streams"]) == len(STREAMS)


async def test_a_stream_that_leaves_meanwhile_is_left_out() -> None:
    asked = Asked(led(STREAMS, ("b1",)))
    asked.ask("r")
    await asyncio.sleep(0)
    last = STREAMS[-1]
    del asked.rig.leader.durable.streams[last]
    await asyncio.gather(*asked.describer.tasks())
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
        await asyncio.gather(*asked.describer.tasks())
    assert "this view is broken" in caplog.text
    assert "the view ended by a defect (ValueError: this view is broken)" in asked.answers["r"].error
