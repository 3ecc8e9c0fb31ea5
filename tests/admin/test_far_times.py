"""Times that no calendar has: refused where they are given, and shown where they stand already."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import pytest

from streamlease.admin.output import iso_microseconds
from streamlease.agent.client import Client
from streamlease.leader.core.parts import decisions
from streamlease.protocol.acts import parse
from streamlease.protocol.errors import ActRefused, InvalidOption
from streamlease.protocol.quantities import LATEST
from streamlease.protocol.topics import SharedSubscription
from tests.admin.command import InProcess

SUB = "$shared/g/s/#"
LAST = "9999-12-31T23:59:59.999999Z"
TOO_FAR = ("9999999d", "99999999999999d", "253402300799999ms", "9007199254740991ms")
NO_TIMES = (
    "9007199254740992ms",
    "nan",
    "inf",
    "-1d",
    "0s",
    "1e400",
    "",
    "2026-13-45",
    "0001-01-01T00:00:00+23:59",
)


@pytest.fixture
def command(tmp_path: Path, embedded_redis_url: str) -> InProcess:
    command = InProcess(tmp_path, embedded_redis_url)
    command.ok("space", "create", "s", "--topics", "s/#")
    command.ok("group", "declare", SUB)
    return command


@pytest.mark.parametrize("until", [*TOO_FAR, *NO_TIMES])
def test_a_pause_until_no_time_is_refused_in_one_line(command: InProcess, until: str) -> None:
    refused = command("group", "pause", SUB, "--until", until)
    assert (refused.code, len(refused.err.splitlines())) == (2, 1)
    assert command.ok("group", "list", "--json").document["groups"][0]["state"] == "no leader"


@pytest.mark.parametrize("name", ["--retention", "--group-expiry"])
def test_ages_that_nobody_lives_to_see_do_no_harm(command: InProcess, name: str) -> None:
    for age in TOO_FAR:
        outcome = command("space", "alter", "s", name, age)
        assert outcome.code == 0 or (outcome.code, len(outcome.err.splitlines())) == (2, 1)
        for words in (("space", "show", "s", "--json"), ("status", "--json")):
            command.ok(*words)


async def test_a_pause_that_stands_in_a_journal_is_shown(
    command: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an earlier version wrote it, which did not look at the limit."""
    assert command.url is not None
    async with Client(command.url) as client:
        shared = SharedSubscription.parse(SUB)
        with pytest.raises(ActRefused, match="give one before the year 10000"):
            await client.act(shared, parse("pause", until=LATEST + 1))
        monkeypatch.setattr(decisions, "LATEST", 2**53)
        await client.act(shared, parse("pause", until=2**53 - 1))
        for words in (("describe", SUB), ("history", SUB), ("list",)):
            found = await asyncio.to_thread(command.ok, "group", *words, "--json")
            assert (
                "describe" not in words or found.document["paused"]["until"] == "9999-12-31T23:59:59.999999Z"
            )
            await asyncio.to_thread(command.ok, "group", *words)
        await asyncio.to_thread(command.ok, "status", "--json")
    # And from the journal, when nobody leads.
    shown = await asyncio.to_thread(command.ok, "group", "describe", SUB, "--json")
    assert shown.document["paused"]["until"] == LAST
    await asyncio.to_thread(command.ok, "group", "resume", SUB)


def test_every_moment_has_a_text() -> None:
    for moment, text in (
        (0, "1970-01-01T00:00:00.000000Z"),
        (LATEST * 1000 + 999, "9999-12-31T23:59:59.999999Z"),
        (2**80, "9999-12-31T23:59:59.999999Z"),
        (-(2**80), "1000-01-01T00:00:00.000000Z"),
    ):
        assert iso_microseconds(moment) == text


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0, 0.0, 1e9])
async def test_session_timeouts_and_delivery_timeouts(embedded_redis_url: str, seconds: float) -> None:
    async with Client(embedded_redis_url) as client:
        with pytest.raises(InvalidOption, match="session_timeout is"):
            client.subscribe(SUB, session_timeout=seconds)
        if not seconds > 0:
            with pytest.raises(InvalidOption, match="delivery_timeout is"):
                client.publisher(delivery_timeout=seconds)
