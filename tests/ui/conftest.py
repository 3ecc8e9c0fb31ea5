"""``streamlease ui`` as a process, beside a group with consumers."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from tests.admin.command import Command, Process, finish, lines_of

SUB = "$shared/demo/flights/#"
QUOTED = "%24shared%2Fdemo%2Fflights%2F%23"
TOKEN = "a-token-for-the-tests"


class Site:
    """What the page's server answers."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(
        self,
        path: str,
        body: dict[str, Any] | None = None,
        token: str | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> tuple[int, Any, Any]:
        """Status, document and headers."""
        request = urllib.request.Request(self.url + path)
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
        for name, value in headers.items():
            request.add_header(name, value)
        if token is not None:
            request.add_header("Authorization", f"Bearer {token}")
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.loads(answer.read()), answer.headers
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read()), error.headers


@pytest.fixture
def command(tmp_path: Path, embedded_redis_url: str) -> Command:
    """``streamlease`` on a Redis with a space of four streams."""
    command = Command(tmp_path, embedded_redis_url)
    command.ok("space", "create", "flights", "--topics", "flights/#", "--streams", "4")
    return command


@contextmanager
def serving(command: Command, *words: str) -> Iterator[Site]:
    """The page's server; it must end in good order."""
    process = command.start("ui", "--http-port", "0", *words)
    try:
        (said,) = lines_of(process, 1)
        assert said.startswith("the page is at http://127.0.0.1:"), command.log.read_text()
        yield Site(said.removeprefix("the page is at ").rstrip("/"))
    finally:
        ended = finish(process)
    assert ended.code == 0, command.log.read_text()


@contextmanager
def consuming(command: Command) -> Iterator[Process]:
    """A consumer of the group."""
    process = command.start("consume", SUB, "--from", "earliest", "--json")
    try:
        yield process
    finally:
        finish(process)


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    return file
