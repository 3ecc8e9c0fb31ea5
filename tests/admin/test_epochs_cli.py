"""Spaces with epochs, made and shown by the command."""

from __future__ import annotations

import pytest

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
    for words, said in (
        (("--streams", "4"), "make another space"),
        (("--rotate",), "make another space"),
        (("--compact-after", "1m"), "never merged"),
    ):
        outcome = command("space", "alter", "s", *words)
        assert outcome.code != 0 and said in outcome.err and len(outcome.err.splitlines()) == 1
    command.ok("space", "alter", "s", "--retention", "7d")
    outcome = command("space", "create", "s", "--topics", "s/#")
    assert outcome.code == 1 and "exists with epochs of 1 dimension" in outcome.err
