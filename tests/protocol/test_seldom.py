"""What goes wrong again and again, with the same words, is said once a minute."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from streamlease.protocol.errors import StoreUnavailable
from streamlease.protocol.seldom import MOST, Seldom

Lines = Callable[[], list[str]]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    """The warnings that came since the last call."""
    caplog.set_level(logging.DEBUG)

    def since() -> list[str]:
        found = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
        caplog.clear()
        return found

    return since


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_same_is_said_once_a_minute_and_says_how_often_it_came(lines: Lines) -> None:
    clock = Clock()
    seldom = Seldom(logging.getLogger("test"), clock)
    for second in range(150):
        clock.now = float(second)
        seldom.warning("candidate for %s: %s", "g", StoreUnavailable("no answer"))
    assert lines() == [
        "candidate for g: no answer",
        "candidate for g: no answer (and 59 times since this was said)",
        "candidate for g: no answer (and 59 times since this was said)",
    ]


def test_what_comes_within_the_minute_is_there_for_debugging(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    seldom = Seldom(logging.getLogger("test"), Clock())
    for _ in range(3):
        seldom.warning("reading %s: %s", "s.0.0", "no answer", extra={"stream": "s.0.0"})
    assert [(one.levelname, one.getMessage()) for one in caplog.records] == [
        ("WARNING", "reading s.0.0: no answer"),
        ("DEBUG", "reading s.0.0: no answer"),
        ("DEBUG", "reading s.0.0: no answer"),
    ]
    assert {vars(one)["stream"] for one in caplog.records} == {"s.0.0"}
    assert {one.funcName for one in caplog.records} == {
        "test_what_comes_within_the_minute_is_there_for_debugging"
    }


def test_another_subject_and_another_reason_are_told_at_once(lines: Lines) -> None:
    seldom = Seldom(logging.getLogger("test"), Clock())
    for group, why in (
        ("a", "refused"),
        ("b", "refused"),
        ("a", "closed"),
        ("a", "refused"),
        ("b", "refused"),
    ):
        seldom.warning("%s: %s", group, why)
    assert lines() == ["a: refused", "b: refused", "a: closed"]


def test_what_is_of_one_kind_is_told_once_whatever_its_words_are(lines: Lines) -> None:
    clock = Clock()
    seldom = Seldom(logging.getLogger("test"), clock)
    for second in range(61):
        clock.now = float(second)
        seldom.warning("message %d is not durable", second, kind="not durable")
    assert lines() == [
        "message 0 is not durable",
        "message 60 is not durable (and 59 times since this was said)",
    ]


def test_no_more_than_so_many_are_remembered(lines: Lines) -> None:
    seldom = Seldom(logging.getLogger("test"), Clock())
    for number in range(MOST + 1):
        seldom.warning("number %d", number)
    lines()
    seldom.warning("number %d", MOST)
    seldom.warning("number %d", 1)
    assert lines() == []
    seldom.warning("number %d", 0)
    assert lines() == ["number 0"]


def test_a_line_without_arguments_is_said_as_it_is(lines: Lines) -> None:
    clock = Clock()
    seldom = Seldom(logging.getLogger("test"), clock)
    for clock.now in (0.0, 1.0, 60.0):
        seldom.warning("100 % of it")
    assert lines() == ["100 % of it", "100 % of it (and 1 time since this was said)"]


def test_an_error_is_one_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    seldom = Seldom(logging.getLogger("test"), Clock())
    for _ in range(2):
        seldom.error("a defect")
    assert [one.levelname for one in caplog.records] == ["ERROR", "DEBUG"]
