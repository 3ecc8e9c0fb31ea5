"""Views: read once and printed, or with ``--watch`` again and again until Ctrl-C.

A view is a document, such as a row of ``admin.facts``, and a way to draw it for people. With ``--watch``, a
terminal is cleared before each picture, other outputs get an empty line between two pictures, and ``--json``
prints one document per line. If Redis does not answer later on, that is reported on standard error (with
``--json`` also as a document), and the next look comes in its time; only the first look must succeed.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from streamlease.admin.common_options import check_seconds
from streamlease.admin.output import Document, document, line, note
from streamlease.admin.running import with_client
from streamlease.protocol.errors import StreamleaseError

if TYPE_CHECKING:
    from streamlease.agent.client import Client

Seen = TypeVar("Seen", bound=Document)

Watch = Annotated[
    float | None,
    typer.Option("--watch", metavar="SECONDS", help="Repeat every this many seconds until Ctrl-C."),
]
CLEAR = "\x1b[H\x1b[2J\x1b[3J"
"""Cursor home, screen and scrolled lines away."""


def view(
    redis: str | None,
    look: Callable[[Client], Awaitable[Seen]],
    draw: Callable[[Seen], None],
    *,
    as_json: bool,
    watch: float | None,
) -> None:
    """Show what `look` reads, once or every `watch` seconds.

    Raises:
        InvalidOption: `watch` is no time.
        StreamleaseError: as `look`; of later looks only what is not retriable.
    """
    check_seconds("--watch", watch)
    show: Callable[[Seen], None] = document if as_json else draw

    async def work(client: Client) -> None:
        show_first = await look(client)
        _picture(show, show_first, first=True, clear=watch is not None and not as_json)
        while watch is not None:
            await asyncio.sleep(watch)
            try:
                seen = await look(client)
            except StreamleaseError as error:
                if not error.retriable:
                    raise
                _problem(error, as_json)
            else:
                _picture(show, seen, first=False, clear=not as_json)

    with_client(redis, work)


def _picture(show: Callable[[Seen], None], seen: Seen, *, first: bool, clear: bool) -> None:
    if clear and sys.stdout.isatty():
        sys.stdout.write(CLEAR)
    elif clear and not first:
        line("")
    show(seen)


def _problem(error: StreamleaseError, as_json: bool) -> None:
    text = " ".join(str(error).split())
    if as_json:
        from streamlease.admin.answers import Error

        document(Error.of(error, text))
    note(f"error: {text}")
