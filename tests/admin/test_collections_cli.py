"""Collections, made and shown by the command."""

from __future__ import annotations

from tests.admin.command import Command


def test_a_collection_is_made_and_shown(command: Command) -> None:
    made = command.ok("space", "create", "prices", "--topics", "prices/#", "--collection", "--json").document
    assert made["collection"] is True
    assert command.ok("space", "show", "prices", "--json").document["collection"] is True
    assert "a collection" in command.ok("space", "show", "prices").out
    command.ok("space", "create", "plain", "--topics", "plain/#")
    assert command.ok("space", "show", "plain", "--json").document["collection"] is False
    assert "collection" not in command.ok("space", "show", "plain").out


def test_what_a_collection_rules_out_is_refused_in_one_line(command: Command) -> None:
    words = ("space", "create", "prices", "--topics", "prices/#", "--collection")
    outcome = command(*words, "--compact-after", "1m")
    assert outcome.code == 2 and "never merged" in outcome.err and len(outcome.err.splitlines()) == 1
    command.ok(*words)
    outcome = command("space", "create", "prices", "--topics", "prices/#")
    assert outcome.code == 1 and "exists as a collection" in outcome.err
    outcome = command("space", "alter", "prices", "--compact-after", "1m")
    assert outcome.code == 2 and "never merged" in outcome.err
