"""Alerts of bridges to MQTT: topics without a space, Redis that stands, a broker that dies and forgets."""

from __future__ import annotations

from pathlib import Path

from tests.admin.command import Command
from tests.alerts.prometheus import Prometheus
from tests.conftest import MakeServer
from tests.mqtt.bridges import Bridges
from tests.mqtt.conftest import MakeBroker, make_broker

__all__ = ["make_broker"]


def test_alerts_of_bridges(
    make_redis_server: MakeServer, make_broker: MakeBroker, prometheus: Prometheus, tmp_path: Path
) -> None:
    server, broker = make_redis_server(), make_broker()
    Command(tmp_path, server.url).ok("space", "create", "s", "--topics", "s/known/#")
    bridges = Bridges(tmp_path, server.url)
    try:
        bridge = bridges.start(broker.url, "--filter", "s/#", "--client-id", "b", "--unfit", "drop")
        prometheus.watch(bridge=int(bridge.metrics_url.rpartition(":")[2].partition("/")[0]))
        with broker.client() as client:
            client.publish("s/unknown", "x")
            prometheus.until_fires("StreamleaseMqttDropped", pod="bridge")
            server.pause()
            client.publish("s/known/a", "x")
            prometheus.until_fires("StreamleaseMqttStuck", pod="bridge")
            server.resume()
        broker.kill()
        prometheus.until_fires("StreamleaseMqttDisconnected", pod="bridge")
        broker.start()
        prometheus.until_fires("StreamleaseMqttSessionLost", pod="bridge")
    finally:
        bridges.end()
