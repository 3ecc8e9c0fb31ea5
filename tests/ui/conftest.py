"""``streamlease ui`` as a process, beside a group with consumers."""

from __future__ import annotations

import json
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from tests.admin.command import Command, Process, finish, lines_of
from tests.ui.browsing import QUIET

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


def browser_program(*names: str) -> str:
    """The path of an installed program: ``python3 run.py test`` installs both."""
    found = next((path for name in names if (path := shutil.which(name)) is not None), None)
    assert found is not None, f"none of {names} is installed: run 'python3 run.py test', or install chromium"
    return found


@pytest.fixture(scope="module")
def shared_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    for argument in (*QUIET, f"--user-data-dir={tmp_path_factory.mktemp('browser')}"):
        options.add_argument(argument)
    options.binary_location = browser_program("chromium", "google-chrome")
    driver = webdriver.Chrome(options=options, service=Service(browser_program("chromedriver")))
    yield driver
    driver.quit()


@pytest.fixture
def browser(shared_browser: webdriver.Chrome) -> Iterator[webdriver.Chrome]:
    shared_browser.get("about:blank")
    shared_browser.get_log("browser")
    shared_browser.execute_cdp_cmd("Network.clearBrowserCookies", {})
    yield shared_browser
    said = shared_browser.get_log("browser")
    shared_browser.get("about:blank")
    # What the network refuses is part of the tests; an error of the script or of its policy never is.
    assert [entry for entry in said if entry["source"] != "network"] == []
