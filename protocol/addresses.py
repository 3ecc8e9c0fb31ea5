"""Addresses that a server is told to listen on."""

from __future__ import annotations

from streamlease.protocol.errors import InvalidOption


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
            f"or 0.0.0.0 for all of them"
        )
    return host
