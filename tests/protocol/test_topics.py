"""The grammar of topics and filters (MQTT 5, section 4.7), and what its errors say."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlease.protocol.errors import InvalidInput, InvalidTopic
from streamlease.protocol.topics import (
    MAX_BYTES,
    SharedSubscription,
    check_filter,
    check_topic,
    intersect,
    matches,
)

NUL_TEXT, SURROGATE, NOT_UTF8 = "a\0b", "a/\ud800", b"a/\xff"


def one_line(error: BaseException) -> str:
    text = str(error)
    assert len(text.splitlines()) == 1, text
    assert len(text) < 400, text
    assert text.isprintable(), text
    return text


@pytest.mark.parametrize("topic", ["a", "/", "a//b", "$SYS/load", "flüge/✈", " ", "a" * MAX_BYTES])
def test_good_topics_are_returned_as_text(topic: str) -> None:
    assert check_topic(topic) == topic
    assert check_topic(topic.encode()) == topic


@pytest.mark.parametrize("filter", ["#", "+", "a/#", "+/+", "/#", "a/+/b", "/", "$SYS/#", "a//#"])
def test_good_filters_are_returned_as_text(filter: str) -> None:
    assert check_filter(filter) == filter
    assert check_filter(filter.encode()) == filter


@pytest.mark.parametrize(
    ("topic", "value", "remedy"),
    [
        pytest.param("", "empty", "at least one character", id="empty"),
        pytest.param(b"", "empty", "at least one character", id="empty bytes"),
        pytest.param("a/+", "'a/+'", "belong into filters", id="plus"),
        pytest.param("a/#", "'a/#'", "belong into filters", id="hash"),
        pytest.param("a+b", "'a+b'", "belong into filters", id="plus inside"),
        pytest.param(NUL_TEXT, "a\\x00b", "remove it", id="NUL"),
        pytest.param("ä" * 40_000, "80000 bytes", "at most 65535", id="too long"),
        pytest.param(NOT_UTF8, "a/\\xff", "encode it as UTF-8", id="not UTF-8"),
        pytest.param(SURROGATE, "a/\\ud800", "lone surrogate", id="surrogate"),
        pytest.param(17, "17 is a int", "pass a string", id="number"),
        pytest.param("a\nb/#", "'a\\nb/#'", "belong into filters", id="line break"),
    ],
)
def test_a_bad_topic_is_refused_in_one_line_with_value_and_remedy(
    topic: Any, value: str, remedy: str
) -> None:
    with pytest.raises(InvalidTopic) as caught:
        check_topic(topic)
    text = one_line(caught.value)
    assert value in text
    assert remedy in text


@pytest.mark.parametrize(
    ("filter", "value", "remedy"),
    [
        pytest.param("", "empty", "at least one character", id="empty"),
        pytest.param("a/#/b", "'a/#/b'", "as the last level", id="hash in the middle"),
        pytest.param("#/", "'#/'", "as the last level", id="hash, then an empty level"),
        pytest.param("a#", "'a#'", "as the last level", id="hash behind a letter"),
        pytest.param("a/##", "'a/##'", "as the last level", id="two hashes"),
        pytest.param("a+", "'a+'", "as a whole level", id="plus behind a letter"),
        pytest.param("++/a", "'++/a'", "as a whole level", id="two pluses"),
        pytest.param(NUL_TEXT, "a\\x00b", "remove it", id="NUL"),
        pytest.param("a/" * 40_000, "80000 bytes", "at most 65535", id="too long"),
        pytest.param(NOT_UTF8, "a/\\xff", "encode it as UTF-8", id="not UTF-8"),
        pytest.param(SURROGATE, "a/\\ud800", "lone surrogate", id="surrogate"),
        pytest.param(None, "None is a NoneType", "pass a string", id="nothing"),
        pytest.param(["a/#"], "['a/#'] is a list", "pass a string", id="list"),
        pytest.param(bytearray(b"a"), "is a bytearray", "pass a string", id="bytearray"),
    ],
)
def test_a_bad_filter_is_refused_in_one_line_with_value_and_remedy(
    filter: Any, value: str, remedy: str
) -> None:
    with pytest.raises(InvalidTopic) as caught:
        check_filter(filter)
    text = one_line(caught.value)
    assert value in text
    assert remedy in text


def test_a_refused_topic_is_also_a_value_error_and_not_retriable() -> None:
    with pytest.raises(ValueError, match="empty") as caught:
        check_topic("")
    assert isinstance(caught.value, InvalidInput)
    assert not caught.value.retriable


@given(st.one_of(st.text(max_size=20), st.binary(max_size=20), st.text("a+#/$\0\n", max_size=6)))
def test_any_text_is_accepted_or_refused_in_one_line(text: str | bytes) -> None:
    for check in (check_topic, check_filter, SharedSubscription.parse):
        try:
            check(text)
        except InvalidTopic as error:
            one_line(error)


# ---------------------------------------------------------------- matching


@pytest.mark.parametrize(
    ("filter", "topic", "expected"),
    [
        ("sport/#", "sport", True),
        ("sport/#", "sport/tennis/player1", True),
        ("sport/#", "sports", False),
        ("sport/tennis/#", "sport", False),
        ("#", "a/b", True),
        ("#", "/", True),
        ("+", "a", True),
        ("+", "a/b", False),
        ("+", "/a", False),
        ("+/+", "/a", True),
        ("/+", "/a", True),
        ("sport/+", "sport", False),
        ("sport/+", "sport/", True),
        ("sport/+/player1", "sport/tennis/player1", True),
        ("sport/+/player1", "sport/a/b/player1", False),
        ("+/tennis/#", "sport/tennis", True),
        ("a//b", "a//b", True),
        ("a/+/b", "a//b", True),
        ("a/b", "a/b/", False),
        ("a/b", "a/b", True),
        ("a/b", "A/b", False),
        ("#", "$SYS/load", False),
        ("+/load", "$SYS/load", False),
        ("$SYS/#", "$SYS/load", True),
        ("$SYS/+", "$SYS/load", True),
        ("a/#", "a/$SYS", True),
        ("+", "$", False),
        ("$", "$", True),
    ],
)
def test_matching(filter: str, topic: str, expected: bool) -> None:
    assert check_filter(filter) == filter
    assert check_topic(topic) == topic
    assert matches(filter, topic) is expected


LEVELS = ("", "a", "$")
TOPICS = [
    "/".join(levels)
    for depth in (1, 2, 3, 4)
    for levels in itertools.product(LEVELS, repeat=depth)
    if "/".join(levels)
]


@st.composite
def filters(draw: st.DrawFn) -> str:
    levels = draw(st.lists(st.sampled_from([*LEVELS, "+"]), max_size=3))
    if draw(st.booleans()) or not levels:
        levels.append("#")
    text = "/".join(levels)
    return check_filter(text) if text else "a"


@settings(max_examples=600)
@given(filters(), filters())
def test_intersect_agrees_with_trying_every_topic(first: str, second: str) -> None:
    expected = any(matches(first, topic) and matches(second, topic) for topic in TOPICS)
    assert intersect(first, second) is expected
    assert intersect(second, first) is expected


@given(filters(), st.sampled_from(TOPICS))
def test_a_topic_read_as_a_filter_intersects_just_the_filters_that_match_it(filter: str, topic: str) -> None:
    assert intersect(filter, topic) is matches(filter, topic)


# ---------------------------------------------------------------- shared subscriptions


@pytest.mark.parametrize(
    ("text", "group", "filter"),
    [
        ("$shared/analytics/flights/+/LAX", "analytics", "flights/+/LAX"),
        ("$queue/g/#", "g", "#"),
        ("$shared/g//a", "g", "/a"),
        ("$shared/g/$SYS/#", "g", "$SYS/#"),
    ],
)
def test_a_shared_subscription_is_read_and_written(text: str, group: str, filter: str) -> None:
    parsed = SharedSubscription.parse(text)
    assert (parsed.group, parsed.filter) == (group, filter)
    assert str(parsed) == text
    assert SharedSubscription.parse(text.encode()) == parsed
    assert parsed.id == f"{group}/{filter}"


def test_shared_and_queue_of_one_name_have_one_leader() -> None:
    shared, queue = (SharedSubscription.parse(f"{kind}/g/a/b") for kind in ("$shared", "$queue"))
    assert shared.id == queue.id
    assert shared != queue


@pytest.mark.parametrize(
    ("text", "value", "remedy"),
    [
        pytest.param("$shared/g", "'$shared/g'", "write '$shared/g/FILTER'", id="no filter"),
        pytest.param("$shared/g/", "'$shared/g/'", "write '$shared/g/FILTER'", id="empty filter"),
        pytest.param("$queue/g", "'$queue/g'", "write '$queue/g/FILTER'", id="queue without filter"),
        pytest.param("$shared//a", "'$shared//a'", "write '$shared/GROUP/FILTER'", id="empty group"),
        pytest.param("$shared", "'$shared'", "write '$shared/GROUP/FILTER'", id="prefix only"),
        pytest.param("$shared/+/a", "'$shared/+/a'", "name one group", id="wildcard group"),
        pytest.param("$shared/g#/a", "'$shared/g#/a'", "name one group", id="hash in group"),
        pytest.param("$share/g/a", "'$share/g/a'", "write '$shared/GROUP/FILTER'", id="other prefix"),
        pytest.param("a/b", "'a/b'", "write '$shared/GROUP/FILTER'", id="plain filter"),
        pytest.param("$shared/g/a/#/b", "'a/#/b'", "as the last level", id="bad filter"),
        pytest.param("$shared/g/\0", "\\x00", "remove it", id="NUL"),
        pytest.param("$shared/g/" + "a" * 70_000, "70010 bytes", "at most 65535", id="too long"),
        pytest.param(b"$shared/\xff/a", "\\xff", "encode it as UTF-8", id="not UTF-8"),
        pytest.param(3.5, "3.5 is a float", "pass a string", id="number"),
        pytest.param("", "empty", "at least one character", id="empty"),
    ],
)
def test_a_bad_shared_subscription_is_refused_in_one_line(text: Any, value: str, remedy: str) -> None:
    with pytest.raises(InvalidTopic) as caught:
        SharedSubscription.parse(text)
    said = one_line(caught.value)
    assert value in said
    assert remedy in said
