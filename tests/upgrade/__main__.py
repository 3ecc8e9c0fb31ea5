"""Write what this version leaves: ``.venv/bin/python -m tests.upgrade [PART ...]``.

It goes into ``tests/upgrade/forms/VERSION/``, a file for each part. Do so for a new version, and for a form
that is changed on purpose before its version is out: what is out stays, and is read by all that follow.
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

from streamlease import __version__
from tests.servers import RedisServer
from tests.upgrade.dump import dumped
from tests.upgrade.parts import PARTS, Part

FORMS = Path(__file__).parent / "forms"


async def _made(part: Part, url: str) -> dict[str, Any]:
    with part.beside(None):
        done = await part.write(url)
        with Redis.from_url(url) as redis:
            keys = dumped(redis)
        made: dict[str, Any] = json.loads(json.dumps({"keys": keys, "done": done}))  # `read` may note more
        return made | {"found": await part.read(url, done)}


def main(names: list[str]) -> None:
    """Write the files of this version; of these parts, or of all."""
    for name in names or PARTS:
        with (
            tempfile.TemporaryDirectory() as folder,
            RedisServer("embedded", Path(folder)) as server,
            mock.patch("socket.gethostname", return_value="writer"),
        ):
            made = asyncio.run(_made(PARTS[name], server.url))
        path = FORMS / __version__ / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(made, indent=1, sort_keys=True) + "\n")
        sys.stdout.write(f"{len(made['keys'])} keys are in {path.relative_to(FORMS)}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
