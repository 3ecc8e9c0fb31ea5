"""Where a group begins that a query declares: ``startingOffsets`` and ``startingTimestamp``.

They count only for a group that nobody has declared yet. Afterwards its own progress is the truth, as the
checkpoint is for Spark's Kafka source. A ``$queue`` is declared explicitly, and its start with it.
"""

from __future__ import annotations

import contextlib
import difflib
import logging
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from streamlease.protocol.errors import GroupConflict, HistoryTruncated, InvalidOption, UnknownGroup
from streamlease.protocol.ids import StreamId
from streamlease.registry.groups import Groups
from streamlease.spark.option_values import EARLIEST, LATEST
from streamlease.spark.options import SourceOptions
from streamlease.spark.query.epoch_following import BoundaryFollower
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.log.state import LogState

log = logging.getLogger(__name__)


async def declare(
    groups: Groups, streams: AsyncLog, options: SourceOptions, boundaries: BoundaryFollower | None = None
) -> None:
    """Declare the group as the options say, unless it is declared already.

    Args:
        boundaries: of the space, where epochs are read whole: a new group begins at one of them.

    Raises:
        UnknownSpace: no space has topics that the filter matches.
        InvalidOption: an offset is of an unknown stream, or beyond its end.
        HistoryTruncated, EpochsTruncated: an offset or moment is gone, and ``failOnDataLoss`` is set.
        GroupConflict: it is declared under the other prefix, or for Python programs that read whole epochs.
        UnknownGroup: it is a ``$queue``, and nobody has declared it.
    """
    subscription, starting = options.subscription, options.starting_offsets
    await _check_readers(groups, options)
    if subscription.kind == "$queue":
        await groups.join(subscription)
        return
    strict = options.fail_on_data_loss
    in_a_word = starting if isinstance(starting, str) and options.starting_timestamp is None else None
    if boundaries is not None and not isinstance(starting, str) and EARLIEST in starting.values():
        in_a_word = "earliest"  # all streams begin at one boundary
    if in_a_word is not None and boundaries is None:
        await groups.declare(subscription, in_a_word)
    elif await _is_declared(groups, options):
        await groups.declare(subscription, "earliest")
    elif in_a_word is not None and boundaries is not None:
        positions = await boundaries.begin_at(in_a_word, fail_on_data_loss=strict)
        await groups.declare(subscription, "earliest", positions=positions)
    else:
        states = await streams.states(await groups.streams(subscription))
        if options.starting_timestamp is None:
            assert not isinstance(starting, str)
            positions = at_offsets(starting, states, fail_on_data_loss=strict)
        else:
            moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=options.starting_timestamp)
            positions = {}
            for stream in states:
                positions[str(stream)] = await _since(streams, stream, moment, options)
        if boundaries is not None:
            positions = await boundaries.begin_at(positions, fail_on_data_loss=strict)
        await groups.declare(subscription, "earliest", positions=positions)


async def _check_readers(groups: Groups, options: SourceOptions) -> None:
    """Raises:
    GroupConflict: the group belongs to Python consumers that read whole epochs, and leave some out.
    """
    with contextlib.suppress(UnknownGroup):
        declared = await groups.get(options.subscription)
        if declared.epochs is not None:
            raise GroupConflict(
                f"the consumers of '{options.subscription}' are Python programs that read whole epochs: give "
                f"the query another group, where it may read whole epochs, too"
            )


async def _is_declared(groups: Groups, options: SourceOptions) -> bool:
    try:
        await groups.get(options.subscription)
    except UnknownGroup:
        return False
    return True


async def _since(streams: AsyncLog, stream: StreamId, moment: datetime, options: SourceOptions) -> int:
    try:
        return await streams.since(stream, moment)
    except HistoryTruncated as error:
        if options.fail_on_data_loss:
            raise
        log.warning("%s", error)
        return error.oldest


def at_offsets(
    wanted: Mapping[str, int], states: Mapping[StreamId, LogState], *, fail_on_data_loss: bool
) -> dict[str, int]:
    """The first offset of each stream; those not named begin at their oldest message. See :func:`declare`."""
    known = {str(stream): state for stream, state in states.items()}
    found: dict[str, int] = {}
    for stream, offset in wanted.items():
        state = known.get(stream)
        if state is None:
            near = difflib.get_close_matches(stream, known, 1, 0.0)
            raise InvalidOption(
                f"option 'startingOffsets' names {stream!r}, which is no stream of the subscription: "
                f"the nearest is {near[0]!r}"
                if near
                else f"option 'startingOffsets' names {stream!r}, but there is no stream yet"
            )
        if offset > state.next:
            raise InvalidOption(
                f"option 'startingOffsets' has offset {offset} for stream {stream}, which ends at "
                f"{state.next}: give at most {state.next}, or -1 for the end"
            )
        try:
            if offset > LATEST:
                state.check_exists(StreamId.parse(stream), offset)
        except HistoryTruncated as truncated:
            if fail_on_data_loss:
                raise
            log.warning("%s", truncated)
        found[stream] = state.next if offset == LATEST else max(offset, state.floor)
    return found
