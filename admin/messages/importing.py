"""``streamlease import redis-stream``: bring plain Redis streams in, each entry once."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamlease.admin.bar import Bar
from streamlease.admin.common_options import AsJson, RedisUrl
from streamlease.admin.output import document, line, note
from streamlease.admin.running import with_client
from streamlease.protocol.errors import InvalidOption, StreamleaseError
from streamlease.protocol.plurals import counted
from streamlease.protocol.topics import check_topic

if TYPE_CHECKING:
    from streamlease.agent.client import Client
    from streamlease.streams.imports.redis_streams import Mapping, PlainReader
    from streamlease.streams.imports.transfer import Item
    from streamlease.streams.log.log import Position

FOLLOW_MS = 1000
"""How long a following import waits for one answer."""

app = typer.Typer(help="Bring messages in from elsewhere.", no_args_is_help=True)


@dataclass(slots=True)
class ImportProgress:
    """How far an import is."""

    imported: int = 0
    there_before: int = 0
    deleted: int = 0
    pending: int = 0
    gone: int = 0


@app.callback()
def root() -> None:
    """Bring messages in from elsewhere."""


@app.command("redis-stream")
def redis_stream(
    keys: Annotated[
        list[str], typer.Argument(metavar="KEY...", help="Keys of Redis streams on this server.")
    ],
    space: Annotated[str, typer.Option(help="The space to import into.")],
    topic: Annotated[str | None, typer.Option(help="Topic for all entries.")] = None,
    topic_field: Annotated[
        str | None, typer.Option(metavar="FIELD", help="Field that holds the topic.")
    ] = None,
    payload_field: Annotated[
        str | None,
        typer.Option(metavar="FIELD", help="Field that holds the payload. Default: all fields as JSON."),
    ] = None,
    key_field: Annotated[str | None, typer.Option(metavar="FIELD", help="Field that holds the key.")] = None,
    group: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Begin where this consumer group of Redis stands: import what is pending in it, and all "
            "entries that it was not given yet. Stop its consumers before.",
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Keep importing new entries.")] = False,
    delete: Annotated[bool, typer.Option("--delete", help="Delete entries once they are imported.")] = False,
    redis: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Import entries of Redis streams as messages, in order. Run again, it continues where it stopped
    and imports nothing twice.

    The id of an entry becomes the event time. The headers redis-stream and redis-id say where a message
    came from.
    """
    from streamlease.streams.imports.redis_streams import Mapping

    mapping = Mapping(topic, topic_field, payload_field, key_field)
    if topic is not None:
        check_topic(topic)
    if len(set(keys)) < len(keys):
        raise InvalidOption(f"a key is named twice in {' '.join(keys)[:200]}: name each once")
    if group is not None and delete:
        raise InvalidOption(
            "--delete and --group exclude each other: what the group has done stays in the stream, for other "
            "groups may need it; trim the stream once they are all here"
        )
    counts = ImportProgress()

    async def work(client: Client) -> None:
        with Bar("importing") as bar:
            importer = Importer(client, space, mapping, group, follow, delete, counts, bar)
            await importer.run(keys)

    try:
        with_client(redis, work)
    except StreamleaseError as error:
        if counts.imported:
            error.args = (
                f"{error} ({counted(counts.imported, 'entry', 'entries')} imported before; repeat to go on)",
            )
        raise
    except KeyboardInterrupt:
        if not follow:
            raise
    if as_json:
        from streamlease.admin.answers import Imported

        document(Imported(space=space, **asdict(counts)))
        return
    before = f"; {counts.there_before} were there before" if counts.there_before else ""
    pending = f", {counts.pending} of them pending in {group}" if group is not None else ""
    gone = f"; {counts.deleted} deleted" if delete else ""
    if counts.gone:
        gone += f"; {counts.gone} pending in {group} are no longer in the stream"
    line(f"imported {counted(counts.imported, 'entry', 'entries')} into {space}{pending}{before}{gone}")


class Importer:
    """Imports some keys into one space."""

    def __init__(
        self,
        client: Client,
        space: str,
        mapping: Mapping,
        group: str | None,
        follow: bool,
        delete: bool,
        counts: ImportProgress,
        bar: Bar,
    ) -> None:
        self._client = client
        self._space = space
        self._mapping = mapping
        self._group = group
        self._follow = follow
        self._delete = delete
        self._counts = counts
        self._bar = bar
        self._total = 0
        self._seen = 0

    async def run(self, keys: list[str]) -> None:
        """Import all of them; following, at the same time.

        Raises:
            InvalidOption: a key is no stream, or was imported otherwise before.
            UnknownSpace: there is no such space, or a topic does not belong to it.
        """
        from streamlease.streams.imports.old_groups import GroupReader
        from streamlease.streams.tasks import first_of

        await self._client.spaces.get(self._space)
        readers = [self._reader(key) for key in keys]
        for reader in readers:
            await reader.check(may_be_missing=self._follow)
            if isinstance(reader, GroupReader) and (busy := await reader.busy()):
                note(
                    f"note: {', '.join(busy)[:200]} of {self._group} read {reader.key} a moment ago: "
                    "what old consumers do from now on comes here as well"
                )
            self._total += await reader.length()
        if self._follow:
            await first_of(*(self._import(reader) for reader in readers))  # none ends but by an error
        else:
            for reader in readers:
                await self._import(reader)

    def _reader(self, key: str) -> PlainReader:
        from streamlease.streams.imports.old_groups import GroupReader
        from streamlease.streams.imports.redis_streams import PlainReader

        if self._group is None:
            return PlainReader(self._client.redis, key, (-1, -1))
        return GroupReader(self._client.redis, key, self._group, (-1, -1))

    async def _import(self, reader: PlainReader) -> None:
        from streamlease.streams.imports.old_groups import GroupReader
        from streamlease.streams.imports.positions import Resume
        from streamlease.streams.imports.transfer import Transfer

        space = await self._client.spaces.get(self._space)
        mapping = replace(self._mapping, typed=space.newest_schema is not None)
        source = f"redis-stream:{self._space}:{reader.key}"
        identity: dict[str, Any] = {
            "--topic": mapping.topic,
            "--topic-field": mapping.topic_field,
            "--payload-field": mapping.payload_field,
            "--key-field": mapping.key_field,
            **({} if self._group is None else {"--group": self._group}),
        }
        resume = await Resume.open(self._client.redis, source, identity, {space.name: space})
        newest = await reader.newest()
        if resume.done > newest and (newest != (0, 0) or not self._follow):
            raise InvalidOption(
                f"key {ascii(reader.key)[:80]} was made anew since it was imported up to "
                f"{resume.done[0]}-{resume.done[1]}, and its ids are lower now: "
                f"import it under another key (RENAME) or into another space"
            )
        transfer = Transfer(self._client.redis, source, spaces=self._client.spaces, space=self._space)
        reader.after = resume.done
        if isinstance(reader, GroupReader):
            reader.line = await resume.drawn(reader.line)
        if self._delete and resume.done > (0, 0):  # what was imported, but not deleted before the end
            await self._trim(reader.key, resume.done)
        while True:
            entries = await reader.next()
            items: list[Item] = []
            try:
                for entry in entries:
                    items.append(mapping.item(reader.key, entry))
            finally:
                if items:  # what stands before a bad entry is imported
                    await transfer.check(items[0])
                    await resume.begin()
                    added = await transfer.put(items)
                    await resume.advance(items[-1].position)
                    self._count(len(items), added)
                    if isinstance(reader, GroupReader) and items[-1].position <= reader.line:
                        self._counts.pending += added
                    await self._remove(reader.key, [entry.id for entry in entries[: len(items)]])
            if entries:
                continue
            if not self._follow:
                break
            await reader.wait(FOLLOW_MS)
        if isinstance(reader, GroupReader):
            self._counts.gone += reader.gone

    def _count(self, read: int, added: int) -> None:
        self._counts.imported += added
        self._counts.there_before += read - added
        self._seen += read
        self._bar.show(self._seen, self._total, self._counts.imported)

    async def _trim(self, key: str, done: Position) -> None:
        from streamlease.streams.redis.connection import ask

        (removed,) = await ask(self._client.redis, [("XTRIM", key, "MINID", "=", f"{done[0]}-{done[1] + 1}")])
        self._counts.deleted += int(removed)

    async def _remove(self, key: str, ids: list[bytes]) -> None:
        from streamlease.streams.redis.connection import ask

        if self._delete:
            (removed,) = await ask(self._client.redis, [("XDEL", key, *ids)])
            self._counts.deleted += int(removed)
