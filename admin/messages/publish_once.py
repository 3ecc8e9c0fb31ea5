"""Publishing a file or a pipe so that the same command, repeated after any end, publishes each record once.

A record's position is its number. A pipe must bring the same data again, from its beginning; what is new
behind it is published. How far each stream is stands in the stream itself (``streams.imports.transfer``);
what the source is, and a record up to which all is done, in Redis under the name that the user chose
(``streams.imports.positions``). Nothing is kept on this machine.
"""

from __future__ import annotations

import os
from contextlib import aclosing
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamlease.admin.messages.sources import Meter, Record, records
from streamlease.protocol.errors import InvalidInput, InvalidOption
from streamlease.protocol.ids import check_name

if TYPE_CHECKING:
    from streamlease.admin.bar import Bar
    from streamlease.admin.messages.publish import Counts, Plan
    from streamlease.agent.client import Client
    from streamlease.streams.imports.positions import Resume
    from streamlease.streams.imports.transfer import Item, Transfer

FIRST_BLOCK = 64 * 1024
CHUNK_RECORDS = 5000
CHUNK_BYTES = 4 * 1024 * 1024


def check_resumable(name: str, file: Path | None) -> None:
    """Whether the publication can be remembered.

    Raises:
        InvalidOption: `file` cannot be read again.
        InvalidInput: `name` is no name.
    """
    check_name("--resume", name)
    if file is not None and file.exists() and not file.is_file():
        raise InvalidOption(f"--resume {name} needs a file that can be read again, and {file} is none")


def _identity(plan: Plan, first_record: Record | None) -> dict[str, Any]:
    """What the source is, and how it is read."""
    how = {"--format": str(plan.form), "--key": plan.key, "the topic": plan.topic}
    if plan.file is None:
        return {"a first record with the hash": _hash(first_record.payload if first_record else b""), **how}
    try:
        with plan.file.open("rb") as opened:
            first = opened.read(FIRST_BLOCK)
            status = os.fstat(opened.fileno())
    except OSError as error:
        raise InvalidOption(f"cannot read {plan.file}: {error.strerror}; give a file that is there") from None
    return {
        "a file of bytes": status.st_size,
        "a file changed at": status.st_mtime_ns,
        "a first block with the hash": _hash(first),
        **how,
    }


def _hash(data: bytes) -> str:
    return blake2b(data, digest_size=8).hexdigest()


async def publish_resumably(client: Client, name: str, plan: Plan, counts: Counts, bar: Bar) -> None:
    """Publish what is not there yet.

    Raises:
        InvalidOption: under this name another file was begun, or the same one otherwise.
        StreamleaseError: what the publication ran into; safe to repeat.
    """
    from streamlease.admin.messages.publish import PLACEHOLDER, read_ahead
    from streamlease.streams.imports.positions import Resume
    from streamlease.streams.imports.transfer import Transfer, weight

    filter = PLACEHOLDER.sub("+", plan.topic) if plan.topic_of is not None else plan.topic
    spaces = {space.name: space for space in (await client.spaces.look()).listed if _meets(space, filter)}
    transfer = Transfer(client.redis, f"file:{name}", spaces=client.spaces, codec=plan.options["compression"])
    piped = plan.file is None
    meter = Meter()
    resume: Resume | None = None
    if not piped:  # what is complete is not even read
        resume = await Resume.open(client.redis, f"file:{name}", _identity(plan, None), spaces)
        if resume.complete:
            counts.skipped = max(0, resume.done[1])
            return
    number, size = 0, 0
    waiting: list[Item] = []
    async with aclosing(read_ahead(records(plan.file, plan.form, meter))) as lists:
        try:
            async for some in lists:
                if resume is None:
                    identity = _identity(plan, some[0] if some else None)
                    resume = await Resume.open(client.redis, f"file:{name}", identity, spaces)
                for record in some:
                    number += 1
                    if (1, number) <= resume.done:
                        counts.skipped += 1
                        continue
                    waiting.append(await _item(client, plan, record, number))
                    size += weight(waiting[-1])
                    if len(waiting) >= CHUNK_RECORDS or size >= CHUNK_BYTES:
                        await _put(transfer, resume, waiting, counts)
                        waiting, size = [], 0
                if piped:  # who writes slowly waits for nothing
                    await _put(transfer, resume, waiting, counts)
                    waiting, size = [], 0
                bar.show(meter.done, meter.total, counts.published + counts.skipped)
        except InvalidInput:
            # What stands before a bad record goes out, as without --resume.
            if resume is not None:
                await _put(transfer, resume, waiting, counts)
            raise
    if resume is None:
        resume = await Resume.open(client.redis, f"file:{name}", _identity(plan, None), spaces)
    await _put(transfer, resume, waiting, counts)
    if not piped:  # a pipe may bring more the next time
        await resume.finish()


def _meets(space: Any, filter: str) -> bool:
    from streamlease.protocol.topics import intersect

    return any(intersect(own, filter) for own in space.topics)


async def _item(client: Client, plan: Plan, record: Record, number: int) -> Item:
    from streamlease.streams.imports.transfer import Item

    topic, key = plan.place(record)
    typed = (await client.spaces.for_topic(topic)).newest_schema is not None
    payload: bytes | dict[str, Any] = record.values_by_column if typed else record.payload
    return Item((1, number), topic, payload, None if key is None else key.encode(), None, None, record.where)


async def _put(transfer: Transfer, resume: Resume, items: list[Item], counts: Counts) -> None:
    if not items:
        return
    await transfer.check(items[0])
    await resume.begin()
    added = await transfer.put(items)
    await resume.advance(items[-1].position)
    counts.published += added
    counts.skipped += len(items) - added
    counts.bytes += sum(len(one.payload) for one in items if isinstance(one.payload, bytes))
