"""The description of the interface: it is valid, and what it describes holds for whatever is sent."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
import urllib.request
import zlib
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from functools import cache
from pathlib import Path

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from openapi_spec_validator import OpenAPIV31SpecValidator

import streamlease
from streamlease.gateway.open_api import description
from streamlease.gateway.problems import PROBLEMS
from tests.gateway.conftest import running
from tests.servers import Kind, ServerPool

MOST_EXAMPLES, MANY_EXAMPLES = 25, 60
TOKEN = {"name": "one", "sha256": hashlib.sha256(b"one").hexdigest(), "publish": ["a/#"], "consume": ["a/#"]}
DOCUMENT = description()


def test_the_description_is_valid_openapi() -> None:
    OpenAPIV31SpecValidator(DOCUMENT).validate()
    told = DOCUMENT["paths"]["/v1/messages"]["get"]["responses"]
    assert {str(status) for status, _ in PROBLEMS.values()} <= told.keys()


@contextmanager
def served(redis_servers: ServerPool, tokens: Path | None = None) -> Iterator[str]:
    """A gateway on a loop of its own thread, for clients that block.

    Args:
        tokens: it is one more at the same Redis, with these.
    """
    server = redis_servers.get(Kind.EMBEDDED)
    if tokens is None:
        server.flush()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    stack = AsyncExitStack()

    async def begin() -> str:
        client = await stack.enter_async_context(streamlease.connect(server.url))
        if tokens is None:
            await client.create_space("s", ["a/#"], streams=2)
        else:
            await client.create_space("other", ["b/#"])
            async with client.publisher() as publisher:
                await publisher.send("b/1", b"SECRET")
        http = await stack.enter_async_context(running(client, tokens=tokens))
        return f"http://127.0.0.1:{http.port}"

    try:
        yield asyncio.run_coroutine_threadsafe(begin(), loop).result(30)
    finally:
        asyncio.run_coroutine_threadsafe(stack.aclose(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()


@pytest.fixture(scope="module")
def gateway_url(redis_servers: ServerPool) -> Iterator[str]:
    with served(redis_servers) as url:
        yield url


@pytest.fixture(scope="module")
def secured_url(
    gateway_url: str, redis_servers: ServerPool, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """Another gateway, with a file of tokens."""
    assert gateway_url
    file = tmp_path_factory.mktemp("tokens") / "tokens.json"
    file.write_text(json.dumps({"tokens": [TOKEN]}))
    with served(redis_servers, file) as url:
        yield url


@cache
def joined(gateway_url: str) -> str:
    """A member that is there, until a request lets it leave: most others are to find one."""
    body = json.dumps({"filter": "a/#", "start": "earliest", "session_timeout": 600}).encode()
    request = urllib.request.Request(f"{gateway_url}/v1/groups/g/members", body, method="POST")
    request.add_header("Authorization", "Bearer one")
    with urllib.request.urlopen(request, timeout=20) as answer:
        return str(json.load(answer)["member"])


def seed_of(case: schemathesis.Case) -> int:
    """A number that differs from case to case, and is the same in each run."""
    return zlib.crc32(repr((case.query, case.path_parameters, case.body)).encode("utf-8", "replace"))


@schemathesis.serializer("application/x-ndjson", "application/vnd.apache.arrow.stream")
def as_it_is(_: object, value: object) -> bytes:
    """Bodies that schemathesis does not know: texts and bytes as they are, all else as JSON."""
    value = getattr(value, "data", value)  # its texts that stand for bytes
    if isinstance(value, bytes):
        return value
    return value.encode("utf-8", "surrogatepass") if isinstance(value, str) else json.dumps(value).encode()


DESCRIBED = schemathesis.openapi.from_dict(DOCUMENT)
schema = DESCRIBED.exclude(path="/v1/events")  # which have no end


@schema.parametrize()
@settings(
    max_examples=MOST_EXAMPLES,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_whatever_is_sent_gets_an_answer_that_is_described(case: schemathesis.Case, gateway_url: str) -> None:
    check(case, gateway_url, {})


@pytest.mark.thorough
@schema.parametrize()
@settings(
    max_examples=MANY_EXAMPLES,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_much_more_is_sent_with_a_token_and_without(case: schemathesis.Case, secured_url: str) -> None:
    """A token that may read and write `a/#` only: it gets nothing of what else there is."""
    token = (None, "one", "one", "nobody's")[seed_of(case) % 4]
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    response = check(case, secured_url, headers)
    if token != "one" and case.path.startswith("/v1/"):
        assert response.status_code in (400, 401, 404, 405), response.text
    assert "SECRET" not in response.text


def check(case: schemathesis.Case, gateway_url: str, headers: dict[str, str]) -> requests.Response:
    """The answer, which is described, and no defect."""
    if case.path.endswith("/messages"):
        case.query = {**(case.query or {}), "wait": "0"}
    if "/catalog/" in case.path and (case.query or {}).get("follow") in ("", "true"):
        case.query = {**case.query, "follow": "false"}  # the other one has no end
    if case.path.endswith("/poll") and isinstance(case.body, dict) and case.body.get("wait") != "":
        case.body = {**case.body, "wait": 0}
    if "{member}" in case.path and seed_of(case) % 3:
        case.path_parameters = {"group": "g", "member": joined(gateway_url)}
    response = case.call(base_url=gateway_url, headers={**(case.headers or {}), **headers}, timeout=20)
    assert response.status_code not in (500, 501, 502, 503), response.text
    case.validate_response(
        response,
        excluded_checks=[
            schemathesis.checks.CHECKS.get_one("positive_data_acceptance"),
            schemathesis.checks.CHECKS.get_one("negative_data_rejection"),
            schemathesis.checks.CHECKS.get_one("unsupported_method"),
        ],
    )
    if response.status_code >= 400 and response.headers["content-type"] == "application/problem+json":
        assert response.json()["detail"]
    return response


@DESCRIBED.include(path="/v1/events").parametrize()
@settings(
    max_examples=MOST_EXAMPLES,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_events_begin_or_a_problem_tells_why_not(case: schemathesis.Case, gateway_url: str) -> None:
    """Their answers have no end: what is described is the head, and that the first part comes."""
    if "filter" in (case.query or {}) and seed_of(case) % 2:
        case.query = {**case.query, "filter": "a/#"}
    request = case.as_transport_kwargs(base_url=gateway_url)
    with requests.request(**request, stream=True, timeout=20) as answer:
        methods = DOCUMENT["paths"]["/v1/events"]
        if case.method.lower() in methods:
            described = methods[case.method.lower()]["responses"]
            assert str(answer.status_code) in described or "default" in described, answer.status_code
        else:
            assert answer.status_code == 405
        kind = answer.headers["content-type"]
        if answer.status_code == 200:
            assert kind == "text/event-stream"
            assert next(answer.iter_lines()) == b"retry: 1000"
        else:
            assert answer.status_code not in (500, 501, 502, 503), answer.text
            assert kind == "application/problem+json" and answer.json()["detail"]
