"""Keys of Streamlease that belong to no space or group that is known."""

from __future__ import annotations

import re
from collections.abc import Container
from typing import TYPE_CHECKING

from streamlease.protocol.errors import InvalidInput
from streamlease.protocol.ids import StreamId
from streamlease.registry import keys
from streamlease.streams.redis.connection import ask, servers

if TYPE_CHECKING:
    from streamlease.agent.client import Client

PAGE = 1000
_TAG = re.compile(r"sl:\{([^}]*)\}:")


async def find_orphans(client: Client, limit: int) -> tuple[list[str], int, bool]:
    """The orphans among the first `limit` keys or so, how many keys were looked at, and whether all were.

    Keys that appear or vanish meanwhile may be missed; a space or group that is created meanwhile is not
    reported, because what is known is asked for last.
    """
    found: list[str] = []
    cursor, scanned = b"0", 0
    for server in await servers(client.redis):
        while scanned < limit:
            ((cursor, page),) = await ask(server, [("SCAN", cursor, "MATCH", "sl:*", "COUNT", PAGE)])
            found.extend(key.decode("utf-8", "replace") for key in page)
            scanned += len(page)
            if cursor == b"0":
                break
    groups = {keys.definition(shared.id).rpartition(":")[0] for shared in await client.groups.list()}
    known = await client.spaces.look()
    streams = {str(stream) for space in known.listed for stream in space.streams()}
    spaces = {*(space.name for space in known.listed), *known.damaged}
    orphans = [key for key in found if _is_orphan(key, groups, streams, spaces, known.damaged)]
    return sorted(orphans), scanned, cursor == b"0"


def _is_orphan(
    key: str, groups: set[str], streams: set[str], spaces: set[str], damaged: Container[str]
) -> bool:
    """Whether nothing that is known has the key; which streams a damaged space has is not known."""
    tag = _TAG.match(key)
    if tag is None:
        return False
    if tag.group(1).startswith(f"g:{keys.CLAIM}"):
        space = tag.group(1).removeprefix(f"g:{keys.KEEPER}")
        return space != tag.group(1) and space not in spaces
    if tag.group(1).startswith("g:"):
        return key[: tag.end() - 1] not in groups
    if tag.group(1).startswith("epochs:"):
        return tag.group(1).removeprefix("epochs:") not in spaces
    try:
        stream = StreamId.parse(tag.group(1))
        return str(stream) not in streams and stream.space not in damaged
    except InvalidInput:
        return False  # what is not of a stream or group is fixed in number, or expires
