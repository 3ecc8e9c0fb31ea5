"""``streamlease gateway``: the settings of a gateway; the gateway itself is the room ``gateway``."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated

import typer

from streamlease.admin.common_options import RedisUrl, chosen_url
from streamlease.admin.log_format import LogFormat, LogFormatOption, set_up_logs
from streamlease.admin.output import announce
from streamlease.admin.web import listen
from streamlease.protocol.addresses import shown_address
from streamlease.protocol.errors import InvalidOption, Unsupported
from streamlease.protocol.quantities import parse_duration, parse_size


def gateway(
    redis: RedisUrl = None,
    host: Annotated[
        str, typer.Option(envvar="STREAMLEASE_GATEWAY_HOST", help="Address to listen on.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(envvar="STREAMLEASE_GATEWAY_PORT", help="Port to listen on; 0 picks a free one.")
    ] = 8640,
    tokens: Annotated[
        Path | None,
        typer.Option(
            envvar="STREAMLEASE_GATEWAY_TOKENS",
            help="File of tokens, and what each may do; it is read again when it changes. Without one, only "
            "programs of this machine are served, and may do everything.",
        ),
    ] = None,
    certificate: Annotated[
        Path | None,
        typer.Option(envvar="STREAMLEASE_GATEWAY_CERTIFICATE", help="PEM file: serve by TLS; with --key."),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(envvar="STREAMLEASE_GATEWAY_KEY", help="PEM file with the certificate's private key."),
    ] = None,
    max_body: Annotated[
        str, typer.Option(envvar="STREAMLEASE_GATEWAY_MAX_BODY", help="Longest body of a request.")
    ] = "16MiB",
    max_rate: Annotated[
        float,
        typer.Option(
            envvar="STREAMLEASE_GATEWAY_MAX_RATE",
            help="Most requests of a client (a token, or an address) in a second; 0: any number.",
        ),
    ] = 0.0,
    max_polls: Annotated[
        int,
        typer.Option(
            envvar="STREAMLEASE_GATEWAY_MAX_POLLS", help="Most open polls and event streams of all clients."
        ),
    ] = 20_000,
    max_client_polls: Annotated[
        int,
        typer.Option(envvar="STREAMLEASE_GATEWAY_MAX_CLIENT_POLLS", help="The same of one client."),
    ] = 20_000,
    allow_private_callbacks: Annotated[
        bool,
        typer.Option(
            "--allow-private-callbacks",
            envvar="STREAMLEASE_GATEWAY_ALLOW_PRIVATE_CALLBACKS",
            help="Deliver webhooks also to loopback, private and link-local addresses. All gateways of a "
            "Redis must say the same.",
        ),
    ] = False,
    suspend_callbacks_after: Annotated[
        str,
        typer.Option(
            envvar="STREAMLEASE_GATEWAY_SUSPEND_CALLBACKS_AFTER",
            help="How long a callback may fail until its webhook is suspended.",
        ),
    ] = "1d",
    max_members: Annotated[
        int,
        typer.Option(
            envvar="STREAMLEASE_GATEWAY_MAX_MEMBERS", help="Most members of groups that are served here."
        ),
    ] = 2_000,
    max_client_members: Annotated[
        int,
        typer.Option(envvar="STREAMLEASE_GATEWAY_MAX_CLIENT_MEMBERS", help="The same of one client."),
    ] = 2_000,
    max_uncommitted: Annotated[
        str,
        typer.Option(
            envvar="STREAMLEASE_GATEWAY_MAX_UNCOMMITTED",
            help="Most that a member of a group may have been handed without a commit.",
        ),
    ] = "16MiB",
    max_channels: Annotated[
        int,
        typer.Option(envvar="STREAMLEASE_GATEWAY_MAX_CHANNELS", help="Most channels of all clients."),
    ] = 10_000,
    max_client_channels: Annotated[
        int,
        typer.Option(
            envvar="STREAMLEASE_GATEWAY_MAX_CLIENT_CHANNELS",
            help="The same of one client (a token, or an address).",
        ),
    ] = 1_000,
    max_client_webhooks: Annotated[
        int,
        typer.Option(
            envvar="STREAMLEASE_GATEWAY_MAX_CLIENT_WEBHOOKS", help="Most webhooks that one client may have."
        ),
    ] = 10_000,
    max_channel_keys: Annotated[
        int,
        typer.Option(envvar="STREAMLEASE_GATEWAY_MAX_CHANNEL_KEYS", help="Most subscriptions of a channel."),
    ] = 20_000,
    max_channel_bytes: Annotated[
        str,
        typer.Option(
            envvar="STREAMLEASE_GATEWAY_MAX_CHANNEL_BYTES",
            help="Most that waits for the client of a channel, and is not acknowledged.",
        ),
    ] = "8MiB",
    idempotency_timeout: Annotated[
        str,
        typer.Option(
            envvar="STREAMLEASE_GATEWAY_IDEMPOTENCY_TIMEOUT",
            help="How long a request with an Idempotency-Key is tried. If its gateway died, another one does "
            "it after four times as long.",
        ),
    ] = "15s",
    log_format: LogFormatOption = LogFormat.TEXT,
) -> None:
    """Serve HTTP to programs of any language until SIGTERM or Ctrl-C: publish, read, groups, webhooks.

    Any number of gateways may run side by side behind a load balancer: they keep nothing.
    Probes: GET /healthz (the process lives) and GET /readyz (Redis answers); metrics: GET /metrics.
    """
    if not 0 <= port <= 65535:
        raise InvalidOption(f"--port is {port}: it must be from 0 to 65535")
    if (certificate is None) is not (key is None):
        raise InvalidOption("TLS needs a certificate and its key: give both --certificate and --key")
    if tokens is None and not is_loopback(host):
        raise InvalidOption(
            f"--host is {ascii(host)[:80]}, which others can reach: give --tokens FILE, or use 127.0.0.1"
        )
    try:
        from streamlease.channels.core.channel_limits import ChannelLimits
        from streamlease.gateway.core.rates import GatewayLimits
        from streamlease.gateway.http_server import run_quickly, serve_gateway
        from streamlease.gateway.token_file import TokenFile
        from streamlease.gateway.webhooks.core.webhook_standing import Patience
        from streamlease.gateway.webhooks.webhook_service import WebhookSettings
    except ModuleNotFoundError as error:
        raise Unsupported(
            f"the gateway needs the package {error.name}: run pip install 'streamlease[gateway]'"
        ) from None
    limits = GatewayLimits(
        parse_size("--max-body", max_body),
        max_rate,
        max_polls,
        max_client_polls,
        max_members,
        max_client_members,
        parse_size("--max-uncommitted", max_uncommitted),
        max_client_webhooks,
        parse_duration("--idempotency-timeout", idempotency_timeout) / 1000,
    )
    waiting = parse_size("--max-channel-bytes", max_channel_bytes)
    channels = ChannelLimits(max_channels, max_client_channels, max_channel_keys, waiting)
    patience = Patience(suspend_after_ms=parse_duration("--suspend-callbacks-after", suspend_callbacks_after))
    webhooks = WebhookSettings(allow_private=allow_private_callbacks, patience=patience)
    known = None if tokens is None else TokenFile(tokens)
    set_up_logs(log_format)
    url = chosen_url(redis)
    with listen(host, port, "--port") as listener:
        scheme = "http" if certificate is None else "https"

        def ready() -> None:
            announce(f"the gateway is at {scheme}://{shown_address(host, listener.getsockname()[1])}/")

        run_quickly(serve_gateway(url, listener, known, limits, certificate, key, ready, webhooks, channels))


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
