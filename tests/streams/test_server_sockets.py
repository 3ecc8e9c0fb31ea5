"""What listens, listens on addresses of IPv6, too."""

from __future__ import annotations

import socket

import pytest

from streamlease.protocol.addresses import plain_address, shown_address
from streamlease.streams.redis.connection import address, connect
from streamlease.streams.server_sockets import server_socket
from tests.ipv6 import HAS_IPV6, LOOPBACK


def _who_connects(listener: socket.socket, host: str) -> str:
    """From where, as the listener sees it, and as it is told."""
    with socket.create_connection((host, listener.getsockname()[1]), timeout=30.0):
        connected, address = listener.accept()
        connected.close()
    return plain_address(address[0])


REACHED = {"127.0.0.1": ["127.0.0.1"], "localhost": ["127.0.0.1"]}
if HAS_IPV6:
    REACHED |= {"::1": ["::1"], "::": ["127.0.0.1", "::1"]}


@pytest.mark.parametrize("host", REACHED)
def test_it_is_reached_from_there(host: str) -> None:
    with server_socket(host, 0) as listener:
        assert [_who_connects(listener, one) for one in REACHED[host]] == REACHED[host]


def test_a_port_that_is_taken_and_a_name_that_is_none_are_refused() -> None:
    with server_socket(LOOPBACK, 0) as listener, pytest.raises(OSError, match="in use"):
        server_socket(LOOPBACK, listener.getsockname()[1])
    with pytest.raises(OSError, match="not known"):
        server_socket("no-such-host.invalid", 0)


@pytest.mark.parametrize(
    ("address", "plain"),
    [("::ffff:10.0.0.7", "10.0.0.7"), ("10.0.0.7", "10.0.0.7"), ("FE80::1%eth0", "fe80::1%eth0"), ("", "")],
)
def test_an_address_of_ipv4_is_told_as_one(address: str, plain: str) -> None:
    assert plain_address(address) == plain


async def test_a_redis_is_named_as_in_a_url() -> None:
    client = connect("redis://[::1]:1/3")
    assert address(client) == "[::1]:1"
    await client.aclose()


def test_an_address_is_shown_as_in_a_url() -> None:
    assert [shown_address("::1", 80), shown_address("127.0.0.1", 80)] == ["[::1]:80", "127.0.0.1:80"]
