"""Spans from a publisher to the commit of a consumer, with the exporter of the SDK."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, Tracer, format_trace_id, get_current_span

from streamlease.agent.client import Client, connect
from streamlease.protocol.errors import SchemaMismatch, StreamSealed
from streamlease.streams.publish import traces
from tests.agent.helpers import SECONDS, SUB, publish, take, until


class Recorder:
    """Keeps what is traced; the provider of a test, not of the process."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer: Tracer = self.provider.get_tracer("tests")

    def named(self, name: str) -> Sequence[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    recorder = Recorder()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: recorder.provider)
    yield recorder
    recorder.exporter.shutdown()


async def test_a_trace_goes_on_from_the_publisher_to_the_commit(
    embedded_redis_url: str, recorder: Recorder
) -> None:
    async with connect(embedded_redis_url) as client:
        await client.create_space("s", ["a/#"])
        with recorder.tracer.start_as_current_span("caller") as caller:
            async with client.publisher() as publisher:
                await publisher.send("a/1", b"0", headers={"own": b"kept"})
        origin = caller.get_span_context()
        async with client.subscribe(SUB, start="earliest") as reader, asyncio.timeout(SECONDS):
            batch = await anext(reader)
            (message,) = batch.messages
            await batch.commit()
    assert [name for name, _ in message.headers] == ["own", "traceparent"]
    of_message = get_current_span(traces.context_of(message)).get_span_context()
    assert (of_message.trace_id, of_message.span_id) == (origin.trace_id, origin.span_id)
    (sent,), (received,), (settled,) = map(recorder.named, ("send s", "receive s", "settle s"))
    assert (sent.kind, received.kind, settled.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER, SpanKind.CLIENT)
    assert sent.parent is not None
    assert sent.parent.span_id == origin.span_id
    assert received.context is not None
    assert received.context.trace_id == origin.trace_id
    assert [link.context.span_id for link in received.links] == [origin.span_id]
    assert [link.context.span_id for link in settled.links] == [received.context.span_id]
    assert received.attributes is not None
    assert received.attributes["messaging.destination.partition.id"] == "s.0.0"
    assert received.attributes["messaging.batch.message_count"] == 1
    (lease,) = recorder.named("lease")
    assert lease.attributes is not None
    assert {name: lease.attributes[f"streamlease.{name}"] for name in ("group", "term", "stream")} == {
        "group": "g/a/#", "term": 1, "stream": "s.0.0",
    }  # fmt: skip
    for span in (sent, received, settled, lease):
        assert (span.start_time or 0) <= (span.end_time or 0)


async def test_a_batch_of_several_callers_is_linked_with_each(
    embedded_redis_url: str, recorder: Recorder
) -> None:
    async with connect(embedded_redis_url) as client:
        await client.create_space("s", ["a/#"])
        async with client.publisher(linger_ms=10_000) as publisher:
            for number in range(3):
                with recorder.tracer.start_as_current_span(f"caller {number}"):
                    await publisher.submit("a/1", str(number))
            await publisher.submit("a/1", b"3", headers={"traceparent": b"kept as it is"})
            batch = pa.record_batch({"payload": pa.array([b"4", b"5"])})
            with recorder.tracer.start_as_current_span("caller of a batch"):
                await publisher.submit_batch("a/1", batch)
        async with client.subscribe(SUB, start="earliest") as reader:
            assert await take(reader, 6) == [*range(6)]
    callers = {span.name: span.context for span in recorder.exporter.get_finished_spans() if span.context}
    wanted = {callers[f"caller {number}"].span_id for number in range(3)}
    single, whole = recorder.named("send s")
    assert {link.context.span_id for link in single.links} == wanted
    assert single.parent is None
    assert whole.parent is not None
    linked = {link.context.span_id for span in recorder.named("receive s") for link in span.links}
    assert linked == {*wanted, callers["caller of a batch"].span_id}


async def test_without_a_span_nothing_is_put_into_messages(
    embedded_redis_url: str, recorder: Recorder
) -> None:
    async with connect(embedded_redis_url) as client:
        await client.create_space("s", ["a/#"])
        await publish(client, range(3))
        async with client.history("a/#") as messages:
            headers = [message.headers async for batch in messages for message in batch.messages]
    assert headers == [()] * 3
    assert recorder.named("send s")


async def test_what_fails_is_an_error_of_its_span(embedded_redis_url: str, recorder: Recorder) -> None:
    async with connect(embedded_redis_url) as client:
        await client.create_space("s", ["a/#"])
        async with client.publisher() as publisher:
            await publisher.send("a/1", b"x")
            await client.spaces.generations.seal("s")
            with pytest.raises((StreamSealed, SchemaMismatch)):
                await publisher.send("a/1", b"y")
    failed = recorder.named("send ?")[0]
    assert failed.status.status_code is StatusCode.ERROR
    assert failed.attributes is not None
    assert failed.attributes["error.type"] == "StreamSealed"


async def test_a_hand_over_is_a_span_as_long_as_it_took(
    client: Client, second: Client, recorder: Recorder
) -> None:
    await client.create_space("s", ["a/#"], streams=2)
    async with client.subscribe(SUB) as one:
        await until(lambda: len(one.streams) == 2)
        async with second.subscribe(SUB) as other:
            await until(lambda: (len(one.streams), len(other.streams)) == (1, 1))
            await until(lambda: bool(recorder.named("hand-over")))
    span = recorder.named("hand-over")[0]
    assert span.attributes is not None
    assert span.attributes["streamlease.how"] == "hand-over"
    assert len(format_trace_id(span.context.trace_id if span.context else 0)) == 32


PROGRAM = """
import asyncio, sys
if sys.argv[2] == "missing":
    sys.modules["opentelemetry"] = None  # an import of it fails
import streamlease
from streamlease.streams.publish import traces

async def main():
    async with streamlease.connect(sys.argv[1]) as client:
        await client.create_space("s", ["a/#"])
        async with client.publisher() as publisher:
            await publisher.send("a/1", b"x")

asyncio.run(main())
print(traces.active())
if sys.argv[2] == "missing":
    sys.exit()
from opentelemetry import trace
print(traces.active())
from opentelemetry.sdk.trace import TracerProvider
trace.set_tracer_provider(TracerProvider())
print(traces.active() is not None)
"""


@pytest.mark.parametrize(("package", "said"), [("missing", ["None"]), ("there", ["None", "None", "True"])])
def test_nothing_is_traced_before_the_program_wants_it(
    embedded_redis_url: str, package: str, said: list[str]
) -> None:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, embedded_redis_url, package],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (run.returncode, run.stdout.splitlines()) == (0, said), run.stderr


async def test_a_commit_that_nobody_awaits_has_a_span_until_it_is_durable(
    embedded_redis_url: str, recorder: Recorder
) -> None:
    async with connect(embedded_redis_url) as client:
        await client.create_space("s", ["a/#"])
        await publish(client, range(3), topics=1)
        async with client.subscribe(SUB, start="earliest", max_batch=1) as reader, asyncio.timeout(SECONDS):
            for _ in range(2):
                batch = await anext(reader)
                with recorder.tracer.start_as_current_span("caller"):
                    batch.commit_soon()
                await reader.flush()
            reader._settling.failed_later(batch.held, SchemaMismatch("only noted"))
            (await anext(reader)).commit_soon()
            reader._settling.lose(batch.held)
            with pytest.raises(SchemaMismatch):
                await reader.flush()
    spans = recorder.named("settle s")
    ends = [(span.attributes or {})["streamlease.offset"] for span in spans]
    assert ends == [1, 2, 3]
    assert [span.status.status_code for span in spans] == [StatusCode.UNSET] * 2 + [StatusCode.ERROR]
    received = [span.context for span in recorder.named("receive s")]
    assert [span.links[0].context for span in spans] == received
    assert [span.parent for span in spans] == [None] * 3
