"""Defects planted into the product, each for the time of a ``with``: the rig must find every one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from streamlease.agent.settling import Settling
from streamlease.borrower.book import Held
from streamlease.borrower.events import Effect, Progressed
from streamlease.borrower.leases import BorrowedStreams
from streamlease.leader.core.generations import Listing
from streamlease.leader.core.group_state import GroupState
from streamlease.leader.core.lease import Lease
from streamlease.leader.core.parts.leases import Leases
from streamlease.leader.core.records import Committed
from streamlease.protocol.messages import Grant
from tests.simulation.hosts import SimRunner
from tests.simulation.store import Store

PLANTED: dict[str, Callable[[], Any]] = {}


def planted(bug: Callable[[], Iterator[None]]) -> Callable[[], Any]:
    """Put it on the list."""
    PLANTED[bug.__name__] = contextmanager(bug)
    return PLANTED[bug.__name__]


@planted
def no_fence_around_the_journal() -> Iterator[None]:
    """The append script does not compare the term and the host."""
    real = Store._leads

    def leads(store: Store, host: str, term: int) -> bool:
        return real(store, host, term) or term <= store.record.term

    with mock.patch.object(Store, "_leads", leads):
        yield


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

    def grant(leases: BorrowedStreams, message: Grant, now: int) -> list[Effect] | None:
        lease = leases.held.get(message.stream)
        if lease is not None and lease.lease_epoch == message.lease_epoch:
            del leases.held[message.stream]
        return real(leases, message, now)

    with mock.patch.object(BorrowedStreams, "grant", grant):
        yield


@planted
def two_hosts_act_in_one_term() -> Iterator[None]:
    """A take-over does not raise the term."""
    real = Store._lead

    def lead(store: Store, host: str, ttl: int, floor: int, leap: int) -> int:
        if store.record.held:
            store._set("record", store.record.__class__(**{**_fields(store), "term": store.record.term - 1}))
        return real(store, host, ttl, -1, leap)

    with mock.patch.object(Store, "_lead", lead):
        yield


def _fields(store: Store) -> dict[str, Any]:
    names = ("term", "host", "mailbox", "renewed_at", "ttl", "read_at")
    return {name: getattr(store.record, name) for name in names}


@planted
def recovery_forgets_the_newest_commit() -> Iterator[None]:
    """A new leader does not read the last entry of the journal."""
    real = SimRunner._recover

    def recover(runner: SimRunner) -> Any:
        kept, entries = yield from real(runner)
        return kept, entries[:-1]

    with mock.patch.object(SimRunner, "_recover", recover):
        yield


@planted
def commits_run_ahead_of_the_program() -> Iterator[None]:
    """A reader reports what it has fetched instead of what the program has committed."""

    def report(settling: Settling, held: Held) -> None:
        if settling.session is not None:
            held.committed = max(held.committed, held.position)
            final = held.revoking
            settling.session.progressed(
                held.slot, Progressed(held.stream, held.lease_epoch, held.committed, final)
            )

    with mock.patch.object(Settling, "report", report):
        yield


@planted
def the_old_owner_keeps_its_work_to_itself() -> Iterator[None]:
    """A stream that is being revoked is given back before what was delivered is committed."""

    def report(settling: Settling, held: Held) -> None:
        if settling.session is not None:
            progress = Progressed(held.stream, held.lease_epoch, held.committed, held.revoking)
            settling.session.progressed(held.slot, progress)

    with mock.patch.object(Settling, "report", report):
        yield


@planted
def committed_goes_back() -> Iterator[None]:
    """A late report of progress replaces a newer one."""

    def commit(state: GroupState, stream: str, offset: int) -> None:
        state.streams[stream].committed = offset

    def take(leases: Leases, peer: Any, progress: Any) -> None:
        offsets = {entry.stream: entry.offset for entry in progress if entry.stream in leases}
        leases.ledger.record(Committed(offsets=offsets))

    with mock.patch.object(GroupState, "_commit", commit), mock.patch.object(Leases, "commit", take):
        yield


@planted
def a_message_leaves_before_its_record_is_durable() -> Iterator[None]:
    """A leader lets its grants out at once, and writes afterwards."""
    real = SimRunner._carry_out

    def carry_out(runner: SimRunner, effects: list[Any]) -> Any:
        for effect in effects:
            if type(effect).__name__ == "Send":
                runner.host.post(effect.mailbox, effect.message)
        return real(runner, effects)

    with mock.patch.object(SimRunner, "_carry_out", carry_out):
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
