"""What a connection to a broker begins and ends with: the settings of TLS, and a good-bye."""

from __future__ import annotations

import contextlib
import ssl
from typing import Any

from streamlease.gateway.mqtt.bridge_settings import BridgeSettings
from streamlease.protocol.errors import InvalidOption

PART_SECONDS = 2.0
DISCONNECT = b"\xe0\x00"
"""Of both versions: a client goes on purpose."""


def part(socket: Any) -> None:
    """Say that the client goes, and read until the broker has closed, or has sent nothing for a while.

    A socket that is closed with something unread in it forgets what it still had to send.
    """
    with contextlib.suppress(OSError):
        socket.settimeout(PART_SECONDS)
        socket.sendall(DISCONNECT)
        while socket.recv(65_536):
            pass
    socket.close()


def tls_context(settings: BridgeSettings) -> ssl.SSLContext:
    """How TLS is spoken.

    Raises:
        InvalidOption: a file cannot be used.
    """
    try:
        context = ssl.create_default_context(cafile=settings.ca)
        if settings.certificate is not None:
            context.load_cert_chain(settings.certificate, settings.key)
    except (OSError, ssl.SSLError) as error:
        files = ", ".join(filter(None, (settings.ca, settings.certificate, settings.key)))
        why = getattr(error, "reason", None) or error.strerror or error
        raise InvalidOption(f"cannot use {files} for TLS ({why}): give PEM files that can be read") from None
    return context
