"""Options that every command has, and how their values are understood."""

from __future__ import annotations

import getpass
import os
import socket
from typing import Annotated

import typer

from streamlease.protocol.errors import InvalidOption

RedisUrl = Annotated[
    str | None,
    typer.Option(
        "--redis",
        metavar="URL",
        help="The Redis to use. Default: $STREAMLEASE_REDIS_URL, else the embedded Redis if it runs, "
        "else redis://127.0.0.1:6379.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]


def chosen_url(url: str | None) -> str:
    """The Redis to use: `url`, the environment's, that of a running embedded one, or the local default.

    Raises:
        InvalidOption: `url` is empty, or no text.
    """
    from streamlease.streams.redis.urls import redis_url

    return redis_url(url)


def operator() -> str:
    """Who acts, as kept in the history of a group: ``user@host``."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container may run under a number without a name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


def check_seconds(name: str, value: float | None) -> float | None:
    """`value` as a time that can be waited for.

    Raises:
        InvalidOption: it is not above 0, or not a number.
    """
    if value is not None and not 0 < value <= 366 * 86_400:
        raise InvalidOption(f"{name} is {value}: give seconds above 0, such as {name} 10")
    return value
