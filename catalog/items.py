"""The items of the collections of the catalog, made of what stands in Redis. Pure."""

from __future__ import annotations

import difflib
from functools import lru_cache

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from streamlease.protocol.errors import InvalidInput, Unsupported
from streamlease.streams.spaces.definitions import parse_definition


class CatalogItem(BaseModel):
    """One item. It is equal to another one that says the same."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    __slots__ = ("_hash",)

    def __hash__(self) -> int:
        """As of its values, and computed once: each follower counts each item."""
        try:
            found: int = object.__getattribute__(self, "_hash")
        except AttributeError:
            found = hash((type(self).__name__, *self.__dict__.values()))
            object.__setattr__(self, "_hash", found)
        return found


class SpaceItem(CatalogItem):
    """A topic space."""

    space: str
    topics: tuple[str, ...]
    streams: int
    """Of its newest generation."""
    generation: int
    durability: str
    epochs: int
    """Of how many dimensions they are; 0: none."""
    collection: bool
    ended: bool


class TopicItem(CatalogItem):
    """A topic that somebody published to since its space was made; 10,000 of each space."""

    space: str
    topic: str


class HostItem(CatalogItem):
    """A leader host that is alive."""

    host: str
    name: str = ""
    pid: int = 0
    leaders: int = 0
    drained: bool = False


class LeaderItem(CatalogItem):
    """A declared group, and who leads it."""

    subscription: str
    host: str | None
    """None: nobody does now."""
    term: int


class LeaseItem(CatalogItem):
    """A stream of a group that somebody holds."""

    subscription: str
    stream: str
    borrower: str
    lease_epoch: int


class MadeItem(CatalogItem):
    """What a process made; it leaves with the process."""

    process: str
    host: str
    pid: int


class PublicationItem(MadeItem):
    """A topic to which a process publishes."""

    topic: str
    space: str
    query: str | None = None


class SubscriptionItem(MadeItem):
    """A filter that a process reads."""

    filter: str
    group: str | None = None
    query: str | None = None


class BorrowerItem(MadeItem):
    """A consumer of a group."""

    subscription: str
    borrower: str
    name: str | None = None
    query: str | None = None
    query_name: str | None = None
    """What its author calls the Spark query that it is of (option ``queryName``)."""


class ServiceItem(MadeItem):
    """A server of a service."""

    service: str
    server: str
    types: tuple[tuple[str, str], ...] = ()
    """The requests that it takes: name and fingerprint."""


class ExecutorItem(MadeItem):
    """A process that runs submitted programs."""

    executor: str
    slots: int
    busy: int = 0
    labels: tuple[tuple[str, str], ...] = ()
    ports: tuple[int, int] | None = None
    strange: tuple[int, ...] = ()
    """Ports of these that programs of others have."""
    address: str = ""
    """Where its workers' ports are reached."""


class QueryWorker(CatalogItem):
    """A worker of a query."""

    worker: int
    executor: str
    host: str
    port: int | None
    pid: int | None
    exit: int | None

    def __str__(self) -> str:
        return f"{self.worker}@{self.executor}"


class QueryItem(CatalogItem):
    """A submitted program; those that ended stay for some days."""

    query: str
    name: str
    state: str
    outcome: str | None
    reason: str
    who: str
    restart: bool
    former: str | None
    next: str | None
    workers: tuple[QueryWorker, ...] = ()


ITEMS: dict[str, type[CatalogItem]] = {
    "spaces": SpaceItem,
    "topics": TopicItem,
    "publications": PublicationItem,
    "subscriptions": SubscriptionItem,
    "executors": ExecutorItem,
    "queries": QueryItem,
    "services": ServiceItem,
    "hosts": HostItem,
    "leaders": LeaderItem,
    "borrowers": BorrowerItem,
    "leases": LeaseItem,
}
"""By the name of the collection."""


COUNTED: dict[type[CatalogItem], type[CatalogItem]] = {
    kind: create_model(f"Counted{kind.__name__}", __base__=kind, count=int) for kind in ITEMS.values()
}
"""Each kind of item with its count, which is 1: an item of the catalog is one thing."""


def check_collection(name: str) -> str:
    """The name, if the catalog has such a collection.

    Raises:
        InvalidInput: it has not.
    """
    if not isinstance(name, str) or name not in ITEMS:
        near = difflib.get_close_matches(str(name).lower(), ITEMS, 1, 0.6)
        meant = f"did you mean {near[0]}? " if near else ""
        raise InvalidInput(
            f"the catalog has no collection {ascii(name)[:80]}: {meant}it has {', '.join(ITEMS)}"
        )
    return name


@lru_cache(maxsize=8192)
def item_of(collection: str, key: str, text: str) -> CatalogItem:
    """The item that stands in Redis as `text`. Followers of one process share it.

    Raises:
        Unsupported: it is damaged.
    """
    try:
        if collection == "spaces":
            return _space(key, text)
        return ITEMS[collection].model_validate_json(text)
    except ValidationError as error:
        if collection == "hosts":  # it lives, whatever it says of itself
            return HostItem(host=key)
        why = "; ".join(
            f"{'.'.join(map(str, one['loc']))}: {one['msg']}".lstrip(": ") for one in error.errors()
        )
    except Unsupported as error:
        why = str(error)
    raise Unsupported(f"item {ascii(key)[:80]} of {collection} cannot be read: {why}")


def _space(name: str, text: str) -> SpaceItem:
    space = parse_definition(name, text.encode())
    return SpaceItem(
        space=space.name,
        topics=space.topics,
        streams=space.newest.streams,
        generation=space.newest.number,
        durability=space.durability,
        epochs=space.epochs,
        collection=space.collection,
        ended=space.ended,
    )
