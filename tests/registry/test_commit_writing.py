"""One write of commits under way, and what comes meanwhile goes with the next; else by way of the leader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from streamlease.borrower.book import Held
from streamlease.protocol.errors import Indefinite, StoreUnavailable, StreamleaseError
from streamlease.registry.commit_writing import CommitWriting
from streamlease.registry.commits import MOST, StreamCommit
from streamlease.streams.tasks import Supervisor
from tests.agent.helpers import until


class Rig:
    """Commits that are answered when a test says so."""

    def __init__(self) -> None:
        self.calls: list[list[StreamCommit]] = []
        self.line = False
        self.lines: list[tuple[list[StreamCommit], Callable[[list[bool] | None], None]]] = []
        self.answers: asyncio.Queue[list[bool] | StreamleaseError] = asyncio.Queue()
        self.written: list[tuple[str, int]] = []
        self.told: list[str] = []
        self.gone: set[str] = set()
        self.defects: list[StreamleaseError] = []
        self.tasks = Supervisor("a rig", lambda _, error: self.defects.append(error))
        self.writing = CommitWriting(
            self,  # type: ignore[arg-type]
            self.tasks,
            lambda held: held.stream not in self.gone,
            lambda some: self.written.extend((held.stream, offset) for held, offset in some),
            lambda held: self.told.append(held.stream),
        )

    async def write(self, commits: Sequence[StreamCommit]) -> list[bool]:
        self.calls.append([*commits])
        answer = await self.answers.get()
        if isinstance(answer, StreamleaseError):
            raise answer
        return answer

    def write_on_line(
        self, commits: Sequence[StreamCommit], heard: Callable[[list[bool] | None], None]
    ) -> bool:
        if self.line:
            self.lines.append(([*commits], heard))
        return self.line

    def commit(self, held: Held, offset: int, *, at_once: bool = False) -> None:
        held.committed = offset
        self.writing.add(held, at_once=at_once)

    async def called(self, calls: int) -> None:
        await until(lambda: len(self.calls) >= calls)

    async def answer(self, answer: list[bool] | StreamleaseError) -> None:
        done = len(self.written) + len(self.told)
        self.answers.put_nowait(answer)
        await until(lambda: len(self.written) + len(self.told) > done)


def held(shard: int) -> Held:
    return Held.begin(0, f"s.0.{shard}", 7, 0)


async def test_what_comes_during_a_write_goes_with_the_next() -> None:
    rig, one, other = Rig(), held(0), held(1)
    rig.commit(one, 1)
    await rig.called(1)
    rig.commit(one, 2)
    rig.commit(other, 5)
    rig.commit(one, 3)
    await rig.answer([True])
    await rig.called(2)
    assert rig.calls == [
        [StreamCommit("s.0.0", 7, 1)],
        [StreamCommit("s.0.0", 7, 3), StreamCommit("s.0.1", 7, 5)],
    ]
    await rig.answer([True, True])
    assert rig.written == [("s.0.0", 1), ("s.0.0", 3), ("s.0.1", 5)]
    assert (rig.told, rig.defects) == ([], [])


async def test_a_lease_that_does_not_stand_is_for_the_leader() -> None:
    rig = Rig()
    rig.commit(held(0), 1)
    rig.commit(held(1), 1)
    await rig.called(1)
    await rig.answer([False, True])
    assert (rig.told, rig.written) == (["s.0.0"], [("s.0.1", 1)])


@pytest.mark.parametrize("error", [StoreUnavailable("down"), Indefinite("lost")], ids=repr)
async def test_without_an_answer_the_leader_is_told_and_the_next_commit_is_tried(
    error: StreamleaseError,
) -> None:
    rig, one = Rig(), held(0)
    rig.commit(one, 1)
    await rig.called(1)
    await rig.answer(error)
    assert (rig.told, rig.written, rig.defects) == (["s.0.0"], [], [])
    rig.commit(one, 2)
    await rig.called(2)
    await rig.answer([True])
    assert rig.written == [("s.0.0", 2)]


async def test_what_the_consumer_has_no_more_is_neither_written_nor_told() -> None:
    rig, one, other = Rig(), held(0), held(1)
    rig.commit(one, 1)
    await rig.called(1)
    rig.commit(other, 1)
    rig.commit(one, 2)
    rig.gone = {"s.0.0"}
    rig.answers.put_nowait([True])
    await rig.called(2)
    assert rig.calls[1] == [StreamCommit("s.0.1", 7, 1)]
    assert (rig.written, rig.told) == ([], [])
    await rig.answer([True])
    assert rig.written == [("s.0.1", 1)]


async def test_a_write_is_bounded() -> None:
    rig = Rig()
    for shard in range(MOST + 1):
        rig.commit(held(shard), 1)
    await rig.called(1)
    assert len(rig.calls[0]) == MOST
    await rig.answer([True] * MOST)
    await rig.called(2)
    assert len(rig.calls[1]) == 1
    await rig.answer([True])
    assert len(rig.written) == MOST + 1


async def test_who_waits_has_it_written_in_his_turn_and_the_rest_goes_with_the_next() -> None:
    rig, one, other = Rig(), held(0), held(1)
    rig.line = True
    rig.commit(one, 1, at_once=True)
    rig.commit(one, 2, at_once=True)
    rig.commit(other, 5)
    (((commits, heard),), rig.lines) = rig.lines, []
    assert commits == [StreamCommit("s.0.0", 7, 1)]
    heard([True])
    assert rig.written == [("s.0.0", 1)]
    ((commits, heard),) = rig.lines
    assert commits == [StreamCommit("s.0.0", 7, 2), StreamCommit("s.0.1", 7, 5)]
    heard([True, False])
    assert (rig.written[1:], rig.told) == ([("s.0.0", 2)], ["s.0.1"])
    rig.commit(one, 3, at_once=True)
    assert len(rig.lines) == 2, "nothing is under way any more"
    assert (rig.calls, rig.defects, len(rig.tasks)) == ([], [], 0)


async def test_what_nobody_waits_for_is_gathered_before_it_is_written() -> None:
    rig, one, other = Rig(), held(0), held(1)
    rig.line = True
    rig.commit(one, 1)
    rig.commit(other, 1)
    await rig.called(1)
    assert (rig.lines, [len(call) for call in rig.calls]) == ([], [2])
    await rig.answer([True, True])


async def test_what_a_line_does_not_answer_is_written_once_more() -> None:
    rig, one, other = Rig(), held(0), held(1)
    rig.line = True
    rig.commit(one, 1, at_once=True)
    rig.commit(other, 1, at_once=True)
    ((_, heard),) = rig.lines
    heard(None)
    await rig.called(1)
    assert rig.calls == [[StreamCommit("s.0.0", 7, 1), StreamCommit("s.0.1", 7, 1)]]
    await rig.answer([True, True])
    assert [stream for stream, _ in rig.written] == ["s.0.0", "s.0.1"]


async def test_without_a_free_line_it_is_written_as_ever() -> None:
    rig = Rig()
    rig.commit(held(0), 1, at_once=True)
    await rig.called(1)
    await rig.answer([True])
    assert rig.written == [("s.0.0", 1)]


async def test_a_line_that_ends_after_the_consumer_starts_nothing() -> None:
    rig, one = Rig(), held(0)
    rig.line = True
    rig.commit(one, 1, at_once=True)
    rig.gone = {"s.0.0"}
    ((_, heard),) = rig.lines
    heard(None)
    assert (len(rig.tasks), rig.calls, rig.written, rig.told) == (0, [], [], [])


async def test_a_defect_is_told_whoever_owns_the_commits_and_not_the_line() -> None:
    rig, one = Rig(), held(0)
    rig.line = True
    rig.commit(one, 1, at_once=True)
    ((_, heard),) = rig.lines
    heard([True, True])
    assert len(rig.defects) == 1
    rig.commit(one, 2, at_once=True)
    assert len(rig.lines) == 2, "the next one is not held up"
