"""A member of a group, as a program in any language would be one: nothing but HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from itertools import cycle
from typing import Any

from tests.gateway.http_client import Answer, HttpClient


class Member:
    """Its requests go to the gateways in turns, as a plain load balancer sends them."""

    def __init__(self, gateways: Sequence[HttpClient], group: str) -> None:
        self.gateways = [*gateways]
        self._turns = cycle(self.gateways)
        self.base = f"/v1/groups/{group}/members"
        self.id = ""
        self.got: list[tuple[str, int]] = []
        """Stream and offset of each message, as they came."""

    def send_to(self, gateways: Sequence[HttpClient]) -> None:
        """From now on, only these are there."""
        self.gateways = [*gateways]
        self._turns = cycle(self.gateways)

    async def ask(self, method: str, path: str, body: Any = None) -> Answer:
        sent = b"" if body is None else json.dumps(body).encode()
        failed = []
        for _ in range(2 * len(self.gateways)):  # more than one may be killed meanwhile
            gateway = next(self._turns)
            try:
                return await gateway.request(method, path, sent)
            except (OSError, asyncio.IncompleteReadError) as error:  # a load balancer tries the next one then
                failed.append((gateway.port, error))
        raise AssertionError(f"no gateway answers: {failed}")

    async def join(self, filter: str, **more: Any) -> Member:
        answer = await self.ask("POST", self.base, {"filter": filter, "start": "earliest", **more})
        assert answer.status == 201, answer
        self.id = answer.json()["member"]
        return self

    async def fetch(self, **parameters: Any) -> dict[str, Any]:
        query = "&".join(f"{name}={value}" for name, value in {"wait": 10, **parameters}.items())
        answer = await self.ask("GET", f"{self.base}/{self.id}/messages?{query}")
        assert answer.status == 200, answer
        found: dict[str, Any] = answer.json()
        self.got += [(one["stream"], one["offset"]) for one in found["messages"]]
        return found

    async def commit(self, offsets: dict[str, int]) -> Answer:
        return await self.ask("POST", f"{self.base}/{self.id}/commit", {"offsets": offsets})

    async def done(self, page: dict[str, Any]) -> None:
        """Commit all of a page."""
        if page["messages"]:
            answer = await self.commit(ends(page))
            assert answer.status == 200, answer
            assert answer.json() == {"committed": ends(page)}

    async def fail(self, stream: str, offset: int, error: str = "no") -> Answer:
        body = {"stream": stream, "offset": offset, "error": error}
        return await self.ask("POST", f"{self.base}/{self.id}/fail", body)

    async def leave(self) -> None:
        assert (await self.ask("DELETE", f"{self.base}/{self.id}")).status == 204


def ends(page: dict[str, Any]) -> dict[str, int]:
    """Of each stream the offset behind its last message."""
    found: dict[str, int] = {}
    for one in page["messages"]:
        found[one["stream"]] = max(found.get(one["stream"], 0), one["offset"] + 1)
    return found
