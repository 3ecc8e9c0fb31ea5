"""Ports of an executor's range that programs of others have: no worker is placed there while they do."""

from __future__ import annotations

import errno
import socket

from streamlease.protocol.errors import QueryRefused


class StrangePorts:
    """Those that were found taken when a worker was to have one."""

    def __init__(self) -> None:
        self._found: set[int] = set()

    def check(self, port: int) -> None:
        """Raises QueryRefused if another program has the port, and OSError if that cannot be seen."""
        if _is_taken(port):
            self._found.add(port)
            raise QueryRefused(
                f"port {port} is taken by another program of this machine: "
                f"submit the job again, it gets another"
            )

    def still(self) -> tuple[int, ...]:
        """Those that are taken now as well."""
        self._found = {port for port in self._found if _is_taken(port)}
        return tuple(sorted(self._found))


def _is_taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return True
    return False
