"""Defects planted into the product, each for the time of a ``with``: the rig must find every one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

from streamlease.agent.membership import agent
from streamlease.agent.settling import Settling
from streamlease.agent.subscription import SharedReader
from streamlease.borrower.book import Held
from streamlease.borrower.events import Effect, Progressed
from streamlease.borrower.leases import BorrowedStreams
from streamlease.leader import journal, runner
from streamlease.leader.core.events import DeadLetter, DeadLetterWritten, Received, Send
from streamlease.leader.core.events import Effect as LeaderEffect
from streamlease.leader.core.generations import Listing
from streamlease.leader.core.lease import Lease
from streamlease.leader.core.parts.leases import Leases
from streamlease.leader.core.parts.mirror import MirrorChange
from streamlease.leader.core.state.group_state import GroupState
from streamlease.leader.core.state.progress import StreamProgress
from streamlease.leader.core.state.records import Committed, decode_records
from streamlease.leader.journal import Journal, Recovery
from streamlease.leader.letters import LetterWriter
from streamlease.leader.runner import Runner
from streamlease.protocol.ids import StreamId
from streamlease.protocol.messages import Command, Grant, Grants
from streamlease.registry import keys
from streamlease.registry.commit_writing import CommitWriting
from streamlease.registry.gathered_commits import GatheredCommits
from streamlease.spark.core.query_cuts import QueryCuts
from streamlease.streams.log.ranges import RangeReader, Taken
from streamlease.streams.log.tails import Tails
from streamlease.streams.log.watches import Watch
from streamlease.streams.publish.sending.duty import Duty
from streamlease.streams.publish.sending.singles import Alone, Singles
from streamlease.streams.redis.connection import AsyncRedis, ask
from streamlease.streams.redis.scripts import load_script
from streamlease.streams.tasks import Supervisor
from streamlease.testing.memory.lua import Scripts

PLANTED: dict[str, Callable[[], Any]] = {}

RARE = {
    "a_message_on_a_line_leaves_the_turn_to_others",
    "a_message_without_an_answer_is_sent_anew",
    "a_cut_is_read_again_whoever_has_its_streams",
    "a_query_forgets_the_cut_of_the_process_before_it",
    "a_run_is_replaced_without_its_mark",
    "no_fence_around_the_journal",
}
"""No scan is known to find them: something else still keeps the promise, another fence or what the leader
answers. For each there is a course that is made for it, in ``test_simulation``."""


def planted(bug: Callable[[], Iterator[None]]) -> Callable[[], Any]:
    """Put it on the list."""
    PLANTED[bug.__name__] = contextmanager(bug)
    return PLANTED[bug.__name__]


# ------------------------------------------------------------ in publishers


@planted
def a_message_without_an_answer_is_sent_anew() -> Iterator[None]:
    """A message on a line that got no answer is repeated as if it had never been sent."""
    original = Singles._go_on

    def go_on(singles: Singles, alone: Alone, reply: Any) -> None:
        alone.lane.renew()
        original(singles, alone, reply)

    with mock.patch.object(Singles, "_go_on", go_on):
        yield


@planted
def a_message_on_a_line_leaves_the_turn_to_others() -> Iterator[None]:
    """While a message is on a line, rounds send as well, with the same sequence."""
    with mock.patch.object(Duty, "begin_line", lambda duty: None):
        yield


# ------------------------------------------------------------ in the machines


@planted
def an_old_owner_is_believed() -> Iterator[None]:
    """The leader takes the word of any connected borrower about any stream, whatever the lease epoch."""

    def lease_of(leases: Leases, peer: Any, stream: str, lease_epoch: int) -> Any:
        return leases.get(stream)

    def take(leases: Leases, peer: Any, progress: Any) -> None:
        durable = leases.ledger.durable.streams
        news = {entry.stream: entry.offset for entry in progress if entry.stream in leases}
        news = {stream: offset for stream, offset in news.items() if offset > durable[stream].committed}
        if news:
            leases.ledger.record(Committed(offsets=news))

    with mock.patch.object(Leases, "of", lease_of), mock.patch.object(Leases, "commit", take):
        yield


@planted
def a_duplicate_grant_rewinds() -> Iterator[None]:
    """A borrower that gets a grant again begins again at its progress."""
    real = BorrowedStreams.grant

    def grant(leases: BorrowedStreams, message: Grant | Grants, now: int) -> list[Effect] | None:
        for offer in message.offers():
            lease = leases.held.get(offer.stream)
            if lease is not None and lease.lease_epoch == offer.lease_epoch:
                del leases.held[offer.stream]
        return real(leases, message, now)

    with mock.patch.object(BorrowedStreams, "grant", grant):
        yield


@planted
def commits_run_ahead_of_the_program() -> Iterator[None]:
    """A reader commits what it has fetched instead of what the program has committed."""
    real = CommitWriting.add

    def add(writing: CommitWriting[Held], held: Held, *, at_once: bool = False) -> None:
        held.committed = max(held.committed, held.position)
        real(writing, held, at_once=at_once)

    with mock.patch.object(CommitWriting, "add", add):
        yield


@planted
def a_flush_waits_for_nothing() -> Iterator[None]:
    """What was entered in the background is said to be durable at once."""

    async def flush(gathered: GatheredCommits, seconds: float) -> None:
        return None

    with mock.patch.object(GatheredCommits, "flush", flush):
        yield


@planted
def the_old_owner_keeps_its_work_to_itself() -> Iterator[None]:
    """A stream that is being revoked is given back before what was delivered is committed."""

    def report(settling: Settling, held: Held) -> None:
        if settling.session is not None:
            progress = Progressed(held.stream, held.lease_epoch, held.committed, held.revoking)
            settling.session.slots[held.slot].step(progress)

    with mock.patch.object(Settling, "report", report):
        yield


@planted
def committed_goes_back() -> Iterator[None]:
    """A late report of progress replaces a newer one."""

    def commit(progress: StreamProgress, offset: int) -> None:
        progress.committed = offset

    def take(leases: Leases, peer: Any, progress: Any) -> None:
        offsets = {entry.stream: entry.offset for entry in progress if entry.stream in leases}
        leases.ledger.record(Committed(offsets=offsets))

    with mock.patch.object(StreamProgress, "commit", commit), mock.patch.object(Leases, "commit", take):
        yield


@planted
def a_revocation_never_ends() -> Iterator[None]:
    """The leader forgets the deadline of a revocation, and does not say `Revoke` again."""

    def tick(leases: Leases, now: int) -> None:
        return None

    with mock.patch.object(Leases, "tick", tick):
        yield


@planted
def a_sealed_stream_is_forgotten() -> Iterator[None]:
    """The leader counts a stream as consumed because it is sealed, whatever is left in it."""

    def at_end(listing: Listing, state: GroupState, stream: str) -> bool:
        return stream in listing.ends

    with mock.patch.object(Listing, "at_end", at_end):
        yield


@planted
def an_open_cut_has_a_deadline() -> Iterator[None]:
    """A leader takes streams out of the open cut of a living query as from any slow consumer."""

    def taken_at(leases: Leases, stream: str, lease: Lease) -> int:
        return lease.since + (leases.options.revocation_timeout_ms or leases.config.revocation_timeout)

    with mock.patch.object(Leases, "taken_at", taken_at):
        yield


@planted
def a_grant_forgets_what_was_committed_past_the_leader() -> Iterator[None]:
    """A stream is granted from where its leader believes it to be."""
    real = Leases.written

    def written(leases: Leases, committed: Mapping[str, int], now: int) -> list[str]:
        return real(leases, {}, now)

    with mock.patch.object(Leases, "written", written):
        yield


# ------------------------------------------------------------ in the machine of queries


@planted
def a_query_gives_back_what_stands_in_its_cut() -> Iterator[None]:
    """A stream that is being revoked leaves a query in the middle of a cut."""
    with mock.patch.object(QueryCuts, "_is_busy", lambda self, stream: False):
        yield


@planted
def a_query_forgets_the_cut_of_the_process_before_it() -> Iterator[None]:
    """A query does not ask for the cut that no checkpoint names, and begins behind it."""
    real = QueryCuts.take_up

    with mock.patch.object(QueryCuts, "take_up", lambda self, following: real(self, None)):
        yield


@planted
def a_cut_is_read_again_whoever_has_its_streams() -> Iterator[None]:
    """A restarted query reads all of its last cut, also what others took over meanwhile."""
    real = QueryCuts.resumed

    def resumed(self: QueryCuts, cut: Any, term: int, mine: set[str]) -> Any:
        return real(self, cut, term, set(cut.ranges.streams))

    with mock.patch.object(QueryCuts, "resumed", resumed):
        yield


# ------------------------------------------------------------ in scripts


@contextmanager
def _changed(room: str, name: str, former: str, now: str) -> Iterator[None]:
    """A Lua script has another line than it should have."""
    script, real = load_script(room, name), Scripts.run
    assert former in script.text, f"{name} has no line {former}"

    def run(
        scripts: Scripts, wanted: str, text: str, names: Sequence[bytes], args: Sequence[bytes], call: Any
    ) -> Any:
        if wanted == script.digest:
            return real(scripts, f"{wanted} {now}", text.replace(former, now), names, args, call)
        return real(scripts, wanted, text, names, args, call)

    with mock.patch.object(Scripts, "run", run):
        yield


@planted
def two_hosts_act_in_one_term() -> Iterator[None]:
    """A take-over does not raise the term."""
    raised = "lead(term, lineage"
    with _changed("streamlease.registry", "take_over", raised, "lead(term - 1, lineage"):
        yield


@planted
def no_fence_around_the_journal() -> Iterator[None]:
    """The append script does not compare the term and the host."""
    fence = "if held[1] ~= ARGV[2] or held[2] ~= ARGV[1] then"
    with _changed("streamlease.leader", "journal_append", fence, "if false then"):
        yield


@planted
def a_message_behind_a_run_is_trimmed_with_it() -> Iterator[None]:
    """The merge script moves the border one message too far."""
    with _changed("streamlease.streams.log", "merge", "tonumber(last) + 1)", "tonumber(last) + 2)"):
        yield


@planted
def nobody_reads_what_was_merged() -> Iterator[None]:
    """A reader looks into the log only."""
    real = RangeReader.take

    def take(self: RangeReader, replies: list[Any]) -> Taken:
        meta, entries = replies
        return real(self, [[*meta[:6], None, *meta[7:]], entries])

    with mock.patch.object(RangeReader, "take", take):
        yield


@planted
def a_run_is_replaced_without_its_mark() -> Iterator[None]:
    """The merge script believes that the run is still what was read."""
    with _changed("streamlease.streams.log", "merge", "meta[3] == ARGV[3]", "true"):
        yield


@planted
def an_ended_lease_commits() -> Iterator[None]:
    """The commit script does not compare the lease epoch."""
    fence = "over == '' and lease_epoch == ARGV[3 * n - 1]"
    with _changed("streamlease.registry", "commit", fence, "true"):
        yield


@planted
def a_leader_takes_commits_back() -> Iterator[None]:
    """A leader that knows less than is committed puts what it knows in its place."""
    with _changed("streamlease.leader", "journal_append", "if further_on and", "if false and"):
        yield


@planted
def a_new_leader_takes_what_stands_beside_its_journal_for_right() -> Iterator[None]:
    """A new leader writes nothing of what it finds missing beside its journal."""
    real = journal.lacking

    async def lacking(*words: Any) -> tuple[MirrorChange, dict[str, int]]:
        left, further = await real(*words)
        return MirrorChange(left.gone, left.fields), further

    with mock.patch.object(journal, "lacking", lacking):
        yield


@planted
def recovery_forgets_the_newest_commit() -> Iterator[None]:
    """A new leader does not read the last entry of the journal."""
    real = runner.recover

    async def recover(redis: AsyncRedis, group: str) -> Recovery:
        recovery = await real(redis, group)
        held, entries = await ask(
            redis,
            [("HMGET", keys.snapshot(group), "id", "state"), ("XRANGE", keys.journal(group), "-", "+")],
        )
        state = GroupState.restore(held[1]) if held[1] is not None else GroupState()
        for id, fields in entries[:-1]:
            if held[0] is None or _id(id) > _id(held[0]):
                for record in decode_records(fields[5]):
                    state.apply(record)
        return replace(recovery, state=state)

    with mock.patch.object(runner, "recover", recover):
        yield


def _id(text: bytes) -> tuple[int, ...]:
    return tuple(map(int, text.split(b"-")))


@planted
def a_message_leaves_before_its_record_is_durable() -> Iterator[None]:
    """A runner lets its messages out at once, and writes afterwards."""
    real = Runner._carry_out

    async def carry_out(
        self: Runner, effects: list[LeaderEffect], machine: Any, journal: Journal
    ) -> str | None:
        for effect in effects:
            if isinstance(effect, Send):
                self.outbox(effect.mailbox, effect.message)
        return await real(self, [e for e in effects if not isinstance(e, Send)], machine, journal)

    with mock.patch.object(Runner, "_carry_out", carry_out):
        yield


@planted
def a_wake_up_is_lost() -> Iterator[None]:
    """Once the ends of streams were polled, a reader watches no stream that is granted later."""
    real = Watch.add

    def add(self: Watch, stream: StreamId) -> None:
        if not self._tails.polls:
            real(self, stream)

    with mock.patch.object(Watch, "add", add):
        yield


@planted
def who_left_is_told_to_nobody() -> Iterator[None]:
    """A session ends in good order, and whoever waits for it is not woken."""
    with mock.patch.object(SharedReader, "ended", lambda self: None):
        yield


@planted
def a_task_ends_in_silence() -> Iterator[None]:
    """A loop of an agent ends when Redis does not answer, and its owner is not told."""

    async def until_trouble(self: agent.Agent, work: Callable[[], Awaitable[None]]) -> None:
        try:
            while True:
                await work()
        except agent.StoreUnavailable:
            return

    def ended(self: Supervisor, name: str, task: asyncio.Task[Any], endless: bool) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()

    with (
        mock.patch.object(agent.Agent, "_forever", until_trouble),
        mock.patch.object(Supervisor, "_ended", ended),
    ):
        yield


@planted
def a_push_that_got_lost_is_lost_for_good() -> Iterator[None]:
    """While news are pushed, nobody looks whether one was missed."""
    real = Tails._asked

    def asked(self: Tails) -> list[Any]:
        return [*(self._order.due & self._next.keys())] if self._pushed and not self._unread else real(self)

    with mock.patch.object(Tails, "_asked", asked):
        yield


@planted
def a_dead_letter_counts_before_it_is_written() -> Iterator[None]:
    """A leader passes a message that failed while its dead letter is on the way."""
    real = LetterWriter.begin

    def begin(self: LetterWriter, letter: DeadLetter, declaration: Any) -> None:
        real(self, letter, declaration)
        self.post(DeadLetterWritten(letter.stream, letter.offset, "dead-letters.0.0", 0))

    with mock.patch.object(LetterWriter, "begin", begin):
        yield


@planted
def a_message_that_failed_does_not_come_again() -> Iterator[None]:
    """A consumer goes on behind a message that is to be tried again."""
    real = Held.settle

    def settle(self: Held, verdict: Any) -> None:
        real(self, "passed" if verdict == "retry" else verdict)

    with mock.patch.object(Held, "settle", settle):
        yield


@planted
def what_is_damaged_stops_its_stream_in_silence() -> Iterator[None]:
    """A consumer that cannot decode an entry tells nobody."""
    with mock.patch.object(Settling, "_fail_damaged", lambda self, held: None):
        yield


@planted
def a_drained_host_keeps_its_leaders() -> Iterator[None]:
    """A host that an operator has drained does not have its leaders step down."""
    real = Runner.post

    def post(self: Runner, event: Any) -> None:
        command = event.message if isinstance(event, Received) else None
        if not (isinstance(command, Command) and "/" in command.request):
            real(self, event)

    with mock.patch.object(Runner, "post", post):
        yield
