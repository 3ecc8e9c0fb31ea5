"""``streamlease consume``: messages on standard output, as a member of a group or without one.

As a member it commits what it has printed and flushed, so a crash repeats messages but loses none. Without a
group it reads all streams of the filter from one point on, and keeps no progress.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, cast

import typer

from streamlease.admin.common_options import RedisUrl, check_seconds, chosen_url
from streamlease.admin.log_format import LogFormat, LogFormatOption, set_up_logs
from streamlease.admin.messages.message_lines import epoch_json_line, epoch_text_line, json_line, text_line
from streamlease.admin.output import note, noting
from streamlease.protocol.addresses import shown_address
from streamlease.protocol.errors import InvalidOption, UnknownGroup
from streamlease.protocol.topics import SHARED_PREFIXES, SharedSubscription, check_filter
from streamlease.streams.tasks import first_of

if TYPE_CHECKING:
    from streamlease.agent.client import Client
    from streamlease.agent.epochs.epoch_items import Aborted, EpochBatch, Frontier, Snapshot
    from streamlease.agent.epochs.epoch_reading import EpochMode
    from streamlease.streams.entries.delivered import Message

T = TypeVar("T")
Start = Literal["earliest", "latest"] | int | datetime
Work = Callable[["Client", "Printer"], Awaitable[None]]
MAX_BATCH = 1000


@dataclass(slots=True)
class Printer:
    """Writes messages until enough are written."""

    as_json: bool
    count: int | None
    printed: int = 0
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def enough(self) -> bool:
        """Whether all that was wanted is written."""
        return self.count is not None and self.printed >= self.count

    def write(self, messages: Sequence[Message]) -> int:
        """Print messages and flush them; how many of them were still wanted."""
        if self.count is not None:
            messages = messages[: self.count - self.printed]
        form = json_line if self.as_json else text_line
        return self._put(map(form, messages))

    def write_batch(self, batch: EpochBatch) -> None:
        """Print messages of an epoch, as far as they are wanted."""
        messages = batch.messages[: None if self.count is None else self.count - self.printed]
        if self.as_json:
            self._put(json_line(one, batch.publisher, batch.incarnation) for one in messages)
        else:
            self._put(map(text_line, messages))

    def write_told(self, item: Snapshot | Frontier | Aborted) -> None:
        """Print what is told of epochs."""
        sys.stdout.write(epoch_json_line(item) if self.as_json else epoch_text_line(item))
        sys.stdout.flush()

    def _put(self, lines: Iterable[str]) -> int:
        made = [*lines]
        sys.stdout.write("".join(made))
        sys.stdout.flush()
        self.printed += len(made)
        return len(made)

    async def until_stopped(self, awaited: Awaitable[T]) -> T | None:
        """What `awaited` gives, or None once the program is to stop."""
        found: list[T] = []

        async def take() -> None:
            found.append(await awaited)

        await first_of(take(), self.stop.wait())
        return None if self.stop.is_set() else found[0]


def consume(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILTER|SUB",
            help="A topic filter, '$shared/GROUP/FILTER' to read as a member of a group, or '$catalog/NAME'.",
        ),
    ],
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Where to start: earliest, latest (the default), an offset in each stream, "
            "or an ISO-8601 time. "
            "An existing group continues where it left off.",
        ),
    ] = None,
    epochs: Annotated[
        str,
        typer.Option(
            metavar="atomic|eager|off",
            help="In spaces with epochs: atomic prints whole epochs, as a member of a group those of its "
            "streams, and how far the frontier is; eager, without a group, "
            "prints messages as they are staged, and what is aborted; off reads each stream as it is.",
        ),
    ] = "off",
    count: Annotated[int | None, typer.Option(help="Stop after this many messages.")] = None,
    timeout: Annotated[
        float | None, typer.Option(help="Stop after this many seconds; exit 1 if --count was not reached.")
    ] = None,
    redis: RedisUrl = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document per message.")] = False,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            envvar="STREAMLEASE_METRICS_PORT",
            help="Serve Prometheus metrics on this port; 0 picks a free one.",
        ),
    ] = None,
    metrics_host: Annotated[
        str, typer.Option(envvar="STREAMLEASE_METRICS_HOST", help="Address on which --metrics-port serves.")
    ] = "127.0.0.1",
    log_format: LogFormatOption = LogFormat.TEXT,
) -> int:
    """Print messages, one per line, either on its own or as a member of a group."""
    if count is not None and count < 1:
        raise InvalidOption(f"--count is {count}: give at least 1")
    check_seconds("--timeout", timeout)
    set_up_logs(log_format, logging.WARNING)
    work = _work(source, start, epochs)
    if metrics_port is not None:
        from streamlease.agent.membership.metrics import serve_metrics

        port = serve_metrics(metrics_port, metrics_host)
        note(f"note: metrics are at http://{shown_address(metrics_host, port)}/metrics")
    printer = asyncio.run(run_until_stopped(chosen_url(redis), work, as_json, count, timeout))
    if timeout is not None and count is not None and not printer.enough:
        note(
            f"error: {printer.printed} of {count} messages came within {timeout:g} s: wait longer, or publish"
        )
        return 1
    return 0


def _work(source: str, start: str | None, epochs: str) -> Work:
    """How messages of `source` are read.

    Raises:
        InvalidTopic, InvalidOption: `source`, `start` or `epochs` is not acceptable.
    """
    from streamlease.admin.messages.tail import parse_start

    if epochs not in ("atomic", "eager", "off"):
        raise InvalidOption(f"--epochs {ascii(epochs)[:80]} is unknown: use atomic, eager or off")

    if source.partition("/")[0] in SHARED_PREFIXES:
        subscription = SharedSubscription.parse(source)
        begin_group = None if start is None else parse_start(start)
        if epochs == "eager":
            raise InvalidOption("--epochs eager reads without a group: give a filter, such as '#'")
        if epochs == "atomic":
            return partial(_consume_shared_epochs, subscription, begin_group)
        return partial(_consume_shared, subscription, begin_group)
    filter, begin = check_filter(source), parse_start("latest" if start is None else start)
    if epochs == "off":
        return partial(_consume_alone, filter, begin)
    return partial(_consume_epochs, filter, begin, cast("EpochMode", epochs))


def print_until_stopped(redis: str | None, work: Work, as_json: bool) -> None:
    """Do `work` until it ends or a signal says so. What cannot be read meanwhile is noted."""
    with noting("streamlease.streams", "streamlease.catalog"):
        asyncio.run(run_until_stopped(chosen_url(redis), work, as_json, None, None))


async def run_until_stopped(
    url: str, work: Work, as_json: bool, count: int | None, seconds: float | None
) -> Printer:
    """Do `work` until it ends, `seconds` are over, or a signal says so."""
    from streamlease.agent.client import connect

    printer = Printer(as_json, count)
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)

    def leave() -> None:
        printer.stop.set()
        for number in signals:  # whoever asks twice does not want to wait for a good end
            loop.remove_signal_handler(number)

    for number in signals:
        loop.add_signal_handler(number, leave)
    alarm = None if seconds is None else loop.call_later(seconds, printer.stop.set)
    try:
        async with connect(url) as client:
            await work(client, printer)
    finally:
        if alarm is not None:
            alarm.cancel()
    return printer


async def _consume_shared(
    subscription: SharedSubscription, start: Start | None, client: Client, printer: Printer
) -> None:
    await _note_start(subscription, start, client)
    async with client.subscribe(str(subscription), start=start or "latest", max_batch=MAX_BATCH) as reader:
        while not printer.enough:
            batch = await printer.until_stopped(anext(reader))
            if batch is None:
                return
            messages = batch.messages
            written = printer.write(messages)
            if written == len(messages):
                await batch.commit()
            else:
                await batch.commit(messages[written].offset)


async def _note_start(subscription: SharedSubscription, start: Start | None, client: Client) -> None:
    """Say so if it makes no difference where a group was to begin."""
    if start is not None:
        with contextlib.suppress(UnknownGroup):
            await client.groups.get(subscription)
            note(f"note: '{subscription}' exists and goes on where it was; --from {start} changes nothing")


async def _consume_shared_epochs(
    subscription: SharedSubscription, start: Start | None, client: Client, printer: Printer
) -> None:
    """What is printed of an epoch in part is not committed, and comes again whole."""
    from streamlease.agent.epochs.epoch_items import Frontier

    await _note_start(subscription, start, client)
    async with client.subscribe(str(subscription), start=start or "latest", epochs="atomic") as reader:
        while not printer.enough:
            item = await printer.until_stopped(anext(reader))
            if item is None:
                return
            if isinstance(item, Frontier):
                printer.write_told(item)
            elif printer.write(item.messages) == len(item):
                await item.commit()
            else:
                note(
                    f"note: epoch {','.join(map(str, item.epoch or ()))} of stream {item.stream} has more "
                    f"messages: it is not committed, and comes again"
                )


async def _consume_alone(filter: str, start: Any, client: Client, printer: Printer) -> None:
    async with client.listen(filter, start=start, max_batch=MAX_BATCH) as reader:
        while not printer.enough:
            batch = await printer.until_stopped(anext(reader))
            if batch is None:
                return
            printer.write(batch.messages)


async def _consume_epochs(
    filter: str, start: Start, mode: EpochMode, client: Client, printer: Printer
) -> None:
    from streamlease.agent.epochs.epoch_items import EpochBatch

    async with client.listen(filter, start=start, epochs=mode) as items:
        while not printer.enough:
            item = await printer.until_stopped(anext(items))
            if item is None:
                return
            if isinstance(item, EpochBatch):
                printer.write_batch(item)
            else:
                printer.write_told(item)
