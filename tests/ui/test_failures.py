"""A page whose reader ends by a defect shows nothing more: its probe fails, and so does the process."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import pytest

from streamlease.admin import top
from streamlease.admin.ui.app import Site, make_app
from streamlease.admin.ui.board import Board
from streamlease.admin.ui.logins import Logins
from streamlease.admin.ui.server import serve
from streamlease.agent.client import connect
from streamlease.protocol.errors import TaskFailed

SAID = r"the reader ended by a defect \(OverflowError: too large\)"


@pytest.fixture(autouse=True)
def defect(monkeypatch: pytest.MonkeyPatch) -> None:
    async def breaks(self: Board) -> None:
        raise OverflowError("too large")

    monkeypatch.setattr(Board, "_look", breaks)


async def _health(app: Any) -> tuple[int, dict[str, Any]]:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/healthz",
        "query_string": b"",
        "headers": [(b"host", b"localhost")],
    }
    await app(scope, receive, send)
    return sent[0]["status"], json.loads(sent[1]["body"])


async def test_the_probe_says_why(embedded_redis_url: str) -> None:
    async with connect(embedded_redis_url, embedded=False) as client:
        board, told = Board(client), asyncio.Event()
        app = make_app([Site("main", client, board)], failed=told.set)
        async with app.router.lifespan_context(app):
            with pytest.raises(TaskFailed, match=SAID):
                await board.after(0)
            assert told.is_set()
            status, body = await _health(app)
            assert (status, body["ready"]) == (503, False)
            assert "OverflowError: too large" in body["error"]


async def test_the_process_ends_with_the_error(embedded_redis_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.raises(TaskFailed, match=SAID):
        await asyncio.wait_for(serve({"main": embedded_redis_url}, listener, Logins(), frozenset()), 60)


async def test_top_ends_with_the_error(embedded_redis_url: str) -> None:
    async with connect(embedded_redis_url, embedded=False) as client:
        with pytest.raises(TaskFailed, match=SAID):
            await asyncio.wait_for(top._follow(client, None, 0.5), 60)
