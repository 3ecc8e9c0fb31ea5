"""Write what this version leaves in Redis: ``.venv/bin/python -m tests.upgrade``.

It goes into ``tests/upgrade/forms/``, a file for each version. Do so for a new version, and for a form that
is changed on purpose before its version is out: what is out stays, and is read by all that follow.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

from redis import Redis

from streamlease import __version__, connect
from tests.servers import RedisServer
from tests.upgrade.dump import dumped
from tests.upgrade.scenario import read, write

FORMS = Path(__file__).parent / "forms"


async def _made(url: str) -> dict[str, Any]:
    async with connect(url) as client:
        done = await write(client)
    with Redis.from_url(url) as redis:
        keys = dumped(redis)
    async with connect(url) as client:
        return {"keys": keys, "done": done, "found": await read(client, done)}


def main() -> None:
    """Write the file of this version."""
    with (
        tempfile.TemporaryDirectory() as folder,
        RedisServer("embedded", Path(folder)) as server,
        mock.patch("socket.gethostname", return_value="writer"),
    ):
        made = asyncio.run(_made(server.url))
    path = FORMS / f"{__version__}.json"
    path.write_text(json.dumps(made, indent=1, sort_keys=True) + "\n")
    sys.stdout.write(f"{len(made['keys'])} keys are in {path.name}\n")


if __name__ == "__main__":
    main()
