"""``streamlease publish``: lines or rows from a file or from standard input."""

from __future__ import annotations

import time
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamlease.admin.bar import Bar
from streamlease.admin.common_options import AsJson, RedisUrl
from streamlease.admin.messages.publication import PublicationPlan, PublicationProgress, topic_of_records
from streamlease.admin.messages.publish_once import check_resumable, publish_resumably
from streamlease.admin.messages.sources import SUFFIXES, Form, InputMeter, lookup, read_ahead, records
from streamlease.admin.output import document, line
from streamlease.admin.running import with_client
from streamlease.protocol.errors import InvalidOption, SchemaMismatch, StreamleaseError

if TYPE_CHECKING:
    from streamlease.agent.client import Client
    from streamlease.streams.entries.schemas import Schema

MOST_TOPICS = 100_000
"""How many topics are remembered with the schema of their space."""


def publish(
    topic: Annotated[
        str,
        typer.Argument(help="The topic. {column} is replaced by that field of a jsonl, csv or parquet row."),
    ],
    file: Annotated[Path | None, typer.Option(help="File to publish. Default: standard input.")] = None,
    form: Annotated[
        Form | None,
        typer.Option(
            "--format", help="Format of the input. Default: guessed from the file name, else lines."
        ),
    ] = None,
    key: Annotated[str | None, typer.Option(metavar="COL", help="Field to use as the key.")] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Remember progress under this name: the same command, run again, continues where it stopped "
            "and publishes nothing twice. A pipe must deliver the same input from its beginning.",
        ),
    ] = None,
    linger_ms: Annotated[
        float, typer.Option(help="How long a batch may wait for more messages, in milliseconds.")
    ] = 0.0,
    max_batch_bytes: Annotated[int, typer.Option(help="Size in bytes at which a batch is full.")] = 1024
    * 1024,
    compression: Annotated[
        str, typer.Option(metavar="zstd|lz4|none", help="How batches are compressed.")
    ] = "zstd",
    redis: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Publish each line or row as one message.

    In a space with a schema, the columns of a row become typed columns.
    """
    from streamlease.streams.publish.inputs import check_batching

    chosen = form or Form(SUFFIXES.get(file.suffix.lower(), "lines") if file else "lines")
    if key is not None and chosen is Form.LINES:
        raise InvalidOption(f"--key {ascii(key)[:80]} needs fields: use --format jsonl, csv or parquet")
    check_batching(linger_ms, max_batch_bytes, compression)
    options = {"linger_ms": linger_ms, "max_batch_bytes": max_batch_bytes, "compression": compression}
    key_of = lookup(key) if key is not None else None
    plan = PublicationPlan(topic, file, chosen, key, topic_of_records(topic, chosen), key_of, options)
    if resume is not None:
        check_resumable(resume, file)
    counts, began = PublicationProgress(), time.monotonic()

    async def work(client: Client) -> None:
        if plan.topic_of is None:
            await client.spaces.for_topic(topic)
        with Bar("publishing") as bar:
            if resume is None:
                await _publish(client, plan, counts, bar)
            else:
                await publish_resumably(client, resume, plan, counts, bar)

    try:
        with_client(redis, work)
    except StreamleaseError as error:
        if counts.published or counts.submitted:
            error.args = (f"{error} ({counts.published} messages were published before)",)
        raise
    _report(topic, counts, time.monotonic() - began, resume is not None, as_json)


def _report(topic: str, counts: PublicationProgress, seconds: float, resumable: bool, as_json: bool) -> None:
    if as_json:
        from streamlease.admin.answers import Published

        document(
            Published(
                topic=topic,
                published=counts.published,
                there_before=counts.skipped if resumable else None,
                bytes=counts.bytes,
                seconds=round(seconds, 3),
            )
        )
        return
    before = f"; {counts.skipped} were there before" if counts.skipped else ""
    line(f"published {counts.published} messages to {topic}{before}")


async def _publish(client: Client, plan: PublicationPlan, counts: PublicationProgress, bar: Bar) -> None:
    from streamlease.streams.entries.values import check_values

    meter = InputMeter()
    source = records(plan.file, plan.form, meter)
    schemas: dict[str, Schema | None] = {}
    async with client.publisher(**plan.options) as publisher, aclosing(read_ahead(source)) as lists:
        async for some in lists:
            for record in some:
                name, row_key = plan.place(record)
                if name not in schemas:
                    if len(schemas) >= MOST_TOPICS:
                        schemas.clear()
                    schemas[name] = (await client.spaces.for_topic(name)).newest_schema
                schema = schemas[name]
                content: bytes | dict[str, Any] = record.payload
                if schema is not None:
                    try:
                        content = check_values(schema, record.values_by_column, text=True)
                    except SchemaMismatch as error:
                        raise SchemaMismatch(f"{record.where}: {error}") from None
                receipt = await publisher.submit(name, content, row_key)
                receipt.add_done_callback(counts.settled)
                counts.submitted += 1
                counts.bytes += len(record.payload)
            bar.show(meter.done, meter.total, counts.published)
            if counts.failed:
                break
        await publisher.flush()
