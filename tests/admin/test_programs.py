"""Every command once as its users start it: by a Python of its own, which imports only what it needs.

Other tests fork from a process that has imported everything (`tests.forking`).
"""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest

from tests.admin.command import Command, Program, finish, lines_of, until
from tests.admin.test_surrogates import commands

pytestmark = pytest.mark.thorough

SUB = "$shared/g/flights/#"
STREAM = "flights.0.0"
ARCHIVE = "older"
"""A folder, below that of the test."""
CALLS = (
    ("space create", "other", "--topics", "other/#"),
    ("space list",),
    ("space show", "flights"),
    ("space topics", "flights"),
    ("space alter", "flights", "--retention", "7d"),
    ("publish", "flights/a"),
    ("consume", "flights/#", "--from", "earliest", "--count", "1"),
    ("group declare", SUB),
    ("group list",),
    ("group describe", SUB),
    ("group alter", SUB, "--expiry", "1d"),
    ("group rebalance", SUB, "--dry-run"),
    ("group pause", SUB, "--dry-run"),
    ("group reset", SUB, "--to", "earliest"),
    ("group history", SUB),
    ("group dead-letters list", SUB),
    ("group dead-letters replay", SUB, "--all", "--dry-run"),
    ("space create", "timed", "--topics", "timed/#", "--epochs", "1"),
    ("epochs show", "timed"),
    ("epochs close", "timed"),
    ("space create", "changes", "--topics", "changes/#", "--collection"),
    ("collection", "changes/#"),
    ("space create", "kept", "--topics", "kept/#", "--archive", ARCHIVE),
    ("archive run", "kept"),
    ("archive show", "kept"),
    ("archive verify", "kept"),
    ("archive compact", "kept"),
    ("catalog", "spaces"),
    ("query list",),
    ("status",),
    ("doctor",),
    ("top",),
    ("group expire", SUB, "--yes"),
    ("space seal", "other", "--yes"),
    ("space delete", "other", "--yes"),
)
REFUSED = (
    ("group resume", SUB, "--dry-run"),
    ("group step-down", SUB),
    ("group drain", SUB, "nobody", "--dry-run"),
    ("group move", SUB, STREAM, "--to", "nobody", "--dry-run"),
    ("group release", SUB, STREAM, "--yes", "--dry-run"),
    ("group dead-letters retry", SUB, STREAM, "--dry-run"),
    ("group dead-letters put", SUB, STREAM, "--dry-run"),
    ("group delete", "$shared/none/#", "--yes"),
    ("epochs abort", "flights", "nobody", "--yes"),
    ("submit", "job.py"),
    ("query show", "0" * 16),
    ("query logs", "0" * 16),
    ("query terminate", "0" * 16),
    ("import redis-stream", "none", "--space", "flights", "--topic", "flights/a"),
)
"""These find nothing to do, and say so in one line."""

EMBEDDED = (("redis start",), ("redis status",), ("redis stop",))
BELOW = {"serve", "ui"}
ELSEWHERE = {"demo", "bridge mqtt", "gateway", "executor"}
"""Their own tests start them: tests/demo, tests/mqtt, tests/gateway, tests/queries."""


@pytest.fixture
def program(tmp_path: Path, flights: Command) -> Program:
    """The command as a program, on a Redis with a space of four streams."""
    return Program(tmp_path, flights.url)


def test_every_command_is_here() -> None:
    calls = {words[0] for words in (*CALLS, *REFUSED, *EMBEDDED)}
    assert calls | BELOW | ELSEWHERE == {" ".join(words) for words, _ in commands()}


def test_every_command_runs_by_itself(program: Program, tmp_path: Path) -> None:
    for command, *words in CALLS:
        given = [str(tmp_path / word) if word == ARCHIVE else word for word in words]
        outcome = program(*command.split(), *given, text="one\n")
        assert (outcome.code, outcome.err) == (0, ""), (command, outcome)


def test_what_has_nothing_to_do_says_so_in_one_line(program: Program, flights: Command) -> None:
    flights.ok("group", "declare", SUB)
    for command, *words in REFUSED:
        outcome = program(*command.split(), *words)
        assert outcome.code in (1, 2), (command, outcome)
        assert outcome.err.count("\n") == 1, (command, outcome)
        assert outcome.err.startswith("error: "), (command, outcome)


def test_the_embedded_redis_is_started_by_a_program(tmp_path: Path) -> None:
    program = Program(tmp_path)
    try:
        for (command,) in EMBEDDED:
            program.ok(*command.split())
    finally:
        program("redis", "stop")


def test_a_leader_host_ends_at_a_signal(program: Program) -> None:
    process = program.start("serve", "--http-port", "0")
    try:
        until(lambda: process.poll() is not None or " serves; " in program.log.read_text())
    finally:
        ended = finish(process)
    assert ended.code == 0, program.log.read_text()


def test_the_page_ends_at_a_signal(program: Program) -> None:
    process = program.start("ui", "--http-port", "0")
    try:
        (said,) = lines_of(process, 1)
        assert said.startswith("the page is at http://127.0.0.1:"), program.log.read_text()
        with urllib.request.urlopen(said.removeprefix("the page is at "), timeout=30) as answer:
            assert b"<html" in answer.read()
    finally:
        ended = finish(process)
    assert (ended.code, program.log.read_text()) == (0, "")
