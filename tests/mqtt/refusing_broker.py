"""A broker that answers what a test wants: Mosquitto does not give every refusal that is in the standards."""

from __future__ import annotations

import socket
import struct
import threading
from typing import Self

HOST = "127.0.0.1"


class RefusingBroker:
    """Answers CONNECT with `connect`, and each filter of a SUBSCRIBE with `subscribe`.

    Args:
        version: of MQTT: "5" or "3.1.1".
        connect: the reason code of its CONNACK; None: the connection is closed without a word.
        closing: the connection ends behind a CONNACK that refuses.
    """

    def __init__(
        self, version: str, connect: int | None = 0, subscribe: int = 1, *, closing: bool = True
    ) -> None:
        self._five = version == "5"
        self.connect = connect
        self.subscribe = subscribe
        self.connections = 0
        self._closing = closing
        self._listener = socket.create_server((HOST, 0))
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._take, daemon=True)

    @property
    def url(self) -> str:
        return f"mqtt://{HOST}:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)
        for one in self._open:
            one.close()

    def _take(self) -> None:
        while True:
            try:
                one, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(one)
            one.settimeout(20)
            try:
                self._serve(one)
            except (OSError, struct.error, IndexError):
                one.close()

    def _serve(self, one: socket.socket) -> None:
        while packet := one.recv(65_536):
            kind = packet[0] >> 4
            if kind == 1:
                if self.connect is None:
                    one.close()
                    return
                one.sendall(
                    bytes([0x20, 3, 0, self.connect, 0] if self._five else [0x20, 2, 0, self.connect])
                )
                if self.connect and self._closing:
                    one.close()
                    return
            elif kind == 8:
                properties = b"\0" if self._five else b""
                body = packet[2:4] + properties + bytes([self.subscribe])
                one.sendall(bytes([0x90, len(body)]) + body)
            elif kind == 12:
                one.sendall(b"\xd0\0")
            elif kind == 14:
                return
