"""What a broker refuses, as one line: what, with which value, and what to do."""

from __future__ import annotations

import ssl
from typing import Any

from streamlease.gateway.mqtt.bridge_settings import BridgeSettings
from streamlease.protocol.errors import StreamleaseError

TAKEN_OVER = 0x8E
PROTOCOL_ERROR = 0x82


class BrokerRefused(StreamleaseError):
    """The broker will not do what the bridge needs; trying again changes nothing."""


class BrokerUnavailable(StreamleaseError):
    """The broker does not answer, or ended the connection."""

    retriable = True


def refused_connection(settings: BridgeSettings, code: Any) -> StreamleaseError:
    """The error for a connection that was refused with that reason code."""
    broker = f"broker {settings.address}"
    match code.value:
        case 0x84:
            return refused_protocol(settings)
        case 0x85:
            return BrokerRefused(
                f"{broker} does not accept the client id {settings.client_id}: give another --client-id"
            )
        case 0x86 | 0x87 | 0x8C:
            who = f"user {ascii(settings.login)[:80]}" if settings.login is not None else "nobody's login"
            with_password = "with" if settings.password is not None else "without"
            return BrokerRefused(
                f"{broker} refuses {who} {with_password} a password ({code.getName()}): check --user, and "
                f"--password-file or STREAMLEASE_MQTT_PASSWORD"
            )
        case 0x8A:
            return BrokerRefused(f"{broker} has banned client {settings.client_id}: ask who runs the broker")
        case _:
            return BrokerUnavailable(f"{broker} refuses the connection now ({code.getName()})")


def refused_protocol(settings: BridgeSettings) -> BrokerRefused:
    """The error for a broker that does not know the version."""
    other = "3.1.1" if settings.protocol == "5" else "5"
    return BrokerRefused(
        f"broker {settings.address} does not speak MQTT {settings.protocol}: try --protocol {other}"
    )


def refused_filter(settings: BridgeSettings, filter: str, code: Any) -> BrokerRefused:
    """The error for a subscription that was refused."""
    match code.value:
        case 0x9E:
            remedy = "it has no shared subscriptions, so one bridge takes all: leave $share/GROUP/ out"
        case 0x8F | 0xA1 | 0xA2:
            remedy = "it does not take such filters: write another"
        case _:
            remedy = "give the user of the bridge the right to read it, or leave it out"
    return BrokerRefused(f"broker {settings.address} refuses --filter {filter} ({code.getName()}): {remedy}")


def lost_connection(settings: BridgeSettings, code: Any, *, greeted: bool) -> StreamleaseError:
    """The error for a connection that ended, before the broker took it or later."""
    if not greeted and settings.protocol == "3.1.1" and code.value == PROTOCOL_ERROR:
        return refused_protocol(settings)  # paho tells refusal code 1 of MQTT 3.1.1 as that only
    if code.value == TAKEN_OVER:
        return BrokerRefused(
            f"another client came to broker {settings.address} with the client id {settings.client_id}: "
            f"end one of the two, or give each its own --client-id"
        )
    if greeted:
        return BrokerUnavailable(f"broker {settings.address} ended the connection ({code.getName()})")
    if not settings.address.tls:
        hint = "if its port is for TLS, use mqtts://"
    elif settings.certificate is None:
        hint = "if it asks for a certificate of its clients, give --cert and --key"
    else:
        hint = "see whether it trusts who signed --cert"
    return BrokerUnavailable(
        f"broker {settings.address} ended the connection without an answer: see its log; {hint}"
    )


def unreachable(settings: BridgeSettings, error: OSError) -> StreamleaseError:
    """The error for a connection that did not come about."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return BrokerRefused(
            f"the certificate of broker {settings.address} is not accepted ({error.verify_message}): "
            f"name the authority that signed it with --ca, and the broker as the certificate does"
        )
    why = error.strerror or str(error) or type(error).__name__
    return BrokerUnavailable(f"broker {settings.address} cannot be reached ({' '.join(why.split())})")
