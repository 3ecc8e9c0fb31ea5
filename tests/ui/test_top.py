"""``streamlease top``, printed once and live in a terminal."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess

from tests.admin.command import SCRIPT, Command, until
from tests.ui.conftest import SUB, consuming


def test_without_a_terminal_it_is_printed_once(command: Command) -> None:
    command.ok("group", "declare", SUB, "--from", "earliest")
    command.ok("publish", "flights/JFK", text="one\ntwo\n")
    with consuming(command):
        until(lambda: "4" in held(command.ok("top").out))
        until(lambda: " 0" in command.ok("top", SUB).out.splitlines()[-1])
        lines = command.ok("top", SUB).out.splitlines()
    assert {line.split()[0] for line in lines[-4:]} == {f"flights.0.{n}" for n in range(4)}


def held(text: str) -> str:
    """The number of streams held, in the line of the group."""
    (line,) = [line for line in text.splitlines() if line.startswith(SUB)] or ["- - - - -"]
    return line.split()[4]


def test_an_unknown_group_is_an_error(command: Command) -> None:
    outcome = command("top", "$shared/none/#")
    assert (outcome.code, "does not exist" in outcome.err) == (1, True), outcome


def test_in_a_terminal_it_goes_on_until_it_is_interrupted(command: Command) -> None:
    command.ok("group", "declare", SUB)
    ours, theirs = pty.openpty()
    try:
        process = subprocess.Popen(
            [str(SCRIPT), "top", "--interval", "0.1"],
            env={**command.environment, "TERM": "xterm", "LINES": "30"},
            stdin=theirs,
            stdout=theirs,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    finally:
        os.close(theirs)
    try:
        seen = b""
        while seen.count(SUB.encode()) < 3:  # the test's timeout is the deadline
            seen += os.read(ours, 65_536)
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # EIO: it closed its end
            while os.read(ours, 65_536):
                pass
        assert process.wait(30) == 130
    finally:
        process.kill()
        process.wait(30)
        os.close(ours)
