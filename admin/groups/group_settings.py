"""``streamlease group declare`` and ``alter``: the options of a group, set at first and changed later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from streamlease.admin.common_options import AsJson, RedisUrl, operator
from streamlease.admin.groups.group_altering import alter_group, changing
from streamlease.admin.groups.group_flags import (
    DeadLetterTopic,
    Expiry,
    MaxFailures,
    MaxRetryDelay,
    OnPoisonWord,
    RetryDelay,
    RevocationTimeout,
    Strategy,
    Sub,
    given,
)
from streamlease.admin.messages.tail import parse_start
from streamlease.admin.output import document, line, shown
from streamlease.admin.running import with_client
from streamlease.admin.spaces.retention_options import parse_expiry
from streamlease.protocol.errors import InvalidOption, UnknownGroup
from streamlease.protocol.topics import SharedSubscription

if TYPE_CHECKING:
    from streamlease.agent.client import Client
    from streamlease.registry.groups import Declaration


def declare(
    subscription: Sub,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="earliest|latest|TIME|OFFSET",
            help="Where the group starts: earliest, latest, an ISO-8601 time, or an offset in each stream.",
        ),
    ] = "latest",
    epochs: Annotated[
        str,
        typer.Option(
            metavar="atomic|off",
            help="How its consumers read: atomic, whole epochs, of spaces that have them; off, each stream "
            "as it is.",
        ),
    ] = "off",
    expiry: Expiry = None,
    strategy: Strategy = None,
    revocation_timeout: RevocationTimeout = None,
    on_poison: OnPoisonWord = None,
    max_failures: MaxFailures = None,
    retry_delay: RetryDelay = None,
    max_retry_delay: MaxRetryDelay = None,
    dead_letters: DeadLetterTopic = None,
    redis: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Declare a group. An existing group is left unchanged."""
    shared = SharedSubscription.parse(subscription)
    start_at = parse_start(start)
    if epochs not in ("atomic", "off"):
        raise InvalidOption(f"--epochs {ascii(epochs)[:80]} is unknown: use atomic or off")
    wanted = given(
        strategy, revocation_timeout, on_poison, max_failures, (retry_delay, max_retry_delay), dead_letters
    )
    expiry_ms = None if expiry is None else parse_expiry("--expiry", expiry)

    from streamlease.protocol.group_options import GroupOptions, check_options

    options = check_options(GroupOptions(**wanted))

    async def work(client: Client) -> tuple[bool, Declaration]:
        try:
            held = await client.groups.get(shared)
        except UnknownGroup:
            if epochs == "atomic":
                from streamlease.agent.epochs.group_opening import declare_epochs

                return True, await declare_epochs(
                    client.groups, client.redis, shared, start_at, expiry_ms=expiry_ms, options=options
                )
            return True, await client.groups.declare(shared, start_at, expiry_ms=expiry_ms, options=options)
        held.check_epochs(whole=epochs == "atomic")
        if held.subscription != str(shared):
            await client.groups.declare(shared)  # says what is in the way
        return False, held

    created, declaration = with_client(redis, work)
    if as_json:
        from streamlease.admin.answers import Declared

        document(Declared(subscription=declaration.subscription, start=declaration.start, created=created))
    else:
        was = "is declared" if created else "exists already"
        line(f"{declaration.subscription} {was} and begins at {declaration.start}")


def alter(
    subscription: Sub,
    expiry: Expiry = None,
    strategy: Strategy = None,
    revocation_timeout: RevocationTimeout = None,
    on_poison: OnPoisonWord = None,
    max_failures: MaxFailures = None,
    retry_delay: RetryDelay = None,
    max_retry_delay: MaxRetryDelay = None,
    dead_letters: DeadLetterTopic = None,
    redis: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Change the options of a group while it is being consumed.

    Options you leave out keep their value. Safe to repeat.
    """
    shared = SharedSubscription.parse(subscription)
    options = given(
        strategy, revocation_timeout, on_poison, max_failures, (retry_delay, max_retry_delay), dead_letters
    )
    if not options and expiry is None:
        raise InvalidOption("nothing to alter: give at least one option, such as --max-failures 3")
    change = changing(options, None if expiry is None else parse_expiry("--expiry", expiry))

    async def work(client: Client) -> Declaration:
        return await alter_group(client, shared, change, operator())

    after = with_client(redis, work)
    held = after.options.model_dump() | {"expiry_ms": after.expiry_ms}
    if as_json:
        from streamlease.admin.answers import Altered, Options

        document(Altered(subscription=str(shared), options=Options(**held)))
    else:
        line(f"{shared}: " + ", ".join(f"{name} {shown(value)}" for name, value in held.items()))
