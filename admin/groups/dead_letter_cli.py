"""``streamlease group dead-letters list|replay|retry|put``: messages that a group could not process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from streamlease.admin.acting import DryRun, declared
from streamlease.admin.common_options import AsJson, RedisUrl, operator
from streamlease.admin.groups.group_acts import StreamName, show, simple_act
from streamlease.admin.groups.group_flags import Sub
from streamlease.admin.output import document, line, printable, table
from streamlease.admin.running import with_client
from streamlease.admin.watching import Watch, view
from streamlease.protocol.errors import InvalidOption
from streamlease.protocol.topics import SharedSubscription

if TYPE_CHECKING:
    from streamlease.admin.answers import DeadLetter as Shown
    from streamlease.admin.answers import DeadLetters, ReplayedLetters
    from streamlease.agent.client import Client
    from streamlease.registry.dead_letters import DeadLetter

app = typer.Typer(
    help="Messages that failed too often, and streams stopped at such a message.", no_args_is_help=True
)


@app.command("list")
def list_letters(
    subscription: Sub, watch: Watch = None, redis: RedisUrl = None, as_json: AsJson = False
) -> None:
    """List the dead letters of a group and why they failed."""
    shared = SharedSubscription.parse(subscription)

    async def look(client: Client) -> DeadLetters:
        from streamlease.admin.answers import DeadLetters

        letters = [_shown(letter) for letter in await _letters(client, shared)]
        return DeadLetters(subscription=str(shared), dead_letters=letters)

    view(redis, look, _draw, as_json=as_json, watch=watch)


def _draw(seen: DeadLetters) -> None:
    rows = [
        (one.place, one.topic, f"{one.stream}@{one.offset}", one.failures, one.cause,
         None if one.replayed is None else one.replayed.at)
        for one in seen.dead_letters
    ]  # fmt: skip
    titles = ("DEAD LETTER", "TOPIC", "ORIGINAL", "FAILURES", "CAUSE", "REPLAYED")
    table(titles, rows, "it has no dead letters")


@app.command()
def replay(
    subscription: Sub,
    places: Annotated[
        list[str] | None,
        typer.Argument(metavar="STREAM@OFFSET...", help="Dead letters, named as 'list' shows them."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All that have not been replayed yet.")] = False,
    dry_run: DryRun = False,
    redis: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Publish the original messages to their topics again, for all groups.

    Repeating the command publishes none of them twice.
    """
    shared = SharedSubscription.parse(subscription)
    if bool(places) == everything:
        raise InvalidOption("it is not clear what to replay: name dead letters, or give --all")

    async def work(client: Client) -> ReplayedLetters:
        from streamlease.admin.answers import Replayed, ReplayedLetters
        from streamlease.registry.dead_letters import DeadLetters

        kept = DeadLetters(client.redis)
        letters = await _letters(client, shared)
        done = []
        for letter in _chosen(letters, places):
            shown = _shown(letter)
            if letter.replayed is None and not dry_run:
                stream, offset = await kept.replay(shared, letter, operator())
                mark = Replayed(by=operator(), stream=str(stream), offset=offset)
                shown = shown.model_copy(update={"replayed": mark})
            done.append(shown)
        if not dry_run:
            await kept.forget_lost(shared, letters)
        return ReplayedLetters(subscription=str(shared), dry_run=dry_run, dead_letters=done)

    done = with_client(redis, work)
    if as_json:
        document(done)
        return
    line("would be replayed, nothing was done:" if dry_run else "replayed:")
    rows = [
        (one.place, one.topic,
         None if one.replayed is None else f"{one.replayed.stream}@{one.replayed.offset}")
        for one in done.dead_letters
    ]  # fmt: skip
    table(("DEAD LETTER", "TOPIC", "NOW AT"), rows, "nothing: there is no dead letter to replay")


@app.command()
def retry(
    subscription: Sub,
    stream: StreamName,
    dry_run: DryRun = False,
    redis: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Retry the message that stopped a stream, and forget its earlier failures."""
    from streamlease.admin.answers import Unstopped

    outcome = simple_act(Unstopped, subscription, "retry", redis, dry_run=dry_run, stream=stream)
    show(outcome, f"{stream} goes on at offset {outcome.offset}", as_json=as_json)


@app.command()
def put(
    subscription: Sub,
    stream: StreamName,
    dry_run: DryRun = False,
    redis: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Move the message that stopped a stream to the dead letters, and continue after it."""
    from streamlease.admin.answers import Unstopped

    outcome = simple_act(Unstopped, subscription, "dead_letter", redis, dry_run=dry_run, stream=stream)
    text = f"{stream} goes on behind offset {outcome.offset}, which becomes a dead letter"
    show(outcome, text, as_json=as_json)


async def _letters(client: Client, shared: SharedSubscription) -> list[DeadLetter]:
    from streamlease.registry.dead_letters import DeadLetters

    declaration = await declared(client, shared)
    return await DeadLetters(client.redis).of(shared, declaration.options)


def _chosen(letters: list[DeadLetter], places: list[str] | None) -> list[DeadLetter]:
    if not places:
        return [letter for letter in letters if letter.replayed is None]
    known = {letter.place: letter for letter in letters}
    for place in places:
        if place not in known:
            raise InvalidOption(
                f"{ascii(place)[:80]} is no dead letter of the group: "
                f"see 'streamlease group dead-letters list'"
            )
    return [known[place] for place in dict.fromkeys(places)]


def _shown(letter: DeadLetter) -> Shown:
    from streamlease.admin import answers
    from streamlease.protocol.ids import StreamId
    from streamlease.streams.log.keys import stream_log
    from streamlease.streams.redis.damaged import parsing

    facts, message, replayed = letter.facts, letter.message, letter.replayed
    with parsing(f"dead letter {letter.place}", stream_log(StreamId.parse(message.stream))):
        return answers.DeadLetter(
            place=letter.place,
            topic=facts.get("topic"),
            stream=facts.get("stream"),
            offset=int(facts.get("offset", "-1")),
            lease_epoch=int(facts.get("lease-epoch", "0")),
            failures=int(facts.get("failures", "0")),
            cause=printable(facts.get("cause", "")),
            borrower=facts.get("borrower"),
            bytes=len(message.payload),
            timestamp=message.append_timestamp.isoformat(),
            replayed=None if replayed is None else answers.Replayed(**replayed),
        )
