"""values.schema.json refuses nonsense and names it; values, schema and README say the same."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from tests.helm.charts import CHART, ROOT, Values, helm, read_values, render, value_sets, with_redis

pytestmark = pytest.mark.helm

URL = "redis://redis.example.internal:6379/0"
SECRET = {"name": "streamlease-redis", "key": "url"}
PROBE = {"periodSeconds": 1, "timeoutSeconds": 1, "failureThreshold": 1}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        pytest.param(
            {}, ["'/redis'", "missing property 'url'", "missing property 'existingSecret'"], id="no redis"
        ),
        pytest.param(
            {"redis": {"url": URL, "existingSecret": SECRET}},
            ["'/redis/existingSecret'", "choose redis.url or redis.existingSecret, not both"],
            id="two redis",
        ),
        pytest.param({"redis": {"url": "localhost:6379"}}, ["'/redis/url'", "localhost:6379"], id="no url"),
        pytest.param({"redis": {"url": ""}}, ["'/redis/url'"], id="empty url"),
        pytest.param(
            {"redis": {"existingSecret": {"name": "x"}}}, ["'/redis/existingSecret'", "'key'"], id="no key"
        ),
        pytest.param({"redis": {"uri": URL}}, ["'/redis'", "'uri'"], id="misspelt redis value"),
        pytest.param(
            with_redis(replicas="two"), ["'/replicas'", "got string, want integer"], id="replicas two"
        ),
        pytest.param(with_redis(replicas=-1), ["'/replicas'"], id="replicas negative"),
        pytest.param(with_redis(replica=2), ["'replica' not allowed"], id="unknown key"),
        pytest.param(with_redis(drainTimeout=-1), ["'/drainTimeout'"], id="drain negative"),
        pytest.param(with_redis(drainTimeout=0), ["'/drainTimeout'"], id="drain zero"),
        pytest.param(with_redis(drainTimeout="20s"), ["'/drainTimeout'"], id="drain with a unit"),
        pytest.param(with_redis(http={"port": 80}), ["'/http/port'"], id="port that a user may not open"),
        pytest.param(
            with_redis(image={"pullPolicy": "Sometimes"}), ["'/image/pullPolicy'"], id="pull policy"
        ),
        pytest.param(with_redis(image={"digest": "sha256:12"}), ["'/image/digest'"], id="short digest"),
        pytest.param(with_redis(image={"tag": "a b"}), ["'/image/tag'"], id="tag with a space"),
        pytest.param(
            with_redis(fullnameOverride="Big_Name"), ["'/fullnameOverride'"], id="name that is no DNS label"
        ),
        pytest.param(
            with_redis(podDisruptionBudget={"maxUnavailable": 0}),
            ["'/podDisruptionBudget/maxUnavailable'"],
            id="budget 0",
        ),
        pytest.param(
            with_redis(probes={"liveness": {**PROBE, "path": "/"}}),
            ["'/probes/liveness'", "'path'"],
            id="probe",
        ),
        pytest.param(with_redis(resources={"limit": {}}), ["'/resources'", "'limit'"], id="misspelt limits"),
        pytest.param(
            with_redis(podAnnotations={"a": 1}), ["'/podAnnotations/a'"], id="annotation that is no text"
        ),
        pytest.param(
            with_redis(extraEnv=[{"name": "A", "value": 1}]), ["'/extraEnv/0/value'"], id="variable, no text"
        ),
        pytest.param(
            with_redis(extraEnv=[{"name": "STREAMLEASE_REDIS_URL", "value": URL}]),
            ["'/extraEnv/0/name'", "a name that the chart does not set itself"],
            id="variable of the chart",
        ),
        pytest.param(
            with_redis(sparkJob={"subscription": "flights/#"}),
            ["'/sparkJob/subscription'", "flights/#"],
            id="subscription that is not shared",
        ),
        pytest.param(
            with_redis(sparkJob={"subscription": "flights/jfk/#"}),
            ["'/sparkJob/subscription'", "flights/jfk/#"],
            id="longer subscription that is not shared",
        ),
        pytest.param(
            with_redis(sparkJob={"subscription": "$shared/g"}), ["'/sparkJob/subscription'"], id="no filter"
        ),
        pytest.param(
            with_redis(sparkJob={"subscription": "$shared/+/a"}),
            ["'/sparkJob/subscription'"],
            id="wild group",
        ),
        pytest.param(with_redis(sparkJob={"slots": 0}), ["'/sparkJob/slots'"], id="no slots"),
        pytest.param(with_redis(sparkJob={"trigger": "often"}), ["'/sparkJob/trigger'"], id="trigger"),
        pytest.param(with_redis(sparkJob={"sink": "kafka"}), ["'/sparkJob/sink'"], id="sink"),
        pytest.param(
            with_redis(sparkJob={"checkpoint": {"size": "big"}}),
            ["'/sparkJob/checkpoint/size'"],
            id="size of the claim",
        ),
        pytest.param(
            with_redis(sparkJob={"checkpoint": {"path": "/x"}}),
            ["'/sparkJob/checkpoint'", "'path'"],
            id="unknown, deep",
        ),
    ],
)
def test_nonsense_is_refused_by_name(values: Values, said: list[str]) -> None:
    with pytest.raises(helm.HelmValuesError) as refused:
        render(values)
    for part in said:
        assert part in str(refused.value)


def test_lint_refuses_what_render_refuses() -> None:
    report = helm.lint(CHART, {}, strict=True)
    assert any("'/redis'" in error for error in report["errors"])


@pytest.mark.parametrize("name", value_sets())
def test_the_value_sets_are_accepted(name: str) -> None:
    with helm.Chart.load(CHART) as chart:
        chart.validate_schema(value_sets()[name])


def test_as_a_part_of_another_chart_global_values_are_accepted() -> None:
    render(with_redis(**{"global": {"registry": "registry.example.internal"}}))


def _objects(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for group in ("properties", "definitions"):
        for name, below in schema.get(group, {}).items():
            yield from _objects(below, f"{path}/{name}")
    if isinstance(schema.get("items"), dict):
        yield from _objects(schema["items"], f"{path}/items")


def test_every_object_with_named_values_takes_no_others_and_describes_them() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    for path, part in _objects(schema):
        if "properties" not in part:
            continue
        assert part.get("additionalProperties") is False, path
        assert set(part.get("required", [])) <= set(part["properties"]), path
        undescribed = [name for name, value in part["properties"].items() if "description" not in value]
        assert undescribed == [], path


def _values_table() -> ModuleType:
    spec = importlib.util.spec_from_file_location("values_table", ROOT / "helm" / "values_table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_readme_lists_every_value_as_it_is() -> None:
    text = (CHART / "README.md").read_text()
    assert _values_table().readme(text) == text, "run: python3 helm/values_table.py"


def _leaves(values: Any, path: str = "") -> Iterator[str]:
    if isinstance(values, dict) and values:
        for name, below in values.items():
            yield from _leaves(below, f"{path}.{name}".removeprefix("."))
    else:
        yield path


def test_every_default_is_a_described_value() -> None:
    described = [path for path, _, _ in _values_table().rows()]
    for leaf in _leaves(read_values(CHART / "values.yaml")):
        within = [
            path for path in described if f"{leaf}.".startswith(f"{path}.") or path.startswith(f"{leaf}.")
        ]
        assert within, leaf
