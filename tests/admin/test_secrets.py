"""A password that was given to the command stands nowhere that others can see."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from streamlease.admin.cli import without_secret
from tests.admin.command import Command, finish, until
from tests.conftest import MakeServer

SECRET = "redis://me:geheim@h"


@pytest.mark.parametrize(
    ("words", "kept", "url"),
    [
        (["status", "--redis", SECRET], ["status"], SECRET),
        ([f"--redis={SECRET}", "status", "--json"], ["status", "--json"], SECRET),
        (["--redis", "redis://h", "status", "--redis", SECRET], ["status"], SECRET),
        (["--redis", SECRET, "status", "--redis", "redis://h"], None, None),
        (["status", "--redis", "redis://h"], None, None),
        (["status", "--redis"], None, None),
        (["publish", "t", "--", "--redis", SECRET], None, None),
        (["publish", "--redis", SECRET, "t", "--", "x"], ["publish", "t", "--", "x"], SECRET),
    ],
)
def test_a_url_with_a_password_leaves_the_command_line(
    words: list[str], kept: list[str] | None, url: str | None
) -> None:
    assert without_secret(words) == (words if kept is None else kept, url)


def test_the_process_list_shows_no_password(tmp_path: Path, make_redis_server: MakeServer) -> None:
    server = make_redis_server()
    with server.client() as client:
        client.acl_setuser(
            "me", enabled=True, passwords=["+geheim"], keys=["*"], channels=["*"], categories=["+@all"]
        )
    command = Command(tmp_path)
    url = server.url.replace("//", "//me:geheim@")
    process = command.start("serve", "--http-port", "0", "--redis", url)
    try:
        until(lambda: "serves" in command.log.read_text())
        words = Path(f"/proc/{process.pid}/cmdline").read_text().split("\0")
        assert "serve" in words
        assert not [word for word in words if "geheim" in word]
    finally:
        finish(process)
    assert "geheim" not in command.log.read_text()


def test_python_runs_the_command_by_the_name_of_the_package() -> None:
    """Also anew, without the password among its words."""
    command = [sys.executable, "-m", "streamlease", "status", "--redis", "redis://:geheim@127.0.0.1:1"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    (line,) = ran.stderr.splitlines()
    assert (ran.returncode, ran.stdout) == (1, "")
    assert line.startswith("error: Redis at 127.0.0.1:1 does not answer") and "geheim" not in line
