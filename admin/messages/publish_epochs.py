"""Publishing records of epochs, as ``streamlease publish --publisher NAME``.

The epoch of a record is that of ``--epoch``, or what stands in its field. Records come in the order of their
epochs: tuples by their first integers, then by the second, and so on. When the epoch rises, all that stands
before the new one in that order is given up; at the end so is all up to the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from streamlease.admin.messages.publication import Contents, PublicationPlan, PublicationProgress
from streamlease.admin.messages.sources import Form, InputMeter, Record, read_ahead, records
from streamlease.protocol.epochs.antichains import Antichain, minimal
from streamlease.protocol.epochs.order import HIGHEST_EPOCH, Epoch, checked_epoch, join
from streamlease.protocol.errors import (
    InvalidEpoch,
    InvalidInput,
    InvalidOption,
    NotCapable,
    StreamleaseError,
)
from streamlease.protocol.ids import check_name

if TYPE_CHECKING:
    from streamlease.admin.bar import Bar
    from streamlease.admin.messages.diff_options import RecordDiffs
    from streamlease.agent.client import Client
    from streamlease.streams.epochs.epoch_publisher import EpochPublisher
    from streamlease.streams.spaces.spaces import Space


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """Under which name records are published, and at which epochs."""

    name: str
    epoch: str | None
    column: str | None

    @classmethod
    def of(
        cls, name: str | None, epoch: str | None, column: str | None, form: Form, resume: str | None
    ) -> EpochPlan | None:
        """What the options say; None: records have no epochs.

        Raises:
            InvalidOption, InvalidInput: they do not fit each other, or the name is none.
        """
        if name is None:
            if epoch is not None or column is not None:
                given = "--epoch" if epoch is not None else "--epoch-column"
                raise InvalidOption(f"{given} is for publishers with a name: give --publisher NAME too")
            return None
        check_name("publisher", name)
        if resume is not None:
            raise InvalidOption("--resume publishes without epochs: leave it or --publisher out")
        if epoch is not None and column is not None:
            raise InvalidOption("--epoch and --epoch-column are two ways to give epochs: leave one out")
        if epoch is None and column is None:
            raise InvalidOption("--publisher needs to know the epoch: give --epoch N or --epoch-column COL")
        if column is not None and form is Form.LINES:
            raise InvalidOption(
                f"--epoch-column {ascii(column)[:80]} needs fields: use --format jsonl, csv or parquet"
            )
        return cls(name, epoch, column)

    def epoch_of(self, dimensions: int) -> Callable[[Record], Epoch]:
        """How a record of a space of so many dimensions gives its epoch.

        Raises:
            InvalidEpoch: ``--epoch`` is none.
        """
        if self.epoch is not None:
            one = _epoch("--epoch", self.epoch, dimensions)
            return lambda record: one
        column = self.column

        def of(record: Record) -> Epoch:
            fields = record.fields or {}
            if column not in fields:
                there = ", ".join(fields)[:200] or "none"
                raise InvalidInput(f"{record.where} has no field {ascii(column)[:80]}: it has {there}")
            return _epoch(record.where, fields[column], dimensions)

        return of


def _epoch(where: str, value: Any, dimensions: int) -> Epoch:
    """An epoch in an option or a field: an integer, integers joined by commas, or a list of them.

    Raises:
        InvalidEpoch: it is none.
    """
    try:
        if isinstance(value, str):
            parts = [part.strip() for part in value.split(",")]
            if all(part.removeprefix("-").isdecimal() and len(part) < 40 for part in parts):
                value = [int(part) for part in parts]
        return checked_epoch(value, dimensions)
    except InvalidEpoch as error:
        raise InvalidEpoch(f"{where}: {error}") from None


def from_on(epoch: Epoch) -> Antichain:
    """The minimal ones of `epoch` and all that come behind it in the order of tuples."""
    behind = [
        (*epoch[:place], epoch[place] + 1, *(0,) * (len(epoch) - place - 1))
        for place in range(len(epoch) - 1)
        if epoch[place] < HIGHEST_EPOCH
    ]
    return minimal([epoch, *behind])


def behind_all(epoch: Epoch) -> Antichain:
    """The minimal ones of those that come behind `epoch` in the order of tuples; none behind the last one."""
    return minimal(
        (*epoch[:place], epoch[place] + 1, *(0,) * (len(epoch) - place - 1))
        for place in range(len(epoch))
        if epoch[place] < HIGHEST_EPOCH
    )


def both(held: Iterable[Epoch], wanted: Iterable[Epoch]) -> Antichain:
    """The minimal ones of the epochs that are at or above an element of each."""
    return minimal(join(one, other) for one in held for other in wanted)


async def publish_epochs(
    client: Client, plan: PublicationPlan, epochs: EpochPlan, counts: PublicationProgress, bar: Bar
) -> None:
    """Publish all records, and end well unless something goes wrong behind the first of them.

    Raises:
        InvalidEpoch, NotCapable, InvalidInput: a record has no epoch, or one that was given up.
        StreamleaseError: what the publication ran into. What was given up before stays so.
    """
    if plan.topic_of is None:
        _check_epochs(await client.spaces.for_topic(plan.topic))
    meter = InputMeter()
    async with aclosing(read_ahead(records(plan.file, plan.form, meter))) as lists:
        some: list[Record] = await anext(lists, [])
        if not some and plan.topic_of is not None:
            return
        topic = plan.topic if plan.topic_of is None else plan.topic_of(some[0])
        space = await client.spaces.for_topic(topic)
        _check_epochs(space)
        epoch_of, contents = epochs.epoch_of(space.epochs), Contents(client, plan, epochs.column)
        for record in some[:1]:
            epoch_of(record)  # a first record without an epoch is refused before anything is written
        error: StreamleaseError | None = None
        async with client.epoch_publisher(space.name, epochs.name, **plan.options) as publisher:
            sending = _Sending(publisher, epoch_of, contents, counts, plan.diffs)
            try:
                while some:
                    for record in some:
                        await sending.send(record)
                    bar.show(meter.done, meter.total, counts.published)
                    some = await anext(lists, [])
                await sending.end()
            except StreamleaseError as why:
                if counts.submitted:
                    raise
                error = why  # nothing was sent: a clean end, so that it holds back nobody
        if error is not None:
            raise error


class _Sending:
    """Sends records, and gives up what stands before the highest epoch of them."""

    def __init__(
        self,
        publisher: EpochPublisher,
        epoch_of: Callable[[Record], Epoch],
        contents: Contents,
        counts: PublicationProgress,
        diffs: RecordDiffs | None,
    ) -> None:
        self._publisher = publisher
        self._diffs = diffs
        self._epoch_of = epoch_of
        self._contents = contents
        self._counts = counts
        self._highest: Epoch | None = None

    async def send(self, record: Record) -> None:
        epoch, diff = self._epoch_of(record), None
        if self._diffs is not None:
            record, diff = self._diffs.taken(record)
        topic, content, key = await self._contents.of(record)
        try:
            if self._highest is not None and epoch > self._highest:
                await self._publisher.advance(both(self._publisher.frontier, from_on(epoch)))
            receipt = await self._publisher.submit(topic, content, key, diff=diff, epoch=epoch)
        except NotCapable as error:
            raise NotCapable(f"{record.where}: {error}") from None
        self._highest = epoch if self._highest is None else max(self._highest, epoch)
        receipt.add_done_callback(self._counts.settled)
        self._counts.submitted += 1
        self._counts.bytes += len(record.payload)

    async def end(self) -> None:
        """All records were sent: give up the last epoch too."""
        if self._highest is not None and (rest := both(self._publisher.frontier, behind_all(self._highest))):
            await self._publisher.advance(rest)


def _check_epochs(space: Space) -> None:
    if not space.epochs:
        raise InvalidInput(f"space {space.name} has no epochs: leave --publisher out")
