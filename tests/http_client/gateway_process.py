"""``streamlease gateway`` as a process that is killed and started again at the same port."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.admin.command import Command, Process, finish, lines_of


class GatewayProcess:
    """One gateway; `port` stays the same over `start`."""

    def __init__(self, directory: Path, redis_url: str, *options: str) -> None:
        self._options = options
        self.command = Command(directory, redis_url)
        self.port = 0
        self._process: Process | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._process = self.command.start("gateway", "--port", str(self.port), *self._options)
        (said,) = lines_of(self._process, 1)
        assert said.startswith("the gateway is at http"), self.command.log.read_text()
        self.port = int(said.rstrip("/").rpartition(":")[2])

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            finish(self._process, signal.SIGKILL)
            self._process = None
