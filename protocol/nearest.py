"""The names that somebody may have meant. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str:
    """The names of `known` that are most like `word`, for the end of an error: ``nearest: a, b``.

    If none is like it: how many there are, and one of them.
    """
    names = sorted(set(known))
    like = difflib.get_close_matches(word, names, n=3, cutoff=0.4)
    if like:
        return f"nearest: {', '.join(like)}"
    return f"there are {len(names)}, such as {names[0]}" if names else "there are none"
