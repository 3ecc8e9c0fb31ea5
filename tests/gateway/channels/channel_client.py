"""A client of channels for tests that sends what it is told to, by hand."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tests.gateway.http_client import Answer, HttpClient

Document = dict[str, Any]


class HandClient:
    """A client without a machine: it numbers its commands and acknowledges what it got."""

    def __init__(self, http: HttpClient, name: str = "hand") -> None:
        self.http = http
        self.path = f"/v1/channels/{name}"
        self.command = 0
        self.gateway: str | None = None
        self.processed = 0

    async def commands(self, *commands: Document) -> Document:
        answer = await self.post_commands([self.numbered(one) for one in commands])
        assert answer.status == 200, answer.body
        told: Document = answer.json()
        return told

    def numbered(self, command: Document) -> Document:
        self.command += 1
        return {"command": self.command, **command}

    async def post_commands(self, commands: Any) -> Answer:
        return await self.http.post(f"{self.path}/commands", json.dumps(commands))

    async def subscribe(self, key: str, filter: str, **more: Any) -> Document:
        return await self.commands({"subscribe": key, "filter": filter, **more})

    async def unsubscribe(self, key: str) -> Document:
        return await self.commands({"unsubscribe": key})

    async def post_poll(self, **body: Any) -> Answer:
        return await self.http.post(f"{self.path}/poll", json.dumps(body))

    async def poll(self, wait: float = 5.0, *, processed: int | None = None) -> Document:
        """Poll, and acknowledge what comes with the next poll."""
        done = self.processed if processed is None else processed
        answer = await self.post_poll(gateway=self.gateway, processed=done, wait=wait)
        assert answer.status == 200, answer.body
        told: Document = answer.json()
        if told["gateway"] != self.gateway:
            self.gateway, self.processed = told["gateway"], 0
        sequences = [one["sequence"] for one in told["messages"] + told["failures"]]
        self.processed = max([self.processed, *sequences])
        return told

    async def until(self, count: int, seconds: float = 20.0) -> list[Document]:
        """Poll until so many messages, notices and failures came."""
        found: list[Document] = []
        async with asyncio.timeout(seconds):
            while len(found) < count:
                told = await self.poll()
                found += told["messages"] + told["failures"]
        return found


def payloads(messages: list[Document]) -> list[str]:
    return [one["message"]["payload"] for one in messages]
