"""Messages through a member of a group over HTTP: fetched, and committed with each answer."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

from streamlease.agent.client import connect

MESSAGES = 200_000
AT_A_TIME = 5000
SPACE = "members"
FORMS = {
    "JSON": "application/json",
    "JSON lines": "application/x-ndjson",
    "Arrow": "application/vnd.apache.arrow.stream",
}

Ask = Callable[[str, str, bytes, str], Awaitable[tuple[bytes, bytes]]]
"""Method, path, body, and the form that is wanted: the head of the answer, and its body."""


async def fill(url: str, payload: bytes) -> None:
    """Publish what members get."""
    async with connect(url) as client:
        await client.create_space(SPACE, [f"{SPACE}/#"], streams=4)
        async with client.publisher() as publisher:
            for number in range(MESSAGES):
                await publisher.submit(f"{SPACE}/{number % 100}", payload)


async def consume(ask: Ask, form: str) -> int:
    """Fetch and commit all of it, as a member of a new group; how many messages came."""
    import pyarrow as pa

    base, type = f"/v1/groups/{form.replace(' ', '-')}/members", FORMS[form]
    wanted = json.dumps({"filter": f"{SPACE}/#", "start": "earliest"}).encode()
    member = json.loads((await ask("POST", base, wanted, "application/json"))[1])["member"]
    count = 0
    while count < MESSAGES:
        _, body = await ask("GET", f"{base}/{member}/messages?max={AT_A_TIME}&wait=10", b"", type)
        ends: dict[str, int] = {}
        if form == "Arrow":
            table = pa.ipc.open_stream(body).read_all()
            streams, offsets = table.column("stream").to_pylist(), table.column("offset").to_pylist()
            ends = {stream: offset + 1 for stream, offset in zip(streams, offsets, strict=True)}
            count += table.num_rows
        else:
            found = (
                json.loads(body)["messages"]
                if form == "JSON"
                else [json.loads(one) for one in body.splitlines()]
            )
            ends = {one["stream"]: one["offset"] + 1 for one in found}
            count += len(found)
        if ends:
            await ask("POST", f"{base}/{member}/commit", json.dumps({"offsets": ends}).encode(), type)
    await ask("DELETE", f"{base}/{member}", b"", type)
    return count
