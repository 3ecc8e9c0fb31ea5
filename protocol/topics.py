"""Topic names, topic filters and shared subscriptions, by the grammar of MQTT 5, section 4.7.

A topic is a path of levels split by ``/``. A filter may use ``+`` for exactly one level and ``#``, as the
last level only, for the parent and everything below it. A filter that begins with a wildcard never
matches a topic that begins with ``$``. A shared subscription is ``$shared/GROUP/FILTER`` or
``$queue/GROUP/FILTER``; the pair (GROUP, FILTER) is what has a leader (EIP-0028).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from streamlease.protocol.errors import InvalidTopic

MAX_BYTES = 65_535
"""Longest topic or filter, in bytes of UTF-8 (MQTT 5, section 1.5.4)."""

SHARED_PREFIXES = ("$shared", "$queue")
CATALOG_TOPICS = "$catalog/"
"""Before the name of a collection, it is the topic under which messages and Spark have it."""


def _shown(text: str) -> str:
    """`text` as it may stand in a one-line error message."""
    printable = text.encode("unicode_escape").decode("ascii")
    return printable if len(printable) <= 80 else f"{printable[:60]}... ({len(text)} characters)"


def _check_text(what: str, text: str | bytes) -> str:
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8")
        except UnicodeDecodeError:
            raise InvalidTopic(
                f"{what} {text[:60]!r} is not valid UTF-8: encode it as UTF-8 before passing it"
            ) from None
    if not isinstance(text, str):
        raise InvalidTopic(f"{what} {text!r} is a {type(text).__name__}: pass a string")
    if not text:
        raise InvalidTopic(f"{what} is empty: give at least one character")
    if "\0" in text:
        raise InvalidTopic(f"{what} '{_shown(text)}' contains a NUL character: remove it")
    try:
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError:
        raise InvalidTopic(
            f"{what} '{_shown(text)}' cannot be encoded as UTF-8 (lone surrogate): remove that character"
        ) from None
    if size > MAX_BYTES:
        raise InvalidTopic(f"{what} '{_shown(text)}' has {size} bytes: at most {MAX_BYTES} are allowed")
    return text


def check_topic(topic: str | bytes) -> str:
    """The topic name as a string, if it is one that a message can be published to.

    Raises:
        InvalidTopic: empty, not UTF-8, too long, with NUL, or with a wildcard.
    """
    text = _check_text("topic", topic)
    if "+" in text or "#" in text:
        raise InvalidTopic(
            f"topic '{_shown(text)}' contains a wildcard: '+' and '#' belong into filters, not into topics"
        )
    return text


def check_filter(filter: str | bytes) -> str:
    """The topic filter as a string, if it obeys the grammar.

    Raises:
        InvalidTopic: empty, not UTF-8, too long, with NUL, or with a misplaced wildcard.
    """
    return _check_levels(_check_text("filter", filter))


def is_of_catalog(filter: str) -> bool:
    """Whether a filter is of the catalog, not of messages that anybody published."""
    return filter.startswith(CATALOG_TOPICS)


@lru_cache(maxsize=4096)
def _check_levels(text: str) -> str:
    levels = text.split("/")
    for position, level in enumerate(levels):
        if "#" in level and (level != "#" or position != len(levels) - 1):
            raise InvalidTopic(
                f"filter '{_shown(text)}' has '#' where it may not stand: "
                f"use it alone, as the last level, such as 'flights/#'"
            )
        if "+" in level and level != "+":
            raise InvalidTopic(
                f"filter '{_shown(text)}' has '+' inside a level: "
                f"use it as a whole level, such as 'flights/+/LAX'"
            )
    return text


@lru_cache(maxsize=4096)
def begin_of(filter: str) -> str | None:
    """How all topics begin that a filter such as ``a/b/#`` selects, but for ``a/b``; None for others."""
    return filter[:-1] if filter.endswith("/#") and "+" not in filter else None


def matches(filter: str, topic: str) -> bool:
    """Whether `topic` is selected by `filter`; both already checked."""
    if topic.startswith("$") and filter[0] in "+#":
        return False
    if filter == "#":
        return True
    begin = begin_of(filter)
    if begin is not None:  # as most are: all below a topic, and itself
        return topic.startswith(begin) or topic == begin[:-1]
    wanted = filter.split("/")
    have = topic.split("/")
    for position, level in enumerate(wanted):
        if level == "#":
            return True
        if position >= len(have) or level not in ("+", have[position]):
            return False
    return len(wanted) == len(have)


def intersect(first: str, second: str) -> bool:
    """Whether some topic is matched by both filters; both already checked."""
    for one, other in ((first, second), (second, first)):
        if one[0] in "+#" and other.startswith("$"):
            return False
    if {first, second} == {"/#", "+"}:
        return False  # both match the empty text, and only that, which is no topic
    left, right = first.split("/"), second.split("/")
    for a, b in zip(left, right, strict=False):
        if a == "#" or b == "#":
            return True
        if a != b and "+" not in (a, b):
            return False
    if len(left) == len(right):
        return True
    longer, length = (left, len(right)) if len(left) > len(right) else (right, len(left))
    return longer[length:] == ["#"]


@dataclass(frozen=True, slots=True)
class SharedSubscription:
    """One ``$shared/GROUP/FILTER``; has one leader at a time.

    ``$queue`` differs only in its life: it is declared explicitly and outlives its consumers.
    """

    group: str
    filter: str
    kind: Literal["$shared", "$queue"] = "$shared"

    def __str__(self) -> str:
        return f"{self.kind}/{self.group}/{self.filter}"

    @property
    def id(self) -> str:
        """The identity of its leader: ``GROUP/FILTER``. A group name holds no ``/``, so it is unambiguous."""
        return f"{self.group}/{self.filter}"

    @classmethod
    def of(cls, given: SharedSubscription | str | bytes) -> SharedSubscription:
        """What `given` is, or says; raises as `parse`."""
        return given if isinstance(given, SharedSubscription) else cls.parse(given)

    @classmethod
    def parse(cls, text: str | bytes) -> SharedSubscription:
        """Read ``$shared/GROUP/FILTER`` or ``$queue/GROUP/FILTER``.

        Raises:
            InvalidTopic: another prefix, an empty or wildcard group, no filter, or a malformed filter.
        """
        name = _check_text("shared subscription", text)
        prefix, _, rest = name.partition("/")
        if prefix not in SHARED_PREFIXES:
            raise InvalidTopic(
                f"'{_shown(name)}' is not a shared subscription: write '$shared/GROUP/FILTER', "
                f"such as '$shared/analytics/flights/#'"
            )
        group, slash, filter = rest.partition("/")
        if not group:
            raise InvalidTopic(
                f"shared subscription '{_shown(name)}' has an empty group: write '{prefix}/GROUP/FILTER'"
            )
        if "+" in group or "#" in group:
            raise InvalidTopic(
                f"shared subscription '{_shown(name)}' has a wildcard in its group: name one group"
            )
        if not slash or not filter:
            raise InvalidTopic(
                f"shared subscription '{_shown(name)}' has no filter: "
                f"write '{prefix}/{_shown(group)}/FILTER', "
                f"such as '{prefix}/{_shown(group)}/#'"
            )
        kind: Literal["$shared", "$queue"] = "$shared" if prefix == "$shared" else "$queue"
        return cls(group, check_filter(filter), kind)
