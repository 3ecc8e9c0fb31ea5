"""Shared subscriptions as declared: where each began, and since when.

The first subscriber declares a ``$shared``; a ``$queue`` is declared explicitly. The declaration fixes where
consumption starts, for good: it keeps the offset of every stream at that moment, so that nothing published
after the declaration is missed, however late the first leader begins.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from streamlease.protocol.errors import (
    ActRefused,
    GroupConflict,
    InvalidInput,
    UnknownGroup,
)
from streamlease.protocol.group_options import GroupOptions, KeptOptions, check_options
from streamlease.protocol.ids import StreamId
from streamlease.protocol.topics import SharedSubscription
from streamlease.registry import keys
from streamlease.registry.starts import EpochsBegun, Start, check_start, positions_of, shown_start
from streamlease.registry.stream_listing import Shape, StreamListing, listing_of, shape_of
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.redis.always import ask_always
from streamlease.streams.redis.connection import AsyncRedis, ask, is_cluster
from streamlease.streams.redis.damaged import parsing
from streamlease.streams.redis.durability import Durability, strongest
from streamlease.streams.redis.scripts import load_script
from streamlease.streams.spaces.spaces import Known, SpaceStore

_ARRIVE = load_script("streamlease.registry", "arrive")
_DECLARE = load_script("streamlease.registry", "declare")
_ENLIST = load_script("streamlease.registry", "enlist")
_FORGET = load_script("streamlease.registry", "forget")
_REDECLARE = load_script("streamlease.registry", "redeclare")


class Declaration(BaseModel):
    """A declared shared subscription."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    subscription: str
    """``$shared/GROUP/FILTER`` or ``$queue/GROUP/FILTER``."""
    start: str
    """As it was given: ``earliest``, ``latest``, ``offset N``, ``offsets`` or a time."""
    expiry_ms: int | None = None
    """After so much idle time the group holds no data any more; 0: never; None: as its spaces say."""
    positions: Mapping[str, int] = {}
    """Where it began in each stream of that moment. Other streams start at the oldest."""
    options: KeptOptions = GroupOptions()
    epochs: EpochsBegun | None = None
    """Where it began if its consumers read whole epochs; None: they read each stream as it is."""

    def check_epochs(self, *, whole: bool) -> None:
        """Whether a consumer may come that reads whole epochs, or does not.

        Raises:
            GroupConflict: the consumers of the group read otherwise.
        """
        if whole == (self.epochs is not None):
            return
        theirs, its = ("whole epochs", "off") if not whole else ("each stream as it is", "atomic")
        raise GroupConflict(
            f"the consumers of '{self.subscription}' read {theirs}, and this one has epochs '{its}': all "
            f"consumers of a group read alike; subscribe as they do, or under another group's name"
        )

    @property
    def shared(self) -> SharedSubscription:
        """The subscription, parsed."""
        return SharedSubscription.parse(self.subscription)


class Wishes(NamedTuple):
    """Who wanted a group up to one moment: it changes with every declaration and with every session."""

    joined: str
    arrivals: str


Subscriptions = list[SharedSubscription]


class KnownGroups(NamedTuple):
    """All that stands in the set of groups."""

    groups: Subscriptions
    """Sorted by name."""
    damaged: dict[str, str]
    """What is no subscription -> why."""


class Groups:
    """Declares and lists shared subscriptions.

    Args:
        spaces: those of whoever reads them for other ends, too; None: its own.
    """

    def __init__(self, redis: AsyncRedis, spaces: SpaceStore | None = None) -> None:
        self._redis = redis
        self._spaces = spaces or SpaceStore(redis)
        self._log = AsyncLog(redis)
        self._apart = is_cluster(redis)
        """Whether the set of all groups lies on another server than a group, so that no script sees both."""

    async def streams(self, subscription: SharedSubscription) -> list[StreamId]:
        """All streams of all spaces that hold topics of the filter.

        Raises:
            UnknownSpace: no space has topics that the filter matches.
            Unsupported: only spaces with damaged definitions have.
        """
        spaces = await self._spaces.for_filter(subscription.filter, partly=True)
        return [stream for space in spaces for stream in space.streams()]

    async def durability(
        self, subscription: SharedSubscription, known: Known | None = None
    ) -> tuple[Durability, ...]:
        """What satisfies the durability of every space of the subscription; nothing if it has none.

        Args:
            known: all spaces, if who asks has just read them.
        """
        known = known if known is not None else await self._spaces.look_with_others()
        return strongest(space.promised for space in known.matching(subscription.filter))

    async def declare(
        self,
        subscription: SharedSubscription | str,
        start: Start = "latest",
        *,
        expiry_ms: int | None = None,
        positions: Mapping[str, int] | None = None,
        options: GroupOptions | None = None,
        epochs: EpochsBegun | None = None,
        arrival: int = 0,
    ) -> Declaration:
        """Declare the subscription if nobody has; the declaration that holds.

        Args:
            start: where it begins if nobody has declared it yet.
            expiry_ms: after so much idle time it holds no data any more; 0: never; None: as its spaces say.
            positions: the first offset of single streams, if nobody has declared it yet.
            options: how it behaves, if nobody has declared it yet.
            epochs: where it begins if it reads whole epochs, and nobody has declared it yet; `positions` then
                has the ends of all streams at these boundaries.
            arrival: as of `join`.

        Raises:
            UnknownSpace: no space has topics that the filter matches; nothing was written.
            InvalidOption, InvalidInput: `start` or an option is not acceptable.
            HistoryTruncated: retention removed messages from after `start`.
            GroupConflict: it exists as ``$queue`` and is wanted as ``$shared``, or the other way round.
        """
        shared = SharedSubscription.of(subscription)
        check_start(start)
        checked = check_options(options or GroupOptions())
        await self.streams(shared)

        async def make() -> Declaration:
            streams = await self.streams(shared)
            return Declaration(
                subscription=str(shared),
                start=shown_start(start),
                expiry_ms=expiry_ms,
                positions=await positions_of(self._redis, streams, start) | dict(positions or {}),
                options=checked,
                epochs=epochs,
            )

        return await self._declare(shared, make, arrival)

    async def join(
        self,
        subscription: SharedSubscription,
        start: Start = "latest",
        *,
        options: GroupOptions | None = None,
        arrival: int = 0,
    ) -> Declaration:
        """What a subscriber does: declare a ``$shared`` if it is the first; a ``$queue`` must be declared.

        Args:
            start, options: as of `declare`.
            arrival: the number of a session that joined before: the next one is higher, also if the group was
                deleted since.

        Raises:
            UnknownGroup: a ``$queue`` that nobody declared.
            And as `declare`.
        """
        if subscription.kind == "$shared":
            return await self.declare(subscription, start, options=options, arrival=arrival)
        check_start(start)

        async def make() -> Declaration:
            raise UnknownGroup(
                f"queue '{subscription}' does not exist: declare it first, as by "
                f"'streamlease group declare '{subscription}' --from earliest'"
            )

        return await self._declare(subscription, make, arrival)

    async def _declare(
        self, subscription: SharedSubscription, make: Callable[[], Awaitable[Declaration]], arrival: int
    ) -> Declaration:
        """The declaration that holds: the one that is there, or what `make` gives.

        A group that is deleted in between is not declared again as it was: it is looked at anew.
        """
        group = subscription.id
        own = [keys.definition(group), keys.progress(group), keys.arrivals(group), keys.leader(group)]
        while True:
            (held,) = await ask(self._redis, [("GET", own[0])])
            declaration = await make() if held is None else self._parse(group, held)
            if declaration.subscription != str(subscription):
                raise GroupConflict(
                    f"'{subscription}' is declared as '{declaration.subscription}': subscribe to that name"
                )
            wanted = declaration.model_dump_json() if held is None else held
            if self._apart:  # before: a group that is not in the set holds no messages
                await self._enter(subscription)
            shared = [] if self._apart else [keys.GROUPS]
            if await _DECLARE.run(
                self._redis, [*own, *shared], [held or "", wanted, arrival, str(subscription)]
            ):
                break
        if self._apart:  # after: whoever deleted it meanwhile took it out
            await self._enter(subscription)
        return declaration

    async def _enter(self, subscription: SharedSubscription) -> None:
        await ask_always(self._redis, [("SADD", keys.GROUPS, str(subscription))])

    async def enlist(self, subscription: SharedSubscription) -> bool:
        """Put a declared subscription into the set of all, if it is missing there; whether it was.

        So it is after a crash of whoever declared or deleted it, on a cluster or by an earlier version:
        retention does not see a group that is not in the set, and takes what it needs.

        Raises:
            StoreUnavailable, StoreRefused, Indefinite: safe to repeat.
        """
        definition, name = keys.definition(subscription.id), str(subscription)
        if not self._apart:
            return bool(await _ENLIST.run(self._redis, [definition, keys.GROUPS], [name]))
        declared, there = await ask(self._redis, [("EXISTS", definition), ("SISMEMBER", keys.GROUPS, name)])
        if declared and not there:
            await self._enter(subscription)
        return bool(declared and not there)

    async def get(self, subscription: SharedSubscription | str) -> Declaration:
        """The declaration of the subscription.

        Raises:
            UnknownGroup: nobody declared it.
        """
        subscription = SharedSubscription.of(subscription)
        (held,) = await ask(self._redis, [("GET", keys.definition(subscription.id))])
        if held is None:
            raise UnknownGroup(
                f"group '{subscription}' does not exist: subscribe to it once, "
                f"or see 'streamlease group list' for those that do"
            )
        return self._parse(subscription.id, held)

    async def alter(
        self, subscription: SharedSubscription | str, change: Callable[[Declaration], Declaration]
    ) -> Declaration:
        """Declare the subscription otherwise; a leader that lives goes on as it was until the next term.

        Args:
            change: gives the new declaration; it may be called again if somebody else alters it too.

        Raises:
            UnknownGroup: nobody declared it.
            InvalidOption, InvalidTopic: an option is not acceptable; nothing was changed.
        """
        subscription = SharedSubscription.of(subscription)
        key = keys.definition(subscription.id)
        of_group = [key, keys.progress(subscription.id)]
        while True:
            before = await self.get(subscription)
            (held,) = await ask(self._redis, [("GET", key)])
            wanted = change(before)
            check_options(wanted.options)
            if held is None or self._parse(subscription.id, held) != before:
                continue
            if await _REDECLARE.run(self._redis, of_group, [held, wanted.model_dump_json()]):
                return wanted

    async def list(self) -> list[SharedSubscription]:
        """All declared subscriptions, sorted by name; what stands among them and is none is left out."""
        return (await self.look()).groups

    async def look(self) -> KnownGroups:
        """All declared subscriptions, and apart from them what stands in their set and is none."""
        (names,) = await ask(self._redis, [("SMEMBERS", keys.GROUPS)])
        groups: Subscriptions = []
        damaged: dict[str, str] = {}
        for name in sorted(names):
            try:
                groups.append(SharedSubscription.parse(name))
            except InvalidInput as error:
                damaged[name.decode("utf-8", "backslashreplace")] = str(error)
        return KnownGroups(groups, damaged)

    async def wishes(self, subscription: SharedSubscription) -> Wishes:
        """Who wanted the group so far; for `forget`, to be read before it is found that nobody does."""
        group = subscription.id
        joined, arrivals = await ask(
            self._redis, [("HGET", keys.progress(group), "@joined"), ("GET", keys.arrivals(group))]
        )
        return Wishes((joined or b"").decode(), (arrivals or b"").decode())

    async def forget(self, subscription: SharedSubscription | str, wishes: Wishes | None = None) -> None:
        """Remove all that is kept of the subscription.

        Args:
            wishes: as read before it was found that nobody consumes it: whoever declared it or came since
                then keeps it. None: remove it in any case; nobody may consume it any more.

        Raises:
            ActRefused: somebody wanted it since; nothing was removed.
        """
        subscription = SharedSubscription.of(subscription)
        group = subscription.id
        of_group = [
            keys.progress(group), keys.arrivals(group), keys.definition(group), keys.leader(group),
            keys.journal(group), keys.snapshot(group), keys.replayed(group),
            keys.readers(group), keys.late(group), keys.told(group), keys.leases(group),
        ]  # fmt: skip
        name = str(subscription)
        shared = [] if self._apart else [keys.GROUPS]
        joined, arrivals = wishes or ("", "")
        arguments: list[str | int] = [joined, arrivals, int(wishes is None), "" if self._apart else name]
        if not await _FORGET.run(self._redis, [*of_group, *shared], arguments):
            raise ActRefused(
                f"somebody subscribed to '{subscription}' in this moment, so it is not deleted: stop its "
                f"consumers first"
            )

        if self._apart:
            # Who declares it from now on enters it again, after this or seen by `enlist`.
            await ask(self._redis, [("SREM", keys.GROUPS, name)])
            await self.enlist(subscription)

    async def arrive(self, subscription: SharedSubscription) -> int:
        """A number that is higher than that of every session of the group before this one."""
        group = subscription.id
        return int(await _ARRIVE.run(self._redis, [keys.arrivals(group), keys.progress(group)]))

    async def starts(self, declaration: Declaration) -> dict[str, int]:
        """Each stream of the subscription, with the offset at which a group new to it begins."""
        return (await self.listing(declaration)).starts

    async def shape(self, subscription: SharedSubscription) -> Shape:
        """The generations of the subscription's spaces: while it is the same, no stream comes, goes or ends.

        Raises:
            UnknownSpace: no space has topics that the filter matches.
        """
        return shape_of(await self._spaces.for_filter(subscription.filter, partly=True))

    async def all_spaces(self) -> Known:
        """All spaces, as they are now: what the shapes of all subscriptions are made of."""
        return await self._spaces.look()

    async def listing(self, declaration: Declaration, known: Known | None = None) -> StreamListing:
        """The streams of the subscription as they are now, and their order.

        Args:
            known: all spaces, if who asks has just read them.

        Raises:
            UnknownSpace: no space has topics that the filter matches, and all definitions can be read.
        """
        known = known if known is not None else await self._spaces.look()
        if known.damaged:
            spaces = known.matching(declaration.shared.filter)
        else:
            spaces = known.for_filter(declaration.shared.filter)
        order = {stream: before for space in spaces for stream, before in space.predecessors().items()}
        states = await self._log.states(order)
        return listing_of(declaration.positions, spaces, order, states, frozenset(known.damaged))

    @staticmethod
    def _parse(group: str, data: bytes) -> Declaration:
        with parsing(f"the declaration of group {group}", keys.definition(group)):
            return Declaration.model_validate_json(data)
