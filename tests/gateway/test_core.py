"""The pure parts: cursors, filters of waiting clients, rights, parameters, limits."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlease.gateway.core.accepting import ARROW, JSON, NDJSON, chosen
from streamlease.gateway.core.bearer import NotAllowed, NotAuthenticated, Tokens, includes
from streamlease.gateway.core.cursors import Cursor, CursorCodec, InvalidCursor
from streamlease.gateway.core.interests import Interests
from streamlease.gateway.core.questions import parse_question, parse_since
from streamlease.gateway.core.rates import GatewayLimits, OpenPolls, Rates, TooMuch
from streamlease.gateway.core.recent import Recent
from streamlease.protocol.errors import InvalidInput, InvalidOption
from streamlease.protocol.ids import StreamId
from streamlease.protocol.topics import check_filter, matches

CODEC = CursorCodec(b"key")
STREAMS = st.builds(StreamId, st.from_regex(r"[a-z0-9_-]{1,9}\Z").filter(lambda t: t[0] != "-"),
                    st.integers(0, 300), st.integers(0, 4095))  # fmt: skip
PLACES = st.dictionaries(STREAMS, st.tuples(st.integers(0, 2**53 - 1), st.booleans()), max_size=20)


@settings(max_examples=50)
@given(PLACES)
def test_a_cursor_comes_back_from_its_text(places: dict[StreamId, tuple[int, bool]]) -> None:
    cursor = Cursor(places)
    text = CODEC.text(cursor)
    assert CODEC.parse(text) == cursor == Cursor(dict(reversed(places.items())))
    assert CODEC.parse(text).places == places
    assert text.replace("-", "").replace("_", "").isalnum()


@settings(max_examples=50)
@given(PLACES, st.integers(0), st.integers(1, 255))
def test_no_changed_cursor_is_taken(
    places: dict[StreamId, tuple[int, bool]], place: int, change: int
) -> None:
    text = CODEC.text(Cursor(places))
    place %= len(text)
    changed = text[:place] + chr(ord(text[place]) ^ change) + text[place + 1 :]
    try:
        assert CODEC.parse(changed) == Cursor(places)  # another spelling of the same bytes
    except InvalidCursor as error:
        assert "give 'next' of an answer" in str(error)


@pytest.mark.parametrize("text", ["", "x", "é", "====", "A" * 100, "A" * 70_000, "\0", "a b", "🦄"])
def test_what_is_no_cursor(text: str) -> None:
    with pytest.raises(InvalidCursor):
        CODEC.parse(text)
    with pytest.raises(InvalidCursor):
        CODEC.parse(CursorCodec(b"other").text(Cursor({StreamId("s", 0, 0): (1, False)})))


def test_a_cursor_of_many_streams_is_short() -> None:
    many = Cursor({StreamId("flights", 3, n): (1_000_000 + n, False) for n in range(1000)})
    assert len(CODEC.text(many)) < 6000
    assert len(CODEC.text(Cursor({StreamId("flights", 0, n): (10**6, False) for n in range(8)}))) < 90


LEVELS = ["", "a", "b", "$x", "+", "#"]
FILTERS = []
for parts in (p for n in (1, 2, 3) for p in product(LEVELS, repeat=n)):
    try:
        FILTERS.append(check_filter("/".join(parts)))
    except InvalidInput:
        continue
TOPICS = [t for n in (1, 2, 3, 4) for p in product(["", "a", "b", "$x"], repeat=n) if (t := "/".join(p))]


def test_a_message_wakes_just_those_whose_filters_match_it() -> None:
    interests: Interests[int] = Interests()
    for number, filter in enumerate(FILTERS):
        interests.add(filter, number)
        interests.add(filter, -number - 1)
        interests.remove(filter, -number - 1)
    for topic in TOPICS:
        matched = [n for n, filter in enumerate(FILTERS) if matches(filter, topic)]
        assert sorted(interests.of([topic])) == matched
    for number, filter in enumerate(FILTERS):
        interests.remove(filter, number)
        interests.remove(filter, number)
    assert (len(interests), interests.of(TOPICS), interests._root.below) == (0, [], {})


def test_a_right_is_never_wider_than_its_filters() -> None:
    found = {filter: {topic for topic in TOPICS if matches(filter, topic)} for filter in FILTERS}
    for allowed, wanted in product(FILTERS, FILTERS):
        if includes(allowed, wanted):
            assert found[wanted] <= found[allowed], (allowed, wanted)
    same = [("a/#", "a"), ("a/#", "a/#"), ("a/#", "a/+/b"), ("+/a", "+/a"), ("#", "+/a"), ("a/+", "a/b")]
    for allowed, wanted in same:
        assert includes(allowed, wanted), (allowed, wanted)


def tokens(**fields: object) -> str:
    return json.dumps({"tokens": [{"name": "n", "sha256": hashlib.sha256(b"secret").hexdigest(), **fields}]})


def test_tokens_and_their_rights() -> None:
    known = Tokens.parse(tokens(publish=["a/+"], consume=["b/#"]), "file")
    rights = known.rights("bearer secret")
    rights.check_publish("a/1")
    rights.check_consume("b/+/x")
    for refused in (lambda: rights.check_publish("a/1/2"), lambda: rights.check_consume("#")):
        with pytest.raises(NotAllowed, match="'n' may not"):
            refused()
    for header in (None, "", "Bearer", "Bearer other", "Basic secret", "secret", "Bearer \udcff"):
        with pytest.raises(NotAuthenticated):
            known.rights(header)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "the document"),
        ("{}", "tokens"),
        (tokens(sha256="x"), "tokens.0.sha256"),
        (tokens(publish=["a/#/b"]), "tokens.0.publish"),
        (tokens(consume="a"), "tokens.0.consume"),
        (tokens(admin=True), "tokens.0.admin"),
        (tokens().replace("}]", "}, " + tokens()[12:-2] + "]"), "two tokens named 'n'"),
    ],
)
def test_a_bad_file_of_tokens_is_told(text: str, told: str) -> None:
    with pytest.raises(InvalidOption) as error:
        Tokens.parse(text, "the-file")
    assert told in str(error.value) and "the-file" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "given",
    [
        {}, {"filter": ""}, {"filter": "a/#/b"}, {"filter": "a", "x": "1"}, {"filter": "$share/\ud800"},
        *({"filter": "a", "limit": text} for text in ("0", "10001", "-1", "²", "1" * 99)),
        *({"filter": "a", "wait": text} for text in ("61", "nan", "1e1", "", ".", "-1")),
        *({"filter": "a", "since": text} for text in ("", "2026-01-01", "0001-01-01T00:00:00+23:00")),
    ],
)  # fmt: skip
def test_bad_parameters_are_told(given: dict[str, str]) -> None:
    with pytest.raises(InvalidInput) as error:
        parse_question(given, CODEC, allowed=frozenset({"filter", "since", "limit", "wait"}))
    assert "\n" not in str(error.value)


def test_times_of_since() -> None:
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    for text in ("2026-01-31T12:00:00Z", "2026-01-31T13:00:00+01:00", "2026-01-31T13:00:00 01:00"):
        assert parse_since(text, CODEC) == noon


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        (None, JSON), ("", JSON), ("*/*", JSON), ("application/*", JSON), ("application/x-ndjson", NDJSON),
        (f"{JSON};q=0.5, {ARROW}", ARROW), (f"{JSON};q=0, */*", NDJSON), ("text/html", None),
        ("*/*;q=0", None),
        (f"{NDJSON};q=x", None), (",;,", None),
    ],
)  # fmt: skip
def test_the_form_that_a_client_prefers(accept: str | None, form: str | None) -> None:
    assert chosen(accept, (JSON, NDJSON, ARROW)) == form


def test_rates_and_polls() -> None:
    rates = Rates(2)
    for now in (0, 0, 0.5, 1, 1.5):
        rates.take("one", now)
    with pytest.raises(TooMuch) as error:
        rates.take("one", 1.6)
    assert error.value.seconds == pytest.approx(0.4)
    rates.take("other", 1.6)
    polls = OpenPolls(3, 2)
    polls.enter("one")
    polls.enter("one")
    with pytest.raises(TooMuch, match="this client"):
        polls.enter("one")
    polls.enter("other")
    with pytest.raises(TooMuch, match="this gateway"):
        polls.enter("third")
    polls.leave("one")
    polls.enter("third")
    for limits in ({"body_bytes": 0}, {"requests_per_second": -1.0}, {"open_polls": 0}, {"client_polls": -1}):
        with pytest.raises(InvalidOption):
            GatewayLimits(**limits)  # type: ignore[arg-type]


def test_recent_messages_cover_a_cursor_only_if_nothing_behind_it_is_missing() -> None:
    a, b, new = StreamId("s", 0, 0), StreamId("s", 0, 1), StreamId("s", 1, 0)
    recent: Recent[str] = Recent(most_bytes=30)
    recent.begin({a: 5, b: 7})
    at = Cursor({a: (5, False), b: (7, False)})
    assert recent.covers(at, "s")
    assert not recent.covers(Cursor({a: (4, False), b: (7, False)}), "s")
    assert not recent.covers(Cursor({a: (5, False)}), "s")
    assert not recent.covers(Cursor({a: (6, False), b: (7, False)}), "s"), "more has come, or was lost"
    assert recent.covers(Cursor({a: (5, False), b: (7, False), new: (0, False)}), "s")
    recent.put(a, 5, 8, "a", 10)
    recent.put(new, 0, 2, "n", 10)
    assert [piece.data for piece in recent.after(at)] == ["a", "n"]
    assert [piece.data for piece in recent.after(Cursor({a: (8, False), new: (1, False)}))] == ["n"]
    recent.put(a, 8, 9, "c", 15)  # the oldest piece goes
    assert not recent.covers(at, "s")
    behind = Cursor({a: (8, False), b: (7, False)})
    assert recent.covers(behind, "s") and [piece.data for piece in recent.after(behind)] == ["n", "c"]
    recent.keep_only({a: 9, new: 2})
    assert not recent.covers(behind, "s")
    assert recent.covers(Cursor({a: (8, False), b: (7, True)}), "s")
    assert not recent.covers(Cursor({a: (8, False), StreamId("s", 0, 2): (1, False)}), "s")
