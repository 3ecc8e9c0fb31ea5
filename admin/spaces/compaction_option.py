"""The option of ``streamlease space create|alter`` that says when small entries are merged."""

from __future__ import annotations

from typing import Annotated

import typer

from streamlease.protocol.quantities import parse_duration

CompactAfter = Annotated[
    str | None,
    typer.Option(
        "--compact-after",
        metavar="AGE",
        help="Merge small entries into large ones when they are this old, such as 1m; 'off' leaves them as "
        "they are, which is the default.",
    ),
]


def parse_compact_after(text: str | None) -> int | None:
    """The age in milliseconds; None if nothing is to be merged, or no age is given.

    Raises:
        InvalidOption: it is no duration.
    """
    return None if text in (None, "off") else parse_duration("--compact-after", text)
