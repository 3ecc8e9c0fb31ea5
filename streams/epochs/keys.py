"""Names of the keys of a space with epochs.

What belongs to one stream shares the stream's hash tag, so that one script moves what is staged into it;
what belongs to the space as a whole shares another one. The table is in decision 268.
"""

from __future__ import annotations

from functools import lru_cache

from streamlease.protocol.epochs.order import Epoch
from streamlease.protocol.ids import StreamId
from streamlease.streams.entries.epoch_fields import epoch_text
from streamlease.streams.log.keys import epochs_part, staged_part, stream_meta

MOVER = "!epochs"
"""Under this publisher id a stream remembers the last boundary that was moved into it; no name begins so."""


def staged_meta(stream: StreamId) -> str:
    """The hash with next offset and state of the staged log."""
    return staged_part(stream, "meta")


def staged_publishers(stream: StreamId) -> str:
    """The hash with the last append of each publisher to the staged log."""
    return staged_part(stream, "pubs")


def staged_log(stream: StreamId) -> str:
    """The Redis stream with what is staged."""
    return staged_part(stream, "log")


def staged_news(stream: StreamId) -> str:
    """The channel on which what was staged is announced."""
    return staged_part(stream, "news")


def staged_epochs(stream: StreamId) -> str:
    """The hash ``EPOCH NAME INCARNATION`` -> messages that are staged."""
    return staged_part(stream, "epochs")


@lru_cache(maxsize=32_768)
def stage_keys(stream: StreamId) -> tuple[str, str, str, str, str]:
    """The keys that a staged append needs: of its stream the meta, and what there is of its staged log."""
    return (
        stream_meta(stream),
        staged_meta(stream),
        staged_publishers(stream),
        staged_log(stream),
        staged_epochs(stream),
    )


def writer_text(name: str, inc: int) -> str:
    """Who staged something: the field ``w`` of a staged entry. `inc` is the incarnation of the lines."""
    return f"{name} {inc}"


def staged_field(epoch: Epoch, name: str, inc: int) -> str:
    """The field of `staged_epochs`."""
    return f"{epoch_text(epoch)} {writer_text(name, inc)}"


def parse_staged_field(field: bytes) -> tuple[Epoch, str, int]:
    """Epoch, name and incarnation of a field of `staged_epochs`."""
    epoch, name, inc = field.decode().split(" ")
    return tuple(map(int, epoch.split(","))), name, int(inc)


def lines(space: str) -> str:
    """The Redis stream with the lines of a space."""
    return epochs_part(space, "lines")


def writers(space: str) -> str:
    """The hash with the newest line of each publisher."""
    return epochs_part(space, "writers")


def state(space: str) -> str:
    """The hash with the keeper's term, the newest boundary, the pending one, and a snapshot."""
    return epochs_part(space, "state")


def ends(space: str) -> str:
    """The hash with the ends of the streams at the newest boundary."""
    return epochs_part(space, "ends")


def base(space: str) -> str:
    """The hash with the ends of the streams at the last boundary that was forgotten."""
    return epochs_part(space, "base")


def bounds(space: str) -> str:
    """The Redis stream with the boundaries of a space."""
    return epochs_part(space, "bounds")


def news(space: str) -> str:
    """The channel on which lines and boundaries are announced: ``line N``, ``boundary N``."""
    return epochs_part(space, "news")
