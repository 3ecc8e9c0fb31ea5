"""All tests of the house."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _nothing_is_collected() -> Iterator[None]:
    """CPython 3.11 takes what a collection runs for a recursion of its parser, and ends with SystemError."""
    gc.disable()
    yield
    gc.enable()
