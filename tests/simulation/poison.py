"""Messages that cannot be processed: who fails at them, where they end, and what the judge makes of it.

A message is poison by its name, so it is for every program, or it fails now and then. Queries fail at no
message: a query fails as a whole. Dead letters are ``replicated:1``: no failover loses them.
"""

from __future__ import annotations

import zlib
from random import Random
from typing import TYPE_CHECKING

from streamlease.agent.batch import Batch
from streamlease.leader.core.state.records import DeadLettered, Failed, Leased
from streamlease.protocol.group_options import GroupOptions

if TYPE_CHECKING:
    from tests.simulation.judge import Judge

ONE_IN = 30


class Poison:
    """What fails in one world, and what the group says about it."""

    def __init__(self, random: Random) -> None:
        self.options = GroupOptions(
            max_failures=random.randint(1, 3),
            on_poison=random.choice(("dead-letter", "stop")),
            retry_delay_ms=random.choice((0, 200)),
            max_retry_delay_ms=1000,
        )
        self._there = random.random() < 0.5
        self._random = random

    def first(self, batch: Batch) -> int | None:
        """The first message of the batch at which a program fails now."""
        if not self._there:
            return None
        for message in batch.messages:
            number = zlib.crc32(f"{batch.stream}/{message.offset}".encode()) % ONE_IN
            if number == 0 or (number == 1 and self._random.random() < 0.5):
                return message.offset
        return None


def void(judge: Judge, session: str, stream: str, offset: int) -> None:
    """What a program was handed from `offset` on is void, and comes again."""
    seen = judge.seen.setdefault(stream, {})
    for number in [number for number, (who, _) in seen.items() if number >= offset and who == session]:
        del seen[number]


def failed(judge: Judge, record: Failed) -> None:
    """A failure counts: the group says after how many a message is poison, and what becomes of it then."""
    progress, options = judge.truth.streams[record.stream], judge.options
    count = 1 + (len(progress.failure.failures) if progress.failure is not None else 0)
    last = "stop" if options.on_poison == "stop" else "dead_letter"
    wanted = last if count >= options.max_failures else "retry"
    judge.demand(
        record.offset == progress.committed, record, "fails, but all is done below", progress.committed
    )
    judge.demand(record.fate == wanted, record, "failed", count, "times, so", wanted, "is right")
    judge.sometimes[f"a failure is counted: {record.fate}"] += 1


def dead_lettered(judge: Judge, record: DeadLettered) -> None:
    """A message counts as consumed because it is a dead letter: it is one."""
    key = (record.stream, record.offset)
    judge.demand(key in judge.store.dead, *key, "counts as a dead letter, but was not written")
    lease_epoch = judge.truth.streams[record.stream].lease_epoch
    judge.seen.setdefault(record.stream, {})[record.offset] = ("nobody", lease_epoch)


def granted(judge: Judge, record: Leased) -> None:
    """A stream that waits for its dead letter, or for an operator, goes to nobody else."""
    progress = judge.truth.streams[record.stream]
    blocked = progress.blocked and progress.session != record.session
    judge.demand(not blocked, record.stream, "is stopped, but granted to", record.name)
