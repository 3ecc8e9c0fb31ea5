"""Where the catalog stands: beside the facts, in their slot of a cluster.

A *home* is a hash tag under which facts of some collections stand. Beside them is the log of their changes::

    sl:{TAG}:changes          stream  c collection, k key, o former row, n row (each empty: there is none),
                                      i how many changes there were ever
    sl:{TAG}:told             channel each change publishes the name of its collection here

besides, of topics::

    sl:{spaces}:topics        hash    SPACE/TOPIC -> row as JSON
    sl:{spaces}:topics:order  zset    the same names, all with score 0

and, of what processes have made, in the home `{catalog}`::

    sl:{catalog}:rows:NAME    hash    PROCESS/KEY -> row as JSON
    sl:{catalog}:processes    zset    process -> until when its lease holds (ms of the Redis clock)
    sl:{catalog}:owned        zset    PROCESS/NAME/KEY, all with score 0: what each process has made
    sl:{catalog}:written      hash    process -> mark of what it wrote last: Redis has it, or lost some of it

and, of the queries that processes say they are of::

    sl:{catalog}:queries:tokens   hash    QUERY -> SHA-1 of its token
    sl:{catalog}:queries:refused  stream  q query, w who used a token that is not that of the query
"""

from __future__ import annotations

from typing import NamedTuple

TOPICS = "sl:{spaces}:topics"
TOPICS_ORDER = "sl:{spaces}:topics:order"
PROCESSES = "sl:{catalog}:processes"
OWNED = "sl:{catalog}:owned"
WRITTEN = "sl:{catalog}:written"

TOKENS = "sl:{catalog}:queries:tokens"
REFUSED = "sl:{catalog}:queries:refused"

MADE = ("publications", "subscriptions", "borrowers", "services", "executors", "queries")
"""The collections of what processes make. Their order is that of KEYS in `catalog/lua/process.lua`."""


class Home(NamedTuple):
    """Facts under one hash tag, and the log of their changes."""

    tag: str

    @property
    def changes(self) -> str:
        """Key of the log."""
        return f"sl:{{{self.tag}}}:changes"

    @property
    def told(self) -> str:
        """The channel."""
        return f"sl:{{{self.tag}}}:told"


SPACES = Home("spaces")
HOSTS = Home("hosts")
CATALOG = Home("catalog")


def rows(collection: str) -> str:
    """Key of the rows of a collection of what processes make."""
    return f"sl:{{catalog}}:rows:{collection}"
