"""Commits that nobody awaits, and their failures: without Redis, and without a leader."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from types import SimpleNamespace

import pyarrow as pa
import pytest

from streamlease.agent.batch import Batch
from streamlease.agent.membership.limbo import LIMBO_SECONDS
from streamlease.agent.settling import Settling
from streamlease.agent.subscription import SharedReader
from streamlease.agent.yielding import TURN_BATCHES
from streamlease.borrower.book import Held
from streamlease.borrower.events import (
    FailureAnswered,
    ProgressAcknowledged,
    Progressed,
    StreamGone,
    StreamGranted,
    StreamRevoking,
)
from streamlease.protocol.errors import (
    Fenced,
    Indefinite,
    InvalidInput,
    InvalidOption,
    StoreUnavailable,
    StreamleaseError,
)
from streamlease.protocol.ids import StreamId
from streamlease.protocol.topics import SharedSubscription
from streamlease.registry.commits import StreamCommit
from streamlease.registry.gathered_commits import MOST_NAMED
from tests.agent.helpers import resting_tails, until

Answer = list[bool] | StreamleaseError


class Writes:
    """Redis: answers a write when the test says so, or at once."""

    def __init__(self) -> None:
        self.calls: list[list[tuple[str, int]]] = []
        self.answers: asyncio.Queue[Answer] = asyncio.Queue()
        self.at_once = False

    async def write(self, commits: Sequence[StreamCommit]) -> list[bool]:
        self.calls.append([(commit.stream, commit.offset) for commit in commits])
        if self.at_once:
            return [True] * len(commits)
        answer = await self.answers.get()
        if isinstance(answer, StreamleaseError):
            raise answer
        return answer

    def write_on_line(self, *_: object) -> bool:
        """There is no line."""
        return False


class Program(SharedReader):
    """A subscription that is granted streams and gets batches as the test says."""

    connected = True
    """Of its session, which it is itself."""

    def __init__(self, *, auto_commit: bool = False) -> None:
        shared = SharedSubscription("g", "#")
        super().__init__(
            None, resting_tails(), shared, max_batch=1000, buffered_batches=4, auto_commit=auto_commit
        )  # type: ignore[arg-type]
        self.told: list[Progressed] = []
        self.slots = [SimpleNamespace(step=self.told.append)]
        self.writes = Writes()
        self.settling: Settling = self._settling
        self.settling.session = self  # type: ignore[assignment]
        self.settling._writing._commits = self.writes  # type: ignore[assignment]

    def new_failure(self) -> str:
        return "f1"

    def grant(self, shard: int, lease_epoch: int = 1, progress: int = 0, resumes: int | None = None) -> None:
        self.granted(0, StreamGranted(name(shard), lease_epoch, progress, None, resumes))

    def fetched(self, shard: int, *ends: int) -> None:
        held = self.book.streams[name(shard)]
        for end in ends:
            rows = pa.record_batch({"offset": pa.array(range(held.position, end), pa.int64())})
            batch = Batch(self.settling, held, StreamId("s", 0, shard), held.position, end, rows)
            self._fetching.waiting.put(batch, 1, more=False)
            held.position = end

    async def batch(self, shard: int, end: int) -> Batch:
        """A batch of the stream up to `end`, handed out."""
        self.fetched(shard, end)
        return await anext(self)

    def held(self, shard: int) -> Held:
        return self.book.streams[name(shard)]

    async def written(self, calls: int) -> None:
        await until(lambda: len(self.writes.calls) >= calls)

    def answer(self, answer: Answer) -> None:
        self.writes.answers.put_nowait(answer)


def name(shard: int) -> str:
    return f"s.0.{shard}"


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    caplog.set_level("WARNING", logger="streamlease")
    yield caplog


@pytest.fixture
async def program() -> Program:
    program = Program()
    for shard in range(3):
        program.grant(shard)
    return program


async def test_it_returns_at_once_and_flush_returns_when_all_until_then_is_durable(program: Program) -> None:
    batch = await program.batch(0, 5)
    batch.commit_soon(2)
    await program.written(1)
    flush = asyncio.create_task(program.flush())
    await asyncio.sleep(0)
    batch.commit_soon()  # entered behind the flush
    assert not flush.done()
    program.answer([True])
    await flush
    assert (program.held(0).acknowledged, program.held(0).committed) == (2, 5)
    await program.written(2)
    program.answer([True])
    await program.flush()
    assert program.held(0).acknowledged == 5
    await program.flush()  # nothing is left


async def test_of_each_stream_one_offset_waits_and_all_go_with_the_next_write(program: Program) -> None:
    batches = [await program.batch(shard, 1000) for shard in range(3)]
    batches[0].commit_soon(1)
    await program.written(1)
    for end in range(2, 1001):
        for batch in batches:
            batch.commit_soon(end)
    assert len(program.settling.gathered.entered) == 3
    program.answer([True])
    await program.written(2)
    assert program.writes.calls == [[(name(0), 1)], [(name(shard), 1000) for shard in range(3)]]
    program.answer([True] * 3)
    await program.flush()
    assert not program.settling.gathered.entered


async def test_forms_may_be_mixed_and_no_write_goes_back(program: Program) -> None:
    batch = await program.batch(0, 10)
    batch.commit_soon(3)
    await program.written(1)
    awaited = asyncio.create_task(batch.commit(7))
    await asyncio.sleep(0)
    batch.commit_soon(5)  # less than is entered already
    program.answer([True])
    await program.written(2)
    batch.commit_soon(9)
    program.answer([True])
    await awaited
    await program.written(3)
    assert program.writes.calls == [[(name(0), 3)], [(name(0), 7)], [(name(0), 9)]]
    program.answer([True])
    await batch.commit(8)
    await program.flush()
    assert len(program.writes.calls) == 3


@pytest.mark.parametrize("error", [StoreUnavailable("down"), Indefinite("the reply is lost")], ids=repr)
async def test_a_write_without_an_answer_goes_to_the_leader_and_flush_waits_for_him(
    program: Program, error: StreamleaseError
) -> None:
    batch = await program.batch(0, 5)
    batch.commit_soon()
    await program.written(1)
    program.answer(error)
    await until(lambda: program.told != [])
    assert program.told[-1] == Progressed(name(0), 1, 5)
    flush = asyncio.create_task(program.flush())
    await asyncio.sleep(0)
    assert not flush.done()
    program.acknowledged(0, ProgressAcknowledged(name(0), 1, 5))
    await flush


async def test_what_was_lost_is_raised_once_by_flush(
    program: Program, warnings: pytest.LogCaptureFixture
) -> None:
    first, second = await program.batch(0, 5), await program.batch(1, 7)
    first.commit_soon(2)
    await program.written(1)
    program.answer([True])
    await program.flush()
    first.commit_soon()
    second.commit_soon()
    await program.written(2)
    program.grant(0, 4, 2, resumes=3)  # somebody else had them in between
    program.grant(1, 4, 0, resumes=3)
    with pytest.raises(Fenced, match=r"s\.0\.0 .* up to offset 5 .* from offset 2 on") as raised:
        await program.flush()
    assert raised.value.__notes__ == ["not all is committed either of s.0.1"]
    assert sum("was taken away before its commit" in line for line in warnings.messages) == 2
    await program.flush()


async def test_many_failures_are_logged_in_part_and_named_in_part(
    program: Program, warnings: pytest.LogCaptureFixture
) -> None:
    for shard in range(3, 15):
        program.grant(shard)
        program.settling.commit_soon(program.held(shard), 1)
    for shard in range(3, 15):
        program.grant(shard, 4, 0, resumes=3)
    assert sum("was taken away" in line for line in warnings.messages) == MOST_NAMED
    with pytest.raises(Fenced, match=r"s\.0\.3 was taken away") as raised:
        await program.flush()
    (note,) = raised.value.__notes__
    assert note.startswith("not all is committed either of s.0.4, ")
    assert note.endswith("s.0.13 and 1 more")


async def test_all_that_flush_at_the_same_time_are_told(program: Program) -> None:
    batch, other = await program.batch(0, 5), await program.batch(1, 5)
    batch.commit_soon()
    other.commit_soon()
    await program.written(1)
    flushes = [asyncio.create_task(program.flush()) for _ in range(2)]
    await asyncio.sleep(0)
    program.grant(0, 4, 0, resumes=3)
    again = asyncio.create_task((await program.batch(0, 5)).commit())
    program.answer([False, True])
    program.answer([True])
    outcomes = await asyncio.gather(*flushes, again, return_exceptions=True)
    assert [isinstance(outcome, Fenced) for outcome in outcomes[:2]] == [True, True]
    await program.flush()  # it was told, by those or by the commit


async def test_the_next_commit_of_the_stream_is_made_and_tells_what_was_lost(program: Program) -> None:
    program.writes.at_once = True
    other = await program.batch(1, 5)
    (await program.batch(0, 5)).commit_soon()
    program.grant(0, 4, 0, resumes=3)
    await other.commit()
    again = await program.batch(0, 5)
    with pytest.raises(Fenced, match="taken away before its commit up to offset 5") as raised:
        await again.commit()
    assert raised.value.__notes__ == ["this commit, of s.0.0 up to offset 5, is durable"]
    assert program.held(0).acknowledged == 5
    await again.commit()
    await program.flush()


async def test_a_batch_of_a_stream_that_was_taken_away_is_refused_at_once(program: Program) -> None:
    batch = await program.batch(0, 5)
    batch.commit_soon(3)
    program.grant(0, 4, 0, resumes=3)
    with pytest.raises(Fenced, match="its commit up to offset 3"):
        batch.commit_soon()
    with pytest.raises(Fenced, match="before the commit"):
        batch.commit_soon()
    await program.flush()  # it was told


async def test_nobody_asks_and_the_stream_does_not_come_back(program: Program) -> None:
    """It is looked after as if somebody waited: the failure is known and logged soon."""
    batch = await program.batch(0, 5)
    batch.commit_soon()
    await program.written(1)
    program.gone(0, StreamGone(name(0), 1))
    for second in range(int(LIMBO_SECONDS) + 1):
        program._limbo.look(float(second))
    assert name(0) not in program.book.streams
    with pytest.raises(Fenced, match="taken away"):
        await program.flush()


async def test_a_flush_that_takes_too_long_says_so_and_another_one_may_succeed(program: Program) -> None:
    batch = await program.batch(0, 5)
    batch.commit_soon()
    await program.written(1)
    for _ in range(2):
        with pytest.raises(Indefinite, match=r"s\.0\.0 up to offset 5 .* may come again"):
            await program.settling.flush(0.01)
    program.answer([True])
    await program.flush()


async def test_who_cancels_a_flush_or_a_commit_has_entered_it_all_the_same(program: Program) -> None:
    batch = await program.batch(0, 5)
    batch.commit_soon(2)
    tasks = [asyncio.create_task(program.flush()), asyncio.create_task(batch.commit())]
    await program.written(1)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    program.answer([True])  # up to 2
    program.answer([True])
    await until(lambda: program.held(0).acknowledged == 5)
    assert not program.settling.gathered.entered


async def test_the_end_of_the_session_is_told(program: Program) -> None:
    batch = await program.batch(0, 5)
    batch.commit_soon(2)
    why = Fenced("borrower 'b' was replaced")
    program.failed(why)
    with pytest.raises(Fenced, match="replaced"):
        await program.flush()
    with pytest.raises(Fenced, match="replaced"):
        batch.commit_soon()


async def test_what_cannot_be_committed_is_refused_at_once(program: Program) -> None:
    batch = await program.batch(0, 5)
    with pytest.raises(InvalidOption, match="offsets 0 to 5"):
        batch.commit_soon(6)
    program.held(0).fail(1, "f1", "bad")
    with pytest.raises(InvalidInput, match="come again"):
        batch.commit_soon()
    batch.commit_later()
    with pytest.raises(InvalidInput, match="come again"):
        await program.flush()


async def test_what_fails_behind_it_makes_it_durable(program: Program) -> None:
    """A failure says that all before the message is done."""
    batch = await program.batch(0, 5)
    batch.commit_soon(2)
    await program.written(1)
    failing = asyncio.create_task(batch.fail(3, "bad"))
    await asyncio.sleep(0)
    program.answer(StoreUnavailable("down"))
    program.answered(0, FailureAnswered(name(0), 1, 3, "f1", "passed"))
    assert await failing == "passed"
    await program.flush()
    assert program.held(0).acknowledged == 4


# -- revocation ----------------------------------------------------------------------------------------------


async def test_a_stream_is_given_back_with_what_was_entered_while_a_write_is_under_way(
    program: Program,
) -> None:
    batch = await program.batch(0, 5)
    batch.commit_soon(2)
    await program.written(1)
    program.revoking(0, StreamRevoking(name(0), 1))
    assert program.told[-1] == Progressed(name(0), 1, 2)  # three messages are still at work
    batch.commit_soon()
    program.answer([True])
    await program.written(2)
    program.answer([True])
    await program.flush()
    assert program.told[-1] == Progressed(name(0), 1, 5, final=True, durable=True)
    program.gone(0, StreamGone(name(0), 1))
    assert name(0) in program.book.given_back


async def test_the_final_word_carries_what_is_not_written_yet(program: Program) -> None:
    """The leader makes it durable then, and says so before the stream goes."""
    batch = await program.batch(0, 5)
    batch.commit_soon()
    await program.written(1)
    program.revoking(0, StreamRevoking(name(0), 1))
    assert program.told[-1] == Progressed(name(0), 1, 5, final=True)
    program.acknowledged(0, ProgressAcknowledged(name(0), 1, 5))
    program.gone(0, StreamGone(name(0), 1))
    assert name(0) in program.book.given_back
    await program.flush()


async def test_a_stream_that_goes_before_it_is_written_is_kept_until_that_is_known(program: Program) -> None:
    batch = await program.batch(0, 5)
    batch.commit_soon()
    await program.written(1)
    program.revoking(0, StreamRevoking(name(0), 1))
    program.gone(0, StreamGone(name(0), 1))
    assert name(0) in program.book.streams
    program.answer([False])
    program.grant(0, 2, 0, resumes=1)  # nobody had it in between: it goes on
    assert program.told[-1] == Progressed(name(0), 2, 5)
    program.acknowledged(0, ProgressAcknowledged(name(0), 2, 5))
    await program.flush()


# -- auto-commit ---------------------------------------------------------------------------------------------


@pytest.fixture
async def automatic() -> Program:
    program = Program(auto_commit=True)
    for shard in range(2):
        program.grant(shard)
    return program


async def test_a_batch_is_done_when_the_loop_comes_back(automatic: Program) -> None:
    automatic.writes.at_once = True
    automatic.fetched(0, 2, 4, 6)
    seen = []
    async for batch in automatic:
        assert automatic.held(0).committed == batch.start
        seen.append(batch.end)
        if len(seen) == 3:
            break
    assert automatic.held(0).committed == 4
    automatic.finished()
    automatic.finished()  # there is nothing else at work
    await automatic.flush()
    assert automatic.held(0).acknowledged == 6


async def test_it_is_done_though_no_other_batch_comes(automatic: Program) -> None:
    automatic.writes.at_once = True
    automatic.fetched(0, 2)
    await anext(automatic)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await anext(automatic)
    assert automatic.held(0).acknowledged == 2


async def test_a_program_that_awaits_nothing_else_is_written_all_the_same(automatic: Program) -> None:
    automatic.writes.at_once = True
    automatic.fetched(0, *range(1, 5 * TURN_BATCHES))
    for _ in range(4 * TURN_BATCHES):
        await anext(automatic)
    assert automatic.held(0).acknowledged >= 2 * TURN_BATCHES


async def test_a_batch_that_was_given_up_is_left_to_its_failure(automatic: Program) -> None:
    automatic.writes.at_once = True
    automatic.fetched(0, 5)
    batch = await anext(automatic)
    failing = asyncio.create_task(batch.fail(2, "bad"))
    await asyncio.sleep(0)
    automatic.answered(0, FailureAnswered(name(0), 1, 2, "f1", "retry"))
    assert await failing == "retry"
    automatic.finished()
    assert automatic.held(0).committed == 2
    await automatic.flush()


async def test_a_batch_whose_stream_was_taken_away_does_not_end_the_loop(automatic: Program) -> None:
    automatic.writes.at_once = True
    automatic.fetched(0, 5)
    automatic.fetched(1, 5)
    lost = await anext(automatic)
    automatic.grant(0, 4, 0, resumes=3)
    other = await anext(automatic)
    assert (str(lost.stream), str(other.stream)) == (name(0), name(1))
    automatic.finished()
    with pytest.raises(Fenced, match=r"s\.0\.0 was taken away"):
        await automatic.flush()
    assert automatic.held(1).acknowledged == 5


async def test_a_batch_that_did_not_reach_the_program_is_not_done(automatic: Program) -> None:
    automatic.fetched(0, 5)
    await anext(automatic)
    automatic.not_seen()
    automatic.finished()
    assert automatic.held(0).committed == 0
