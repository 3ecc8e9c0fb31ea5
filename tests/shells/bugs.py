"""Defects planted into the product, each for the time of a ``with``: real shells must show every one of them.

Those of the machines are the same as in `tests.simulation.bugs`; those of the shells have no place there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

from streamlease.agent import agent
from streamlease.agent.subscription import WATCH_SECONDS, SharedReader
from streamlease.leader import runner
from streamlease.leader.core.events import Effect, Send
from streamlease.leader.core.group_state import GroupState
from streamlease.leader.core.records import decode_records
from streamlease.leader.journal import Journal, Recovery
from streamlease.leader.runner import Runner
from streamlease.registry import keys
from streamlease.streams.redis.connection import AsyncRedis, ask
from streamlease.streams.redis.scripts import load_script
from streamlease.streams.tasks import Supervisor
from streamlease.testing.lua import Scripts
from tests.simulation import bugs

OF_MACHINES = (
    "an_old_owner_is_believed",
    "a_duplicate_grant_rewinds",
    "commits_run_ahead_of_the_program",
    "the_old_owner_keeps_its_work_to_itself",
    "committed_goes_back",
    "a_revocation_never_ends",
    "a_sealed_stream_is_forgotten",
)

RARE = {"an_old_owner_is_believed", "no_fence_around_the_journal"}
"""Found by a scan from seed 1 on only after some dozens of seeds: too long for the fast suite."""

PLANTED: dict[str, Callable[[], Any]] = {name: bugs.PLANTED[name] for name in OF_MACHINES}


def planted(bug: Callable[[], Iterator[None]]) -> Callable[[], Any]:
    """Put it on the list."""
    PLANTED[bug.__name__] = contextmanager(bug)
    return PLANTED[bug.__name__]


@contextmanager
def _changed(room: str, name: str, former: str, now: str) -> Iterator[None]:
    """A Lua script has another line than it should have."""
    digest, real = load_script(room, name).digest, Scripts.run

    def run(
        scripts: Scripts, wanted: str, text: str, names: Sequence[bytes], args: Sequence[bytes], call: Any
    ) -> Any:
        if wanted == digest:
            assert former in text, f"{name} has no line {former}"
            return real(scripts, f"{wanted} {now}", text.replace(former, now), names, args, call)
        return real(scripts, wanted, text, names, args, call)

    with mock.patch.object(Scripts, "run", run):
        yield


@planted
def no_fence_around_the_journal() -> Iterator[None]:
    """The append script does not compare the term and the host."""
    fence = "if held[1] ~= ARGV[2] or held[2] ~= ARGV[1] then"
    with _changed("streamlease.leader", "journal_append", fence, "if false then"):
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

    async def carry_out(self: Runner, effects: list[Effect], machine: Any, journal: Journal) -> str | None:
        for effect in effects:
            if isinstance(effect, Send):
                self.outbox(effect.mailbox, effect.message)
        return await real(self, [e for e in effects if not isinstance(e, Send)], machine, journal)

    with mock.patch.object(Runner, "_carry_out", carry_out):
        yield


@planted
def a_wake_up_is_lost() -> Iterator[None]:
    """Once a reader has made its set of streams anew, it never hears again that it must."""

    def watch(self: SharedReader) -> None:
        if not self._watching:
            self._watching = True
            asyncio.get_running_loop().call_later(WATCH_SECONDS, watch_now, self)

    real = SharedReader._watch_now

    def watch_now(self: SharedReader) -> None:
        real(self)
        self._watching = True

    with mock.patch.object(SharedReader, "_watch", watch):
        yield


@planted
def who_left_is_told_to_nobody() -> Iterator[None]:
    """A session ends in good order, and whoever waits for it is not woken."""
    with mock.patch.object(SharedReader, "ended", lambda self: None):
        yield


@planted
def a_task_ends_in_silence() -> Iterator[None]:
    """A loop of an agent ends when Redis does not answer, and its owner is not told."""

    async def until_trouble(work: Callable[[], Awaitable[None]]) -> None:
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
        mock.patch.object(agent, "_forever", until_trouble),
        mock.patch.object(Supervisor, "_ended", ended),
    ):
        yield
