"""The garbage collector rests for many streams only, and is then as it was."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pyarrow as pa
import pytest

from streamlease.streams.collecting import MANY, collector_at_rest
from streamlease.streams.entries.delivered import to_messages
from streamlease.streams.entries.message_rows import MESSAGE_SCHEMA


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    assert gc.isenabled()
    yield
    gc.enable()


@pytest.mark.parametrize(("streams", "rests"), [(0, False), (MANY - 1, False), (MANY, True)])
def test_it_rests_for_many_streams(streams: int, rests: bool) -> None:
    with collector_at_rest(streams), collector_at_rest(streams):
        assert gc.isenabled() is not rests
    assert gc.isenabled()


def test_it_works_again_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), collector_at_rest(MANY):
        1 / 0  # noqa: B018
    assert gc.isenabled()


def test_a_program_that_has_switched_it_off_finds_it_so() -> None:
    gc.disable()
    with collector_at_rest(MANY):
        assert not gc.isenabled()
    assert not gc.isenabled()


def test_messages_are_made_without_looking_through_objects_again_and_again() -> None:
    """Without a rest it would be once for every few hundred of them."""
    rows = 20 * gc.get_threshold()[0]
    filled = {"topic": pa.array(["a/b"] * rows), "stream": pa.array(["s.0.0"] * rows)}
    batch = pa.RecordBatch.from_arrays(
        [filled.get(field.name, pa.nulls(rows, field.type)) for field in MESSAGE_SCHEMA],
        schema=MESSAGE_SCHEMA,
    )
    looks: list[str] = []

    def looked(phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            looks.append(phase)

    gc.callbacks.append(looked)
    try:
        messages = to_messages(batch)
    finally:
        gc.callbacks.remove(looked)
    assert len(messages) == rows and messages[0].topic == "a/b"
    assert len(looks) <= 3
