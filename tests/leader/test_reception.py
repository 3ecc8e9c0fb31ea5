"""Who in a host gets which letter; with a Redis and real leaders in `test_host`."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from streamlease.hosts.reception import Reception
from streamlease.leader.core.events import Received
from streamlease.protocol.acts import PauseGroup
from streamlease.protocol.errors import StoreUnavailable, StreamleaseError
from streamlease.protocol.messages import (
    Command,
    CommandAstray,
    Disconnect,
    DrainHost,
    FinishCut,
    Message,
    NotLeader,
    Ping,
    PingResponse,
    SpawnWanted,
)
from streamlease.registry.mail.mailbox import Letter
from streamlease.streams.tasks import Supervisor

LED, OTHER = "g/led", "g/other"
SEEN = 7
"""The newest term of the other group that the host has seen."""


class Recorder:
    """All that a host is made of, as far as letters go there; it notes what it gets."""

    def __init__(self) -> None:
        self.got: list[tuple[Any, ...]] = []
        self.fails: StreamleaseError | None = None

    def post(self, *what: Any) -> None:
        self.got.append(("posted", *what))

    def term_seen(self, group: str) -> int:
        assert group == OTHER
        return SEEN

    def lead(self, group: str, above: int) -> None:
        self.got.append(("stands for", group, above))

    async def have_placed(self, place: Any, wanted: SpawnWanted) -> None:
        self.got.append(("placed", wanted.group))

    async def take(self, sender: str, drain: DrainHost) -> None:
        if self.fails is not None:
            raise self.fails
        self.got.append(("drained", sender))


class Host:
    """A reception beside recorders."""

    def __init__(self, place: Any = None) -> None:
        self.leader, self.rest = Recorder(), Recorder()
        self.errands = Supervisor("host", lambda name, error: None)
        rest: Any = self.rest
        leaders: dict[str, Any] = {LED: self.leader}
        redis: Any = None  # letters are handed in
        self.reception = Reception(redis, "here", leaders, rest, rest, rest, place, self.errands)

    async def take(self, message: Message) -> list[tuple[Any, ...]]:
        """What the rest of the host gets, once all errands are done."""
        self.reception.deliver(Letter("sender", message))
        await asyncio.gather(*self.errands._tasks)
        return self.rest.got


def ping(group: str) -> Ping:
    return Ping(group=group, borrower="b", term=3)


def command(group: str) -> Command:
    return Command(group=group, request="r", act=PauseGroup(), who="me")


@pytest.mark.parametrize(
    "message",
    [
        ping(LED),
        command(LED),
        Disconnect(group=LED, borrower="b", progress=()),
        FinishCut(group=LED, session="s", arrival=1, finished=4, term=1),
    ],
    ids=lambda message: message.type,
)
async def test_the_leader_of_a_group_gets_what_is_for_it(message: Any) -> None:
    host = Host()
    assert await host.take(message) == []
    assert host.leader.got == [("posted", Received("sender", message))]


async def test_whoever_waits_for_an_answer_hears_that_the_group_is_not_led_here() -> None:
    refused = NotLeader(group=OTHER, borrower="b", term=SEEN)
    assert await Host().take(ping(OTHER)) == [("posted", "sender", refused)]
    astray = CommandAstray(group=OTHER, request="r")
    assert await Host().take(command(OTHER)) == [("posted", "sender", astray)]


@pytest.mark.parametrize(
    "message",
    [
        Disconnect(group=OTHER, borrower="b", progress=()),
        FinishCut(group=OTHER, session="s", arrival=1, finished=4, term=1),
    ],
    ids=lambda message: message.type,
)
async def test_what_wants_no_answer_or_comes_again_is_dropped(message: Any) -> None:
    assert await Host().take(message) == []


async def test_a_leader_that_is_wanted_is_placed_or_the_host_stands_for_the_group() -> None:
    wanted = SpawnWanted(group=OTHER, above=4)
    placed = wanted.model_copy(update={"placed": True})
    assert await Host(place=object()).take(wanted) == [("placed", OTHER)]
    assert await Host(place=object()).take(placed) == [("stands for", OTHER, 4)]
    assert await Host().take(wanted) == [("stands for", OTHER, 4)]


async def test_an_errand_ends_when_redis_does_not_answer(caplog: pytest.LogCaptureFixture) -> None:
    host, drain = Host(), DrainHost(group="here", request="r", who="me", at=1)
    assert await host.take(drain) == [("drained", "sender")]
    host.rest.fails = StoreUnavailable("Redis does not answer")
    await host.take(drain)
    assert [record.getMessage() for record in caplog.records] == ["host here: Redis does not answer"]


async def test_what_is_for_borrowers_is_told_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    assert await Host().take(PingResponse(group=LED, borrower="b", term=3)) == []
    (record,) = caplog.records
    assert (record.levelno, record.getMessage()) == (
        logging.WARNING,
        "host here got a ping_response, which is for borrowers",
    )
