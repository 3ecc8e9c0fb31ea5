"""What stands in the guides runs as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.admin.command import Command, finish, lines_of
from tests.http_client.other_programs import NODE, ROOT, environment

CLIENTS = (ROOT / "docs" / "http-clients.md").read_text("utf-8")
COMING_FROM = (ROOT / "docs" / "coming-from.md").read_text("utf-8").partition("## From webhooks")[2]
PRINTED = {
    "asynchronous": "flights/JFK/LAX landed\n",
    "blocking": "one {}\ntwo {'colour': b'red'}\n",
    "callbacks": "0 1 2\n",
}


def blocks(language: str, page: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


PROGRAMS = dict(zip(PRINTED, [*blocks("python", CLIENTS), *blocks("python", COMING_FROM)], strict=True))


@pytest.fixture
def url(tmp_path: Path, embedded_redis_url: str) -> Iterator[str]:
    """A gateway as the guides have it, at another port."""
    command = Command(tmp_path, embedded_redis_url)
    command.ok("space", "create", "flights", "--topics", "flights/#", "--streams", "4")
    process = command.start("gateway", "--port", "0", "--allow-private-callbacks")
    try:
        (said,) = lines_of(process, 1)
        yield said.removeprefix("the gateway is at ").rstrip("/")
    finally:
        finish(process)


def run(folder: Path, url: str, command: list[str], text: str) -> str:
    done = subprocess.run(
        [*command, text.replace("http://127.0.0.1:8640", url)],
        cwd=ROOT, env=environment(folder), capture_output=True, timeout=90, check=False, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", PRINTED)
def test_a_program_of_the_guides(name: str, url: str, tmp_path: Path) -> None:
    assert run(tmp_path, url, [sys.executable, "-c"], PROGRAMS[name]) == PRINTED[name]


def test_the_commands_of_the_guide(url: str, tmp_path: Path) -> None:
    (typed,) = blocks("sh", CLIENTS)
    (tmp_path / "node").symlink_to(NODE)
    path = environment(tmp_path)["PATH"]
    text = f"PATH={tmp_path}:{path}\n{typed}"
    placed, followed, again = run(tmp_path, url, ["sh", "-euc"], text).splitlines()
    assert '"offset":0' in placed
    assert '"payload":"late"' in followed and followed.replace(" ", "") == again.replace(" ", "")
