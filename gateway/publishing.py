"""Publishing over HTTP: what a body says, handed to the gateway's publisher, which gathers what comes
together.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, assert_never
from urllib.parse import unquote

from streamlease.gateway.core.accepting import media_type
from streamlease.gateway.core.bodies import (
    STRUCTURED,
    MessageColumns,
    MessageTable,
    Parsed,
    SingleMessage,
    parse_body,
)
from streamlease.gateway.core.rates import GatewayLimits
from streamlease.gateway.core.refusals import BodyTooLarge
from streamlease.gateway.http_calls import HttpCall
from streamlease.gateway.traces import context_headers, with_context
from streamlease.protocol.ids import StreamId
from streamlease.protocol.plain_values import iso
from streamlease.protocol.topics import check_topic
from streamlease.streams.publish.kept_answers import MOST_BYTES, KeptAnswers, Taken

if TYPE_CHECKING:
    from streamlease.agent.client import Client
    from streamlease.streams.publish.publisher import PlacedRange, Publisher
    from streamlease.streams.spaces.spaces import Space

TOPICS = "/v1/topics/"
NOT_PLAIN = frozenset((b"streamlease-key", b"idempotency-key", b"ce-specversion", b"traceparent"))
"""Headers that say more of a message than its payload does."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class PublishedMessages(NamedTuple):
    """Where messages stand."""

    messages: int | None
    """None: it was one, not a batch."""
    stream: str
    offset: int
    timestamp: int
    """Of the last one."""

    @property
    def json(self) -> bytes:
        """As the client gets it."""
        last = _shown_place(self.stream, self.offset, self.timestamp)
        return last if self.messages is None else b'{"messages":%d,"last":%b}' % (self.messages, last)


class PublishHandler:
    """Answers requests to publish.

    Args:
        limits: how long a body may be, and how long one with a key is tried.
        clock: seconds since 1970.
    """

    _publisher: Publisher
    _carrying: bool

    def __init__(self, client: Client, limits: GatewayLimits, clock: Callable[[], float] = time.time) -> None:
        self._client = client
        self._answers = KeptAnswers(
            client.redis, client.spaces, limits.keyed_seconds, client.shown.publication
        )
        self._body_bytes = limits.body_bytes
        self._clock = clock

    def begin(self, publisher: Publisher, *, carrying: bool) -> None:
        """From now on there are requests.

        Args:
            carrying: messages get the context of the trace as the request has it; otherwise the publisher
                gives them that of a span in between.
        """
        self._publisher = publisher
        self._carrying = carrying

    async def publish(self, call: HttpCall) -> None:
        """``POST /v1/topics/{topic}``."""
        topic = _topic(call.below(TOPICS))
        call.rights.check_publish(topic)
        body = await call.body(self._body_bytes)
        headers, now = call.headers, int(self._clock() * 1_000_000)
        if _is_plain(headers.get(b"content-type")) and headers.keys().isdisjoint(NOT_PLAIN):
            stream, offset = await self._publisher.send(topic, body, timestamp=now)
            answer = _shown_place(stream, offset, now)
        else:
            parsed = self._parsed(call, body, now)
            key = call.header(b"idempotency-key")
            if key is None:
                answer = (await self._write(self._publisher, topic, parsed)).json
            else:
                answer = await self._once(call, key, topic, body, parsed, now)
        await call.answer(201, answer, b"application/json")

    def _parsed(self, call: HttpCall, body: bytes, now: int) -> Parsed:
        parsed = parse_body(call.header, _attributes(call), body, now)
        if self._carrying and (context := context_headers(call.header)):
            parsed = with_context(parsed, context)
        return parsed

    async def _once(
        self, call: HttpCall, key: str, topic: str, body: bytes, parsed: Parsed, now: int
    ) -> bytes:
        if len(body) > MOST_BYTES:
            raise BodyTooLarge(
                f"the body is longer than {MOST_BYTES} bytes, which is the most with an Idempotency-Key: "
                f"send it in parts"
            )
        named = sorted((name, value) for name, value in call.headers.items() if _counts(name))

        def at(began: int) -> Parsed:
            return parsed if began == now else self._parsed(call, body, began)

        async def publish(publisher: Publisher, began: int) -> bytes:
            return (await self._write(publisher, topic, at(began))).json

        def found(space: Space, taken: Taken, began: int) -> bytes | None:
            count = 1 if isinstance(parsed, SingleMessage) else _rows(parsed)
            if sum(messages for _, messages in taken.values()) != count:
                return None
            places = (space.stream_for(topic, _last_key(parsed), one) for one in space.generations)
            stream = next(one for one in places if one in taken)  # the last message is the last of its stream
            first, messages = taken[stream]
            kind = None if isinstance(parsed, SingleMessage) else count
            return PublishedMessages(kind, str(stream), first + messages - 1, _last_time(at(began))).json

        content = b"".join(b"%b:%b\n" % one for one in named) + body
        return await self._answers.once(call.client, key, content, topic, now, publish, found)

    async def _write(self, publisher: Publisher, topic: str, parsed: Parsed) -> PublishedMessages:
        match parsed:
            case SingleMessage(payload, key, headers, timestamp):
                stream, offset = await publisher.send(topic, payload, key, headers, timestamp)
                return PublishedMessages(None, str(stream), offset, timestamp)
            case MessageColumns(payloads, keys, headers, timestamps):
                places = await publisher.send_many(
                    topic, payloads, keys=keys, headers=headers, timestamps=timestamps
                )
                last = await self._last(topic, places, _last_key(parsed))
                return PublishedMessages(len(payloads), *last, timestamps[-1])
            case MessageTable(rows, timestamp):
                places = await publisher.send_batch(topic, rows)
                last = await self._last(topic, places, _last_key(parsed))
                return PublishedMessages(rows.num_rows, *last, timestamp)
            case _:
                assert_never(parsed)

    async def _last(self, topic: str, places: list[PlacedRange], key: bytes | None) -> tuple[str, int]:
        """Where the last message of a batch stands: it is the last one of its stream."""
        ends = {stream: offsets.end - 1 for stream, offsets in places}
        stream: StreamId = places[-1][0]
        if len(ends) > 1:
            space = await self._client.spaces.for_topic(topic)
            wanted = space.stream_for(topic, key)
            stream = wanted if wanted in ends else stream
        return str(stream), ends[stream]


@lru_cache(maxsize=1024)
def _topic(text: str) -> str:
    return check_topic(text)


def _shown_place(stream: StreamId | str, offset: int, timestamp: int) -> bytes:
    return b'%b%d,"timestamp":"%b"}' % (_shown_stream(stream), offset, _shown_time(timestamp))


@lru_cache(maxsize=1024)
def _shown_stream(stream: StreamId | str) -> bytes:
    return b'{"stream":"%b","offset":' % str(stream).encode()


@lru_cache(maxsize=256)
def _is_plain(content_type: bytes | None) -> bool:
    """Whether a body of that type is one payload, as it is."""
    return media_type(None if content_type is None else content_type.decode("latin-1")) not in STRUCTURED


def _shown_time(timestamp: int) -> bytes:
    seconds, microseconds = divmod(timestamp, 1_000_000)
    return b"%b.%06dZ" % (_shown_seconds(seconds), microseconds)


@lru_cache(maxsize=16)
def _shown_seconds(seconds: int) -> bytes:
    return iso(_EPOCH + timedelta(seconds=seconds)).partition(".")[0].encode()


def _attributes(call: HttpCall) -> dict[str, str]:
    """The attributes of a CloudEvent in headers, whose values have escapes."""
    if b"ce-specversion" not in call.headers:
        return {}
    return {
        name[3:].decode("ascii", "replace"): unquote(value.decode("latin-1"))
        for name, value in call.headers.items()
        if name.startswith(b"ce-")
    }


def _counts(name: bytes) -> bool:
    """Whether a header is part of what is published."""
    return name in (b"content-type", b"streamlease-key") or name.startswith(b"ce-")


def _last_key(parsed: Parsed) -> bytes | None:
    """The key of the last message."""
    key: bytes | str | None
    match parsed:
        case SingleMessage():
            key = parsed.key
        case MessageColumns():
            key = parsed.keys[-1] if parsed.keys else None
        case MessageTable():
            key = parsed.rows.column("key")[-1].as_py() if "key" in parsed.rows.schema.names else None
        case _:
            assert_never(parsed)
    return key.encode() if isinstance(key, str) else key


def _last_time(parsed: Parsed) -> int:
    return parsed.timestamps[-1] if isinstance(parsed, MessageColumns) else parsed.timestamp


def _rows(parsed: MessageColumns | MessageTable) -> int:
    return len(parsed.payloads) if isinstance(parsed, MessageColumns) else int(parsed.rows.num_rows)
