"""The store of files between the archivers and a real folder: slow, out of order, full, or lying."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from pyarrow import fs
from pyiceberg.catalog.sql import SqlCatalog

from streamlease.streams.archive import iceberg_table
from streamlease.streams.archive.files import places
from streamlease.streams.archive.redis_catalog import RedisCatalog
from tests.simulation.archive.threads import Killed, this_thread

if TYPE_CHECKING:
    from tests.simulation.archive.world import ArchiveWorld


@dataclass
class StoreFaults:
    """How often something goes wrong; zero once the world has healed."""

    failing: float = 0.0
    """Of a request: it is answered by an error, and was not done."""
    unanswered: float = 0.0
    """Of a request: it was done, and is answered by an error."""
    lying: float = 0.0
    """Of a file: the store has another one than it took."""
    crash: float = 0.0
    """Of a process, before or behind a request."""
    slow: float = 0.0
    """Longest delay of a request in seconds, instead of a millisecond."""
    full_until: float = 0.0

    def stop(self) -> None:
        """Nothing goes wrong any more."""
        for field in fields(self):
            setattr(self, field.name, 0.0)


class Store:
    """What archivers and readers use in place of the folder."""

    def __init__(self, world: ArchiveWorld) -> None:
        self.world = world
        self.faults = StoreFaults()
        self.written: dict[str, float] = {}
        """When each file was begun, in seconds of the world."""
        self._folder: Any = fs.LocalFileSystem()

    # ------------------------------------------------------------ what may happen at a request

    def before(self, what: str) -> None:
        """A request is made.

        Raises:
            OSError: it is not done.
            Killed: the process ends.
        """
        thread, world = this_thread(), self.world
        if thread is None or world.over:
            return
        kernel, faults = world.kernel, self.faults
        thread.sleep(kernel.random.random() * (faults.slow if kernel.chance(0.2) else 0.001))
        self._crash(what, "before")
        if kernel.chance(faults.failing):
            world.sometimes["the store answers an error"] += 1
            raise OSError(f"{what}: the store is out of order")

    def behind(self, what: str) -> None:
        """It was done.

        Raises:
            OSError: and nobody is told.
            Killed: the process ends.
        """
        if this_thread() is None or self.world.over:
            return
        self._crash(what, "behind")
        if self.world.kernel.chance(self.faults.unanswered):
            self.world.sometimes["an answer of the store is lost"] += 1
            raise OSError(f"{what}: no answer")

    def _crash(self, what: str, when: str) -> None:
        thread, world = this_thread(), self.world
        assert thread is not None
        if world.kernel.chance(self.faults.crash):
            world.sometimes[
                f"a crash {when} a write of a file" if what == "write" else f"a crash {when} {what}"
            ] += 1
            world.crash(thread.process)
            raise Killed

    def requested(self, what: str, real: Callable[..., Any]) -> Callable[..., Any]:
        """`real` as a request."""

        def request(*args: Any, **more: Any) -> Any:
            self.before(what)
            answer = real(*args, **more)
            self.behind(what)
            return answer

        return request

    # ------------------------------------------------------------ the file system

    def __getattr__(self, name: str) -> Any:
        """As the file system of a folder."""
        return self.requested(name, getattr(self._folder, name))

    def listed(self, real: Callable[[str], dict[str, float]]) -> Callable[[str], dict[str, float]]:
        """Files are as old as the world says; those of the catalog are new."""

        def listed(address: str) -> dict[str, float]:
            now = self.world.timeline.now
            return {path: self.written.get(path, now) + 1.0 for path in real(address)}

        return listed

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Everybody uses it."""
        write, finish, begin = places.NewFile.write, places.NewFile.finish, places.NewFile.__init__
        store, world = self, self.world

        def begun(file: places.NewFile, address: str) -> None:
            store.before("open")
            begin(file, address)
            store.written[address] = world.timeline.now

        def written(file: places.NewFile, data: bytes) -> int:
            if world.kernel.chance(0.2):
                store.before("write")
            if store.faults.full_until > world.timeline.now:
                world.sometimes["the store is full"] += 1
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return write(file, data)

        def finished(file: places.NewFile) -> places.FileSum:
            store.before("finish")
            sum = finish(file)
            if world.kernel.chance(store.faults.lying):
                store.lie(Path(file.address))
            store.behind("finish")
            return sum

        with ExitStack() as stack:
            enter = stack.enter_context
            enter(mock.patch.object(places.NewFile, "__init__", begun))
            enter(mock.patch.object(places.NewFile, "write", written))
            enter(mock.patch.object(places.NewFile, "finish", finished))
            enter(mock.patch.object(places, "_files", lambda kind, process: store))
            enter(mock.patch.object(places.os, "fsync", lambda number: None))
            for catalog in (SqlCatalog, RedisCatalog):
                for name in ("load_table", "commit_table"):
                    real = getattr(catalog, name)
                    enter(mock.patch.object(catalog, name, self.requested(name, real)))
            if world.pointed:
                enter(
                    mock.patch.object(
                        iceberg_table,
                        "catalog_of",
                        lambda redis, space, settings: RedisCatalog(redis, space, warehouse=settings.uri),
                    )
                )
            yield

    def lie(self, path: Path) -> None:
        """The store has not what it took."""
        self.world.sometimes["the store lies"] += 1
        data = bytearray(path.read_bytes())
        kind = self.world.random.choice(("cut", "turned", "gone"))
        if kind == "gone":
            path.unlink()
        elif kind == "cut":
            path.write_bytes(data[:-10])
        else:
            data[len(data) // 3] ^= 1
            path.write_bytes(data)
