"""Spaces with epochs whose lower frontier stands still while others wait: who holds it, and what to do.

And those whose streams are open to programs that know no epochs, because an older version made them.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from streamlease.admin.doctor.findings import Finding, Level, some
from streamlease.admin.facts.fact_tables import frontier_text
from streamlease.admin.running import for_each
from streamlease.protocol.plurals import counted

if TYPE_CHECKING:
    from streamlease.admin.facts.epochs import EpochPublisherRow, SpaceEpochs
    from streamlease.agent.client import Client
    from streamlease.streams.spaces.spaces import Space


KEEPER_SECONDS = 1.0
"""Within that time a keeper that works records what is due."""


async def epochs(client: Client, stuck_after: float) -> Finding:
    """The spaces whose lower frontier has not moved for longer than `stuck_after` seconds, and should have.

    Raises:
        StoreUnavailable, StoreRefused.
    """
    from streamlease.admin.facts.epochs import SpaceEpochs
    from streamlease.streams.epochs.sealing import open_streams
    from streamlease.streams.redis.damaged import attempt

    async def seen_of(space: Space) -> SpaceEpochs | None:
        return (await attempt(SpaceEpochs.read(client.redis, space)))[
            0
        ]  # another check names what is damaged

    spaces = [one for one in (await client.spaces.look()).listed if one.epochs]
    if not spaces:
        return Finding("epochs", Level.OK, "no space has any")
    seen = dict(zip(spaces, await for_each(spaces, seen_of), strict=True))
    if behind := [space for space, one in seen.items() if one is not None and one.behind]:
        await asyncio.sleep(KEEPER_SECONDS)
        again = dict(zip(behind, await for_each(behind, seen_of), strict=True))
        for space, one in again.items():
            before = seen[space]
            kept = one is not None and before is not None and one.boundary > before.boundary
            seen[space] = one.model_copy(update={"behind": False}) if one is not None and kept else one
    found = [
        (f"space {told.space}: {told.why}", told.remedy)
        for space, one in seen.items()
        if one is not None and (told := held_back(one, stuck_after, space.epochs_timeout_ms / 1000))
    ]
    for space in spaces:
        if not space.ended and (count := len(await open_streams(client.redis, space))):
            found.append((
                f"space {space.name}: an older version made it, and {count} of its streams "
                f"{'takes' if count == 1 else 'take'} messages "
                f"from programs that know no epochs",
                f"once all leader hosts run this version: streamlease epochs close {space.name}",
            ))  # fmt: skip
    if not found:
        read = sum(one is not None for one in seen.values())
        unread = len(spaces) - read
        says = [f"nobody in {counted(read, 'space')} waits for longer than {stuck_after:g} s for another"]
        if unread:
            says = [*(says if read else []), f"those of {counted(unread, 'space')} cannot be read"]
        return Finding("epochs", Level.OK, "; ".join(says))
    texts, remedies = zip(*found, strict=True)
    return Finding("epochs", Level.WARN, some(texts, "; "), some(dict.fromkeys(remedies), "; "))


class HeldEpochs(NamedTuple):
    """A space whose epochs do not complete."""

    space: str
    why: str
    remedy: str
    publisher: str | None
    """Who holds them back; None: there is no keeper."""


def held_back(seen: SpaceEpochs, stuck_after: float, timeout: float) -> HeldEpochs | None:
    """What holds the epochs of a space up, and the remedy; None: nothing that anybody waits for. Pure.

    A publisher that is alone and takes its time keeps nobody waiting but its own readers: that is no fault.
    One that others have overtaken is named, and one that shows no sign of life.

    Args:
        timeout: after so many seconds without a sign of life a publisher is lost.
    """
    if seen.behind:
        return HeldEpochs(
            seen.space,
            "what its publishers gave up is not completed, for it has no keeper",
            "run a leader host: streamlease serve; if one runs, its log says why",
            None,
        )
    if seen.frontier_seconds is None or seen.frontier_seconds <= stuck_after:
        return None
    late = [one for one in seen.publishers if one.holds_back]
    waiting = len(seen.publishers) - len(late)
    silent = [one for one in late if (one.silent_seconds or 0.0) > timeout]
    if not waiting and not silent:
        return None
    named = late if waiting else silent
    shown = some(f"{one.name}{_where(one, timeout)}" for one in named)
    wait = f", and {counted(waiting, 'publisher waits', 'publishers wait')} for that" if waiting else ""
    return HeldEpochs(
        seen.space,
        f"the frontier has stood at {frontier_text(seen.lower)} for {seen.frontier_seconds:.0f} s, "
        f"held by {shown}{wait}",
        f"let it advance or end, or give it up: streamlease epochs abort {seen.space} {named[0].name}",
        named[0].name,
    )


def _where(publisher: EpochPublisherRow, timeout: float) -> str:
    """Where a publisher is, as far as that is known."""
    facts = [publisher.host] if publisher.host else []
    if publisher.silent_seconds is not None and publisher.silent_seconds > timeout:
        facts.append(f"not heard of for {publisher.silent_seconds:.0f} s")
    return f" ({', '.join(facts)})" if facts else ""
