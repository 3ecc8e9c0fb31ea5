"""Whether small entries of a space are merged, set and changed by the command."""

from __future__ import annotations

from tests.admin.command import Command


def age(command: Command) -> object:
    return command.ok("space", "show", "s", "--json").document["compact_after_ms"]


def test_the_age_is_set_when_a_space_is_created_and_altered(command: Command) -> None:
    made = command.ok("space", "create", "s", "--topics", "s/#", "--compact-after", "1m", "--json").document
    assert made["compact_after_ms"] == 60_000
    assert "small entries are merged when they are older than 1m" in command.ok("space", "show", "s").out
    said = command.ok("space", "alter", "s", "--compact-after", "2h").out
    assert said == "space s merges small entries that are older than 2h\n"
    assert age(command) == 7_200_000
    command.ok("space", "alter", "s", "--retention", "7d")
    assert age(command) == 7_200_000, "what is not given stays"
    said = command.ok("space", "alter", "s", "--compact-after", "off").out
    assert (said, age(command)) == ("space s leaves small entries as they are\n", None)


def test_the_age_must_make_sense(command: Command) -> None:
    command.ok("space", "create", "s", "--topics", "s/#")
    assert age(command) is None
    for words, said in (("999ms", "give a second or more"), ("soon", "--compact-after")):
        outcome = command("space", "alter", "s", "--compact-after", words)
        assert outcome.code != 0 and said in outcome.err
    outcome = command("space", "create", "s", "--topics", "s/#", "--compact-after", "1m")
    assert outcome.code == 1 and "leaves small entries as they are" in outcome.err
