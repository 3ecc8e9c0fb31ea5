"""The names of all keys of services.

::

    sl:{catalog}:rows:services    hash    ADDRESS/NAME -> JSON: who serves what (`streams/catalog/keys.py`)
    sl:{catalog}:services:alive   zset    ADDRESS -> until when its lease is (ms of the Redis clock)
    sl:{catalog}:services:types   hash    DIGEST -> JSON: the types of the handlers of a service
    sl:{catalog}:services:news    channel the names of services of which something has changed
    sl:{v:ENDPOINT}:requests:LIFE stream  what a process is asked, in one of its lives; gone with its lease
    sl:{v:ENDPOINT}:answers       stream  what a process is answered

ADDRESS is ``ENDPOINT.LIFE``.
"""

from __future__ import annotations

from streamlease.streams.catalog.keys import rows

SERVICES = rows("services")
ALIVE = "sl:{catalog}:services:alive"
TYPES = "sl:{catalog}:services:types"
NEWS = "sl:{catalog}:services:news"


def requests(address: str) -> str:
    """Key of what the process with this address is asked."""
    endpoint, _, life = address.partition(".")
    return f"sl:{{v:{endpoint}}}:requests:{life}"


def answers(endpoint: str) -> str:
    """Key of what a process is answered."""
    return f"sl:{{v:{endpoint}}}:answers"
