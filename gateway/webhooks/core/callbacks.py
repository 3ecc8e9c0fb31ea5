"""Which callbacks are acceptable: their URLs, and the addresses that their names lead to. Pure.

A callback makes the gateway send requests where somebody else says, and the gateway stands where that
somebody may not reach: behind a firewall, beside a cloud's metadata. So unless the operator allows it, only
addresses of the public internet are connected to. That is judged by the *address*, of each connection, right
before it is made: a name that was harmless yesterday may lead to 127.0.0.1 today.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from streamlease.protocol.errors import InvalidOption, StreamleaseError

LONGEST = 2048
_LABEL = r"[a-z0-9_][a-z0-9_-]{0,62}"
_HOST = re.compile(rf"(?=.{{1,253}}\Z)({_LABEL}\.)*{_LABEL}\.?\Z", re.ASCII)
_PLAIN = re.compile(r"[!-\[\]-~]+\Z")
"""Printable ASCII without a backslash, which some take for a slash."""

_NUMERIC = re.compile(r"(0x[0-9a-f]*|[0-9]+)\Z")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_COMPATIBLE = ipaddress.IPv6Network("::/96")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class InvalidCallback(InvalidOption):
    """A callback is none, or leads where the gateway may not go."""


class RefusedAddress(StreamleaseError):
    """A callback's name leads to an address where the gateway may not go."""


@dataclass(frozen=True, slots=True)
class Callback:
    """Where deliveries go."""

    secure: bool
    host: str
    """A name, or an address without brackets."""
    port: int
    target: str
    """Path and query, as they go into a request."""

    @property
    def origin(self) -> tuple[bool, str, int]:
        """What a connection can be used for."""
        return self.secure, self.host, self.port

    @property
    def host_header(self) -> str:
        """As a request names its host."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.secure else 80) else f"{host}:{self.port}"

    @property
    def address(self) -> Address | None:
        """The address, if the host is one."""
        return _address(self.host)


def parse_callback(url: str, *, allow_private: bool) -> Callback:
    """The callback that `url` names.

    Args:
        allow_private: whether addresses that are not of the public internet may be named.

    Raises:
        InvalidCallback: it cannot be used; the text says why, and what to do.
    """
    if len(url) > LONGEST:
        raise InvalidCallback(f"the callback has {len(url)} characters: give {LONGEST} at most")
    if not _PLAIN.match(url):
        raise _bad(url, "has characters that no URL has: write them as %XX, and the host in punycode")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise _bad(url, "is malformed: give a URL such as https://example.com/hook") from None
    if parts.scheme not in ("http", "https") or not url.startswith(f"{parts.scheme}://"):
        raise _bad(url, "is no http:// or https:// URL: give one such as https://example.com/hook")
    if "@" in parts.netloc:
        raise _bad(parts.hostname or "", "has a user name or password: have it check the signature instead")
    if "#" in url:
        raise _bad(url, "has a fragment, which is not sent: leave out the # and what follows")
    secure = parts.scheme == "https"
    host = _host(parts.netloc, url)
    if port == 0 or parts.netloc.endswith(":"):
        raise _bad(url, "has an empty port: leave out the colon, or give 1 to 65535")
    target = (parts.path or "/") + (f"?{parts.query}" if "?" in url else "")
    callback = Callback(secure, host, port or (443 if secure else 80), target)
    if callback.address is not None and not allow_private:
        try:
            check_address(callback.address, host)
        except RefusedAddress as error:
            raise InvalidCallback(str(error)) from None
    return callback


def check_address(address: Address, host: str) -> None:
    """Raises:
    RefusedAddress: `address`, to which `host` leads, is not one of the public internet.
    """
    for one in _meant(address):
        if not one.is_global or one.is_multicast or one.is_reserved or getattr(one, "is_site_local", False):
            raise RefusedAddress(
                f"the callback's host {ascii(host)[:80]} leads to {address}, which is not on the public "
                f"internet: use another one, or start all gateways with --allow-private-callbacks"
            )


def parse_address(text: str) -> Address:
    """An address as the resolver gives it, which may name a zone.

    Raises:
        ValueError: it is none.
    """
    return ipaddress.ip_address(text.partition("%")[0])


def _meant(address: Address) -> list[Address]:
    """The address, and those of IPv4 that stand in it, to which something on the way may translate it."""
    if isinstance(address, ipaddress.IPv4Address):
        return [address]
    if address.ipv4_mapped is not None:
        return [address.ipv4_mapped]  # it is the same thing
    found: list[Address] = [address]
    if address.sixtofour is not None:
        found.append(address.sixtofour)
    if address.teredo is not None:
        found.extend(address.teredo)
    if address in _NAT64:
        return [ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)]
    if address in _COMPATIBLE:
        found.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    return found


def _host(netloc: str, url: str) -> str:
    if netloc.startswith("["):
        host, closed, rest = netloc[1:].partition("]")
        address = _address(host)
        if not closed or not isinstance(address, ipaddress.IPv6Address) or (rest and rest[0] != ":"):
            raise _bad(url, "has a malformed IPv6 address as its host: write [2001:db8::1], without a zone")
        return str(address)
    host = netloc.partition(":")[0].lower()
    if netloc.count(":") > 1 or not _HOST.match(host):
        raise _bad(url, "has no usable host: give a name in ASCII (punycode), or an address")
    bare = host.rstrip(".")
    if _NUMERIC.match(
        bare.rpartition(".")[2]
    ):  # a number in the last place makes it an address for resolvers
        address = _address(bare)
        if address is None:
            raise _bad(url, "has an address in an unusual form as its host: write it as 93.184.216.34")
        return str(address)
    return host


def _address(host: str) -> Address | None:
    try:
        return None if "%" in host else ipaddress.ip_address(host)
    except ValueError:
        return None


def _bad(url: str, what: str) -> InvalidCallback:
    return InvalidCallback(f"the callback {ascii(url)[:80]} {what}")
