"""Addresses that a server is told to listen on, and names under which it is asked."""

from __future__ import annotations

import ipaddress
import re

from streamlease.protocol.errors import InvalidOption

_HOST = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?")


def check_listen_host(host: str) -> str:
    """`host`, if it can be an address or a name of this machine.

    The system takes an empty one for all addresses, which nobody means who passes an unset variable.

    Raises:
        InvalidOption: it is empty, or cannot be looked up.
    """
    try:
        is_name = bool(host.encode("idna"))
    except UnicodeError:
        is_name = False
    if not is_name:
        raise InvalidOption(
            f"cannot listen on {ascii(host)[:80]}: give an address of this machine, such as 127.0.0.1, "
            f"or 0.0.0.0 for all of them (:: with those of IPv6)"
        )
    return host


def shown_address(host: str, port: int) -> str:
    """Both, as they stand in a URL: ``127.0.0.1:80``, ``[::1]:80``."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def plain_address(address: str) -> str:
    """An IP address as others write it: a socket for both kinds tells those of IPv4 as ``::ffff:127.0.0.1``.

    What is no address stays as it is.
    """
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    return str(getattr(found, "ipv4_mapped", None) or found)


def host_name(header: str) -> str | None:
    """The name or address in a ``Host`` header, in lower case and without port; None if it is malformed."""
    found = _HOST.fullmatch(header)
    return found["name"].strip("[]").removesuffix(".").lower() if found else None


def is_allowed(header: str | None, names: frozenset[str]) -> bool:
    """Whether a request with that ``Host`` header is meant for this server."""
    name = host_name(header) if header is not None else None
    if name is None:
        return False
    if name in names or name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
