"""Spaces with epochs, made and shown by the command."""

from __future__ import annotations

import asyncio

import pytest

from streamlease.streams.epochs.writing import LineWriter
from streamlease.streams.redis.connection import connect
from tests.admin.command import Command


def test_a_space_with_epochs_is_made_and_shown(command: Command) -> None:
    made = command.ok(
        *("space", "create", "s", "--topics", "s/#", "--epochs", "2"),
        *("--epochs-timeout", "1m", "--epochs-on-loss", "wait", "--json"),
    ).document
    shown = command.ok("space", "show", "s", "--json").document
    for one in (made, shown):
        assert (one["epochs"], one["epochs_timeout_ms"], one["epochs_on_loss"]) == (2, 60_000, "wait")
    said = "with epochs of 2 dimensions; what a publisher has open waits for an operator after 1m of silence"
    assert said in command.ok("space", "show", "s").out
    command.ok("space", "create", "plain", "--topics", "plain/#")
    assert "epochs" not in command.ok("space", "show", "plain").out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--epochs", "9"), "give 1 to 8"),
        (("--epochs-timeout", "30s"), "has no epochs"),
        (("--epochs-on-loss", "wait"), "has no epochs"),
        (("--epochs", "1", "--epochs-timeout", "30"), "is no duration"),
        (("--epochs", "1", "--epochs-on-loss", "weep"), "is unknown"),
        (("--epochs", "1", "--compact-after", "1m"), "never merged"),
    ],
)
def test_nonsense_is_refused_in_one_line(command: Command, words: tuple[str, ...], said: str) -> None:
    outcome = command("space", "create", "s", "--topics", "s/#", *words)
    assert outcome.code != 0 and said in outcome.err and len(outcome.err.splitlines()) == 1
    assert command.ok("space", "list", "--json").document["spaces"] == []


def test_what_epochs_rule_out_is_refused(command: Command) -> None:
    command.ok("space", "create", "s", "--topics", "s/#", "--epochs", "1")
    asyncio.run(_entered(command.url, "here"))
    for words, said in (
        (("--streams", "4"), "publishers that hold epochs open (here), so it keeps its streams"),
        (("--rotate",), "publishers that hold epochs open (here)"),
        (("--streams", "4", "--retention", "1d"), "'streamlease epochs abort s PUBLISHER'"),
        (("--compact-after", "1m"), "never merged"),
    ):
        outcome = command("space", "alter", "s", *words)
        assert outcome.code != 0 and said in outcome.err and len(outcome.err.splitlines()) == 1
    shown = command.ok("space", "show", "s", "--json").document
    assert shown["retention"]["age_ms"] is None, "nothing of it was changed"
    command.ok("space", "alter", "s", "--retention", "7d")
    command.ok("epochs", "abort", "s", "here", "--yes")
    words = ("--streams", "4", "--from-generation", "0", "--retention", "2d")
    for _ in range(2):
        altered = command.ok("space", "alter", "s", *words, "--json").document
        assert [one["streams"] for one in altered["generations"]] == [1, 4], "safe to repeat"
        assert altered["retention"]["age_ms"] == 2 * 86_400_000
    outcome = command("space", "create", "s", "--topics", "s/#")
    assert outcome.code == 1 and "exists with epochs of 1 dimension" in outcome.err


async def _entered(url: str, *names: str) -> list[LineWriter]:
    client = connect(url)
    try:
        writers = [LineWriter(client, "s", name, host=f"host of {name}") for name in names]
        for writer in writers:
            await writer.enter()
        await writers[0].advance(((5,),), [])
        return writers
    finally:
        await client.aclose()


def test_who_holds_the_frontier_back_is_shown(command: Command) -> None:
    command.ok("space", "create", "s", "--topics", "s/#", "--epochs", "1")
    empty = command.ok("epochs", "show", "s", "--json").document
    assert (empty["lower"], empty["upper"], empty["boundary"], empty["publishers"]) == ([[0]], [], 0, [])
    assert "no publishers" in command.ok("epochs", "show", "s").out
    asyncio.run(_entered(command.url, "ahead", "late"))
    shown = command.ok("epochs", "show", "s", "--json").document
    ahead, late = shown["publishers"]
    assert (ahead["name"], ahead["frontier"], ahead["holds_back"]) == ("ahead", [[5]], [])
    assert (late["name"], late["host"], late["frontier"], late["holds_back"]) == (
        *("late", "host of late", [[0]]),
        [[0]],
    )
    assert late["last_seen"] is not None and late["staged"] == 0
    text = command.ok("epochs", "show", "s").out
    assert "space s: epochs of 1 dimension, boundary 0" in text
    assert "lower frontier 0; upper frontier none" in text
    row = next(line for line in text.splitlines() if line.startswith("late"))
    assert row.split()[:1] == ["late"] and "host of late" in row


def test_an_operator_gives_a_publisher_up(command: Command) -> None:
    command.ok("space", "create", "s", "--topics", "s/#", "--epochs", "1")
    asyncio.run(_entered(command.url, "ahead", "late"))
    refused = command("epochs", "abort", "s", "late")
    assert refused.code != 0, "it asks first, and nobody answers"
    done = command.ok("epochs", "abort", "s", "late", "--yes", "--json").document
    assert done == {"space": "s", "publisher": "late", "aborted": True}
    shown = command.ok("epochs", "show", "s", "--json").document
    assert (shown["lower"], [one["name"] for one in shown["publishers"]]) == ([[5]], ["ahead"])
    assert shown["behind"] is True, "no host is there to keep the space"
    again = command("epochs", "abort", "s", "late", "--yes")
    assert (again.code, again.err.count("\n")) == (2, 1) and "it has lost" not in again.err
    assert "publisher 'late' now; it was given up" in again.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("show", "nosuch"), "'nosuch'"),
        (("show", "plain"), "space plain has no epochs"),
        (("abort", "plain", "a", "--yes"), "space plain has no epochs"),
        (("abort", "s", "aheat", "--yes"), "no publisher 'aheat' now; nearest: ahead"),
    ],
)
def test_a_wrong_name_is_told_in_one_line(command: Command, words: tuple[str, ...], said: str) -> None:
    command.ok("space", "create", "s", "--topics", "s/#", "--epochs", "1")
    command.ok("space", "create", "plain", "--topics", "plain/#")
    asyncio.run(_entered(command.url, "ahead"))
    outcome = command("epochs", *words)
    assert outcome.code in (1, 2) and said in outcome.err and len(outcome.err.splitlines()) == 1
