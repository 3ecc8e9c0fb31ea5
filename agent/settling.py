"""What a program has done with its messages: commits and failures, until they are durable.

Each is entered in the book. A commit is written at once, fenced by the lease (`registry/commits.py`), and
the leader learns of it afterwards. What cannot be written so, and every failure, is told to the leader, again
under the next lease if need be. Who committed, or reported a failure, waits, or asks later
(`registry/gathered_commits.py`); and learns it if the stream was taken away before.

A message that cannot be decoded, because its entry is damaged, fails by itself, as if the program had called
``Batch.fail``: the group counts, waits and writes a dead letter as for every other poison message.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from streamlease.agent.batch import writable
from streamlease.agent.deadlines import Deadlines
from streamlease.agent.membership import metrics
from streamlease.agent.membership.session import Session
from streamlease.borrower.book import ConsumerBook, Failing, Granted, Held
from streamlease.borrower.events import (
    FailureAnswered,
    ProgressAcknowledged,
    Progressed,
    ProgressedTogether,
    StreamGranted,
)
from streamlease.protocol.errors import Fenced, Indefinite, InvalidOption, StreamleaseError
from streamlease.protocol.ids import StreamId
from streamlease.protocol.messages import MAX_CAUSE, Verdict
from streamlease.registry.commit_writing import CommitWriting
from streamlease.registry.commits import GroupCommits
from streamlease.registry.gathered_commits import GatheredCommits, unconfirmed
from streamlease.streams.entries.decoding import DamagedEntry
from streamlease.streams.publish import traces
from streamlease.streams.tasks import Supervisor

log = logging.getLogger(__name__)

COMMIT_SECONDS = 30.0


class Settling:
    """Commits and failures of one consumer; the owner of its batches.

    Args:
        subscription: for the metrics.
        tasks: runs what writes commits.
    """

    def __init__(
        self, book: ConsumerBook, subscription: str, commits: GroupCommits, tasks: Supervisor
    ) -> None:
        self.session: Session | None = None
        """Tells the leader; there is none before the consumer begins to borrow."""
        self.leaving = False
        """Whether the consumer leaves, and commits nothing more."""
        self.error: StreamleaseError | None = None
        """Why nothing can be settled any more."""
        self._book = book
        self._writing = CommitWriting(commits, tasks, book.holds, self._written, self.report)
        self._traces = traces.active()
        self.gathered = GatheredCommits(self._traces)
        """Commits that nobody awaits."""
        self._durable = metrics.COMMITTED.labels(subscription)
        self._commits: dict[Held, list[tuple[int, asyncio.Future[None]]]] = {}
        self._deadlines = Deadlines()
        """Of those who wait for a commit."""
        self._failures: dict[Held, asyncio.Future[Verdict]] = {}
        self._damaged: dict[Held, DamagedEntry] = {}
        """What stands next in a stream and cannot be decoded: at its `damaged_at`."""

    @property
    def term(self) -> int | None:
        """That of the leader, for the log."""
        return self.session.term if self.session is not None else None

    # ------------------------------------------------------------ from the program

    async def commit(self, held: Held, end: int, received: Any = None) -> None:
        """See `Batch.commit`; `received` is the span context of the delivery, where the program traces."""
        if self._traces is None:
            await self._commit(held, end)
            return
        with self._traces.settling(StreamId.parse(held.stream), end, received):
            await self._commit(held, end)

    async def _commit(self, held: Held, end: int) -> None:
        if not self._is_durable(held, end):
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._commits.setdefault(held, []).append((end, waiter))
            self._enter(held, end, at_once=True)
            self._deadlines.add(waiter, COMMIT_SECONDS)
            try:
                await waiter
            except TimeoutError:
                raise unconfirmed(held.stream, end, COMMIT_SECONDS) from None
        earlier = self.gathered.failures.pop(held.stream, None)
        if earlier is not None:
            earlier.add_note(f"this commit, of {held.stream} up to offset {end}, is durable")
            raise earlier

    def commit_soon(self, held: Held, end: int, received: Any = None) -> None:
        """See `Batch.commit_soon`."""
        if not self._is_durable(held, end):
            self.gathered.enter(held, end, received)
            self._enter(held, end)

    def failed_later(self, held: Held, error: StreamleaseError) -> None:
        """See `Batch.commit_later`."""
        self.gathered.keep(held.stream, error)

    async def flush(self, seconds: float = COMMIT_SECONDS) -> None:
        """See `SharedReader.flush`; `seconds` is how long it may take."""
        await self.gathered.flush(seconds)

    def _is_durable(self, held: Held, end: int) -> bool:
        """Whether all below `end` is committed already.

        Raises:
            StreamleaseError: it cannot be committed any more.
        """
        if self.error is not None:
            raise self.error
        if not self._book.holds(held):
            raise self.gathered.failures.pop(held.stream, None) or taken(held.stream)
        return end <= held.acknowledged

    def _enter(self, held: Held, end: int, *, at_once: bool = False) -> None:
        """Enter that all below `end` is done, and tell it; `at_once`: somebody waits."""
        if end > held.committed:
            held.advance(end)
            if held.holes:
                self.report(held)  # only a leader counts them
            else:
                self._writing.add(held, at_once=at_once)
            self._fail_damaged(held)

    def _written(self, some: Sequence[tuple[Held, int]]) -> None:
        """Commits are durable, and the leader may learn of them."""
        more = 0
        for held, offset in some:
            more += held.acknowledge(offset)
            self._wake_commits(held)
        self._durable.inc(more)
        if self.session is None:
            return
        told: dict[int, list[Progressed]] = {}
        for held, _ in some:
            told.setdefault(held.slot, []).append(held.progress(leaving=self.leaving))
        for slot, entries in told.items():
            event = entries[0] if len(entries) == 1 else ProgressedTogether(tuple(entries))
            self.session.slots[slot].step(event)

    async def fail(self, held: Held, offset: int, cause: str) -> Verdict:
        """See `Batch.fail`."""
        waiter: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self.enter_failure(held, offset, cause, waiter)
        try:
            async with asyncio.timeout(COMMIT_SECONDS):
                return await waiter
        except TimeoutError:
            raise Indefinite(
                f"no leader said within {COMMIT_SECONDS:.0f} s what becomes of offset {offset} of stream "
                f"{held.stream}: its failure may count, and its dead letter may not be written yet; look at "
                f"'streamlease group describe'"
            ) from None

    def enter_failure(
        self, held: Held, offset: int, cause: str, waiter: asyncio.Future[Verdict] | None = None
    ) -> None:
        """Enter that the message at `offset` could not be processed, and tell it; `waiter` learns of it."""
        if self.error is not None:
            raise self.error
        if self.session is None or self.leaving or not self._book.holds(held):
            raise taken(held.stream)
        if offset < held.committed:
            raise InvalidOption(
                f"offset {offset} of stream {held.stream} is committed: it cannot fail any more"
            )
        held.fail(offset, self.session.new_failure(), cause)
        if waiter is not None:
            self._failures[held] = waiter
        if held.holes:
            self.report(held)  # a failure says nothing of them
        self._report_failure(held)

    def found_damage(self, held: Held, damaged: DamagedEntry) -> None:
        """What stands next in the stream cannot be decoded: a message that failed, without the program."""
        log.warning("%s", damaged, extra={"stream": held.stream, "term": self.term})
        self._put_damage(held, damaged)

    # ------------------------------------------------------------ to the leader

    def report(self, held: Held) -> None:
        """Tell how far the stream is."""
        if self.session is not None:
            self.session.slots[held.slot].step(held.progress(leaving=self.leaving))

    def _report_failure(self, held: Held) -> None:
        failure = held.failure()
        if self.session is not None and failure is not None:
            self.session.slots[held.slot].step(failure)

    def _put_damage(self, held: Held, damaged: DamagedEntry) -> None:
        held.damaged_at, self._damaged[held] = damaged.start, damaged
        self._fail_damaged(held)

    def _fail_damaged(self, held: Held) -> None:
        """Report the damaged message, if all before it is committed: a failure says that it is."""
        if held.damaged_at is None or held.committed != held.damaged_at or held.failing is not None:
            return
        if self.session is None or self.error is not None or self.leaving or not held.is_granted:
            return
        self.enter_failure(held, held.damaged_at, writable(str(self._damaged[held]))[:MAX_CAUSE])

    # ------------------------------------------------------------ from the leader

    def granted(self, done: Granted, grant: StreamGranted, acknowledged: int) -> None:
        """Tell a leader that grants a stream anew what it may have lost.

        Args:
            done: what the book says about the grant.
            acknowledged: how far the stream was durable before.
        """
        held = done.held
        if done.former is not None:
            self.lose(done.former)
        if not done.goes_on:
            return
        if done.passed is not None:
            self._settled(held, done.passed, "passed")
        if held.failing is not None:
            self._report_failure(held)
        elif held.committed > grant.progress:
            self.report(held)
        self._fail_damaged(held)
        self._answer_commits(held, acknowledged)

    def acknowledged(self, slot: int, ack: ProgressAcknowledged) -> None:
        """Wake those who wait for this commit."""
        held = self._book.acknowledged(ack)
        if held is not None:
            before = held.acknowledged
            held.acknowledge(ack.offset)
            self._answer_commits(held, before)

    def answered(self, answer: FailureAnswered, retry_at: float | None) -> Held | None:
        """A failure is answered; the stream of which what follows is to be handed out.

        Args:
            retry_at: when the message may be processed again.
        """
        held = self._book.answered(answer)
        failing = held.failing if held is not None else None
        if held is None or failing is None:
            return None
        going_on = failing.offset < held.damaged_until and answer.verdict == "retry"
        held.retry_at = None if going_on else retry_at
        before = held.acknowledged
        held.settle(answer.verdict)
        self._answer_commits(held, before)
        # Beyond the message may be what the filter does not match: else nobody would say that it is done.
        if held.revoking or held.committed > held.acknowledged:
            self.report(held)
        self._settled(held, failing, answer.verdict)
        return held

    def _settled(self, held: Held, failing: Failing, verdict: Verdict) -> None:
        """Who waits for the verdict learns it; what else is damaged in the same entry fails at once."""
        waiter = self._failures.pop(held, None)
        if waiter is not None and not waiter.done():
            waiter.set_result(verdict)
        damaged = self._damaged.pop(held, None)
        if damaged is None or damaged.start != failing.offset:
            return  # it stands behind the message that failed, and is found again
        if verdict == "passed":
            held.damaged_until = damaged.end
        if held.committed < held.damaged_until and held.retry_at is None:
            # It need not be read again for each of its messages.
            self._put_damage(held, damaged.behind(held.committed))

    def _answer_commits(self, held: Held, before: int) -> None:
        """Who waits for what is durable now, and was not `before`, learns it."""
        self._durable.inc(held.acknowledged - before)
        self._wake_commits(held)

    def _wake_commits(self, held: Held) -> None:
        if held in self.gathered.entered:
            self.gathered.settle(held)
        waiting = self._commits.pop(held, None) if self._commits else None
        if waiting is None:
            return
        left = [(end, waiter) for end, waiter in waiting if end > held.acknowledged]
        if left:
            self._commits[held] = left
        for end, waiter in waiting:
            if end <= held.acknowledged and not waiter.done():
                waiter.set_result(None)

    # ------------------------------------------------------------ who waits

    def has_commits(self, held: Held) -> bool:
        """Whether a commit of this stream is not answered yet."""
        return held in self._commits or held in self.gathered.entered

    def is_waited_for(self, held: Held) -> bool:
        """Whether somebody waits for an answer about this stream, or will ask for it."""
        waits = held.failing is not None or held in self.gathered.entered
        return waits or any(not waiter.done() for _, waiter in self._commits.get(held, ()))

    def lose(self, held: Held, error: StreamleaseError | None = None) -> None:
        """Nobody may wait for this stream any more."""
        self.gathered.lose(held, error)
        error = error or taken(held.stream)
        waiters: list[asyncio.Future[Any]] = [waiter for _, waiter in self._commits.pop(held, ())]
        if held in self._failures:
            waiters.append(self._failures.pop(held))
        for waiter in waiters:
            if not waiter.done():
                waiter.set_exception(error)
        self._damaged.pop(held, None)
        held.failing = None

    def close(self) -> None:
        """Nobody waits any more."""
        self._deadlines.close()

    def end(self, error: StreamleaseError) -> None:
        """Nothing can be settled any more."""
        self.error = error
        for held in self._book.streams.values():
            self.lose(held, error)


def taken(stream: str) -> Fenced:
    """The error of who has lost `stream` with work on it not committed."""
    return Fenced(
        f"stream {stream} was taken away before the commit: its messages since the last commit "
        f"may be delivered to somebody else; do not commit them here"
    )


def left(stream: str) -> Indefinite:
    """The error of who still waits for `stream` when the subscription ends."""
    return Indefinite(
        f"the subscription ended before the commit of {stream} was confirmed: "
        f"it may be committed, or its messages may come again"
    )
