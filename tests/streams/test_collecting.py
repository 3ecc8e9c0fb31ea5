"""The garbage collector rests for many streams only, and is then as it was."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from streamlease.streams.collecting import MANY_STREAMS, collector_at_rest


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    assert gc.isenabled()
    yield
    gc.enable()


@pytest.mark.parametrize(("streams", "rests"), [(0, False), (MANY_STREAMS - 1, False), (MANY_STREAMS, True)])
def test_it_rests_for_many_streams(streams: int, rests: bool) -> None:
    with collector_at_rest(streams), collector_at_rest(streams):
        assert gc.isenabled() is not rests
    assert gc.isenabled()


def test_it_works_again_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), collector_at_rest(MANY_STREAMS):
        1 / 0  # noqa: B018
    assert gc.isenabled()


def test_a_program_that_has_switched_it_off_finds_it_so() -> None:
    gc.disable()
    with collector_at_rest(MANY_STREAMS):
        assert not gc.isenabled()
    assert not gc.isenabled()
