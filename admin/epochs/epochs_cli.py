"""``streamlease epochs show|abort|close``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from streamlease.admin.acting import Yes, confirm
from streamlease.admin.common_options import AsJson, RedisUrl
from streamlease.admin.completing import SpaceName
from streamlease.admin.doctor.findings import some
from streamlease.admin.facts.fact_tables import EPOCH_PUBLISHERS, frontier_text
from streamlease.admin.output import document, line
from streamlease.admin.running import with_client
from streamlease.admin.watching import Watch, view

if TYPE_CHECKING:
    from streamlease.admin.facts.epochs import SpaceEpochs
    from streamlease.agent.client import Client
    from streamlease.streams.spaces.spaces import Space

app = typer.Typer(help="Epochs: what is completed, and who holds what open.", no_args_is_help=True)


@app.command()
def show(name: SpaceName, watch: Watch = None, redis: RedisUrl = None, as_json: AsJson = False) -> None:
    """Show the frontiers of a space, its newest boundary, and what each publisher holds."""

    async def seen(client: Client) -> SpaceEpochs:
        from streamlease.admin.facts.epochs import SpaceEpochs

        return await SpaceEpochs.read(client.redis, await _space(client, name))

    view(redis, seen, draw, watch=watch, as_json=as_json)


def draw(seen: SpaceEpochs) -> None:
    """Its frontiers, and its publishers."""
    line(
        f"space {seen.space}: epochs of {seen.dimensions} dimension{'s' * (seen.dimensions != 1)}, "
        f"boundary {seen.boundary}"
    )
    lower, upper = (frontier_text(one) or "none" for one in (seen.lower, seen.upper))
    line(f"lower frontier {lower}; upper frontier {upper}")
    late = [one.name for one in seen.publishers if one.holds_back]
    if late and len(late) < len(seen.publishers) and seen.frontier_seconds is not None:
        line(f"for {seen.frontier_seconds:.0f} s it is held back by {some(late)}")
    if seen.behind:
        line("the newest boundary is behind that: its keeper is at it, or no leader host is there")
    if seen.lost:
        line(f"Redis lost {seen.lost} messages of epochs that the newest boundary completed")
    EPOCH_PUBLISHERS.table(seen.publishers)


@app.command()
def abort(
    name: SpaceName,
    publisher: Annotated[str, typer.Argument(metavar="PUBLISHER", help="As 'epochs show' names it.")],
    yes: Yes = False,
    redis: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Give a publisher up: what it sent and has not given up is dropped, and the others' epochs go on."""
    confirm(
        f"Give up publisher {publisher} of space {name}, with all of its open epochs?",
        f"publisher {ascii(publisher)[:80]} of space {ascii(name)[:80]} is given up with its open epochs",
        yes=yes,
        as_json=as_json,
    )
    with_client(redis, lambda client: give_up(client, name, publisher))
    if as_json:
        from streamlease.admin.answers import AbortedPublisher

        document(AbortedPublisher(space=name, publisher=publisher, aborted=True))
    else:
        line(f"publisher {publisher} of space {name} is given up; what it had not given up is dropped")


@app.command()
def close(name: SpaceName, redis: RedisUrl = None, as_json: AsJson = False) -> None:
    """Let nobody but the keeper write into the streams of a space that an older version made.

    In a space that is made now, that is so from the beginning. All leader hosts must run this version.
    """
    closed = with_client(redis, lambda client: _close(client, name))
    if as_json:
        from streamlease.admin.answers import ClosedStreams

        document(ClosedStreams(space=name, closed=closed))
    else:
        line(f"space {name}: {closed} streams were open to whoever appends, and are not any more")


async def _close(client: Client, name: str) -> int:
    from streamlease.streams.epochs.sealing import close_streams

    return len(await close_streams(client.redis, await _space(client, name)))


async def give_up(client: Client, name: str, publisher: str) -> None:
    """What a publisher sent and has not given up is dropped.

    Raises:
        UnknownSpace, InvalidInput: there is no such publisher now.
    """
    from streamlease.streams.epochs.writing import lose

    await lose(client.redis, name, publisher, await present(client, name, publisher), "operator")


async def present(client: Client, name: str, publisher: str) -> int:
    """The incarnation of a publisher that is there.

    Raises:
        UnknownSpace, InvalidInput: there is no such publisher now.
    """
    from streamlease.protocol.errors import InvalidInput
    from streamlease.protocol.nearest import nearest
    from streamlease.streams.epochs.stored import read_writers

    space = await _space(client, name)
    writers = await read_writers(client.redis, space.name)
    here = [one for one, writer in writers.items() if writer.is_here]
    if publisher not in here:
        gone = {"left": "it left in good order", "lost": "it was given up"}
        was = gone[writers[publisher].state] if publisher in writers else nearest(publisher, here)
        raise InvalidInput(
            f"space {name} has no publisher {ascii(publisher)[:80]} now; {was}; "
            f"see 'streamlease epochs show {name}'"
        )
    return writers[publisher].inc


async def _space(client: Client, name: str) -> Space:
    from streamlease.protocol.errors import InvalidOption

    space = await client.spaces.get(name)
    if not space.epochs:
        raise InvalidOption(
            f"space {name} has no epochs: it was made without --epochs; "
            f"make another space: streamlease space create NAME --topics ... --epochs 1"
        )
    return space
