"""``streamlease bridge``: the settings of bridges; the bridge to MQTT itself is ``gateway.mqtt``."""

from __future__ import annotations

import asyncio
import os
import socket
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from streamlease.admin.common_options import RedisUrl, chosen_url
from streamlease.admin.log_format import LogFormat, LogFormatOption, set_up_logs
from streamlease.admin.output import note
from streamlease.protocol.addresses import shown_address
from streamlease.protocol.errors import InvalidOption, Unsupported
from streamlease.protocol.topics import SharedSubscription

PASSWORD_VARIABLE = "STREAMLEASE_MQTT_PASSWORD"
MOST_NAME = 63

app = typer.Typer(no_args_is_help=True, help="Bridges between other systems and spaces.")


class MqttVersion(StrEnum):
    """Versions of MQTT."""

    FIVE = "5"
    THREE = "3.1.1"


class UnfitPolicy(StrEnum):
    """What becomes of a message that no space can take."""

    STOP = "stop"
    DROP = "drop"


@app.command("mqtt")
def mqtt(
    url: Annotated[
        str, typer.Argument(help="The broker: mqtt://[USER@]HOST[:1883], or mqtts://HOST[:8883] with TLS.")
    ],
    filters: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            metavar="FILTER",
            help="Topics of the broker to bring into the spaces that have them, such as 'sensors/#', or "
            "'$share/GROUP/sensors/#' for several bridges side by side. May be repeated.",
        ),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="SUBSCRIPTION", help="Publish the messages of '$shared/GROUP/FILTER' to the broker."
        ),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="With --out: where a new group begins: earliest, latest (the default), an offset in each "
            "stream, or an ISO-8601 time.",
        ),
    ] = None,
    client_id: Annotated[
        str,
        typer.Option(
            envvar="STREAMLEASE_MQTT_CLIENT_ID",
            help="Name of the session at the broker, the same at each start. Two bridges must not have one. "
            "Default: streamlease-HOST.",
        ),
    ] = "",
    protocol: Annotated[MqttVersion, typer.Option(help="Version of MQTT.")] = MqttVersion.FIVE,
    user: Annotated[
        str | None, typer.Option(envvar="STREAMLEASE_MQTT_USER", help="User at the broker.")
    ] = None,
    password_file: Annotated[
        Path | None,
        typer.Option(help=f"File with the password of --user. Or set {PASSWORD_VARIABLE}."),
    ] = None,
    ca: Annotated[
        str | None, typer.Option(metavar="FILE", help="With mqtts: who may sign the broker's certificate.")
    ] = None,
    cert: Annotated[
        str | None, typer.Option(metavar="FILE", help="With mqtts: the bridge's own certificate.")
    ] = None,
    key: Annotated[str | None, typer.Option(metavar="FILE", help="With mqtts: its key.")] = None,
    window: Annotated[
        int,
        typer.Option(
            help="How many messages may be under way in each direction (receive maximum in MQTT 5)."
        ),
    ] = 1000,
    unfit: Annotated[
        UnfitPolicy,
        typer.Option(
            help="What becomes of a message that no space can take: the bridge stops, and the broker keeps "
            "it; or it is dropped and counted."
        ),
    ] = UnfitPolicy.STOP,
    redis: RedisUrl = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            envvar="STREAMLEASE_METRICS_PORT",
            help="Serve Prometheus metrics on this port, and the probes /healthz and /readyz; 0 picks a free "
            "one.",
        ),
    ] = None,
    metrics_host: Annotated[
        str, typer.Option(envvar="STREAMLEASE_METRICS_HOST", help="Address on which --metrics-port serves.")
    ] = "127.0.0.1",
    log_format: LogFormatOption = LogFormat.TEXT,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --log-format json.")] = False,
) -> None:
    """Bring messages of an MQTT broker into spaces, and those of a group to the broker, until Ctrl-C.

    A message is acknowledged to the broker once it is durable, and committed in the group once the broker has
    acknowledged it.
    """
    try:
        from streamlease.gateway.mqtt.bridge import run_bridge
        from streamlease.gateway.mqtt.bridge_probes import BridgeProbes
        from streamlease.gateway.mqtt.bridge_settings import BridgeSettings, parse_address
    except ModuleNotFoundError as error:
        raise Unsupported(
            f"the bridge needs the package {error.name}: run pip install 'streamlease[mqtt]'"
        ) from None
    from streamlease.admin.messages.tail import parse_start

    if start is not None and out is None:
        raise InvalidOption(f"--from {start} is for the group of --out: give --out, or leave it out")
    settings = BridgeSettings(
        parse_address(url),
        tuple(filters or ()),
        None if out is None else SharedSubscription.parse(out),
        client_id or f"streamlease-{_host()}"[:MOST_NAME],
        protocol=protocol.value,
        user=user,
        password=_password(password_file),
        ca=ca,
        certificate=cert,
        key=key,
        window=window,
        unfit=unfit.value,
    )
    begin = parse_start("latest" if start is None else start)
    set_up_logs(LogFormat.JSON if as_json else log_format)
    redis_url = chosen_url(redis)

    def told(port: int) -> None:
        note(f"note: metrics are at http://{shown_address(metrics_host, port)}/metrics")

    async def work() -> None:
        async with BridgeProbes.listening(metrics_host, metrics_port, told) as probes:
            await run_bridge(redis_url, settings, begin, probes)

    asyncio.run(work())


def _host() -> str:
    return "".join(char if char.isascii() and char.isalnum() else "-" for char in socket.gethostname())


def _password(file: Path | None) -> str | None:
    """Raises: InvalidOption: the file cannot be read, or is empty."""
    if file is None:
        return os.environ.get(PASSWORD_VARIABLE)
    try:
        password = file.read_text().strip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidOption(f"--password-file is {file}, which cannot be read: {error}") from None
    if not password:
        raise InvalidOption(f"--password-file is {file}, which is empty: write the password into it")
    return password
