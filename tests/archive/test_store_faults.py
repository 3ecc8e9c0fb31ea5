"""A store that answers errors, breaks connections, answers late, loses answers, or lies about an upload."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from streamlease.agent.client import Client
from streamlease.protocol.errors import ArchiveUnavailable
from streamlease.streams.archive.checking import verify
from streamlease.streams.archive.files import places
from streamlease.streams.archive.recording import recorded
from streamlease.streams.archive.upkeep_steps import tidy
from streamlease.streams.redis.connection import BlockingRedis
from streamlease.streams.spaces.definitions import Space
from tests.archive.faulty_store import Fault, FaultyStore, Request, faulty_store
from tests.archive.helpers import all_of, archive, archiver, in_table, publish, rows, space_of, trim_all
from tests.buckets import bucket_server

BEGIN = "POST {}?uploads"
PART = "PUT {}?partNumber&uploadId"
END = "POST {}?uploadId"
FILES = ("*.parquet", "*-m0.avro", "snap-*.avro", "*.metadata.json", "version-hint.text")
"""Those of one commit, in the order in which they are written."""

MESSAGES = 50
"""That are archived while the store fails."""


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyStore]:
    """A store that may fail."""
    with bucket_server() as environment, faulty_store(environment["AWS_ENDPOINT_URL"]) as made:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_ENDPOINT_URL", made.url)
        places._files.cache_clear()
        yield made
        places._files.cache_clear()


class Strikes:
    """Does something to requests of one kind: to the first one, or to all."""

    def __init__(self, kind: str, fault: Fault, *, once: bool) -> None:
        self.kind = kind
        self.fault = fault
        self.once = once
        self.met = 0

    def __call__(self, request: Request) -> Fault | None:
        if request.kind != self.kind or (self.once and self.met):
            return None
        self.met += 1
        return self.fault


@contextmanager
def impatient(fault: Fault) -> Iterator[None]:
    """With clients that do not wait for long, if they would wait in vain."""
    if fault not in (Fault.STALLED, Fault.LATE):
        yield
        return
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(places, "ANSWER_SECONDS", 0.5)
        places._files.cache_clear()
        yield
    places._files.cache_clear()


async def archived_in_spite_of(
    client: Client, blocking: BlockingRedis, space: Space, store: FaultyStore, strikes: Strikes, next: int
) -> str:
    """Publish and archive while the store fails, and again when it does not; what was told meanwhile."""
    await publish(client, next, MESSAGES)
    told = ""
    with store.failing(strikes), impatient(strikes.fault):
        try:
            await asyncio.to_thread(archive, blocking, space)
        except ArchiveUnavailable as error:
            told = str(error)
            assert "\n" not in told
    assert strikes.met, f"no {strikes.kind} in {sorted({one.kind for one in store.seen})}"
    await trim_all(client, space)
    await asyncio.to_thread(archive, blocking, space)
    (stream,) = space.streams()
    known = recorded(blocking, [stream])[stream]
    assert known.archived == next + MESSAGES
    offsets = [*range(next + MESSAGES)]
    assert in_table(blocking, space) == [(str(stream), offset) for offset in offsets], strikes.kind
    return told


async def all_is_there(client: Client, blocking: BlockingRedis, space: Space, count: int) -> None:
    """Every message once, for readers and in the table; each file as it was written, and no other."""
    await trim_all(client, space)
    (stream,) = space.streams()
    whole = await rows(client, space)
    assert whole[stream]["offset"].to_pylist() == [*range(count)]
    payloads = whole[stream]["payload"].to_pylist()
    assert payloads == [b"message %d" % number for number in range(count)]
    assert in_table(blocking, space) == all_of(whole)
    assert space.archive is not None
    assert verify(blocking, space, space.archive).wrong == []
    named = {file.path for file in recorded(blocking, [stream])[stream].files}
    tidy(archiver(blocking, space), time.time() + 10, grace=0, keep_seconds=0)
    assert set(places.listed(f"{space.archive.uri}/data")) == named
    assert in_table(blocking, space) == all_of(whole)


@pytest.mark.parametrize(
    ("fault", "once", "kinds"),
    [
        (Fault.REFUSED, False, [PART.format(file) for file in FILES[::2]]),
        (
            Fault.CUT,
            False,
            [PART.format("*.parquet"), BEGIN.format("*-m0.avro"), END.format("*.metadata.json")],
        ),
        (Fault.UNANSWERED, True, [END.format(file) for file in FILES]),
        (Fault.UNANSWERED, False, [END.format(file) for file in FILES]),
        (Fault.TRUNCATED, False, [PART.format(file) for file in FILES]),
        (Fault.STALLED, True, [PART.format("*.parquet")]),
        (Fault.LATE, True, [END.format("*.metadata.json")]),
    ],
    ids=["refused", "cut", "unanswered-once", "unanswered", "truncated", "stalled-once", "late-once"],
)
async def test_no_gap_no_double_and_no_message_in_none(
    client: Client,
    blocking: BlockingRedis,
    store: FaultyStore,
    tmp_path: Path,
    fault: Fault,
    once: bool,
    kinds: list[str],
) -> None:
    space = await space_of(client, f"s3://data/{tmp_path.name}", streams=1)
    await publish(client, 0, MESSAGES)
    archive(blocking, space)
    next, told = MESSAGES, {}
    for kind in kinds:
        strikes = Strikes(kind, fault, once=once)
        told[kind] = await archived_in_spite_of(client, blocking, space, store, strikes, next)
        next += MESSAGES
    await all_is_there(client, blocking, space, next)
    if not once:  # engines without a catalog see an older snapshot for a while, if anything
        assert [kind for kind, said in told.items() if not said] == [kind for kind in kinds if "hint" in kind]
