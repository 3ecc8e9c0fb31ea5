"""The URL of a Redis, taken apart and checked; and how it is shown. Pure.

Passwords hold characters that mean something in a URL, and people forget the scheme. So whatever is wrong
with a URL, nothing of it is repeated that could be part of a secret: an error names the fault, and shows the
URL as `masked` does. That is on the safe side: a host that might be half of a password is not shown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple
from urllib.parse import unquote

from streamlease.protocol.errors import InvalidOption
from streamlease.protocol.nearest import nearest

Address = tuple[str, int]

PORT = 6379
SENTINEL_PORT = 26379
SCHEMES = (
    "redis",
    "rediss",
    "unix",
    *(f"{one}+{kind}" for one in ("redis", "rediss") for kind in ("cluster", "sentinel")),
)

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+]{0,30})://")
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::(\d{1,5}))?")
_WORDS = {"1", "0", "true", "false", "yes", "no", "t", "f", "y", "n"}


def _number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _seconds(text: str) -> bool:
    return re.fullmatch(r"\d{1,6}(\.\d{1,6})?", text) is not None and float(text) > 0


OPTIONS: dict[str, tuple[Callable[[str], bool], str]] = {
    "db": (_number, "a number"),
    "username": (bool, "a name"),
    "password": (bool, "a password"),
    "password_file": (bool, "a file"),
    "sentinel_username": (bool, "a name"),
    "sentinel_password": (bool, "a password"),
    "sentinel_password_file": (bool, "a file"),
    "socket_timeout": (_seconds, "seconds above 0"),
    "socket_connect_timeout": (_seconds, "seconds above 0"),
    "ssl_ca_certs": (bool, "a file"),
    "ssl_ca_path": (bool, "a directory"),
    "ssl_certfile": (bool, "a file"),
    "ssl_keyfile": (bool, "a file"),
    "ssl_password": (bool, "a password"),
    "ssl_check_hostname": (lambda text: text.lower() in _WORDS, "true or false"),
    "ssl_cert_reqs": (lambda text: text in ("none", "optional", "required"), "none, optional or required"),
}
"""The options behind the ``?``, under the names of redis-py, and what each value must be."""

_SECRET = {name for name in OPTIONS if name.endswith("password")}


class UrlParts(NamedTuple):
    """A URL, taken apart."""

    kind: str
    """``cluster``, ``sentinel``, or empty for one server."""
    scheme: str
    login: str
    """As it stands in the URL, with the ``@``; empty if there is none."""
    hosts: tuple[Address, ...]
    """None for a socket."""
    service: str
    query: Mapping[str, str]
    shown: str


def masked(url: str) -> str:
    """`url` without anything that could be a secret, as it may stand in a message or a log."""
    text = str(url)
    found = _SCHEME.match(text)
    begin = found.group() if found else ""
    before, at, rest = text[len(begin) :].rpartition("@")
    if at and any(mark in before for mark in "/?#"):
        return f"{begin}***"
    login = ""
    if at:
        user, colon, _ = before.partition(":")
        login = f"{user}:***@" if begin and colon and re.fullmatch(r"[\w.-]*", user) else "***@"
    where, mark, query = rest.partition("?")
    if begin != "unix://":
        hosts, slash, path = where.partition("/")
        hosts = ",".join(map(_shown_host, hosts.split(",")))
        where = f"{hosts}{slash}{path if re.fullmatch(r'[0-9A-Za-z_.-]*', path) else '***'}"
    return f"{begin}{login}{where}{mark}{'&'.join(_shown(query))}"


def _shown_host(text: str) -> str:
    """A name and a port; what stands for the port and is none might be a password whose ``@`` is missing."""
    if _HOST.fullmatch(text):
        return text
    name, colon, _ = text.partition(":")
    return f"{name}:***" if colon and re.fullmatch(r"[A-Za-z0-9._-]+", name) else "***"


def _shown(query: str) -> Iterator[str]:
    for part in query.split("&") if query else ():
        name, equals, value = part.partition("=")
        if not re.fullmatch(r"[a-z_]{1,40}", name) or not equals:
            yield "***"
        else:
            yield f"{name}={value if name in OPTIONS.keys() - _SECRET else '***'}"


def take_apart(url: str) -> UrlParts:
    """Read the URL of a Redis.

    Raises:
        InvalidOption: it is malformed, or has an option that is unknown; without any secret of it.
    """
    found = _SCHEME.match(url)
    if found is None:
        raise _bad(url, "it does not begin with a scheme and '://'")
    if found.group(1) not in SCHEMES:
        raise _bad(url, f"its scheme is unknown, {nearest(found.group(1), SCHEMES)}")
    scheme, _, kind = found.group(1).partition("+")
    rest = url[found.end() :]
    if "#" in rest:
        raise _bad(url, "it holds a '#', which must be written %23 in a password")
    where, _, query = rest.partition("?")
    options = _options(url, query, scheme, kind)
    if scheme == "unix":
        login, at, path = where.rpartition("@") if not where.startswith("/") else ("", "", where)
        _check_login(url, login, options)
        if not path.startswith("/"):
            raise _bad(url, "it names no path: write unix:///PATH")
        return UrlParts("", scheme, login + at, (), path, options, masked(url))
    authority, _, path = where.partition("/")
    login, at, hosts = authority.rpartition("@")
    _check_login(url, login, options)
    found_hosts = tuple(_host(one, SENTINEL_PORT if kind == "sentinel" else PORT) for one in hosts.split(","))
    addresses = tuple(one for one in found_hosts if one is not None)
    if len(addresses) < len(found_hosts) or "@" in path:
        raise _bad(url, _ENCODE if "@" in rest and not at else "what stands for the host is not HOST:PORT")
    service = _service(url, kind, unquote(path).strip("/"), options)
    if not kind and len(addresses) > 1:
        raise _bad(url, "one server has one host; several are of redis+cluster:// or redis+sentinel://")
    return UrlParts(kind, scheme, login + at, addresses, service, options, masked(url))


_ENCODE = "a password that holds '/', '?', '#' or '@' must be percent-encoded: %2F, %3F, %23, %40"


def _check_login(url: str, login: str, options: Mapping[str, str]) -> None:
    if login.partition(":")[2] and "password_file" in options:
        raise _bad(url, "it has a password and a password_file, of which only one can be meant")


def _service(url: str, kind: str, path: str, options: Mapping[str, str]) -> str:
    """The service that Sentinels watch; empty otherwise."""
    if kind == "sentinel":
        if not path or "/" in path:
            raise _bad(url, "the path must be the name of the service that the Sentinels watch")
        return path
    if path and not _number(path):
        raise _bad(url, "the path must be the number of a database")
    if kind == "cluster" and (path or "0", options.get("db", "0")) != ("0", "0"):
        raise _bad(url, "a cluster has database 0 only")
    return ""


def _options(url: str, query: str, scheme: str, kind: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for part in query.split("&") if query else ():
        name, equals, value = part.partition("=")
        if not equals or not re.fullmatch(r"\w{1,40}", name):
            raise _bad(url, _ENCODE if "@" in query else "what stands behind the '?' is not NAME=VALUE")
        if name not in OPTIONS:
            raise _bad(url, f"it has an option {name!a}, which is unknown, {nearest(name, OPTIONS)}")
        if name.startswith("ssl_") and scheme != "rediss":
            raise _bad(url, f"its option {name} is for TLS: write rediss:// for redis://")
        if name.startswith("sentinel_") and kind != "sentinel":
            raise _bad(url, f"its option {name} is for redis+sentinel://")
        fits, what = OPTIONS[name]
        options[name] = unquote(value.replace("+", " "))
        if not fits(options[name]):
            raise _bad(url, f"its option {name} must be {what}")
    for name in ("password", "sentinel_password"):
        if {name, f"{name}_file"} <= options.keys():
            raise _bad(url, f"it has a {name} and a {name}_file, of which only one can be meant")
    return options


def _host(text: str, port: int) -> Address | None:
    found = _HOST.fullmatch(text)
    if found is None or int(found.group(3) or port) > 65535:
        return None
    return found.group(1) or found.group(2), int(found.group(3) or port)


def _bad(url: str, why: str) -> InvalidOption:
    return InvalidOption(
        f"'{masked(url)}' is not the URL of a Redis: {why}; write redis://[USER:PASSWORD@]HOST:PORT/DB, "
        f"redis+cluster://HOST:PORT or redis+sentinel://HOST:PORT/SERVICE"
    )
