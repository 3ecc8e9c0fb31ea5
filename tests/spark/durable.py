"""A Redis that comes back with older data, as a replica does that was behind when it was promoted."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.conftest import MakeServer
from tests.spark.world import World


class Durable:
    """A Redis of the test's own that keeps what it acknowledged, and a world on it."""

    def __init__(self, make: MakeServer) -> None:
        self.server = make(persistent=True)
        self.world = World(self.server.url)

    @property
    def _files(self) -> Path:
        return self.server.directory / "appendonlydir"

    def snapshot(self) -> Path:
        """A copy of the data as they are now: what a replica has that gets no more."""
        copy = self.server.directory.parent / "snapshot"
        self.server.pause()
        shutil.copytree(self._files, copy)
        self.server.resume()
        return copy

    def lose(self, snapshot: Path) -> None:
        """Redis comes back with the older data: all that was acknowledged since is lost."""
        self.server.kill()
        shutil.rmtree(self._files)
        snapshot.rename(self._files)
        self.server.start()

    def close(self) -> None:
        if not self.server.is_running:
            self.server.start()
        self.world.close()
