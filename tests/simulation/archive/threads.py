"""Threads of simulated processes, of which one runs at a time, and blocking clients of Redis for them.

Archiving is blocking code, which production runs in a thread. Here that is a thread too, but it runs only
while the world waits for it, and hands back at each of its waits: for an answer of Redis, or for the store of
files. When it goes on is decided in virtual time, so a seed decides the order of everything.

A process that is killed kills its threads where they wait: `Killed` comes out of each of their waits from
then on, so what they would tidy up on their way out is not tidied up.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import hiredis
import redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from streamlease.streams.redis.urls import ANSWER_SECONDS
from streamlease.streams.redis.wire import BlockingServer
from streamlease.testing.memory.sockets import Line, Socket
from streamlease.testing.timelines.loops import Event, Process

if TYPE_CHECKING:
    from tests.simulation.simulated import SimulatedWorld

_HERE = threading.local()


class Killed(BaseException):
    """The process ends here."""


def this_thread() -> Thread | None:
    """The simulated thread that runs now; None: the world itself."""
    return getattr(_HERE, "thread", None)


class Thread:
    """One thread of a process."""

    def __init__(self, world: SimulatedWorld, process: Process, work: Callable[[], Any]) -> None:
        self.process = process
        self.ended = False
        self.answer: asyncio.Future[Any] = process.loop.create_future()
        self._world = world
        self._work = work
        self._is_killed = False
        self._timer: Event | None = None
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._outcome: tuple[Any, Exception | None] | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        process.ends.append(self.kill)
        self._resume_in(0.0)

    # ------------------------------------------------------------ on the thread

    def _run(self) -> None:
        self._go.acquire()
        _HERE.thread = self
        try:
            self.check()
            self._outcome = self._work(), None
        except Killed:
            pass
        except Exception as error:
            self._outcome = None, error
        finally:
            self.ended = True
            self._back.release()

    def check(self) -> None:
        """Go on only if the process lives.

        Raises:
            Killed
        """
        if self._is_killed:
            raise Killed

    def sleep(self, seconds: float) -> None:
        """Let virtual time pass, and others run.

        Raises:
            Killed
        """
        self.check()
        self._resume_in(seconds)
        self._back.release()
        self._go.acquire()
        self.check()

    def wait(self, ready: Callable[[], bool], seconds: float) -> bool:
        """Wait until it is ready, which `wake` says; whether it is in time.

        Raises:
            Killed
        """
        until = self._world.timeline.now + seconds
        while not ready():
            left = until - self._world.timeline.now
            if left <= 0:
                return False
            self.sleep(left)
        return True

    # ------------------------------------------------------------ on the world's own

    def wake(self) -> None:
        """What it waits for may be there."""
        if self._timer is not None:
            self._resume_in(0.0)

    def kill(self) -> None:
        """Let it end where it waits."""
        self._is_killed = True
        self.wake()

    def finish(self) -> None:
        """End it now, whatever it waits for."""
        self._is_killed = True
        while not self.ended:
            self._turn()
        self._thread.join()

    def _resume_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._world.timeline.after(seconds, self._resume)

    def _resume(self) -> None:
        stopped = self.process.paused_until - self._world.timeline.now
        if stopped > 0 and not self._is_killed:
            self._timer = self._world.timeline.after(stopped, self._resume)
            return
        self._turn()

    def _turn(self) -> None:
        self._timer = None
        if self.ended:
            return
        state = self._world.drawn.getstate()
        self._go.release()
        self._back.acquire()
        self._world.drawn.setstate(state)  # what it imports may have drawn, once
        if self.ended and self._outcome is not None and not self.answer.done():
            result, error = self._outcome
            if error is None:
                self.answer.set_result(result)
            else:
                self.answer.set_exception(error)


class Threads:
    """All threads of a world."""

    def __init__(self, world: SimulatedWorld) -> None:
        self._world = world
        self._all: list[Thread] = []

    def run(
        self, process: Process, executor: object, work: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """As ``run_in_executor`` of the loop of `process`."""
        if self._world.over:
            nothing = process.loop.create_future()
            nothing.cancel()
            return nothing
        self._all = [one for one in self._all if not one.ended]
        return self.start(process, lambda: work(*args)).answer

    def start(self, process: Process, work: Callable[[], Any]) -> Thread:
        """A new thread of `process`."""
        thread = Thread(self._world, process, work)
        self._all.append(thread)
        return thread

    def end(self) -> None:
        """End those that still run."""
        for thread in self._all:
            thread.finish()


class Threading:
    """What the product uses of the module ``threading`` where it works in threads."""

    def __init__(self, threads: Threads) -> None:
        threads_of_world = threads

        class Worker:
            """A thread of the process of who makes it."""

            def __init__(self, *, target: Callable[..., None], args: tuple[Any, ...], daemon: bool) -> None:
                self._work = lambda: target(*args)
                self._thread: Thread | None = None

            def start(self) -> None:
                here = this_thread()
                assert here is not None
                self._thread = threads_of_world.start(here.process, self._work)

            def join(self) -> None:
                here, other = this_thread(), self._thread
                assert here is not None
                assert other is not None
                while not other.ended:
                    here.sleep(0.01)

        self.Thread = Worker
        self.Event = Flag


class Flag:
    """An event of threads."""

    def __init__(self) -> None:
        self._is_set = False
        self._waits: list[Thread] = []

    def is_set(self) -> bool:
        """Whether it happened."""
        return self._is_set

    def set(self) -> None:
        """It happens."""
        self._is_set = True
        for thread in self._waits:
            thread.wake()

    def wait(self, seconds: float) -> bool:
        """Wait for it; whether it happened."""
        thread = this_thread()
        assert thread is not None
        self._waits.append(thread)
        try:
            return thread.wait(self.is_set, seconds)
        finally:
            self._waits.remove(thread)


class _Connection:
    """What `streams/redis/wire.py` asks of a blocking connection."""

    def __init__(self, world: SimulatedWorld, line: Line) -> None:
        self._world = world
        self._line = line
        self._thread = this_thread()
        self._requests: Any = hiredis.Reader()
        self._socket: Socket | None = None
        seconds = line.connecting()
        if self._thread is not None:
            self._thread.sleep(seconds)
        self._socket = Socket(world.server, line, self._look)  # type: ignore[attr-defined]

    def _look(self) -> None:
        if self._thread is not None:
            self._thread.wake()

    def pack_command(self, *command: Any) -> list[bytes]:
        return [hiredis.pack_command(command)]

    def send_packed_command(self, packed: list[bytes], check_health: bool) -> None:
        if self._socket is None or self._socket.lost:
            raise RedisConnectionError("Connection closed by server.")
        for part in packed:
            self._requests.feed(part)
        commands = []
        while (one := self._requests.gets()) is not False:
            commands.append(one)
        self._socket.send(commands)

    def read_response(self) -> Any:
        socket = self._socket
        assert socket is not None
        if self._thread is not None and not self._thread.wait(
            lambda: bool(socket.replies or socket.lost), ANSWER_SECONDS
        ):
            raise RedisTimeoutError("Timeout reading from memory")
        if not socket.replies:
            raise RedisConnectionError("Connection closed by server.")
        reply = socket.replies.popleft()
        if isinstance(reply, ResponseError):
            raise reply
        return reply

    def disconnect(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class _Pool:
    """A connection for each exchange."""

    def __init__(self, world: SimulatedWorld, line: Line) -> None:
        self.connection_kwargs = {"path": "memory"}
        self._world = world
        self._line = line

    def get_connection(self) -> _Connection:
        return _Connection(self._world, self._line)

    def release(self, connection: _Connection) -> None:
        connection.disconnect()

    def disconnect(self) -> None:
        return None

    close = disconnect


def blocking_redis(world: SimulatedWorld, line: Line | None = None) -> BlockingServer:
    """A blocking client on the server of the world, for a thread of a process, or for the world itself.

    Args:
        line: that of the process; None: nothing that takes time or breaks.
    """
    pool: Any = _Pool(world, line or Line())
    return redis.Redis.from_pool(pool)
