"""Two Spark applications in one group that come and go while an operator acts: none twice, all in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.admin.command import Command
from tests.spark.applications import PATIENT, Application, once_each, options
from tests.spark.world import SUBSCRIPTION, World

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def owners(world: World) -> dict[str, int]:
    """How many streams each session holds."""
    return Counter(one.session for one in world.state().streams.values() if one.session is not None)


def streams_of(world: World, session: str) -> list[str]:
    return sorted(stream for stream, one in world.state().streams.items() if one.session == session)


def reset_back(cli: Command, world: World, streams: list[str]) -> dict[str, int]:
    """Have the last three messages of these streams read once more; where each goes on."""
    for stream in streams:
        words = ("--shift", "-3", "--stream", stream, "--execute", "--json")
        cli.ok("group", "reset", str(SUBSCRIPTION), *words)
    return {stream: world.published[stream] - 3 for stream in streams}


def check_order(told: list[tuple[str, int, int]], resets: dict[str, int]) -> None:
    """Each stream is read without a gap, by whichever query, but for resets, which go back."""
    ends: dict[str, int] = {}
    waiting = dict(resets)
    for stream, first, last in told:
        if first != ends.get(stream, 0):
            assert waiting.pop(stream) == first
        ends[stream] = last + 1
    assert not waiting


def test_two_applications_share_a_group_while_they_come_and_go_and_an_operator_acts(
    world: World, tmp_path: Path, start_application: Callable[..., Application]
) -> None:
    world.lead(ttl=PATIENT)
    cli = Command(tmp_path, world.url)
    one = start_application("one", options(world, slots=2))
    other = start_application("other", options(world, slots=2), options(world, slots=8))
    for application in (one, other):
        (application.folder / "told").symlink_to(tmp_path / "told")
    again: Counter[tuple[str, int]] = Counter()

    def all_is_read() -> bool:
        return Counter(one.rows()) + Counter(other.rows()) == once_each(world) + again

    def settled() -> None:
        """Wait until nothing is under way: who stops in the middle of a cut keeps its streams for a while."""
        one.wait_for(all_is_read)
        one.wait_for(lambda: world.all_committed)

    def while_busy(condition: Callable[[], bool]) -> None:
        """Publish until the condition holds."""

        def look() -> bool:
            world.publish(1)
            return condition()

        one.wait_for(look)

    # More streams than slots.
    world.publish(5)
    one.start()
    one.wait_for(all_is_read)
    first = one.told()[0]["session"]
    assert owners(world) == {first: 4}

    # The other joins.
    other.start()
    while_busy(lambda: set(owners(world).values()) == {2})
    one.wait_for(all_is_read)
    second = next(session for session in owners(world) if session != first)

    # An idle query beside a busy one.
    before = len(one.rows())
    world.publish(dict.fromkeys(streams_of(world, second), 20))
    one.wait_for(all_is_read)
    assert len(one.rows()) == before

    # A reset goes back by three messages in one stream of each.
    settled()
    places = reset_back(cli, world, [streams_of(world, session)[0] for session in (first, second)])
    again.update((stream, offset) for stream, place in places.items() for offset in range(place, place + 3))
    one.wait_for(all_is_read)

    # One stream is moved by hand, and a rebalance forgets it.
    stream = streams_of(world, first)[0]
    cli.ok("group", "move", str(SUBSCRIPTION), stream, "--to", f"{second}/0", "--json")
    while_busy(lambda: owners(world) == {first: 1, second: 3})
    cli.ok("group", "rebalance", str(SUBSCRIPTION), "--json")
    while_busy(lambda: set(owners(world).values()) == {2})

    # The other leaves, and comes back with more slots than there are streams.
    settled()
    other.stop()
    while_busy(lambda: owners(world) == {first: 4})
    other.start()
    while_busy(lambda: owners(world) == {first: 2, second: 2})
    settled()
    for application in (other, one):
        application.stop()
        assert all(len(set(batch)) == len(batch) for batch in application.delivered())
    assert all_is_read()
    check_order([(line["stream"], line["first"], line["last"]) for line in one.told()], places)
