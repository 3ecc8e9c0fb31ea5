"""What the console reads when somebody opens it: a space, its topics and messages, why streams wait.

Each function answers one question to the server that was chosen; nothing here is read without being asked.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from streamlease.admin.facts import spaces
from streamlease.admin.facts.epochs import SpaceEpochs
from streamlease.admin.facts.group import describe
from streamlease.admin.messages.message_diffs import diffs_of
from streamlease.admin.messages.message_search import MessageQuestion, cursor_text, find, parse_cursor
from streamlease.admin.moments import parse_moment
from streamlease.admin.ui.shown_processes import items
from streamlease.catalog.items import ITEMS, PublicationItem, TopicItem
from streamlease.protocol.errors import InvalidInput, InvalidOption
from streamlease.protocol.ids import StreamId
from streamlease.protocol.plain_values import iso, plain
from streamlease.protocol.topics import SharedSubscription
from streamlease.streams.archive.catalogs import table_name
from streamlease.streams.archive.recording import read_recorded
from streamlease.streams.entries.delivered import Message, to_messages
from streamlease.streams.log.keys import stream_files
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.log.times import PAGE
from streamlease.streams.redis.connection import ask

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from streamlease.agent.client import Client

SHOWN_BYTES = 2000
"""So much of a payload stands in a list; one message is shown whole."""

MOST_ROWS = 2000
MOST_FILES, SHOWN_FILES = 20_000, 300
MOST_LIMIT = 500


async def space(client: Client, wanted: Mapping[str, str]) -> dict[str, Any]:
    """One space with its streams, groups and epochs."""
    seen = await spaces.look_into(client, wanted.get("space", ""))
    found = seen.as_json()
    streams = found["streams"]
    found["streams"], found["streams_in_all"] = streams[-MOST_ROWS:], len(streams)
    if seen.epochs:
        shown = await SpaceEpochs.read(client.redis, await client.spaces.get(seen.name))
        found["frontiers"] = shown.as_json()
    return found


async def archive(client: Client, wanted: Mapping[str, str]) -> dict[str, Any]:
    """What of a space is in its archive, by stream, and the newest files."""
    space = await client.spaces.get(wanted.get("space", ""))
    if space.archive is None:
        raise InvalidInput(f"space {space.name} has no archive: give it one with 'streamlease space alter'")
    streams = space.streams()
    counts = dict(zip(streams, await _counts(client, streams), strict=True))
    # Of so many files that they cannot be looked at, it tells how many there are.
    known = await read_recorded(client.redis, streams, with_files=sum(counts.values()) <= MOST_FILES)
    rows: list[dict[str, Any]] = [
        {
            "stream": str(stream),
            "first": one.exists,
            "archived": one.archived,
            "memory": one.state.memory.first,
            "next": one.state.next,
            "files": counts[stream],
            "bytes": sum(file.size for file in one.files) if one.files or not counts[stream] else None,
            "since_us": one.files[0].since if one.files else None,
            "until_us": one.files[-1].until if one.files else None,
        }
        for stream, one in known.items()
    ]
    files = [(file.until, str(stream), file) for stream, one in known.items() for file in one.files]
    files.sort(reverse=True, key=lambda one: one[:2])
    return {
        "space": space.name,
        "uri": space.archive.uri,
        "table": table_name(space.name),
        "streams": rows[-MOST_ROWS:],
        "streams_in_all": len(rows),
        "files": [
            {
                "path": file.path,
                "stream": stream,
                "first": file.first,
                "next": file.next,
                "bytes": file.size,
                "since_us": file.since,
                "until_us": file.until,
            }
            for _, stream, file in files[:SHOWN_FILES]
        ],
        "files_in_all": sum(counts.values()),
        "bytes": None if any(row["bytes"] is None for row in rows) else sum(row["bytes"] for row in rows),
        "archived": sum(max(0, row["archived"] - row["first"]) for row in rows),
        "waiting": sum(max(0, row["next"] - row["archived"]) for row in rows),
    }


async def _counts(client: Client, streams: Sequence[StreamId]) -> list[int]:
    """How many files each stream has."""
    found: list[int] = []
    for begin in range(0, len(streams), PAGE):
        page = streams[begin : begin + PAGE]
        found += await ask(client.redis, [("ZCARD", stream_files(stream)) for stream in page])
    return found


async def topics(client: Client, wanted: Mapping[str, str]) -> dict[str, Any]:
    """The topics of a space, with how many processes publish to each."""
    name, like = wanted.get("space", ""), wanted.get("like", "").casefold()
    await client.spaces.get(name)
    found = [one for one in await items(client, "topics") if isinstance(one, TopicItem) and one.space == name]
    publishers = Counter(
        one.topic for one in await items(client, "publications") if isinstance(one, PublicationItem)
    )
    kept = sorted(one.topic for one in found if like in one.topic.casefold())
    rows = [{"topic": topic, "publishers": publishers[topic]} for topic in kept[:MOST_ROWS]]
    return {"space": name, "topics": rows, "found": len(kept), "in_all": len(found)}


async def messages(client: Client, wanted: Mapping[str, str]) -> dict[str, Any]:
    """Messages of a space; the fields of the question are those of `MessageQuestion`.

    Args:
        wanted: ``at`` is a time, a duration back from now, or an offset of a stream; ``until`` or ``from``.
    """
    order = wanted.get("order") or "newest"
    if order not in ("newest", "oldest"):
        raise InvalidOption(f"order is {ascii(order)[:80]}: use newest or oldest")
    at, moment, offset = wanted.get("at", "").strip(), None, None
    if at.isdecimal():
        offset = int(at)
    elif at:
        moment = await parse_moment(client.redis, "at", at, ahead=False) * 1000
    found = await find(
        client,
        MessageQuestion(
            wanted.get("space", ""),
            "newest" if order == "newest" else "oldest",
            stream=wanted.get("stream") or None,
            filter=wanted.get("topic") or None,
            key=wanted["key"].encode() if wanted.get("key") else None,
            text=wanted.get("text") or None,
            moment=moment,
            offset=offset,
            cursor=parse_cursor(wanted["cursor"]) if wanted.get("cursor") else None,
            limit=_number("limit", wanted.get("limit", "100"), 1, MOST_LIMIT),
        ),
    )
    rows = [shown(one, SHOWN_BYTES) for one in found.messages]
    if rows and (await client.spaces.get(wanted.get("space", ""))).collection:
        for row, diff in zip(rows, await diffs_of(client, found.messages), strict=True):
            row["diff"] = diff
    return {
        "messages": rows,
        "cursor": None if found.done else cursor_text(found.cursor),
        "looked": found.looked,
        "reached_us": found.reached,
        "done": found.done,
        "notes": found.notes,
    }


async def message(client: Client, wanted: Mapping[str, str]) -> dict[str, Any]:
    """One message whole, and the offsets of its neighbours."""
    stream = StreamId.parse(wanted.get("stream", ""))
    offset = _number("offset", wanted.get("offset", ""), 0, 1 << 62)
    log = AsyncLog(client.redis)
    batches = await log.read(stream, offset, offset + 1)
    state = (await log.states([stream]))[stream]
    found = [one for batch in batches for one in to_messages(batch)]
    if not found:
        raise InvalidInput(f"stream {stream} has no message at offset {offset}: its next one is {state.next}")
    before = offset - 1 if offset > state.floor else None
    after = offset + 1 if offset + 1 < state.next else None
    row = {**shown(found[0], None), "before": before, "after": after}
    if (await client.spaces.get(stream.space)).collection:
        (row["diff"],) = await diffs_of(client, found[:1])
    return row


def shown(message: Message, most: int | None) -> dict[str, Any]:
    """A message as the console shows it.

    Args:
        most: bytes of the payload; None: all of it.
    """
    payload = message.payload if most is None else message.payload[:most]
    return {
        "topic": message.topic,
        "key": None if message.key is None else _text(message.key),
        "payload": _text(payload, cut=len(payload) < len(message.payload)),
        "bytes": len(message.payload),
        "stream": message.stream,
        "offset": message.offset,
        "timestamp": iso(message.timestamp),
        "appended": iso(message.append_timestamp),
        "headers": [[name, _text(value)] for name, value in message.headers],
        "epoch": None if message.epoch is None else list(message.epoch),
        "values": None if message.values is None else _values(message.values, most),
    }


def _text(data: bytes, *, cut: bool = False) -> dict[str, Any]:
    """Bytes as text where they are text, else in base64."""
    try:
        return {"text": data.decode(), "cut": cut}
    except UnicodeDecodeError as error:
        if cut and error.start >= len(data) - 3:  # in the middle of a character
            return {"text": data[: error.start].decode(), "cut": cut}
        return {"base64": base64.b64encode(data).decode(), "cut": cut}


def _values(values: dict[str, Any], most: int | None) -> dict[str, Any]:
    found: dict[str, Any] = plain(values)
    if most is None:
        return found
    return {
        name: value if len(text := json.dumps(value, ensure_ascii=False)) <= most else f"{text[:most]}…"
        for name, value in found.items()
    }


async def why(client: Client, wanted: Mapping[str, str]) -> dict[str, Any]:
    """What the leader of a group says of its streams and borrowers; asked when somebody wants to know.

    Args:
        wanted: ``like`` stands in the stream, its owner, its state or the reason; none: all streams.
    """
    like = wanted.get("like", "").casefold()
    seen = (await describe(client, SharedSubscription.parse(wanted.get("subscription", "")))).as_json()
    streams = [vars(one) if not isinstance(one, dict) else one for one in seen["streams"]]
    kept = [one for one in streams if like in _words(one)]
    # A lag that is unknown may be the largest.
    kept.sort(key=lambda one: (not one["why"], one["lag"] is not None, -(one["lag"] or 0)))
    return {**seen, "streams": kept[:MOST_ROWS], "found": len(kept), "streams_in_all": len(streams)}


def _words(stream: Mapping[str, Any]) -> str:
    return " ".join(str(stream[name] or "") for name in ("stream", "owner", "state", "why")).casefold()


async def letters(client: Client, wanted: Mapping[str, str]) -> dict[str, Any]:
    """The dead letters of a group, newest first."""
    from streamlease.admin.acting import declared
    from streamlease.registry.dead_letters import DeadLetters

    shared = SharedSubscription.parse(wanted.get("subscription", ""))
    declaration = await declared(client, shared)
    found = await DeadLetters(client.redis).of(shared, declaration.options)
    found.sort(key=lambda one: -one.message.append_timestamp_us)
    rows: list[dict[str, Any]] = [
        {
            "place": one.place,
            "topic": one.facts.get("topic"),
            "original": f"{one.facts.get('stream')}@{one.facts.get('offset')}",
            "failures": one.facts.get("failures"),
            "cause": one.facts.get("cause"),
            "borrower": one.facts.get("borrower"),
            "at": iso(one.message.append_timestamp),
            "payload": _text(one.message.payload[:SHOWN_BYTES], cut=len(one.message.payload) > SHOWN_BYTES),
            "replayed": one.replayed,
        }
        for one in found[:MOST_ROWS]
    ]
    return {"subscription": str(shared), "letters": rows, "found": len(found)}


async def catalog(client: Client, wanted: Mapping[str, str]) -> dict[str, Any]:
    """The items of one collection of the catalog, and which collections there are."""
    name = wanted.get("name", "")
    like = wanted.get("like", "").casefold()
    documents = [one.model_dump(mode="json") for one in await items(client, name)]
    texts = [(json.dumps(one, sort_keys=True, ensure_ascii=False), one) for one in documents]
    kept = sorted((pair for pair in texts if like in pair[0].casefold()), key=lambda pair: pair[0])
    return {
        "name": name,
        "collections": [*ITEMS],
        "fields": [*ITEMS[name].model_fields],
        "items": [one for _, one in kept[:MOST_ROWS]],
        "found": len(kept),
        "in_all": len(texts),
    }


def _number(what: str, text: str, least: int, most: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if not least <= number <= most:
        raise InvalidInput(f"{what} is {ascii(text)[:80]}: give a number from {least} to {most}")
    return number
