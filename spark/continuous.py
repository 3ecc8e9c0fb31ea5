"""Continuous mode: a user's function per record batch, milliseconds after publishing, in long-running tasks::

    query = continuous(spark, "$shared/alerts/sensors/#", handle, slots=4)
    ...
    query.stop()

Each slot is a Spark job with one task, which hosts a borrower of the group and calls ``handle(batch)`` with a
record batch of ``MESSAGE_SCHEMA``, in order per stream. Progress is committed after the function returned: at
least once, with repetitions only of what was not committed at a crash. The rules:

* A task whose Python worker is killed is run again, by Spark (``spark.task.maxFailures``) or by
  `ContinuousQuery`. Its borrower has a static name, so it takes its streams over at once.
* Each task keeps a line to the driver. When the driver says so, or is gone, it finishes the batch at hand,
  commits, and gives its streams back.
* A slot that fails again and again without committing anything ends the query with its error.

A task occupies its core for as long as the query runs.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, Listener
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from streamlease.agent.membership import metrics
from streamlease.agent.subscribing import Subscribing
from streamlease.protocol.errors import InvalidOption, StreamleaseError
from streamlease.protocol.ids import random_token
from streamlease.protocol.topics import SharedSubscription
from streamlease.registry.starts import Start
from streamlease.spark import option_values
from streamlease.spark.option_values import MOST_SLOTS
from streamlease.spark.setup.driver_context import driver_context
from streamlease.spark.setup.spark_errors import cause_of
from streamlease.spark.slot import Slot, SlotProgress, host
from streamlease.streams.redis.url_parts import take_apart
from streamlease.streams.redis.urls import redis_url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)


Function = Callable[[pa.RecordBatch], object]

MOST_FAILURES = 4
"""How often in a row a slot may fail without having committed anything: as ``spark.task.maxFailures``."""

RETRY_SECONDS = 0.5


def continuous(
    spark: SparkSession,
    subscription: str,
    function: Function,
    *,
    slots: int = 2,
    redis: str | None = None,
    start: Start = "latest",
    name: str | None = None,
    max_batch: int = 1000,
    session_timeout: float = 10.0,
    embedded_leader: bool = True,
    epochs: str = "off",
) -> ContinuousQuery:
    """Call `function` with every batch of `subscription` until the query is stopped.

    Args:
        subscription: ``$shared/GROUP/FILTER`` or ``$queue/GROUP/FILTER``.
        function: gets a record batch of one stream; what it returns is not looked at. Runs in the Python
            workers of Spark, pickled as Spark pickles functions.
        slots: how many tasks, each of which needs a core; 1 to 1024.
        redis: URL; None for the environment's ``STREAMLEASE_REDIS_URL``.
        start: where the group begins if nobody has declared it.
        name: of the query: another one of the same name takes its streams over at once. None for a new one.
        max_batch: most messages of a batch.
        session_timeout: seconds of silence after which a slot's streams go to others.
        embedded_leader: whether a task may host the group's leader where no leader host runs.
        epochs: only ``off``: a batch is handed on as it comes, and epochs are whole in micro-batches only.

    Raises:
        InvalidOption, InvalidTopic: an argument is not acceptable.
        Unsupported: the session is one of Spark Connect, which cannot run such tasks.
    """
    if epochs != "off":
        raise InvalidOption(
            f"epochs is {ascii(epochs)[:80]}, and continuous mode hands batches on as they come: read whole "
            f"epochs with readStream and its option 'epochs'"
        )
    if not callable(function):
        raise InvalidOption(f"function is {ascii(function)[:80]}: give one that takes a record batch")
    if type(slots) is not int or not 1 <= slots <= MOST_SLOTS:
        raise InvalidOption(f"slots is {ascii(slots)[:80]}: give 1 to {MOST_SLOTS}")
    if not isinstance(embedded_leader, bool):
        raise InvalidOption(f"embedded_leader is {ascii(embedded_leader)[:80]}: give True or False")
    checked = Subscribing.checked(
        subscription, start, name, max_batch, 1, False, session_timeout, None, None, epochs
    )
    url = option_values.redis_url({"redis": redis_url(redis) if redis is not None else ""})
    take_apart(url)
    instead = "run the program with spark-submit"
    return ContinuousQuery(
        driver_context(spark, "the tasks of continuous mode are the driver's", instead),
        function,
        slots,
        Slot(
            url=url,
            subscription=str(checked.shared),
            name=name or f"c-{random_token()}",
            start=start,
            max_batch=max_batch,
            session_timeout=session_timeout,
            embedded_leader=embedded_leader,
        ),
    )


@dataclass(slots=True)
class _Line:
    """What the driver keeps for one slot."""

    connection: Connection | None = None
    progress: SlotProgress = field(default_factory=SlotProgress)
    before: int = 0
    """Messages committed by the slot's earlier tasks."""


class ContinuousQuery:
    """A running query; made by :func:`continuous`. May be used from several threads."""

    def __init__(self, context: Any, function: Function, slots: int, slot: Slot) -> None:
        self.name = slot.name
        self._context = context
        self._slot = slot
        self._function = function
        self._lines = [_Line() for _ in range(slots)]
        self._group = SharedSubscription.parse(slot.subscription).id
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._error: StreamleaseError | None = None
        self.restarts = 0
        """How many tasks ended by an error and were run again by the query."""
        secret = random_token().encode()
        conf = context.getConf()
        reachable = conf.get("spark.driver.host", "127.0.0.1")
        bound = conf.get("spark.driver.bindAddress", reachable)
        self._listener = Listener((bound, 0), authkey=secret, backlog=slots + 8)
        address = (reachable, self._listener.address[1])
        self._run = partial(_run, slot, function, address, secret)
        self._acceptor = threading.Thread(target=self._accept, name="streamlease-lines", daemon=True)
        self._acceptor.start()
        self._jobs = [
            threading.Thread(target=self._keep, args=(number,), name=f"streamlease-{number}", daemon=True)
            for number in range(slots)
        ]
        metrics.watch(self)
        for job in self._jobs:
            job.start()

    # ------------------------------------------------------------ for the user

    @property
    def subscription(self) -> str:
        """What the query consumes."""
        return self._slot.subscription

    def holding(self) -> tuple[int, int | None]:
        """Streams that the tasks hold, as last reported; their lag is not known here. From any thread."""
        return sum(one.streams for one in self.progress), None

    @property
    def is_active(self) -> bool:
        """Whether any slot still runs, or will again."""
        return any(job.is_alive() for job in self._jobs)

    @property
    def exception(self) -> StreamleaseError | None:
        """Why the query ended by itself."""
        return self._error

    @property
    def messages(self) -> int:
        """How many messages were committed, as last reported."""
        with self._lock:
            return sum(line.before + line.progress.messages for line in self._lines)

    @property
    def progress(self) -> list[SlotProgress]:
        """The last report of each slot's present task."""
        with self._lock:
            return [line.progress for line in self._lines]

    def await_termination(self, seconds: float | None = None) -> bool:
        """Wait until the query has ended; whether it has.

        Raises:
            StreamleaseError: a slot failed again and again; the last error of its task is named.
        """
        deadline = None if seconds is None else time.monotonic() + seconds
        for job in self._jobs:
            job.join(None if deadline is None else max(0.0, deadline - time.monotonic()))
        if self.is_active:
            return False
        self._close()
        if self._error is not None:
            raise self._error
        return True

    def stop(self, seconds: float = 60.0) -> None:
        """Finish the batches at hand, commit them, give the streams back. A second call only waits.

        Raises:
            StreamleaseError: a task did not end in that time; its Spark job runs on.
        """
        self._tell_to_stop()
        deadline = time.monotonic() + seconds
        for job in self._jobs:
            job.join(max(0.0, deadline - time.monotonic()))
        alive = sum(job.is_alive() for job in self._jobs)
        if alive:
            raise StreamleaseError(
                f"{alive} of {len(self._jobs)} slots of the continuous query {self.name} did not end within "
                f"{seconds:.0f} s: is the user's function still at work? call stop again, or stop Spark"
            )
        self._close()

    # ------------------------------------------------------------ inside

    def _close(self) -> None:
        metrics.forget(self)
        with suppress(OSError):
            self._listener.close()

    def _tell_to_stop(self) -> None:
        self._stopping.set()
        with self._lock:
            for line in self._lines:
                if line.connection is not None:
                    with suppress(OSError):
                        line.connection.send_bytes(b"stop")

    def _keep(self, number: int) -> None:
        """Run the slot's job, again and again until it was told to stop."""
        failures, committed = 0, 0
        while not self._stopping.is_set():
            try:
                self._context.setJobDescription(f"{self._slot.subscription}, slot {number}")
                self._context.parallelize([number], 1).mapPartitions(self._run).count()
            except Exception as error:
                if self._stopping.is_set():
                    return
                line = self._lines[number]
                with self._lock:
                    line.before, line.progress = line.before + line.progress.messages, SlotProgress()
                    failures = 1 if line.before > committed else failures + 1
                    committed = line.before
                log.warning(
                    "slot %d of %s failed: %s", number, self.name, cause_of(error),
                    extra={"group": self._group, "borrower": f"{self.name}-{number}"},
                )  # fmt: skip
                if failures >= MOST_FAILURES:
                    self._error = self._error or StreamleaseError(
                        f"slot {number} of the continuous query {self.name} failed {failures} times in a row "
                        f"without committing anything: {cause_of(error)}"
                    )
                    self._tell_to_stop()
                    return
                self.restarts += 1
                self._stopping.wait(RETRY_SECONDS * failures)

    def _accept(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
            except OSError:
                return  # closed
            except Exception as error:
                log.warning("a stranger called the driver of %s: %s", self.name, error)
                continue
            threading.Thread(target=self._listen, args=(connection,), daemon=True).start()

    def _listen(self, connection: Connection) -> None:
        """Take the reports of one task until its end."""
        number = -1
        with suppress(EOFError, OSError), connection:
            number = int(connection.recv_bytes())
            line = self._lines[number]
            with self._lock:
                line.connection = connection
                if self._stopping.is_set():
                    connection.send_bytes(b"stop")
            while True:
                told = SlotProgress.parse(connection.recv_bytes())
                with self._lock:
                    done = told.messages - line.progress.messages
                    line.progress = told
                metrics.COMMITTED.labels(self.subscription).inc(max(0, done))
        if number >= 0:
            with self._lock:
                if self._lines[number].connection is connection:
                    self._lines[number].connection = None


def _run(
    slot: Slot, function: Function, address: tuple[str, int], secret: bytes, numbers: Iterable[int]
) -> Iterator[int]:
    """The task of a slot; gives nothing."""
    for number in numbers:
        host(slot, number, function, address, secret)
    yield from ()
