"""Everything that listens takes an address of IPv6, and says where it is as in a URL."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from typing import Any

import pytest

from streamlease.protocol.addresses import shown_address
from tests.admin.command import Command, finish, until
from tests.ipv6 import LOOPBACK

SERVERS = {
    "serve": ["serve", "--http-host", LOOPBACK, "--http-port", "0"],
    "ui": ["ui", "--http-host", LOOPBACK, "--http-port", "0"],
    "gateway": ["gateway", "--host", LOOPBACK, "--port", "0"],
}


def _is_well(url: str) -> bool:
    """Whether it answers so; the page does not before it has looked."""
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError as error:
        with error:
            return False


@pytest.mark.parametrize("name", SERVERS)
def test_it_listens_where_it_is_told_and_says_so(name: str, command: Command) -> None:
    process = command.start(*SERVERS[name])
    said = re.compile(re.escape(shown_address(LOOPBACK, 0)).removesuffix("0") + r"\d+")

    def where() -> Any:
        # A host tells the log.
        return said.search(command.log.read_text())

    try:
        assert process.stdout is not None
        found = until(where) if name == "serve" else said.search(process.stdout.readline().decode())
        until(lambda: _is_well(f"http://{found.group()}/healthz"))
    finally:
        assert finish(process).code == 0
