"""Sockets that listen, on addresses of IPv4 and of IPv6."""

from __future__ import annotations

import socket


def server_socket(host: str, port: int, *, backlog: int | None = None) -> socket.socket:
    """A socket that listens there.

    Args:
        host: an address of this machine, or a name; of one with addresses of both kinds, that of IPv4 counts.
            ``::`` is all addresses, those of IPv4 too where the system lets one socket do both.
        port: 0 takes a free one.

    Raises:
        OSError: that cannot be.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = min(found, key=lambda one: one[0] is not socket.AF_INET)
    both = address[0] == "::" and socket.has_dualstack_ipv6()
    return socket.create_server(address[:2], family=family, backlog=backlog, dualstack_ipv6=both)
