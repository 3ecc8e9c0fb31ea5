"""A publication from a file or a pipe: how records become messages, and how far it has come."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamlease.admin.messages.sources import Form, Record, lookup
from streamlease.protocol.errors import InvalidInput, SchemaMismatch
from streamlease.protocol.topics import check_topic

if TYPE_CHECKING:
    from streamlease.admin.messages.diff_options import RecordDiffs
    from streamlease.agent.client import Client
    from streamlease.streams.entries.schemas import Schema
    from streamlease.streams.publish.receipts import Receipt

PLACEHOLDER = re.compile(r"\{([^{}]+)\}")
MOST_TOPICS = 100_000
"""How many topics are remembered with the schema of their space."""

TopicOf = Callable[[Record], str]


@dataclass(slots=True)
class PublicationProgress:
    """How far a publication is."""

    submitted: int = 0
    published: int = 0
    skipped: int = 0
    failed: int = 0
    bytes: int = 0

    def settled(self, receipt: Receipt) -> None:
        """One message was written, or was not."""
        if receipt.exception() is not None:
            self.failed += 1
        else:
            self.published += 1


@dataclass(frozen=True, slots=True)
class PublicationPlan:
    """What is to be published, and how its records become messages."""

    topic: str
    file: Path | None
    form: Form
    key: str | None
    topic_of: TopicOf | None
    key_of: Callable[[Record], str | None] | None
    options: dict[str, Any]
    diffs: RecordDiffs | None = None
    """Where those of the records come from; None: they have none."""

    @property
    def filter(self) -> str:
        """Selects all topics to which records may go."""
        return self.topic if self.topic_of is None else PLACEHOLDER.sub("+", self.topic)

    def place(self, record: Record) -> tuple[str, str | None]:
        """Topic and key of a record."""
        return (
            self.topic if self.topic_of is None else self.topic_of(record),
            None if self.key_of is None else self.key_of(record),
        )


def topic_of_records(topic: str, form: Form) -> TopicOf | None:
    """How each record gives its topic; None if all have the same.

    Raises:
        InvalidTopic: the topic is malformed.
    """
    names = PLACEHOLDER.findall(topic) if form is not Form.LINES else []
    check_topic(topic)
    if not names:
        return None
    lookups = {name: lookup(name) for name in names}

    def topic_of(record: Record) -> str:
        values: dict[str, str] = {}
        for name, get in lookups.items():
            value = get(record)
            if not value or any(char in value for char in "/+#\0"):
                raise InvalidInput(
                    f"field {ascii(name)[:80]} of {record.where} is {ascii(value)[:80]}: "
                    f"a level of a topic is a text without '/', '+' and '#'"
                )
            values[name] = value
        return PLACEHOLDER.sub(lambda found: values[found.group(1)], topic)

    return topic_of


class Contents:
    """What is sent for each record: in a space with a schema, the values by column.

    Args:
        beside: a field that says something about the record; it is no column unless the schema has it.
    """

    def __init__(self, client: Client, plan: PublicationPlan, beside: str | None = None) -> None:
        self._spaces = client.spaces
        self._plan = plan
        self._beside = beside
        self._schemas: dict[str, Schema | None] = {}

    async def of(self, record: Record) -> tuple[str, bytes | dict[str, Any], str | None]:
        """Topic, content and key of the message.

        Raises:
            SchemaMismatch, InvalidInput: the record is not of the schema, or gives no topic.
            UnknownSpace, StoreUnavailable, StoreRefused.
        """
        from streamlease.streams.entries.values import check_values

        topic, key = self._plan.place(record)
        if topic not in self._schemas:
            if len(self._schemas) >= MOST_TOPICS:
                self._schemas.clear()
            self._schemas[topic] = (await self._spaces.for_topic(topic)).newest_schema
        schema = self._schemas[topic]
        if schema is None:
            return topic, record.payload, key
        values = record.values_by_column
        if self._beside is not None and schema.named(self._beside) is None:
            values = {name: value for name, value in values.items() if name != self._beside}
        try:
            return topic, check_values(schema, values, text=True), key
        except SchemaMismatch as error:
            raise SchemaMismatch(f"{record.where}: {error}") from None
