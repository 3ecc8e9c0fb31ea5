"""Messages and epochs as ``streamlease consume`` prints them, one line each."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING

from streamlease.admin.output import printable
from streamlease.protocol.plain_values import iso, plain

if TYPE_CHECKING:
    from streamlease.admin.answers import Base64
    from streamlease.admin.facts.rows import FactRow
    from streamlease.agent.epochs.epoch_items import Aborted, Frontier, Snapshot
    from streamlease.protocol.epochs.order import Epoch
    from streamlease.streams.entries.delivered import Message


def json_line(message: Message, publisher: str | None = None, incarnation: int | None = None) -> str:
    """One message as a JSON document.

    Args:
        publisher, incarnation: who staged it, where that is known.
    """
    from streamlease.admin import answers

    shown = answers.Message(
        topic=message.topic,
        key=None if message.key is None else value_of(message.key),
        payload=value_of(message.payload) if message.values is None else None,
        stream=message.stream,
        offset=message.offset if message.offset >= 0 else None,
        timestamp=iso(message.timestamp),
        headers=[(name, value_of(value)) for name, value in message.headers],
        epoch=None if message.epoch is None else list(message.epoch),
        values=None if message.values is None else plain(message.values),
        publisher=publisher,
        incarnation=incarnation,
    )
    return shown.as_line() + "\n"


def value_of(data: bytes) -> str | Base64:
    try:
        return data.decode()
    except UnicodeDecodeError:
        from streamlease.admin import answers

        return answers.Base64(base64.b64encode(data).decode())


def text_line(message: Message) -> str:
    """One message for people: its topic and its payload."""
    if message.values is not None:
        values = json.dumps(plain(message.values), ensure_ascii=False)
        return f"{printable(message.topic)}\t{printable(values)}\n"
    value = value_of(message.payload)
    text = value if isinstance(value, str) else f"base64:{value.base64}"
    return f"{printable(message.topic)}\t{printable(text)}\n"


def epoch_json_line(item: Snapshot | Frontier | Aborted) -> str:
    """What is told of epochs, as a JSON document."""
    from streamlease.admin import answers
    from streamlease.agent.epochs.epoch_items import Frontier, Snapshot

    shown: FactRow
    if isinstance(item, Snapshot):
        shown = answers.EpochsBegun(lower=_lists(item.lower), upper=_lists(item.upper))
    elif isinstance(item, Frontier):
        shown = answers.FrontierMoved(frontier=_lists(item.lower))
    else:
        open_epochs = answers.AbortedOpen(
            publisher=item.publisher, incarnation=item.incarnation, epochs=_lists(item.epochs)
        )
        shown = answers.EpochsAborted(aborted=open_epochs)
    return json.dumps(shown.as_json()) + "\n"


def epoch_text_line(item: Snapshot | Frontier | Aborted) -> str:
    """The same for people; no topic begins with this character."""
    from streamlease.agent.epochs.epoch_items import Frontier, Snapshot

    if isinstance(item, Snapshot):
        return f"# from {_epochs(item.lower)}; begun before: up to {_epochs(item.upper)}\n"
    if isinstance(item, Frontier):
        return f"# frontier {_epochs(item.lower)}\n"
    who = f"{item.publisher}, incarnation {item.incarnation}"
    return f"# aborted: {who}, from {_epochs(item.epochs)}\n"


def _lists(frontier: Iterable[Epoch]) -> list[list[int]]:
    return [[*epoch] for epoch in frontier]


def _epochs(frontier: Iterable[Epoch]) -> str:
    return " ".join(",".join(map(str, epoch)) for epoch in frontier) or "nothing"
