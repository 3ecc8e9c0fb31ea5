"""What the reader of a subscription makes of grants and revocations, without Redis or a leader."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from types import SimpleNamespace

import pyarrow as pa
import pytest

from streamlease.agent.subscription import Batch, SharedReader
from streamlease.borrower.events import (
    FailureAnswered,
    ProgressAcknowledged,
    Progressed,
    StreamGone,
    StreamGranted,
    StreamRevoking,
)
from streamlease.protocol.errors import Fenced, HistoryTruncated, Indefinite, InvalidInput
from streamlease.protocol.ids import StreamId
from streamlease.protocol.topics import SharedSubscription
from streamlease.streams.rows.shared_rows import Rows
from tests.agent.helpers import resting_tails

STREAM = StreamId("s", 0, 0)
S0 = str(STREAM)


class Reader(SharedReader):
    """A reader that notes what it reports."""

    def __init__(self) -> None:
        shared = SharedSubscription("g", "#")
        super().__init__(None, resting_tails(), shared, max_batch=2, buffered_batches=4)  # type: ignore[arg-type]
        self.reported: list[Progressed] = []
        self.slots = [SimpleNamespace(step=self.reported.append)]
        self._settling.session = self  # type: ignore[assignment]

    def grant(self, lease_epoch: int, progress: int = 0, resumes: int | None = None) -> None:
        self.granted(0, StreamGranted(S0, lease_epoch, progress, None, resumes))

    def fetched(self, *ends: int) -> None:
        """Batches up to these offsets have come."""
        held = self.book.streams[S0]
        for end in ends:
            batch = Batch(self._settling, held, STREAM, held.position, end, Rows(pa.record_batch({})))
            self._fetching.waiting.put(batch, 1, more=False)
            held.position = end


@pytest.fixture
async def reader() -> Reader:
    return Reader()


async def test_a_stream_goes_on_after_its_leader_died_while_it_was_being_revoked(reader: Reader) -> None:
    reader.grant(1)
    reader.fetched(2, 4)
    assert (await anext(reader)).end == 2  # and not committed yet
    reader.revoking(0, StreamRevoking(S0, 1))
    reader.gone(0, StreamGone(S0, 1))
    reader.grant(2, 0, resumes=1)
    reader.fetched(4)
    batch = await anext(reader)
    assert (batch.start, batch.end) == (2, 4)


async def test_batches_that_a_revocation_dropped_are_fetched_again_if_the_stream_stays(
    reader: Reader,
) -> None:
    reader.grant(1)
    reader.fetched(2, 4)
    held = (await anext(reader)).held
    reader.revoking(0, StreamRevoking(S0, 1))
    assert reader._take(None) is None  # dropped
    reader.gone(0, StreamGone(S0, 1))
    reader.grant(2, 0, resumes=1)
    assert reader.book.streams[S0] is held
    assert held.position == 2


async def test_a_session_that_missed_a_grant_goes_on_where_it_was(reader: Reader) -> None:
    reader.grant(1)
    reader.fetched(2)
    held = (await anext(reader)).held
    reader.gone(0, StreamGone(S0, 1))
    reader.grant(3, 0, resumes=1)
    assert reader.book.streams[S0] is held
    assert (held.position, held.lease_epoch) == (2, 3)


async def test_a_stream_that_somebody_else_had_begins_at_the_progress(reader: Reader) -> None:
    reader.grant(1)
    reader.fetched(2)
    held = (await anext(reader)).held
    reader.gone(0, StreamGone(S0, 1))
    reader.grant(4, 1, resumes=3)
    assert reader.book.streams[S0] is not held
    assert reader.book.streams[S0].position == 1


async def test_a_stream_whose_work_is_done_is_forgotten_when_it_is_revoked(reader: Reader) -> None:
    reader.grant(1)
    reader.revoking(0, StreamRevoking(S0, 1))
    assert reader.reported[-1].final
    reader.gone(0, StreamGone(S0, 1))
    assert reader.book.streams == {}


async def test_what_was_read_before_what_cannot_be_read_is_handed_out_and_committed(reader: Reader) -> None:
    reader.grant(1)
    reader.fetched(2, 4)
    ended: list[bool] = []
    reader._settling.session = Connected(lambda: ended.append(True))  # type: ignore[assignment]
    reader._ended_by(HistoryTruncated(S0, 4, 9))
    last = [await anext(reader), await anext(reader)][-1]
    for _ in range(2):
        with pytest.raises(HistoryTruncated):
            await anext(reader)
    assert reader.error is None and not ended, "what it was handed may be committed"
    reader._limbo.look(0.0)
    last.held.advance(4)
    reader.acknowledged(0, ProgressAcknowledged(S0, 1, 4))
    with pytest.raises(HistoryTruncated):
        await anext(reader)
    assert isinstance(reader.error, HistoryTruncated) and ended == [True], "others may read on"


class Connected:
    """A session that is connected."""

    over = False

    def __init__(self, disconnect: Callable[[], None] = lambda: None) -> None:
        self.disconnect = disconnect

    connected = True

    slots = (SimpleNamespace(step=lambda event: None),)
    """Nobody hears what is said."""

    def new_failure(self) -> str:
        return "f1"


async def test_a_stream_that_did_not_come_back_in_time_goes_on_where_it_was_if_it_does_all_the_same(
    reader: Reader,
) -> None:
    reader.grant(1)
    reader.fetched(2, 4)
    held = (await anext(reader)).held
    reader._settling.session = Connected()  # type: ignore[assignment]
    reader.gone(0, StreamGone(S0, 1))
    for second in range(10):
        reader._limbo.look(float(second))
    assert reader._take(None) is None  # it may be somebody else's by now
    reader.grant(2, 0, resumes=1)
    assert reader.book.streams[S0] is held
    assert (held.position, held.limbo) == (2, False)


async def test_a_commit_of_a_stream_that_does_not_come_back_is_answered_and_the_stream_begins_anew(
    reader: Reader,
) -> None:
    reader.grant(1)
    reader.fetched(2)
    batch = await anext(reader)
    reader._settling.session = Connected()  # type: ignore[assignment]
    reader.gone(0, StreamGone(S0, 1))
    commit = asyncio.create_task(batch.commit())
    await asyncio.sleep(0)
    for second in range(3):
        reader._limbo.look(float(second))
    assert S0 in reader.book.streams
    reader._limbo.look(3.0)
    with pytest.raises(Fenced, match="taken away"):
        await commit
    reader.grant(2, 0, resumes=1)
    assert reader.book.streams[S0].position == 0  # the program may have taken its work back


async def test_time_in_which_the_process_stood_still_does_not_count_against_a_stream(reader: Reader) -> None:
    reader.grant(1)
    reader.fetched(2)
    batch = await anext(reader)
    reader._settling.session = Connected()  # type: ignore[assignment]
    reader.gone(0, StreamGone(S0, 1))
    commit = asyncio.create_task(batch.commit())
    await asyncio.sleep(0)
    held = reader.book.streams[S0]
    reader._limbo.look(0.0)
    reader._limbo.look(12.0)
    await asyncio.sleep(0)
    assert reader.book.streams[S0] is held
    assert not commit.done(), "it is refused when the stream is given up"
    reader.grant(2, 2, resumes=1)
    await commit
    assert (held.position, held.limbo) == (2, False)


async def test_what_the_filter_passes_over_behind_a_dead_letter_is_reported(reader: Reader) -> None:
    reader.grant(1)
    reader.fetched(2)
    batch = await anext(reader)
    held = batch.held
    held.skips[2] = held.position = 7
    reader._settling.session = Connected()  # type: ignore[assignment]
    failure = asyncio.create_task(batch.fail(1, "bad"))
    await asyncio.sleep(0)
    reader._settling.session = reader  # type: ignore[assignment]
    reader.answered(0, FailureAnswered(S0, 1, 1, "f1", "passed"))
    assert await failure == "passed"
    assert reader.reported[-1] == Progressed(S0, 1, 7)


async def test_a_stream_that_comes_back_behind_a_dead_letter_does_not_hand_it_out_again(
    reader: Reader,
) -> None:
    reader.grant(1)
    reader.fetched(2)
    batch = await anext(reader)
    reader.gone(0, StreamGone(S0, 1))
    reader.grant(2, 1, resumes=1)  # an operator made a dead letter of offset 0
    held = reader.book.streams[S0]
    assert held is batch.held
    assert (held.committed, held.position) == (1, 1)
    with pytest.raises(InvalidInput, match="come again"):
        await batch.commit()


async def test_a_failure_that_nobody_waits_for_any_more_leaves_nothing_behind(
    reader: Reader, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its answer comes late: as an error, which is nobody's then."""
    monkeypatch.setattr("streamlease.agent.settling.COMMIT_SECONDS", 0.01)
    reader.new_failure = lambda: "f"  # type: ignore[attr-defined]
    reader.slots = [SimpleNamespace(step=lambda event: None)]
    reader.grant(1)
    held = reader.book.streams[S0]
    with pytest.raises(Indefinite, match="no leader said"):
        await reader._settling.fail(held, 0, "bad")
    assert reader._settling.is_waited_for(held)
    reader._settling.lose(held)
    gc.collect()
    assert "never retrieved" not in caplog.text
