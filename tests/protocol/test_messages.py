"""Control messages: each one round trips, and no data from outside raises."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from streamlease.protocol import acts
from streamlease.protocol import messages as m
from streamlease.protocol.cuts import CutRange, Ranges
from streamlease.protocol.messages import Grant, Message, Ping, Verdict, decode, encode
from streamlease.protocol.topics import MAX_BYTES, SharedSubscription

TYPES: tuple[type[BaseModel], ...] = get_args(m.Message)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)
OFFSET = st.integers(min_value=0, max_value=2**53 - 1)
PROGRESS = st.builds(m.Progress, stream=TEXT, lease_epoch=OFFSET, offset=OFFSET, final=st.booleans())
RANGE = st.builds(CutRange, stream=TEXT, lease_epoch=OFFSET, start=OFFSET, end=OFFSET)

FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "above": st.integers(min_value=0, max_value=2**52),
    "placed": st.booleans(),
    "arrival": OFFSET,
    "attempt": OFFSET,
    "term": OFFSET,
    "lease_epoch": OFFSET,
    "finished": OFFSET,
    "cut": st.integers(min_value=1, max_value=2**63),
    "session_timeout_ms": st.integers(100, 86_400_000),
    "resumes": st.none() | OFFSET,
    "follows": st.none() | OFFSET,
    "attested": st.lists(PROGRESS, max_size=3).map(tuple),
    "pinned_end": st.none() | OFFSET,
    "ranges": st.lists(RANGE, max_size=3, unique_by=lambda part: part.stream).map(Ranges.of),
    "proposal": OFFSET,
    "stream": TEXT,
    "until": st.none() | OFFSET,
    "offsets": st.dictionaries(TEXT, OFFSET, max_size=3),
    "undo": st.booleans(),
    "force": st.booleans(),
    "forced": st.booleans(),
    "reason": st.sampled_from(["unknown", "replaced", "stale", "revocation_timeout", "stepped_down"]),
    "dry_run": st.booleans(),
    "verdict": st.sampled_from(get_args(Verdict)),
    "whole": st.booleans(),
}


def strategy_for(kind: type[BaseModel]) -> st.SearchStrategy[Any]:
    if kind is m.Grants:
        return grants()
    fields = {}
    for name in kind.model_fields:
        if name == "progress":
            fields[name] = OFFSET if kind is Grant else st.lists(PROGRESS, max_size=3).map(tuple)
        elif (
            name == "ranges" and kind.model_fields[name].annotation != m.FixCut.model_fields[name].annotation
        ):
            fields[name] = st.none() | FIELDS[name]  # may be left out
        elif name == "act" and kind is m.Command:
            fields[name] = st.one_of([strategy_for(act) for act in acts.KINDS.values()])
        elif name not in {"type", "act"}:
            number = kind.model_fields[name].annotation is int
            fields[name] = FIELDS.get(name, OFFSET if number else TEXT)
    return st.builds(kind, **fields)


def grants() -> st.SearchStrategy[m.Grants]:
    row = st.tuples(TEXT, OFFSET, OFFSET, st.none() | OFFSET, st.none() | OFFSET)
    names = ("streams", "lease_epochs", "offsets", "resumes", "follows")
    return st.builds(
        lambda group, borrower, term, rows: m.Grants(
            group=group,
            borrower=borrower,
            term=term,
            **dict(zip(names, zip(*rows, strict=True), strict=True)),
        ),
        TEXT, TEXT, OFFSET, st.lists(row, min_size=1, max_size=3),
    )  # fmt: skip


ANY_MESSAGE: st.SearchStrategy[Message] = st.one_of([strategy_for(kind) for kind in TYPES])


def test_the_union_is_complete_and_each_type_has_its_own_name() -> None:
    defined = {
        value
        for value in vars(m).values()
        if isinstance(value, type) and issubclass(value, BaseModel) and "type" in value.model_fields
    }
    assert set(TYPES) == defined
    assert len({kind.model_fields["type"].default for kind in TYPES}) == len(TYPES)


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.__name__)
def test_every_type_round_trips(kind: type[BaseModel]) -> None:
    @settings(max_examples=30)
    @given(strategy_for(kind))
    def round_trip(message: Message) -> None:
        read, bad = decode(encode([message]))
        assert bad == 0
        assert read == [message]
        assert type(read[0]) is kind

    round_trip()


@given(st.lists(ANY_MESSAGE, max_size=6))
def test_several_messages_keep_their_order(sent: list[Message]) -> None:
    assert decode(encode(sent)) == (sent, 0)


def test_a_message_cannot_be_changed() -> None:
    ping = Ping(group="g/a", borrower="b", term=1)
    with pytest.raises(ValidationError):
        ping.term = 2


def test_the_longest_subscription_fits_into_a_message() -> None:
    """What the grammar of topics accepts, the control messages must carry."""
    longest = SharedSubscription.parse("$shared/g/" + "a" * (MAX_BYTES - 10))
    ping = Ping(group=longest.id, borrower="b", term=1)
    assert decode(encode([ping])) == ([ping], 0)


# ---------------------------------------------------------------- bad data


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_counted(data: bytes) -> None:
    messages, bad = decode(data)
    assert messages or bad or json.loads(data) == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(st.lists(JSON, max_size=5))
def test_any_json_list_is_counted_item_by_item(items: list[Any]) -> None:
    assert decode(json.dumps(items).encode()) == ([], len(items))


@given(ANY_MESSAGE, st.data())
def test_a_message_with_one_field_changed_to_anything_never_raises(
    message: Message, data: st.DataObject
) -> None:
    item = message.model_dump(mode="json")
    item[data.draw(st.sampled_from([*item, "added"]))] = data.draw(JSON)
    messages, bad = decode(json.dumps([item]).encode())
    assert len(messages) + bad == 1


def test_the_good_ones_around_a_bad_one_are_kept() -> None:
    ping = Ping(group="g/a", borrower="b", term=1)
    good = json.loads(encode([ping]))[0]
    data = json.dumps([good, {"type": "no_such_message"}, 7, {**good, "extra": 1}, good]).encode()
    assert decode(data) == ([ping, ping], 3)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"{}", id="no list"),
        pytest.param(b"\xff\xfe\x00", id="no text"),
        pytest.param(b"[" * 200_000, id="nested deeply"),
        pytest.param(b'{"a":' * 100_000, id="nested deeply in objects"),
        pytest.param(b"[" + b"9" * 10_000 + b"]", id="number too long"),
    ],
)
def test_an_entry_that_does_not_parse_counts_as_one(data: bytes) -> None:
    assert decode(data) == ([], 1)


@pytest.mark.parametrize(
    "change",
    [
        {"term": -1},
        {"term": 1.5},
        {"term": 2**53},
        {"term": "x"},
        {"borrower": ""},
        {"borrower": "b" * 5000},
        {"borrower": "\ud800"},
        {"group": ""},
        {"type": []},
        {"type": None},
        {"type": {}},
        {"extra": 1},
    ],
    ids=str,
)
def test_a_message_out_of_range_is_dropped(change: dict[str, Any]) -> None:
    good = {"type": "ping", "group": "g/a", "borrower": "b", "term": 1}
    assert decode(json.dumps([good]).encode())[1] == 0
    assert decode(json.dumps([{**good, **change}]).encode()) == ([], 1)


def test_a_term_is_not_believed_from_which_none_could_rise() -> None:
    asked = {"type": "spawn_wanted", "group": "g/a", "above": 2**52}
    assert decode(json.dumps([asked]).encode())[1] == 0
    assert decode(json.dumps([{**asked, "above": 2**52 + 1}]).encode()) == ([], 1)


@pytest.mark.parametrize(
    "ranges",
    [
        pytest.param([["a.0.0"], [1], [0], [5]], id="no names"),
        pytest.param({"streams": ["a.0.0"], "lease_epochs": [1], "starts": [0]}, id="a column is missing"),
        pytest.param(
            {"streams": ["a.0.0"], "lease_epochs": [1], "starts": [0], "ends": [5, 6]}, id="different lengths"
        ),
        pytest.param(
            {"streams": ["a.0.0"] * 2, "lease_epochs": [1, 1], "starts": [0, 0], "ends": [5, 5]},
            id="a stream twice",
        ),
        pytest.param(
            {"streams": ["a.0.0"], "lease_epochs": [1], "starts": [-1], "ends": [5]}, id="a negative offset"
        ),
        pytest.param({"streams": [""], "lease_epochs": [1], "starts": [0], "ends": [5]}, id="no stream"),
    ],
)
def test_malformed_ranges_of_a_cut_are_refused(ranges: object) -> None:
    good = m.FixCut(group="g/a", session="s", arrival=1, cut=1, finished=0, ranges=Ranges.of(()))
    item = good.model_dump(mode="json")
    assert decode(json.dumps([item]).encode()) == ([good], 0)
    assert decode(json.dumps([{**item, "ranges": ranges}]).encode()) == ([], 1)


def test_grants_are_leases_in_columns_of_one_length() -> None:
    columns = {"streams": ("s.0.0", "s.0.1"), "lease_epochs": (3, 1), "offsets": (7, 0)}
    text = {"group": "g/a", "borrower": "b", "term": 1, **columns, "resumes": (2, None), "follows": (2, None)}
    message = m.Grants.model_validate(text)
    assert [*message.offers()] == [m.Offer("s.0.0", 3, 7, None, 2, 2), m.Offer("s.0.1", 1, 0)]
    with pytest.raises(ValidationError, match="different lengths"):
        m.Grants.model_validate({**text, "offsets": (7,)})
