"""Connections to other gateways, on which requests of members are passed on to who serves them.

Where a gateway is reached stands in the records of its members: ``http://HOST:PORT``, or
``https://HOST:PORT#SHA256`` with the digest of its certificate. That pins the certificate, so that it need
not be valid for an address that only gateways use.
"""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import urlsplit

CONNECT_SECONDS = 2.0
MOST_IDLE = 64
"""Connections to one gateway that are kept for the next request."""

MOST_HEAD = 1 << 18
"""Bytes before the body of an answer; a cursor is one of its headers."""


class Unreachable(Exception):
    """The other gateway does not answer.

    Args:
        asked: whether it may have got the request.
    """

    def __init__(self, why: object, *, asked: bool) -> None:
        super().__init__(why)
        self.asked = asked


class PassedAnswer(NamedTuple):
    """What the other gateway says."""

    status: int
    headers: dict[bytes, bytes]
    """By name in lower case."""
    body: bytes

    @property
    def ends(self) -> bool:
        """Whether the other gateway ends, and somebody else has to answer."""
        return self.status == 503 and b"gateway-ends" in self.body


_Line = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class GatewayLines:
    """Kept connections."""

    def __init__(self) -> None:
        self._idle: dict[str, list[_Line]] = {}

    async def ask(
        self, address: str, method: str, target: bytes, headers: Iterable[tuple[bytes, bytes]], body: bytes
    ) -> PassedAnswer:
        """The answer to a request.

        Raises:
            Unreachable: there is none.
        """
        where = urlsplit(address)
        lines = [
            method.encode() + b" " + target + b" HTTP/1.1",
            b"host: " + where.netloc.encode(),
            b"content-length: %d" % len(body),
            *(name + b": " + value for name, value in headers),
        ]
        request = b"\r\n".join(lines) + b"\r\n\r\n" + body
        kept = self._idle.get(address, [])
        while kept:
            line = kept.pop()
            if line[1].is_closing() or line[0].at_eof():
                line[1].close()
                continue
            try:
                return await self._asked(address, line, request)
            except Unreachable:  # it may only have been closed for being idle
                break
        return await self._asked(address, await _connected(address), request)

    async def _asked(self, address: str, line: _Line, request: bytes) -> PassedAnswer:
        reader, writer = line
        try:
            writer.write(request)
            await writer.drain()
            head = await reader.readuntil(b"\r\n\r\n")
            first, *rest = head[:-4].split(b"\r\n")
            found = [one.partition(b":") for one in rest]
            headers = {name.strip().lower(): value.strip() for name, _, value in found}
            status = int(first.split(b" ", 2)[1])
            length = 0 if status == 204 else int(headers[b"content-length"])
            answer = PassedAnswer(status, headers, await reader.readexactly(length))
        except (OSError, EOFError, ValueError, LookupError, asyncio.LimitOverrunError) as error:
            writer.close()
            raise Unreachable(error, asked=True) from error
        except BaseException:
            writer.close()
            raise
        kept = self._idle.setdefault(address, [])
        if headers.get(b"connection", b"").lower() == b"close" or len(kept) >= MOST_IDLE:
            writer.close()
        else:
            kept.append(line)
        return answer

    def close(self) -> None:
        """Close what is kept."""
        for kept in self._idle.values():
            for _, writer in kept:
                writer.close()
        self._idle.clear()


async def _connected(address: str) -> _Line:
    where = urlsplit(address)
    try:
        context = None
        if where.scheme == "https":
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # it is pinned, see below
        async with asyncio.timeout(CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(
                where.hostname, where.port, ssl=context, limit=MOST_HEAD
            )
    except (OSError, TimeoutError, ValueError) as error:
        raise Unreachable(error, asked=False) from error
    if context is not None:
        given = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        if hashlib.sha256(given).hexdigest() != where.fragment:
            writer.close()
            raise Unreachable(f"{address} has another certificate", asked=False)
    return reader, writer


def certificate_digest(pem: str) -> str:
    """The digest of the first certificate in a PEM file, as addresses have it."""
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    first = pem[pem.index(begin) : pem.index(end) + len(end)]
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(first)).hexdigest()
