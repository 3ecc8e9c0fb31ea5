"""An argument of another kind, such as the text of an environment variable, is told in one line."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from streamlease.agent.client import Client, connect
from streamlease.protocol.errors import InvalidOption, StreamleaseError

CALLS: dict[str, tuple[Callable[[Any], object], str]] = {
    "listen": (lambda client: client.listen("a/#", max_batch="100"), "max_batch '100' is out of range: give"),
    "history": (lambda client: client.history("a/#", max_batch=None), "max_batch 'None' is out of range"),
    "timeout": (lambda client: client.publisher(delivery_timeout="10"), "delivery_timeout is '10': it must"),
    "buffer": (lambda client: client.publisher(max_buffer_bytes=True), "max_buffer_bytes is True: it must"),
    "linger": (lambda client: client.publisher(linger_ms="5"), "linger_ms is '5': give 0 to "),
    "nobody": (lambda client: client.subscribe(None), "None names no group: share it as '$shared/GROUP/"),
    "bytes": (lambda client: client.subscribe(b"$shared/g/#"), "b'$shared/g/#' names no group: share"),
}


@pytest.mark.parametrize("call", CALLS)
async def test_an_argument_of_another_kind_is_refused(client: Client, call: str) -> None:
    made, said = CALLS[call]
    with pytest.raises(StreamleaseError, match=f"^{re.escape(said)}"):
        made(client)


async def test_a_wait_of_another_kind_is_refused(client: Client) -> None:
    anything: Any = "3"
    with pytest.raises(InvalidOption, match=r"^wait is '3': give seconds, 0 or more"):
        await client.lookup("a/b", wait=anything)


def test_an_address_of_another_kind_is_refused() -> None:
    anything: Any = b"redis://secret@127.0.0.1"
    with pytest.raises(InvalidOption, match=r"^the URL of Redis is a bytes: give a string such as redis://"):
        connect(anything)
