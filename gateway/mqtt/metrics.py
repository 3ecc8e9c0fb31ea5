"""What the bridge of this process counts, for Prometheus."""

from __future__ import annotations

from prometheus_client import Counter, Gauge

RECEIVED = Counter("streamlease_mqtt_received", "Messages that came from the broker, again too.", ["qos"])
BROUGHT = Counter("streamlease_mqtt_brought", "Messages from the broker that became durable.")
AGAIN = Counter(
    "streamlease_mqtt_again",
    "Messages that the broker sent again: known to be there, or appended because that is not known.",
    ["known"],
)
OWN = Counter("streamlease_mqtt_own", "Messages left out because they had gone the other way.", ["way"])
DROPPED = Counter(
    "streamlease_mqtt_dropped", "Messages that no space can take, by the kind of error.", ["error"]
)
SESSIONS_LOST = Counter("streamlease_mqtt_sessions_lost", "How often the broker had forgotten the session.")
SENT = Counter("streamlease_mqtt_sent", "Messages that the broker acknowledged.")
REFUSED = Counter("streamlease_mqtt_refused", "Messages that the broker refused.")
IN_HAND = Gauge("streamlease_mqtt_in_hand", "Messages from the broker that are not durable yet.")
IN_HAND_BYTES = Gauge("streamlease_mqtt_in_hand_bytes", "Bytes of them.")
CONNECTED = Gauge("streamlease_mqtt_connected", "1 while the broker has taken the connection.")
CONNECTIONS = Counter("streamlease_mqtt_connections", "Connections that the broker took.")
