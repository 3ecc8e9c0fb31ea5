"""Publishing a file or a pipe so that the same command, however often repeated, publishes each record once.

A record's position is its number. A pipe must bring the same data again, from its beginning; new records
after that are published. The streams themselves record how far they have come (``streams.imports.transfer``);
what the source is, and a record up to which all is done, is kept in Redis under the name that the user chose
(``streams.imports.positions``). Nothing is kept on this machine.
"""

from __future__ import annotations

import os
from contextlib import aclosing
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamlease.admin.messages.sources import InputMeter, Record, read_ahead, records
from streamlease.protocol.errors import InvalidInput, InvalidOption
from streamlease.protocol.ids import check_name
from streamlease.protocol.topics import intersect

if TYPE_CHECKING:
    from streamlease.admin.bar import Bar
    from streamlease.admin.messages.publication import PublicationPlan, PublicationProgress
    from streamlease.agent.client import Client
    from streamlease.streams.imports.positions import Resume
    from streamlease.streams.imports.transfer import Item
    from streamlease.streams.spaces.spaces import Space

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


def _identity(plan: PublicationPlan, first_record: Record | None) -> dict[str, Any]:
    """What the source is, and how it is read."""
    how: dict[str, Any] = {"--format": str(plan.form), "--key": plan.key, "the topic": plan.topic}
    if plan.diffs is not None:
        how |= {"--diff": plan.diffs.diff, "--diff-column": plan.diffs.column}
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


async def publish_resumably(
    client: Client, name: str, plan: PublicationPlan, counts: PublicationProgress, bar: Bar
) -> None:
    """Publish what is not there yet.

    Raises:
        InvalidOption: under this name another file was begun, or the same one otherwise.
        StreamleaseError: what the publication ran into; safe to repeat.
    """
    piped = plan.file is None
    known = await client.spaces.look()
    work = _Resumed(client, name, plan, counts, {one.name: one for one in known.listed if _meets(one, plan)})
    if not piped and await work.is_complete():  # then it is not even read
        return
    meter = InputMeter()
    async with aclosing(read_ahead(records(plan.file, plan.form, meter))) as lists:
        try:
            async for some in lists:
                for record in some:
                    await work.add(record)
                if piped:  # who writes slowly waits for nothing
                    await work.put()
                bar.show(meter.done, meter.total, counts.published + counts.skipped)
        except InvalidInput:
            await work.put()  # what stands before a bad record goes out, as without --resume
            raise
    await work.put()
    await work.end(complete=not piped)  # a pipe may bring more the next time


def _meets(space: Space, plan: PublicationPlan) -> bool:
    return any(intersect(own, plan.filter) for own in space.topics)


class _Resumed:
    """A publication that is remembered: counts its records, passes over those that are done, and puts others.

    It is opened with the first record, which tells one pipe from another.
    """

    def __init__(
        self,
        client: Client,
        name: str,
        plan: PublicationPlan,
        counts: PublicationProgress,
        spaces: dict[str, Space],
    ) -> None:
        from streamlease.streams.imports.transfer import Transfer

        self._client = client
        self._source = f"file:{name}"
        self._plan = plan
        self._counts = counts
        self._spaces = spaces
        codec = plan.options["compression"]
        self._transfer = Transfer(client.redis, self._source, spaces=client.spaces, codec=codec)
        self._resume: Resume | None = None
        self._number = 0
        self._waiting: list[Item] = []
        self._size = 0

    async def is_complete(self) -> bool:
        """Whether all records of the file are there."""
        resume = await self._opened(None)
        if resume.complete:
            self._counts.skipped = max(0, resume.done[1])
        return resume.complete

    async def add(self, record: Record) -> None:
        """The next record; what waits is put when it is enough."""
        from streamlease.streams.imports.transfer import Item, weight

        resume = await self._opened(record)
        self._number += 1
        position = (1, self._number)
        if position <= resume.done:
            self._counts.skipped += 1
            return
        topic, key = self._plan.place(record)
        diff = None
        if self._plan.diffs is not None:
            record, diff = self._plan.diffs.taken(record)
        typed = (await self._client.spaces.for_topic(topic)).newest_schema is not None
        payload: bytes | dict[str, Any] = record.values_by_column if typed else record.payload
        key_bytes = None if key is None else key.encode()
        self._waiting.append(Item(position, topic, payload, key_bytes, None, None, record.where, diff))
        self._size += weight(self._waiting[-1])
        if len(self._waiting) >= CHUNK_RECORDS or self._size >= CHUNK_BYTES:
            await self.put()

    async def put(self) -> None:
        """Write what waits."""
        items, self._waiting, self._size = self._waiting, [], 0
        if not items:
            return
        resume = await self._opened(None)
        await self._transfer.check(items[0])
        await resume.begin()
        added = await self._transfer.put(items)
        await resume.advance(items[-1].position)
        self._counts.published += added
        self._counts.skipped += len(items) - added
        self._counts.bytes += sum(len(one.payload) for one in items if isinstance(one.payload, bytes))

    async def end(self, *, complete: bool) -> None:
        """All records came; if `complete`, there will never be more."""
        resume = await self._opened(None)
        if complete:
            await resume.finish()

    async def _opened(self, first: Record | None) -> Resume:
        """Raises: InvalidOption: under this name another source was begun."""
        from streamlease.streams.imports.positions import Resume

        if self._resume is None:
            identity = _identity(self._plan, first)
            self._resume = await Resume.open(self._client.redis, self._source, identity, self._spaces)
        return self._resume
