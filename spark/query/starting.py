"""Where a group begins that a query declares: ``startingOffsets`` and ``startingTimestamp``.

They count only for a group that nobody has declared yet. Afterwards its own progress is the truth, as the
checkpoint is for Spark's Kafka source. A ``$queue`` is declared explicitly, and its start with it.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from streamlease.protocol.errors import HistoryTruncated, InvalidOption, UnknownGroup
from streamlease.protocol.ids import StreamId
from streamlease.registry.groups import Groups
from streamlease.spark.option_values import LATEST
from streamlease.spark.options import SourceOptions
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.log.state import LogState

log = logging.getLogger(__name__)


async def declare(groups: Groups, streams: AsyncLog, options: SourceOptions) -> None:
    """Declare the group as the options say, unless it is declared already.

    Raises:
        UnknownSpace: no space has topics that the filter matches.
        InvalidOption: an offset is of an unknown stream, or beyond its end.
        HistoryTruncated: an offset or moment is gone, and ``failOnDataLoss`` is set.
        GroupConflict: it is declared under the other prefix.
        UnknownGroup: it is a ``$queue``, and nobody has declared it.
    """
    subscription, starting = options.subscription, options.starting_offsets
    if subscription.kind == "$queue":
        await groups.join(subscription)
        return
    if isinstance(starting, str) and options.starting_timestamp is None:
        await groups.declare(subscription, starting)
        return
    if await _is_declared(groups, options):
        await groups.declare(subscription, "earliest")
    else:
        states = await streams.states(await groups.streams(subscription))
        if options.starting_timestamp is None:
            assert not isinstance(starting, str)
            positions = at_offsets(starting, states, fail_on_data_loss=options.fail_on_data_loss)
        else:
            moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=options.starting_timestamp)
            positions = {}
            for stream in states:
                positions[str(stream)] = await _since(streams, stream, moment, options)
        await groups.declare(subscription, "earliest", positions=positions)


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
