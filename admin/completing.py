"""Names that a shell completes: those of spaces, read from Redis within a second, or none.

Subscriptions are not completed: they begin with ``$``, and the shell would expand what it inserts unquoted.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Annotated

import typer

SECONDS = 1.0
"""How long a shell waits for names at most, besides the start of the command."""


def spaces(incomplete: str) -> list[str]:
    """The spaces whose name begins like that; nothing if Redis does not answer soon."""
    # What takes long to load is loaded here: the time limit is for Redis.
    import streamlease.admin.redis.embedded
    import streamlease.agent.client
    import streamlease.streams.redis.connection  # noqa: F401

    found: list[str] = []
    asking = threading.Thread(target=lambda: found.extend(_all_spaces()), daemon=True)
    asking.start()
    asking.join(SECONDS)
    return sorted(name for name in found if name.startswith(incomplete))


def _all_spaces() -> list[str]:
    from redis.exceptions import RedisError

    from streamlease.admin.common_options import chosen_url
    from streamlease.protocol.errors import StreamleaseError
    from streamlease.streams.log.keys import SPACE_DEFINITIONS
    from streamlease.streams.redis.connection import ask, connect_blocking, run_blocking

    with contextlib.suppress(StreamleaseError, RedisError, OSError, UnicodeDecodeError):
        client = connect_blocking(chosen_url(None))
        try:
            (names,) = run_blocking(ask(client, [("HKEYS", SPACE_DEFINITIONS)]))
            return [name.decode() for name in names]
        finally:
            client.close()
    return []


SpaceName = Annotated[str, typer.Argument(metavar="NAME", autocompletion=spaces)]
