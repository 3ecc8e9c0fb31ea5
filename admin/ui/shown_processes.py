"""Who publishes, consumes and serves: the catalog's items of processes, by process."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from streamlease.admin.ui.board_rows import ProcessOnPage
from streamlease.catalog.items import (
    BorrowerItem,
    CatalogItem,
    MadeItem,
    PublicationItem,
    ServiceItem,
    SubscriptionItem,
)

if TYPE_CHECKING:
    from streamlease.agent.client import Client

COLLECTIONS = ("publications", "subscriptions", "borrowers", "services")


async def items(client: Client, collection: str) -> list[CatalogItem]:
    """What there is of a collection now.

    Raises:
        InvalidInput: the catalog has no such collection.
        Unsupported: something is damaged.
        StoreUnavailable, StoreRefused.
    """
    async with client.catalog(collection) as found:
        return [*found.items]


async def read_processes(client: Client) -> list[ProcessOnPage]:
    """The processes that are alive.

    Raises:
        Unsupported, StoreUnavailable, StoreRefused.
    """
    found = await asyncio.gather(*(items(client, one) for one in COLLECTIONS))
    return by_process([one for some in found for one in some])


def by_process(made: list[CatalogItem]) -> list[ProcessOnPage]:
    """What each process has; pure."""
    seen: dict[str, dict[str, Any]] = {}
    for one in made:
        if not isinstance(one, MadeItem):
            continue
        process = seen.setdefault(
            one.process,
            {
                "host": one.host, "pid": one.pid, "query": None, "query_names": set(),
                "publishes": defaultdict(int), "consumes": defaultdict(int), "reads": set(), "serves": set(),
            },
        )  # fmt: skip
        match one:
            case PublicationItem():
                process["publishes"][one.space] += 1
            case SubscriptionItem():
                if one.group is None:
                    process["reads"].add(one.filter)
            case BorrowerItem():
                process["consumes"][one.subscription] += 1
                process["query_names"] |= {one.query_name} if one.query_name else set()
            case ServiceItem():
                process["serves"].add(one.service)
            case _:
                continue
        process["query"] = getattr(one, "query", None) or process["query"]
    rows = [
        ProcessOnPage(
            process=name,
            host=one["host"],
            pid=one["pid"],
            query=one["query"],
            query_names=sorted(one["query_names"]),
            publishes=dict(one["publishes"]),
            consumes=dict(one["consumes"]),
            reads=sorted(one["reads"]),
            serves=sorted(one["serves"]),
        )
        for name, one in seen.items()
    ]
    return sorted(rows, key=lambda row: (row.host, row.pid, row.process))
