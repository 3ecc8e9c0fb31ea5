"""What a log line is about: its group, term, borrower and stream, on every line where they are known.

Work that is about something says so once, by `begin` at the start of a task or `about` around a part; every
line that is logged within, by whichever module, has the fields. A line of its own gives them as ``extra``::

    with about(stream=str(stream)):
        log.warning("reading: %s", error)
    log.warning("candidate: %s", error, extra={"group": group})

The fields come with the handler: `AboutFilter` puts them on each record as its attribute ``about``, in the
context in which the line was logged. A program with handlers of its own adds the filter to these.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from contextvars import ContextVar

FIELDS = ("group", "term", "borrower", "stream")

_about: ContextVar[Mapping[str, str | int]] = ContextVar("streamlease_about")


def begin(**fields: str | int) -> None:
    """From here on, to the end of the task or thread, lines are about `fields` as well."""
    _about.set({**_about.get({}), **fields})


@contextlib.contextmanager
def about(**fields: str | int) -> Iterator[None]:
    """Lines that are logged within are about `fields` as well."""
    token = _about.set({**_about.get({}), **fields})
    try:
        yield
    finally:
        _about.reset(token)


class AboutFilter(logging.Filter):
    """Lets everything pass, and puts what it is about into ``record.about``, in the order of `FIELDS`."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Always true."""
        around = _about.get({})
        found = {name: getattr(record, name, around.get(name)) for name in FIELDS}
        record.about = {name: value for name, value in found.items() if value is not None}
        return True
