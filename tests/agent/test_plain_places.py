"""What a plain subscription reads next: only what has news, and generations one after the other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamlease.agent.plain.plain_places import PlainPlace, PlainPlaces
from streamlease.protocol.ids import StreamId


def stream(generation: int, shard: int = 0, space: str = "s") -> StreamId:
    return StreamId(space, generation, shard)


def places(ends: dict[StreamId, int], newest: int = 0) -> PlainPlaces:
    """Places at the beginning of those streams, which end there."""
    made = PlainPlaces(ends.get)
    made.set_newest({one.space: newest for one in ends}, ())
    for one in ends:
        made.put(one, PlainPlace(0))
    made.order()
    return made


def test_what_was_read_to_its_end_is_not_looked_at_until_there_are_news() -> None:
    ends = {stream(0, shard): shard for shard in range(3)}
    asked: list[StreamId] = []

    def next_of(one: StreamId) -> int:
        asked.append(one)
        return ends[one]

    made = PlainPlaces(next_of)
    for one in ends:
        made.put(one, PlainPlace(0))
    assert made.ready(0.0) == [stream(0, 1), stream(0, 2)]
    for one, end in ends.items():
        made.by_stream[one].position = end
    assert made.ready(0.0) == []
    asked.clear()
    assert made.ready(0.0) == []
    assert asked == []
    ends[stream(0, 1)] += 1
    made.heard(stream(0, 1))
    assert made.ready(0.0) == [stream(0, 1)]
    assert asked == [stream(0, 1)]


def test_a_stream_is_ready_until_it_was_read() -> None:
    made = places({stream(0): 5})
    assert made.ready(0.0) == made.ready(0.0) == [stream(0)]
    made.by_stream[stream(0)].position = 3
    assert made.ready(0.0) == [stream(0)]


def test_one_whose_archive_could_not_be_read_rests() -> None:
    made = places({stream(0): 5})
    made.by_stream[stream(0)].rest(10.0)
    again = made.by_stream[stream(0)].again_at
    assert again > 10.0
    assert made.ready(10.0) == []
    assert made.ready(again) == [stream(0)]


def test_a_generation_waits_until_those_before_it_are_sealed_and_read() -> None:
    ends = {stream(0, 0): 2, stream(0, 1): 0, stream(1, 0): 4, stream(2, 0): 1}
    made = places(ends, newest=2)
    assert made.ready(0.0) == [stream(0, 0)]
    made.by_stream[stream(0, 0)].position = 2
    assert made.ready(0.0) == [], "nobody knows yet whether that was all"
    made.by_stream[stream(0, 0)].last = 2
    assert made.ready(0.0) == [], "the other stream of the generation may get something"
    made.by_stream[stream(0, 1)].last = 0
    assert made.ready(0.0) == [stream(1, 0)]
    assert made.has_former
    made.by_stream[stream(1, 0)].position = made.by_stream[stream(1, 0)].last = 4
    assert not made.has_former
    assert made.ready(0.0) == [stream(2, 0)]


def test_a_stream_that_is_gone_holds_up_nothing() -> None:
    made = places({stream(0): 2, stream(1): 1}, newest=1)
    made.remove(stream(0))
    assert made.ready(0.0) == [stream(1)]


def test_what_is_read_to_an_end_does_not_wait_for_seals() -> None:
    made = PlainPlaces(lambda one: None)
    made.set_newest({"s": 1}, ())
    made.put(stream(0), PlainPlace(0, 2))
    made.put(stream(1), PlainPlace(0, 2))
    made.order()
    assert made.ready(0.0) == [stream(0)]
    made.by_stream[stream(0)].position = 2
    assert made.ready(0.0) == [stream(1)]


def test_of_a_damaged_space_the_newest_generation_stays_known() -> None:
    made = places({stream(0): 1, stream(0, space="other"): 1}, newest=1)
    made.set_newest({}, {"s"})
    assert made.is_followed(stream(0))
    assert not made.is_followed(stream(0, space="other"))


@given(st.data())
def test_it_is_what_a_look_at_all_streams_finds(data: st.DataObject) -> None:
    streams = [stream(generation, shard) for generation in range(3) for shard in range(2)]
    ends = dict.fromkeys(streams, 0)
    made = places(ends, newest=2)

    def expected() -> list[StreamId]:
        found: list[StreamId] = []
        earliest: int | None = None
        for one in streams:
            place = made.by_stream[one]
            more = place.position < ends[one]
            if earliest is not None and earliest < one.generation:
                continue
            if more:
                found.append(one)
            sealed = place.last is not None and place.position >= place.last
            if more or (one.generation < 2 and not sealed):
                earliest = one.generation
        return found

    for _ in range(data.draw(st.integers(1, 25))):
        one = data.draw(st.sampled_from(streams))
        place = made.by_stream[one]
        match data.draw(st.sampled_from(["append", "seal", "read", "look"])):
            case "append" if place.last is None:
                ends[one] += data.draw(st.integers(1, 3))
                made.heard(one)
            case "seal" if one.generation < 2:
                place.last = ends[one]
            case "read":
                if one in made.ready(0.0):
                    place.position = data.draw(st.integers(place.position, ends[one]))
            case _:
                pass
        if data.draw(st.booleans()):
            assert made.ready(0.0) == expected()
