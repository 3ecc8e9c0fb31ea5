"""Headers of messages, and what MQTT has in their place: user properties, and some properties of its own.

=========================== ==========================================================================
header                      what it is at the broker
=========================== ==========================================================================
``mqtt-broker``             ``HOST:PORT`` of the broker from which the message came; does not go out
``mqtt-retained``           ``true`` for a message that the broker had kept; does not go out
``mqtt-qos``                ``0`` where the message came at QoS 0; does not go out
``mqtt-content-type``       content type (MQTT 5)
``mqtt-response-topic``     response topic (MQTT 5)
``mqtt-correlation-data``   correlation data (MQTT 5)
any other                   user property of the same name (MQTT 5); a value that is no UTF-8 stays here
=========================== ==========================================================================

A message that goes out carries the user property ``streamlease-from``, with a name for all that is in its
Redis, and, if it has a key that is UTF-8, ``streamlease-key``.
"""

from __future__ import annotations

from typing import Any

from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from streamlease.streams.entries.delivered import Message
from streamlease.streams.entries.entries import Headers

BROKER, RETAINED, QOS = "mqtt-broker", "mqtt-retained", "mqtt-qos"
FROM, KEY = "streamlease-from", "streamlease-key"
STAYS = {BROKER, RETAINED, QOS}
OWN_PROPERTIES = {
    "mqtt-content-type": "ContentType",
    "mqtt-response-topic": "ResponseTopic",
    "mqtt-correlation-data": "CorrelationData",
}
MOST_BYTES = 65_535
"""Of a string in MQTT."""


def user_properties(properties: Any) -> list[tuple[str, str]]:
    """The user properties of a message that came."""
    return list(getattr(properties, "UserProperty", ()))


def headers_of(properties: Any, broker: str, *, retained: bool, qos: int) -> Headers:
    """The headers of a message that came."""
    found: list[tuple[str, bytes]] = [(BROKER, broker.encode())]
    if retained:
        found.append((RETAINED, b"true"))
    if qos == 0:
        found.append((QOS, b"0"))
    if properties is not None:
        for header, name in OWN_PROPERTIES.items():
            value = getattr(properties, name, None)
            if value is not None:
                found.append((header, value.encode() if isinstance(value, str) else bytes(value)))
        found += ((name, value.encode()) for name, value in user_properties(properties))
    return tuple(found)


def properties_of(message: Message, installation: str) -> Properties:
    """What a message that goes out carries."""
    properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    pairs = [(FROM, installation)]
    if message.values is not None:
        properties.ContentType = "application/json"
    if message.key is not None and (key := _text(message.key)) is not None:
        pairs.append((KEY, key))
    for header, value in message.headers:
        text = _text(value)
        name = OWN_PROPERTIES.get(header)
        if name == "CorrelationData" and len(value) <= MOST_BYTES:
            properties.CorrelationData = value
        elif text is None or header in STAYS or len(header.encode()) > MOST_BYTES:
            continue
        elif name is None:
            pairs.append((header, text))
        elif name == "ContentType" or not set(text) & set("+#"):
            setattr(properties, name, text)
    properties.UserProperty = pairs
    return properties


def _text(value: bytes) -> str | None:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text or len(value) > MOST_BYTES else text
