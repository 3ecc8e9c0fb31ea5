"""What commands do where their standard streams are full, closed, or not there at all."""

from __future__ import annotations

import fcntl
import os
import subprocess
import termios
from pathlib import Path

import httpx
import pytest

from streamlease.admin.redis.server_process import free_port
from tests.admin.command import SCRIPT, Command, Outcome, finish, until

FULL_DISK = Path("/dev/full")
FULL = "error: standard output cannot be written: No space left on device: send it elsewhere, or make room"
VIEWS = [
    ["--help"],
    ["group", "reset", "--help"],
    ["space", "list"],
    ["space", "list", "--json"],
    ["doctor"],
    ["status"],
    ["catalog", "spaces"],
    ["consume", "flights/#", "--from", "earliest", "--count", "1"],
]
MEMBER = ["consume", "$shared/g/flights/#", "--from", "earliest", "--count", "2"]


@pytest.fixture
def filled(flights: Command) -> Command:
    """Two messages of one stream."""
    flights.ok("publish", "flights/a", text="1\n2\n")
    return flights


def redirected(command: Command, words: list[str], to: str) -> Outcome:
    """The command, started by a shell that redirects its streams."""
    run = ["sh", "-c", f'exec "$0" "$@" {to}', str(SCRIPT), *words]
    done = subprocess.run(
        run, env=command.environment, input=b"", capture_output=True, timeout=60, check=False
    )
    return Outcome(done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.mark.parametrize("words", VIEWS, ids=" ".join)
def test_a_full_disk_is_one_line(filled: Command, words: list[str]) -> None:
    with FULL_DISK.open("wb") as full, filled.log.open("wb") as log:
        process = filled._process(words, subprocess.DEVNULL, full, log, filled.environment)
        assert process.wait(60) == 1
    (said,) = filled.log.read_text().splitlines()
    assert said.startswith(FULL), said


@pytest.mark.parametrize("words", VIEWS, ids=" ".join)
def test_a_reader_that_left_is_no_error(filled: Command, words: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as pipe, filled.log.open("wb") as log:
        process = filled._process(words, subprocess.DEVNULL, pipe, log, filled.environment)
        assert process.wait(60) == 141
    assert filled.log.read_text() == ""


def test_a_member_commits_nothing_that_it_could_not_write(filled: Command) -> None:
    lost = redirected(filled, MEMBER, ">/dev/full")
    assert (lost.code, lost.err.startswith(FULL)) == (1, True), lost
    assert filled(*MEMBER).out == "flights/a\t1\nflights/a\t2\n"


def test_an_error_stays_one_line_where_its_document_cannot_be_written(filled: Command) -> None:
    lost = redirected(filled, ["space", "show", "nowhere", "--json"], ">/dev/full")
    assert lost.code == 1
    (said,) = lost.err.splitlines()
    assert said.startswith("error: there is no space 'nowhere'"), said


@pytest.mark.parametrize("to", [">&-", "2>&-", "<&-", "<&- >&- 2>&-", "2>/dev/full"])
def test_a_command_works_without_streams(filled: Command, to: str) -> None:
    assert redirected(filled, ["space", "create", "more", "--topics", "more/#"], to).code == 0
    assert redirected(filled, ["publish", "more/a"], to).code == 0
    assert "more" in filled.ok("space", "list").out
    refused = redirected(filled, ["space", "create", "more", "--topics", "other/#"], to)
    assert (refused.code, len(refused.err.splitlines())) == (1, 0 if "2>" in to else 1), refused


def test_a_gateway_serves_where_it_cannot_say_so(filled: Command) -> None:
    port = free_port()
    with FULL_DISK.open("wb") as full, filled.log.open("wb") as log:
        words = ["gateway", "--port", str(port), "--max-polls", "100"]
        process = filled._process(words, subprocess.DEVNULL, full, log, filled.environment)

    def answers() -> bool:
        assert process.poll() is None, filled.log.read_text()
        try:
            return httpx.get(f"http://127.0.0.1:{port}/healthz").status_code == 200
        except httpx.ConnectError:
            return False

    try:
        until(answers)
    finally:
        assert finish(process).code == 0
    assert "Traceback" not in filled.log.read_text()


def test_a_slow_reader_of_a_pipe_that_does_not_block_gets_all(tmp_path: Path) -> None:
    words = ["space", "create", "--help"]
    whole = Command(tmp_path).ok(*words).out.encode()
    reading, writing = os.pipe()
    room = fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    assert len(whole) > room
    os.set_blocking(writing, False)

    def waiting() -> int:
        return int.from_bytes(fcntl.ioctl(reading, termios.FIONREAD, bytes(4)), "little")

    with os.fdopen(reading, "rb") as pipe, (tmp_path / "stderr").open("wb") as log:
        with os.fdopen(writing, "wb") as end:
            command = Command(tmp_path)
            process = command._process(words, subprocess.DEVNULL, end, log, command.environment)
        until(waiting)
        assert pipe.read() == whole
    assert process.wait(60) == 0
    assert (tmp_path / "stderr").read_text() == ""
