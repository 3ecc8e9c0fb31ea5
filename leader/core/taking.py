"""How many streams plans may take from their owners because of their weights, and every legal change of that.

::

    as many as needed --> at rest --> up to so many
            ^                ^             |  |
            |                +-------------+  |
            +---------------------------------+   from anywhere: somebody came or went, or something was set
"""

from __future__ import annotations

from enum import Enum


class Taking(Enum):
    """How many streams plans may take from their owners because of their weights."""

    AS_MANY_AS_NEEDED = "as many as needed"
    """Somebody came or went, or something was set."""
    UP_TO_SO_MANY = "up to so many"
    """Weights alone asked for plans: these move a few streams together."""
    AT_REST = "at rest"
    """None. Nothing is to be moved, or weights have moved what they may for now."""


class TakingEvent(Enum):
    """What changes how many streams plans may take."""

    NEEDED = "needed"
    WEIGHTS_DUE = "weights_due"
    SETTLED = "settled"
    """A plan took nothing, and had nothing to wait for."""
    USED_UP = "used_up"


_T, _W = Taking, TakingEvent

TAKING_TRANSITIONS: dict[tuple[Taking, TakingEvent], Taking] = {
    (_T.AS_MANY_AS_NEEDED, _W.NEEDED): _T.AS_MANY_AS_NEEDED,
    (_T.AS_MANY_AS_NEEDED, _W.SETTLED): _T.AT_REST,
    (_T.UP_TO_SO_MANY, _W.NEEDED): _T.AS_MANY_AS_NEEDED,
    (_T.UP_TO_SO_MANY, _W.SETTLED): _T.AT_REST,
    (_T.UP_TO_SO_MANY, _W.USED_UP): _T.AT_REST,
    (_T.AT_REST, _W.NEEDED): _T.AS_MANY_AS_NEEDED,
    (_T.AT_REST, _W.WEIGHTS_DUE): _T.UP_TO_SO_MANY,
    (_T.AT_REST, _W.SETTLED): _T.AT_REST,
}
"""All legal changes; every other pair changes nothing: weights wait while more is needed."""
