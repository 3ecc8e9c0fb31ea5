"""``streamlease top``: groups by lag, and the streams of one, live in a terminal."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from streamlease.admin.common_options import RedisUrl, check_seconds
from streamlease.admin.facts.fact_tables import GROUPS_IN_TOP, STREAMS_LIVE, FactTable
from streamlease.admin.output import printable, shown
from streamlease.admin.running import with_client
from streamlease.protocol.errors import UnknownGroup
from streamlease.protocol.topics import SharedSubscription

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from streamlease.admin.ui.board import Board
    from streamlease.admin.ui.board_rows import GroupOnPage
    from streamlease.agent.client import Client

FIRST_SECONDS = 10.0
"""How long the first look may take where the output is no terminal."""


def top(
    subscription: Annotated[
        str | None,
        typer.Argument(metavar="[SUB]", help="A group whose streams to show. Default: all groups."),
    ] = None,
    interval: Annotated[float, typer.Option(help="Seconds between updates.")] = 1.0,
    redis: RedisUrl = None,
) -> None:
    """Show groups by lag, or the streams of one group, live until Ctrl-C.

    If the output is not a terminal, print them once.
    """
    shared = None if subscription is None else SharedSubscription.parse(subscription)
    check_seconds("--interval", interval)

    async def work(client: Client) -> None:
        if shared is not None:
            await client.groups.get(shared)  # an unknown one is an error at once
        await _follow(client, None if shared is None else str(shared), interval)

    with_client(redis, work)


async def _follow(client: Client, subscription: str | None, interval: float) -> None:
    from rich.console import Console
    from rich.live import Live

    from streamlease.admin.ui.board import Board
    from streamlease.streams.tasks import Supervisor

    board = Board(client, interval)
    supervisor = Supervisor("top", board.fail)
    supervisor.start("the reader", board.run(), endless=True)
    try:
        if not sys.stdout.isatty():
            async with asyncio.timeout(FIRST_SECONDS):
                await board.after(0)
            Console(width=200, highlight=False).print(view(board, subscription, None))
            return
        number = 0
        with Live(console=Console(highlight=False), screen=True, auto_refresh=False) as live:
            while True:
                number = await board.after(number)
                live.update(view(board, subscription, live.console.height), refresh=True)
    finally:
        await supervisor.close()


def view(board: Board, subscription: str | None, height: int | None) -> RenderableType:
    """One picture.

    Args:
        height: lines that there are; None: as many as it takes.

    Raises:
        UnknownGroup: `subscription` is gone.
    """
    from rich.console import Group
    from rich.text import Text

    if board.error is not None:
        return Text(f"cannot read: {board.error}")
    assert board.overview is not None, "a look without an error has read something"
    server = board.overview.redis
    head = Text(
        f"{server.name} {server.version} at {server.address}, {server.memory} used; "
        f"{len(board.overview.hosts)} leader hosts; a look took {board.took * 1000:.0f} ms"
    )
    room = None if height is None else max(1, height - 6)
    if subscription is None:
        return Group(head, _groups(board.overview.groups, room))
    return Group(head, _streams(board, subscription, room))


def _groups(groups: list[GroupOnPage], room: int | None) -> Table:
    return _table(GROUPS_IN_TOP, sorted(groups, key=lambda one: _by_lag(one.lag)), room)


def _streams(board: Board, subscription: str, room: int | None) -> Table:
    found = board.groups.get(subscription)
    if found is None:
        raise UnknownGroup(f"group '{subscription}' was deleted")
    return _table(STREAMS_LIVE, sorted(found.rows.values(), key=lambda row: _by_lag(row.lag)), room)


def _by_lag(lag: int | None) -> tuple[int, int]:
    """What is unknown first, then the largest."""
    return (0, 0) if lag is None else (1, -lag)


def _table(columns: FactTable, rows: Sequence[Any], room: int | None) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    shown_columns, cells = columns.cells(rows[:room])
    for column in shown_columns:
        justify: Literal["right", "left"] = "right" if column.at_right else "left"
        table.add_column(column.heading.upper(), justify=justify, overflow="fold")
    for row in cells:
        table.add_row(*(printable(shown(cell)) for cell in row))
    if room is not None and len(rows) > room:
        table.caption = f"{room} of {len(rows)} shown, those with the largest lag"
    return table
