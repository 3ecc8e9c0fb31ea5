"""The trace of a request goes on in the messages that it publishes, with and without spans of the gateway."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pyarrow as pa
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from tests.gateway.conftest import Client, running
from tests.gateway.http_client import HttpClient

TRACE = "0af7651916cd43dd8448eb211c80319c"
CONTEXT = f"00-{TRACE}-b7ad6b7169203331-01"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    yield exporter
    exporter.shutdown()


async def carried(client: Client) -> list[dict[str, str]]:
    """The headers of all messages."""
    async with client.history("a/#") as history:
        return [
            {name: value.decode() for name, value in message.headers}
            async for batch in history
            for message in batch.messages
        ]


@pytest.fixture
async def space(client: Client) -> None:
    await client.create_space("s", ["a/#"])


@pytest.mark.usefixtures("space")
async def test_without_spans_messages_carry_the_context_of_the_request(
    client: Client, gateway: HttpClient
) -> None:
    given = {"traceparent": CONTEXT, "tracestate": "vendor=1"}
    assert (await gateway.post("/v1/topics/a/1", b"x", given)).status == 201
    lines = '{"payload":"1"}\n{"payload":"2","headers":{"traceparent":"its own"}}'
    kind = {"content-type": "application/x-ndjson", "traceparent": CONTEXT}
    assert (await gateway.post("/v1/topics/a/1", lines, kind)).status == 201
    sink = pa.BufferOutputStream()
    rows = pa.record_batch({"payload": pa.array([b"y"], pa.binary())})
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write(rows)
    kind = {"content-type": "application/vnd.apache.arrow.stream", "traceparent": CONTEXT}
    assert (await gateway.post("/v1/topics/a/1", sink.getvalue().to_pybytes(), kind)).status == 201
    whole, alone = {"traceparent": CONTEXT, "tracestate": "vendor=1"}, {"traceparent": CONTEXT}
    assert await carried(client) == [whole, alone, {"traceparent": "its own"}, alone]


@pytest.mark.usefixtures("space")
@pytest.mark.parametrize(
    "context",
    [
        "nonsense",
        CONTEXT.upper(),
        f"ff-{TRACE}-b7ad6b7169203331-01",
        f"00-{'0' * 32}-b7ad6b7169203331-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"{CONTEXT}-more",
    ],
)
async def test_what_is_no_context_is_left_out(client: Client, gateway: HttpClient, context: str) -> None:
    assert (await gateway.post("/v1/topics/a/1", b"x", {"traceparent": context})).status == 201
    assert await carried(client) == [{}]


@pytest.mark.usefixtures("space")
async def test_with_a_provider_a_request_is_a_span_between_its_caller_and_its_messages(
    client: Client, spans: InMemorySpanExporter
) -> None:
    async with running(client) as http:
        assert (await http.post("/v1/topics/a/1", b"x", {"traceparent": CONTEXT})).status == 201
        assert (await http.post("/v1/topics/none", b"x")).status == 404
        assert (await http.get("/readyz")).status == 200
    served = [span for span in spans.get_finished_spans() if span.kind is SpanKind.SERVER]
    assert [span.name for span in served] == ["POST /v1/topics/*"] * 2
    assert [(span.attributes or {})["http.response.status_code"] for span in served] == [201, 404]
    first = served[0]
    assert first.context is not None
    assert first.parent is not None
    assert f"{first.context.trace_id:032x}" == TRACE
    assert f"{first.parent.span_id:016x}" == "b7ad6b7169203331"
    (headers,) = await carried(client)
    assert headers["traceparent"].split("-")[1:3] == [TRACE, f"{first.context.span_id:016x}"]
    (sent,) = [span for span in spans.get_finished_spans() if span.name == "send s"]
    assert sent.parent is not None
    assert sent.parent.span_id == first.context.span_id


@pytest.mark.usefixtures("space")
async def test_a_request_that_fails_is_a_span_that_failed(
    client: Client, spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(client) as http:
        monkeypatch.setattr(
            "streamlease.gateway.publishing.parse_body", lambda *_: json.loads("a defect of the gateway")
        )
        assert (await http.post("/v1/topics/a/1", b"x", {"streamlease-key": "k"})).status == 500
    (served,) = [span for span in spans.get_finished_spans() if span.kind is SpanKind.SERVER]
    assert served.status.status_code is StatusCode.ERROR
