"""What a bridge is measured against: paho alone, taking or publishing messages of QoS 1, as a process.

``python -m bench.mqtt_plain take|send PORT MESSAGES WINDOW`` says ``ready`` once it is connected, and
``done`` once the last message is acknowledged.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

PAYLOAD = b"x" * 100


def main() -> None:
    """As the module says."""
    what, port, messages, window = sys.argv[1], *map(int, sys.argv[2:5])
    ready, done = threading.Event(), threading.Event()
    client = paho.Client(CallbackAPIVersion.VERSION2, client_id="plain", protocol=MQTTProtocolVersion.MQTTv5)
    client.max_inflight_messages_set(window)
    client.max_queued_messages_set(0)
    count = 0

    def counted(*_: Any) -> None:
        nonlocal count
        count += 1
        if count == messages:
            done.set()

    client.on_connect = lambda *_: ready.set()
    properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    properties.ReceiveMaximum = window
    client.connect("127.0.0.1", port, properties=properties)
    client.loop_start()
    ready.wait()
    if what == "take":
        subscribed = threading.Event()
        client.on_message = counted
        client.on_subscribe = lambda *_: subscribed.set()
        client.subscribe("bench/#", 1)
        subscribed.wait()
        _say("ready")
    else:
        client.on_publish = counted
        _say("ready")
        sys.stdin.readline()
        for number in range(messages):
            client.publish(f"bench/{number % 100}", PAYLOAD, qos=1)
    done.wait()
    _say("done")
    sys.stdin.readline()


def _say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
