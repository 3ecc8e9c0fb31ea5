"""Shell completion: commands, options and names of spaces, and never an error on the way."""

from __future__ import annotations

import pytest

from streamlease.admin import completing
from streamlease.admin.redis.server_process import free_port
from tests.admin.command import Command


def completed(command: Command, *words: str) -> list[str]:
    """What bash would offer for the last of `words`."""
    outcome = command(
        _STREAMLEASE_COMPLETE="complete_bash",
        COMP_WORDS=" ".join(["streamlease", *words]),
        COMP_CWORD=str(len(words)),
    )
    assert (outcome.code, outcome.err) == (0, "")
    return outcome.out.split()


def test_commands_options_and_spaces(flights: Command) -> None:
    flights.ok("space", "create", "fleet", "--topics", "fleet/#")
    assert {"group", "space", "status"} <= set(completed(flights, ""))
    assert completed(flights, "group", "desc") == ["describe"]
    assert completed(flights, "group", "list", "--wa") == ["--watch"]
    assert completed(flights, "space", "show", "fl") == ["fleet", "flights"]
    assert completed(flights, "space", "seal", "fli") == ["flights"]


def test_without_redis_there_are_no_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMLEASE_REDIS_URL", f"redis://127.0.0.1:{free_port()}")
    assert completing.spaces("") == []
    monkeypatch.setenv("STREAMLEASE_REDIS_URL", "nonsense")
    assert completing.spaces("") == []


def test_the_script_for_a_shell_is_printed(command: Command) -> None:
    shown = command("--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert (shown.code, "_STREAMLEASE_COMPLETE" in shown.out) == (0, True), shown
