"""A log line says what it is about, wherever it is logged."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator

import pytest

from streamlease.admin.log_format import JsonFormatter, TextFormatter
from streamlease.protocol import log_lines
from streamlease.protocol.log_lines import AboutFilter, about, begin

log = logging.getLogger("streamlease.tests.logs")


@pytest.fixture(params=[JsonFormatter, TextFormatter])
def said(request: pytest.FixtureRequest) -> Iterator[io.StringIO]:
    """What the formatter makes of all that is logged here; a thread's earlier work is nothing to it."""
    before = log_lines._about.set({})
    said = io.StringIO()
    handler = logging.StreamHandler(said)
    handler.addFilter(AboutFilter())
    handler.setFormatter(request.param())
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    yield said
    log.removeHandler(handler)
    log_lines._about.reset(before)


json_only = pytest.mark.parametrize("said", [JsonFormatter], indirect=True)
text_only = pytest.mark.parametrize("said", [TextFormatter], indirect=True)


def lines(said: io.StringIO) -> list[dict[str, object]]:
    """The fields of each line that are neither time, level nor logger."""
    found = [json.loads(line) for line in said.getvalue().splitlines()]
    return [{name: one[name] for name in one if name not in ("time", "level", "logger")} for one in found]


@json_only
def test_a_part_of_the_work_adds_to_what_is_around_it(said: io.StringIO) -> None:
    with about(group="g/#", term=7):
        with about(stream="s.0.1"):
            log.info("in")
        log.info("own", extra={"borrower": "b"})
        log.info("other", extra={"term": 8, "stream": None})
    log.info("out")
    assert lines(said) == [
        {"message": "in", "group": "g/#", "term": 7, "stream": "s.0.1"},
        {"message": "own", "group": "g/#", "term": 7, "borrower": "b"},
        {"message": "other", "group": "g/#", "term": 8},
        {"message": "out"},
    ]


@json_only
async def test_a_task_and_what_it_starts_are_about_its_own(said: io.StringIO) -> None:
    async def below() -> None:
        log.info("below")

    async def work(group: str) -> None:
        begin(group=group)
        await asyncio.create_task(below())

    await asyncio.gather(asyncio.create_task(work("one/#")), asyncio.create_task(work("two/#")))
    log.info("around")
    seen = lines(said)
    assert sorted(str(one.get("group")) for one in seen[:2]) == ["one/#", "two/#"]
    assert seen[2] == {"message": "around"}


@json_only
def test_a_defect_keeps_its_traceback_in_the_line(said: io.StringIO) -> None:
    try:
        raise ValueError("planted")
    except ValueError:
        log.exception("failed")
    (line,) = lines(said)
    assert "ValueError: planted" in str(line["exception"])


@text_only
def test_text_says_it_behind_the_message(said: io.StringIO) -> None:
    log.info("nothing known")
    with about(group="g/#", stream="s.0.1"):
        log.info("message")
    first, second = said.getvalue().splitlines()
    assert first.endswith("streamlease.tests.logs: nothing known")
    assert second.endswith("message [group=g/# stream=s.0.1]")
