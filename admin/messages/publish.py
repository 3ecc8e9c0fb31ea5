"""``streamlease publish``: lines or rows from a file or from standard input."""

from __future__ import annotations

import time
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streamlease.admin.bar import Bar
from streamlease.admin.common_options import AsJson, RedisUrl
from streamlease.admin.messages.diff_options import Diff, DiffColumn, RecordDiffs
from streamlease.admin.messages.publication import (
    Contents,
    PublicationPlan,
    PublicationProgress,
    topic_of_records,
)
from streamlease.admin.messages.publish_epochs import EpochPlan, publish_epochs
from streamlease.admin.messages.publish_once import check_resumable, publish_resumably
from streamlease.admin.messages.sources import SUFFIXES, Form, InputMeter, lookup, read_ahead, records
from streamlease.admin.output import document, line, noting
from streamlease.admin.running import with_client
from streamlease.protocol.errors import InvalidOption, StreamleaseError
from streamlease.protocol.plurals import counted

if TYPE_CHECKING:
    from streamlease.agent.client import Client


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
    publisher: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Publish messages of epochs under this name, in a space with epochs. Two processes must not "
            "have one name.",
        ),
    ] = None,
    epoch: Annotated[
        str | None,
        typer.Option(metavar="N", help="With --publisher: the epoch of all messages, such as 4, or 4,5."),
    ] = None,
    epoch_column: Annotated[
        str | None,
        typer.Option(
            metavar="COL",
            help="With --publisher: field with the epoch of each message. When it rises, what is before it "
            "is given up, so it must not fall again; at the end, so is the last one.",
        ),
    ] = None,
    diff: Diff = None,
    diff_column: DiffColumn = None,
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
    from streamlease.streams.spaces.epoch_settings import check_plain

    chosen = form or Form(SUFFIXES.get(file.suffix.lower(), "lines") if file else "lines")
    if key is not None and chosen is Form.LINES:
        raise InvalidOption(f"--key {ascii(key)[:80]} needs fields: use --format jsonl, csv or parquet")
    check_batching(linger_ms, max_batch_bytes, compression)
    options = {"linger_ms": linger_ms, "max_batch_bytes": max_batch_bytes, "compression": compression}
    key_of = lookup(key) if key is not None else None
    diffs = RecordDiffs.of(diff, diff_column, chosen)
    plan = PublicationPlan(topic, file, chosen, key, topic_of_records(topic, chosen), key_of, options, diffs)
    if resume is not None:
        check_resumable(resume, file)
    epochs = EpochPlan.of(publisher, epoch, epoch_column, chosen, resume)
    counts, began = PublicationProgress(), time.monotonic()

    async def work(client: Client) -> None:
        if plan.topic_of is None:
            space = await client.spaces.for_topic(topic)
            if epochs is None:
                check_plain(space)
        parts = "streamlease.streams.publish", "streamlease.streams.epochs.presence"
        with noting(*parts), Bar("publishing") as bar:
            if epochs is not None:
                await publish_epochs(client, plan, epochs, counts, bar)
            elif resume is None:
                await _publish(client, plan, counts, bar)
            else:
                await publish_resumably(client, resume, plan, counts, bar)

    try:
        with_client(redis, work)
    except StreamleaseError as error:
        if counts.published or counts.submitted:
            error.args = (f"{error} ({counted(counts.published, 'message')} published before)",)
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
    line(f"published {counted(counts.published, 'message')} to {topic}{before}")


async def _publish(client: Client, plan: PublicationPlan, counts: PublicationProgress, bar: Bar) -> None:
    meter = InputMeter()
    source = records(plan.file, plan.form, meter)
    contents, diffs = Contents(client, plan), plan.diffs
    async with client.publisher(**plan.options) as publisher, aclosing(read_ahead(source)) as lists:
        async for some in lists:
            for record in some:
                if diffs is None:
                    receipt = await publisher.submit(*await contents.of(record))
                else:
                    changed, diff = diffs.taken(record)
                    receipt = await publisher.submit(*await contents.of(changed), diff=diff)
                receipt.add_done_callback(counts.settled)
                counts.submitted += 1
                counts.bytes += len(record.payload)
            bar.show(meter.done, meter.total, counts.published)
            if counts.failed:
                break
        await publisher.flush()
