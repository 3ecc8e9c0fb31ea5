"""Small commands that Redis must take even when it is out of memory.

Control messages, and the notes that retention leaves, are bounded, and without them no memory can be freed: a
group whose consumers cannot say what they have consumed holds it for ever. They are sent as plain commands;
those refused for want of memory are sent once more, by the script ``lua/always.lua``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.exceptions import ResponseError

from streamlease.protocol.errors import Indefinite
from streamlease.streams.redis.connection import Command, Redis, exchange, good, silent
from streamlease.streams.redis.exchange_failures import out_of_memory
from streamlease.streams.redis.scripts import load_script, run_many

_ALWAYS = load_script("streamlease.streams.redis", "always")


async def ask_always(client: Redis, commands: Sequence[Command]) -> list[Any]:
    """``connection.ask`` for what may be repeated; XADD, HINCRBY, SADD, and SET without NX need no memory.

    Raises:
        StoreUnavailable: Redis did not answer; some or all of it may have been done.
        StoreRefused: one of the replies is another error; the same.
    """
    try:
        replies = await exchange(client, commands)
        refused = [
            place
            for place, reply in enumerate(replies)
            if isinstance(reply, ResponseError) and out_of_memory(reply)
        ]
        if refused:
            calls = [
                _ALWAYS.call([str(commands[place][1])], [commands[place][0], *commands[place][2:]])
                for place in refused
            ]
            for place, reply in zip(refused, await run_many(client, calls), strict=True):
                replies[place] = reply
        return good(client, replies)
    except Indefinite as error:
        raise silent(client, error) from None
