"""What stands before the command: ``streamlease --redis URL COMMAND``."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamlease.admin.redis.server_process import free_port
from tests.admin.command import Command


@pytest.fixture
def elsewhere(tmp_path: Path) -> Command:
    """The command where nothing names a Redis."""
    return Command(tmp_path)


def test_the_redis_may_be_named_before_the_command(elsewhere: Command, embedded_redis_url: str) -> None:
    made = elsewhere("--redis", embedded_redis_url, "space", "create", "flights", "--topics", "flights/#")
    assert made.code == 0, made
    shown = elsewhere("--redis", embedded_redis_url, "space", "list", "--json")
    assert [space["name"] for space in shown.document["spaces"]] == ["flights"]
    assert elsewhere("--redis", embedded_redis_url, "status").code == 0


def test_the_one_behind_the_command_counts(elsewhere: Command, embedded_redis_url: str) -> None:
    nobody = f"redis://127.0.0.1:{free_port()}"
    assert elsewhere("--redis", nobody, "space", "list", "--redis", embedded_redis_url).code == 0
    away = elsewhere("--redis", embedded_redis_url, "space", "list", "--redis", nobody)
    assert (away.code, nobody.removeprefix("redis://") in away.err) == (1, True), away


def test_it_counts_more_than_the_environment(elsewhere: Command, embedded_redis_url: str) -> None:
    nobody = f"redis://127.0.0.1:{free_port()}"
    outcome = elsewhere("--redis", embedded_redis_url, "space", "list", STREAMLEASE_REDIS_URL=nobody)
    assert outcome.code == 0, outcome


def test_the_embedded_redis_has_no_other_url(elsewhere: Command) -> None:
    outcome = elsewhere("--redis", "redis://127.0.0.1", "redis", "status")
    assert outcome.code == 2
    assert outcome.err.startswith("error: --redis names a Redis that runs already"), outcome
    assert len(outcome.err.splitlines()) == 1


def test_a_home_that_cannot_be_written_is_told_in_one_line(elsewhere: Command) -> None:
    outcome = elsewhere(
        "--install-completion", "bash", HOME="/proc", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1"
    )
    assert outcome.code == 1, outcome
    (said,) = outcome.err.splitlines()
    assert said.startswith("error: cannot use the file /proc/.bash"), said
