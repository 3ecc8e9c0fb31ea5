"""What every refusal has to be."""

from __future__ import annotations

from streamlease.protocol.errors import StreamleaseError


def one_line(error: BaseException) -> str:
    """The text of an error made on purpose, which is one line."""
    text = str(error)
    assert isinstance(error, StreamleaseError), f"{type(error).__name__}: {text}"
    assert text
    assert len(text.splitlines()) == 1, text
    return text
