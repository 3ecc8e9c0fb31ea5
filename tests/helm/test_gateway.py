"""Gateways and bridges in the chart: what belongs together does, contradictions are refused, commands run."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import shutil
import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import trustme

from streamlease.admin.gateway import gateway_cli
from tests.admin.command import Command, until
from tests.helm.charts import (
    Document,
    Rendered,
    component_of,
    environment,
    helm,
    render,
    value_sets,
    with_redis,
)
from tests.helm.test_entry_command import free_port
from tests.helm.test_operated import end, selects
from tests.mqtt.refusing_broker import RefusingBroker

pytestmark = pytest.mark.helm

VALUES, SMALL = value_sets()["gateway"], value_sets()["bridge"]
TOKENS = {"name": "streamlease-tokens", "key": "tokens.json"}
GATEWAY = {"enabled": True, "tokensSecret": TOKENS}
BRIDGE = {"enabled": True, "url": "mqtt://broker", "filters": ["a/#"]}
PARTS = ("gateway", "mqtt-bridge")


@pytest.fixture(params=["gateway", "bridge"])
def rendered(request: pytest.FixtureRequest) -> Rendered:
    return render(value_sets()[request.param])


def container(rendered: Rendered, part: str) -> dict[str, Any]:
    (found,) = rendered.pods()[part]["spec"]["containers"]
    return dict(found)


def variables(rendered: Rendered, part: str) -> dict[str, Any]:
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in container(rendered, part)["env"]}


def policy(rendered: Rendered, part: str) -> Document:
    spec: Document = rendered.the("NetworkPolicy", part)["spec"]
    return spec


def test_every_object_of_a_part_finds_its_own_pods_and_no_others(rendered: Rendered) -> None:
    pods = rendered.pods()
    for part in PARTS:
        selectors = [rendered.the("Service", part)["spec"]["selector"], policy(rendered, part)["podSelector"]]
        selectors += [
            one["spec"]["selector"]
            for one in rendered.documents
            if component_of(one) == part
            and one["kind"] in ("Deployment", "StatefulSet", "PodDisruptionBudget", "PodMonitor")
        ]
        assert len(selectors) >= 3
        for selector in selectors:
            found = selector.get("matchLabels", selector)
            assert [name for name, pod in pods.items() if selects(found, pod)] == [part]


def test_probes_and_services_lead_to_the_port_that_is_listened_on(rendered: Rendered) -> None:
    for part, variable in (
        ("gateway", "STREAMLEASE_GATEWAY_PORT"),
        ("mqtt-bridge", "STREAMLEASE_METRICS_PORT"),
    ):
        own = container(rendered, part)
        (port,) = own["ports"]
        assert variables(rendered, part)[variable] == str(port["containerPort"])
        asked = [own[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")]
        assert [one["path"] for one in asked] == ["/healthz", "/healthz", "/readyz"]
        assert {one["port"] for one in asked} == {"http"}
        assert rendered.the("Service", part)["spec"]["ports"][0]["targetPort"] == "http"


def limits_of_the_command() -> dict[str, str]:
    """The environment variable of each limit, and what the command takes without it."""
    found = {}
    hints = get_type_hints(gateway_cli.gateway, include_extras=True)
    for name, parameter in inspect.signature(gateway_cli.gateway).parameters.items():
        if name.startswith("max_"):
            _, option = get_args(hints[name])
            found[option.envvar] = str(parameter.default)
    return found


def test_every_limit_of_the_command_is_a_value_with_the_same_default() -> None:
    known = limits_of_the_command()
    assert len(known) >= 12
    given = variables(render({**with_redis(), "gateway": GATEWAY}), "gateway")
    shown = {name: value for name, value in given.items() if "_MAX_" in name}
    assert shown.keys() == known.keys()
    assert {name: value for name, value in shown.items() if known[name] not in (value, f"{value}.0")} == {}
    few = {"maxClientChannels": 7, "maxClientWebhooks": 8, "maxChannelBytes": "1MiB"}
    given = variables(render({**with_redis(), "gateway": {**GATEWAY, **few}}), "gateway")
    names = ("MAX_CLIENT_CHANNELS", "MAX_CLIENT_WEBHOOKS", "MAX_CHANNEL_BYTES")
    assert [given[f"STREAMLEASE_GATEWAY_{name}"] for name in names] == ["7", "8", "1MiB"]


def test_tls_is_asked_for_where_it_is_spoken() -> None:
    for values, scheme in ((VALUES, "https"), (SMALL, "http")):
        rendered = render(values)
        own = container(rendered, "gateway")
        assert {
            own[f"{kind}Probe"]["httpGet"]["scheme"] for kind in ("startup", "liveness", "readiness")
        } == {scheme.upper()}
        assert own["volumeMounts"][1] == {"name": "tokens", "mountPath": "/tokens", "readOnly": True}
        given = variables(rendered, "gateway")
        assert ("STREAMLEASE_GATEWAY_CERTIFICATE" in given) is (scheme == "https")
        command = container(rendered, "gateway-test")["command"]
        assert command[-1].startswith(f"{scheme}://demo-streamlease-gateway:")
    monitors = {component_of(one): one["spec"] for one in render(VALUES).of("PodMonitor")}
    assert monitors["gateway"]["podMetricsEndpoints"][0]["scheme"] == "https"
    assert "scheme" not in monitors["mqtt-bridge"]["podMetricsEndpoints"][0]


def test_each_is_a_client_of_redis() -> None:
    rendered = render(VALUES)
    for part in PARTS:
        found = variables(rendered, part)["STREAMLEASE_REDIS_URL"]["secretKeyRef"]
        assert found == {"name": "streamlease-redis", "key": "client-url"}


def test_the_ingress_leads_to_what_wants_a_token_and_to_nothing_else() -> None:
    rendered = render(VALUES)
    ingress = rendered.the("Ingress", "gateway")["spec"]
    assert ingress["ingressClassName"] == "nginx"
    hosts = VALUES["gateway"]["ingress"]["hosts"]
    assert ingress["tls"] == [{"secretName": "streams-tls", "hosts": hosts}]
    assert [rule["host"] for rule in ingress["rules"]] == hosts
    service = rendered.the("Service", "gateway")
    for rule in ingress["rules"]:
        paths = {one["path"]: one for one in rule["http"]["paths"]}
        assert {path: one["pathType"] for path, one in paths.items()} == {
            "/v1": "Prefix",
            "/openapi.json": "Exact",
        }
        for one in paths.values():
            assert one["backend"]["service"]["name"] == service["metadata"]["name"]
            assert one["backend"]["service"]["port"]["name"] == service["spec"]["ports"][0]["name"]
    assert render(SMALL).of("Ingress") == []


def test_the_autoscaler_scales_the_gateways_and_nobody_else_says_how_many() -> None:
    rendered = render(VALUES)
    scaler = rendered.the("HorizontalPodAutoscaler", "gateway")["spec"]
    gateways = rendered.the("Deployment", "gateway")
    assert scaler["scaleTargetRef"]["name"] == gateways["metadata"]["name"]
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (2, 20)
    assert "replicas" not in gateways["spec"]
    assert render(SMALL).the("Deployment", "gateway")["spec"]["replicas"] == 2


def test_who_may_ask_and_what_may_be_asked() -> None:
    rendered = render(VALUES)
    own = VALUES["networkPolicy"]
    gateway, bridge = policy(rendered, "gateway"), policy(rendered, "mqtt-bridge")
    *others, itself, test = gateway["ingress"][0]["from"]
    assert itself["podSelector"] == gateway["podSelector"]
    assert others == [*own["gatewayFrom"], *own["from"]]
    assert (
        test["podSelector"]["matchLabels"].items()
        <= rendered.pods()["gateway-test"]["metadata"]["labels"].items()
    )
    assert bridge["ingress"][0]["from"] == own["from"]
    ports = {
        name: [port["port"] for rule in spec["egress"] for port in rule["ports"]]
        for name, spec in (("gateway", gateway), ("bridge", bridge))
    }
    assert ports == {"gateway": [53, 53, 6379, 443, "http"], "bridge": [53, 53, 6379, 18883]}
    assert policy(render(SMALL), "gateway")["ingress"][0]["from"][0] == {"podSelector": {}}
    open_to_all = with_redis(gateway=GATEWAY, networkPolicy={"gatewayFrom": []})
    assert "from" not in policy(render(open_to_all), "gateway")["ingress"][0]


def test_where_callbacks_may_be() -> None:
    name = "STREAMLEASE_GATEWAY_ALLOW_PRIVATE_CALLBACKS"
    assert name not in variables(render(VALUES), "gateway")
    inside = {**GATEWAY, "allowPrivateCallbacks": True}
    limits = {"restrictEgress": True, "callbackPorts": []}
    rendered = render(with_redis(gateway=inside, networkPolicy=limits))
    assert variables(rendered, "gateway")[name] == "true"
    redis, itself = policy(rendered, "gateway")["egress"][1:]
    assert [port["port"] for port in redis["ports"]] == [6379]
    assert itself["to"] == [{"podSelector": policy(rendered, "gateway")["podSelector"]}]


@pytest.mark.parametrize("part", ["leader-host", "gateway", "ui"])
def test_all_who_read_archives_reach_their_store(part: str) -> None:
    limits = {"restrictEgress": True, "callbackPorts": [], "archivePorts": [443, 8181]}
    rendered = render(with_redis(gateway=GATEWAY, ui={"enabled": True}, networkPolicy=limits))
    assert [port["port"] for port in policy(rendered, part)["egress"][1]["ports"]] == [6379, 443, 8181]


@pytest.mark.parametrize(
    ("url", "port"),
    [("mqtt://b", 1883), ("mqtts://b/", 8883), ("mqtt://b:1884/", 1884), ("mqtts://b.example:443", 443)],
)
def test_the_policy_knows_the_port_of_the_broker(url: str, port: int) -> None:
    values = with_redis(mqttBridge={**BRIDGE, "url": url}, networkPolicy={"restrictEgress": True})
    egress = policy(render(values), "mqtt-bridge")["egress"]
    assert egress[-1]["ports"][-1]["port"] == port


def test_a_session_has_the_name_of_its_pod_or_that_which_is_given() -> None:
    several, one = render(VALUES), render(SMALL)
    name = "STREAMLEASE_MQTT_CLIENT_ID"
    assert variables(several, "mqtt-bridge")[name] == {"fieldRef": {"fieldPath": "metadata.name"}}
    assert variables(one, "mqtt-bridge")[name] == "sensors-in"
    bridge = several.the("StatefulSet", "mqtt-bridge")
    assert bridge["spec"]["serviceName"] == several.the("Service", "mqtt-bridge")["metadata"]["name"]
    assert bridge["spec"]["replicas"] == 3


def test_no_password_is_in_an_argument_or_a_plain_value() -> None:
    rendered = render(VALUES)
    given = variables(rendered, "mqtt-bridge")
    login = VALUES["mqttBridge"]["loginSecret"]
    for name, key in (("USER", "userKey"), ("PASSWORD", "passwordKey")):
        found = given[f"STREAMLEASE_MQTT_{name}"]
        assert found == {"secretKeyRef": {"name": login["name"], "key": login[key]}}
    assert not [one for one in variables(render(SMALL), "mqtt-bridge") if "PASSWORD" in one]


@pytest.mark.parametrize("release", ["a" * 53, "demo"])
def test_names_leave_room_for_what_kubernetes_adds(release: str) -> None:
    rendered = render({**VALUES, "nameOverride": "b" * 63}, release=release)
    for document in rendered.documents:
        assert len(document["metadata"]["name"]) <= 63
    bridge = rendered.the("StatefulSet", "mqtt-bridge")["metadata"]["name"]
    assert len(f"{bridge}-99-0123456789") <= 63  # the label controller-revision-hash of its pods


def test_notes_say_where_they_are() -> None:
    notes = render(VALUES).notes
    assert "https://demo-streamlease-gateway.streams.svc" in notes
    assert "https://streams.example.org/v1" in notes
    assert (
        "3 bridge(s) to mqtts://broker.example.internal:18883 as StatefulSet demo-streamlease-mqtt" in notes
    )
    assert "gateway" not in render(with_redis()).notes
    assert "WARNING: tokens and messages go over the Ingress without TLS" in (
        render(with_redis(gateway={**GATEWAY, "ingress": {"enabled": True, "hosts": ["a.example"]}})).notes
    )


@pytest.mark.parametrize(
    ("values", "said"),
    [
        pytest.param({"gateway": {"enabled": True}}, "'/gateway/tokensSecret'", id="no tokens"),
        pytest.param(
            {"gateway": {"enabled": True, "tokensSecret": {"name": "x"}}},
            "'/gateway/tokensSecret'",
            id="no key",
        ),
        pytest.param({"gateway": {**GATEWAY, "port": 80}}, "'/gateway/port'", id="low port"),
        pytest.param({"gateway": {**GATEWAY, "maxBody": "much"}}, "'/gateway/maxBody'", id="body"),
        pytest.param({"gateway": {**GATEWAY, "maxRate": -1}}, "'/gateway/maxRate'", id="rate"),
        pytest.param(
            {"gateway": {**GATEWAY, "maxClientChannels": 0}}, "'/gateway/maxClientChannels'", id="channels"
        ),
        pytest.param(
            {"gateway": {**GATEWAY, "maxClientWebhooks": "all"}},
            "'/gateway/maxClientWebhooks'",
            id="webhooks",
        ),
        pytest.param(
            {"gateway": {**GATEWAY, "ingress": {"enabled": True}}}, "'/gateway/ingress/hosts'", id="no hosts"
        ),
        pytest.param(
            {"gateway": {**GATEWAY, "ingress": {"enabled": True, "hosts": ["https://x"]}}},
            "'/gateway/ingress/hosts/0'",
            id="a URL as a host",
        ),
        pytest.param(
            {"gateway": {**GATEWAY, "extraEnv": [{"name": "STREAMLEASE_GATEWAY_HOST", "value": "x"}]}},
            "a name that the chart does not set itself",
            id="variable of the chart",
        ),
        pytest.param(
            {"mqttBridge": {"enabled": True, "filters": ["a"]}}, "'/mqttBridge/url'", id="no broker"
        ),
        pytest.param(
            {"mqttBridge": {"enabled": True, "url": "mqtt://b"}}, "'/mqttBridge/filters'", id="nothing to do"
        ),
        pytest.param(
            {"mqttBridge": {**BRIDGE, "url": "mqtt://me:secret@b"}},
            "'/mqttBridge/url'",
            id="password in the URL",
        ),
        pytest.param(
            {"mqttBridge": {**BRIDGE, "tlsSecret": {"name": "x", "ca": "ca.crt"}}},
            "'/mqttBridge/url'",
            id="files without TLS",
        ),
        pytest.param(
            {"mqttBridge": {**BRIDGE, "url": "mqtts://b", "tlsSecret": {"name": "x", "ca": "c", "key": "k"}}},
            "'/mqttBridge/tlsSecret'",
            id="key without certificate",
        ),
        pytest.param(
            {"mqttBridge": {**BRIDGE, "from": "latest"}}, "'/mqttBridge/out'", id="from without out"
        ),
        pytest.param({"mqttBridge": {**BRIDGE, "out": "a/#"}}, "'/mqttBridge/out'", id="no group"),
        pytest.param(
            {"mqttBridge": {**BRIDGE, "loginSecret": {"name": "x", "userKey": "u"}}},
            "'/mqttBridge/loginSecret'",
            id="user without password",
        ),
    ],
)
def test_bad_values_are_refused_by_name(values: dict[str, Any], said: str) -> None:
    with pytest.raises(helm.HelmValuesError) as refused:
        render({**with_redis(), **values})
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"gateway": {"ingress": {"enabled": True, "hosts": ["a.example"]}}},
            "there is nothing behind such an Ingress",
        ),
        (
            {"gateway": {**GATEWAY, "autoscaling": {"enabled": True, "minReplicas": 5, "maxReplicas": 3}}},
            "gateway.autoscaling.minReplicas is 5, which is more than maxReplicas, 3",
        ),
        (
            {"mqttBridge": {**BRIDGE, "replicas": 2}},
            "the filter a/# is not shared, so each bridge would bring in every message: write $share/GROUP",
        ),
        (
            {"mqttBridge": {**BRIDGE, "replicas": 2, "filters": ["$share/g/a/#"], "clientId": "x"}},
            "mqttBridge.clientId names one session: leave it empty",
        ),
    ],
)
def test_contradictions_are_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(helm.HelmRenderError) as refused:
        render({**with_redis(), **values})
    assert said in str(refused.value)


@contextmanager
def running(directory: Path, own: dict[str, Any], given: dict[str, str]) -> Iterator[Path]:
    """A container's command with the environment that it gets; it must end well. Gives its log."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}"
    program = shutil.which(own["command"][0], path=path)
    assert program is not None
    log = directory / "log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [program, *own["command"][1:], *own.get("args", [])],
            cwd=directory,
            env={
                "PATH": path,
                "HOME": str(directory),
                "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
                **given,
            },
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
        )
    try:
        yield log
        assert process.poll() is None, log.read_text()
    finally:
        code = end(process)
    assert code == 0, log.read_text()


def status(url: str, context: ssl.SSLContext | None = None) -> int:
    """Of an answer; 0 if there is none."""
    try:
        with urllib.request.urlopen(url, timeout=5, context=context) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except OSError:
        return 0


@pytest.mark.cluster
def test_the_gateways_command_runs_with_what_the_chart_gives_it(
    tmp_path: Path, embedded_redis_url: str
) -> None:
    rendered = render(VALUES)
    given = environment(
        rendered.pods()["gateway"],
        secrets={("streamlease-redis", "client-url"): embedded_redis_url},
        fields={},
    )
    authority = trustme.CA()
    own = authority.issue_cert("127.0.0.1")
    files = {"/tokens/tokens.json": "tokens", "/gateway-tls/tls.crt": "crt", "/gateway-tls/tls.key": "key"}
    (tmp_path / "tokens").write_text(
        json.dumps({"tokens": [{"name": "n", "sha256": hashlib.sha256(b"t").hexdigest(), "publish": ["#"]}]})
    )
    own.cert_chain_pems[0].write_to_path(tmp_path / "crt")
    own.private_key_pem.write_to_path(tmp_path / "key")
    placed = {
        name: str(tmp_path / files[value]) if value in files else value for name, value in given.items()
    }
    assert len([name for name in given if given[name] != placed[name]]) == 3
    port = free_port()
    context = ssl.create_default_context()
    authority.configure_trust(context)
    with running(tmp_path, container(rendered, "gateway"), {**placed, "STREAMLEASE_GATEWAY_PORT": str(port)}):
        until(lambda: status(f"https://127.0.0.1:{port}/readyz", context) == 200)
        assert status(f"https://127.0.0.1:{port}/v1/messages?filter=a", context) == 401
        asking = container(rendered, "gateway-test")["command"]
        done = subprocess.run(
            [sys.executable, *asking[1:-1], f"https://127.0.0.1:{port}/readyz"],
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, b'{"ready":true}\n'), done.stderr


@pytest.mark.cluster
def test_the_bridges_command_runs_with_what_the_chart_gives_it(
    tmp_path: Path, embedded_redis_url: str
) -> None:
    rendered = render(SMALL)
    given = environment(
        rendered.pods()["mqtt-bridge"], secrets={("streamlease-redis", "url"): embedded_redis_url}, fields={}
    )
    Command(tmp_path, embedded_redis_url).ok("space", "create", "sensors", "--topics", "sensors/#")
    port = free_port()
    with RefusingBroker("5") as broker:
        own = container(rendered, "mqtt-bridge")
        own["args"] = [broker.url if one == SMALL["mqttBridge"]["url"] else one for one in own["args"]]
        with running(tmp_path, own, {**given, "STREAMLEASE_METRICS_PORT": str(port)}) as log:
            until(lambda: status(f"http://127.0.0.1:{port}/readyz") == 200)
            assert "as sensors-in" in log.read_text()
