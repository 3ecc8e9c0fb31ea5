"""Whether this machine has IPv6: a kernel may be without, and then nothing can listen there."""

from __future__ import annotations

import socket


def _has_it() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


HAS_IPV6 = _has_it()
LOOPBACK = "::1" if HAS_IPV6 else "127.0.0.1"
"""An address of this machine, of IPv6 if there is one."""
