"""What each group still needs of each stream, and how long it has been idle: for retention.

A group's journal is read by its leader only. Beside it stands a hash with the group's progress, to which who
has a stream commits (`registry/commits.py`); every record of the journal that moves progress moves it there
in the same act. It may be further than the journal, never behind it, and goes back only by a reset: nobody
removes what the group still needs. A new leader takes over what is further there with its first write.

A group is active when its leader commits, when somebody subscribes, and as long as it has a live leader. All
times are milliseconds of the Redis clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import ValidationError

from streamlease.protocol.errors import StoreRefused, Unsupported
from streamlease.protocol.ids import StreamId
from streamlease.protocol.topics import SharedSubscription
from streamlease.registry import keys, pulses
from streamlease.registry.groups import Declaration, Groups
from streamlease.registry.pulses import Pulse
from streamlease.streams.redis.always import ask_always
from streamlease.streams.redis.connection import AsyncRedis, Command, ask
from streamlease.streams.redis.damaged import ask_of_any_type
from streamlease.streams.spaces.matching import SpacesByFilter
from streamlease.streams.spaces.spaces import Space

_DAMAGED = b"\xff"
"""No number, and no text of a declaration: what stands in a key of another type counts as that."""

_NO_LEADER = (None, None, None)
PAGE = 64
"""Groups that are read in one round trip."""


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """What one group needs, as read at one moment."""

    subscription: SharedSubscription
    needs: Mapping[StreamId, int]
    """Of each stream that was asked for: the lowest offset that the group has not consumed."""
    active_at: int
    """Last commit, connect or sign of life of its leader."""
    expired_at: int | None = None
    """Since when it holds no data any more."""
    expiry_ms: int | None = None
    """Its own time to expire; 0: never; None: as its spaces say."""
    read_at: int = 0
    last_commit_at: int = 0
    """Like `active_at`, without the sign of life of its leader."""
    begun: frozenset[StreamId] = frozenset()
    """The streams of which a leader of it has taken note."""
    paused_at: int | None = None
    """Since when an operator has paused it."""
    damage: str = ""
    """Why its declaration cannot be read; then it needs everything."""

    @property
    def idle_ms(self) -> int:
        """How long nobody has consumed it."""
        return max(0, self.read_at - self.active_at)


async def passed(redis: AsyncRedis, group: str) -> int:
    """How often retention passed what the group had not consumed: then its leader looks at the floors."""
    (count,) = await passed_all(redis, [group])
    return count


async def passed_all(redis: AsyncRedis, groups: Sequence[str]) -> list[int]:
    """`passed` of many groups, in their order."""
    asked: list[Command] = [("HGET", keys.progress(group), "@passed") for group in groups]
    counts = await ask_of_any_type(redis, asked)
    return [0 if isinstance(count, Unsupported) else _number(count) or 0 for count in counts]


async def passed_any(redis: AsyncRedis) -> int:
    """Another number as soon as `passed` of any group is another one.

    Raises:
        StoreUnavailable, StoreRefused.
    """
    (count,) = await ask(redis, [("HGET", keys.PASSED, "groups")])
    return _number(count) or 0


def _number(held: bytes | None) -> int | None:
    """A number of the group's hash; None if it is missing or damaged."""
    return int(held) if held is not None and held.isdigit() else None


async def tell_passed(redis: AsyncRedis, groups: Iterable[str]) -> None:
    """Let the leaders of `groups` know that retention passed what they had not consumed.

    Raises:
        StoreUnavailable, StoreRefused: tell them again.
    """
    commands: list[Command] = [("HINCRBY", keys.progress(group), "@passed", 1) for group in groups]
    if commands:
        try:
            await ask_always(redis, commands)
        except StoreRefused as error:
            if "WRONGTYPE" not in str(error):
                raise  # else it is one group whose key is of another type, and the others are told
        # After: whoever sees it finds the numbers of the groups.
        await ask_always(redis, [("HINCRBY", keys.PASSED, "groups", 1)])


async def read(
    redis: AsyncRedis, wanted: Mapping[SharedSubscription, Sequence[StreamId]]
) -> list[GroupProgress]:
    """The progress of groups in the streams given for each; groups that are not declared are left out.

    Raises:
        StoreUnavailable, StoreRefused.
    """
    found: list[GroupProgress] = []
    groups = list(wanted)
    for begin in range(0, len(groups), PAGE):
        page = groups[begin : begin + PAGE]
        commands: list[Command] = [("TIME",)]
        for group in page:
            commands += [
                ("GET", keys.definition(group.id)),
                ("HMGET", keys.leader(group.id), "host", "renewed_at", "pulse"),
                (
                    "HMGET",
                    keys.progress(group.id),
                    "@active",
                    "@expired",
                    "@paused",
                    *map(str, wanted[group]),
                ),
            ]
        (seconds, microseconds), *replies = await ask_of_any_type(redis, commands)
        now = int(seconds) * 1000 + int(microseconds) // 1000
        leaders = [_NO_LEADER if isinstance(one, Unsupported) else one for one in replies[1::3]]
        given = await pulses.read(redis, [pulse for one in leaders if (pulse := _pulse(one)) is not None])
        for place, group in enumerate(page):
            definition, _, beside = replies[place * 3 : place * 3 + 3]
            leader = leaders[place]
            if isinstance(definition, Unsupported):
                definition = _DAMAGED
            if isinstance(beside, Unsupported):
                beside = [_DAMAGED] * (3 + len(wanted[group]))
            if definition is not None:
                alive = _alive(leader, given)
                found.append(_parse(group, wanted[group], definition, alive, beside, now))
    return found


def _pulse(leader: Sequence[bytes | None]) -> Pulse | None:
    """What keeps the leadership, of which host, time of renewal and tag are given."""
    host, _, tag = leader
    return Pulse(tag.decode("utf-8", "replace"), host.decode("utf-8", "replace")) if host and tag else None


def _alive(leader: Sequence[bytes | None], given: Mapping[Pulse, int]) -> int:
    """The last sign of life of the leader; 0 if there is none."""
    written = (_number(leader[1]) or 0) if leader[0] else 0
    pulse = _pulse(leader)
    return written if pulse is None else max(written, given.get(pulse, 0))


def _parse(
    group: SharedSubscription,
    streams: Sequence[StreamId],
    definition: bytes,
    alive: int,
    beside: Sequence[bytes | None],
    now: int,
) -> GroupProgress:
    damage = ""
    try:
        declaration = Declaration.model_validate_json(definition)
        positions, expiry = declaration.positions, declaration.expiry_ms
    except ValidationError:
        positions, expiry = {}, 0  # damaged: it needs everything, for ever
        damage = f"its declaration is damaged: restore key {keys.definition(group.id)}"
    needs = {
        # What is damaged counts as not consumed.
        stream: positions.get(str(stream), 0) if committed is None else _number(committed) or 0
        for stream, committed in zip(streams, beside[3:], strict=True)
    }
    begun = frozenset(s for s, committed in zip(streams, beside[3:], strict=True) if committed is not None)
    # A group from before there was such a hash counts as active now, until its leader writes one.
    commit = at if (at := _number(beside[0])) is not None else now
    if any(held is not None and _number(held) is None for held in beside):
        damage = damage or f"its progress is damaged: restore key {keys.progress(group.id)}"
    return GroupProgress(
        group,
        needs,
        max(commit, alive),
        _number(beside[1]),
        expiry,
        now,
        commit,
        begun,
        _number(beside[2]),
        damage,
    )


async def needs(redis: AsyncRedis, groups: Groups, spaces: Sequence[Space]) -> list[GroupProgress]:
    """What all groups need of `spaces`.

    Raises:
        StoreUnavailable, StoreRefused.
    """
    wanted: dict[SharedSubscription, list[StreamId]] = {}
    matching = SpacesByFilter(spaces)
    for subscription in await groups.list():
        streams = [s for space in matching.of(subscription.filter) for s in space.streams()]
        if streams:
            wanted[subscription] = streams
    return await read(redis, wanted)


@dataclass(frozen=True, slots=True)
class Hold:
    """Up to where a stream may be trimmed, and who needs it from there on."""

    limit: int
    group: GroupProgress | None = None

    @property
    def holder(self) -> str:
        """The group's name; empty if none needs anything that is there."""
        return "" if self.group is None else str(self.group.subscription)


@dataclass(slots=True)
class Holds:
    """For streams with these ends, what groups keep from being removed. Pure."""

    ends: Mapping[StreamId, int]
    """``next`` of each stream, read *before* the groups: a group declared later begins at or above it."""
    groups: Sequence[GroupProgress] = ()
    _least: dict[StreamId, Hold] = field(init=False, default_factory=dict)
    """Of streams that groups need something of: the first of the groups that need most of it."""

    def __post_init__(self) -> None:
        for group in self.groups:
            if group.expired_at is None:
                for stream, need in group.needs.items():
                    if stream not in self._least or need < self._least[stream].limit:
                        self._least[stream] = Hold(need, group)

    def of(self, stream: StreamId) -> Hold:
        """Who needs most of the stream; expired groups need nothing."""
        end, held = self.ends[stream], self._least.get(stream)
        return held if held is not None and held.limit < end else Hold(end)

    def behind(self, group: GroupProgress) -> bool:
        """Whether the group has not consumed all of its streams."""
        return any(need < self.ends.get(stream, 0) for stream, need in group.needs.items())
