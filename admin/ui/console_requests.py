"""What requests of the console have in common: bodies, and refusals."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse

LONGEST_BODY = 2 * 1024 * 1024


class RefusedRequest(Exception):
    """A request is refused; with the status and the reason that its answer has."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


def refused(status: int, why: str) -> JSONResponse:
    """The answer."""
    return JSONResponse({"error": " ".join(why.split())}, status)


async def json_body(request: Request) -> bytes:
    """The body, which is said to be JSON: so another site's page cannot send it, see ``host_names``.

    Raises:
        RefusedRequest: it is not, or too long.
    """
    given = request.headers.get("content-type", "")
    if given.partition(";")[0].strip().lower() != "application/json":
        raise RefusedRequest(415, f"its Content-Type is {ascii(given)[:100]}: send application/json")
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > LONGEST_BODY:
            raise RefusedRequest(413, f"the request is longer than {LONGEST_BODY} bytes")
    return body
