"""Renders the chart as ``helm template`` would, through Helm's own SDK: no cluster, no network."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

helm = pytest.importorskip("helm_python", reason="helm-python-sdk is missing: install the 'helm' group")

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm" / "streamlease"
RELEASE, NAMESPACE = "demo", "streams"
Values = dict[str, Any]
Document = dict[str, Any]


class _StrictLoader(yaml.SafeLoader):
    """Refuses a mapping that holds a key twice; PyYAML would take the last one silently."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [key.value for key, _ in node.value]
        twice = sorted({key for key in keys if keys.count(key) > 1})
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"given twice: {twice}", node.start_mark)
        return super().construct_mapping(node, deep)


PARTS = ("leader-host", "spark-job")


def component_of(document: Document) -> str:
    return str(document["metadata"]["labels"]["app.kubernetes.io/component"])


@dataclass(frozen=True)
class Rendered:
    """What one set of values becomes."""

    notes: str
    documents: list[Document]

    def of(self, kind: str) -> list[Document]:
        return [document for document in self.documents if document["kind"] == kind]

    def the(self, kind: str, component: str | None = None) -> Document:
        """The one object of a kind: of a component, else of the leader hosts or the Spark job."""
        wanted = PARTS if component is None else (component,)
        (document,) = [found for found in self.of(kind) if component_of(found) in wanted]
        return document

    def pods(self) -> dict[str, Document]:
        """Every pod: by the kind of the object that holds it, or, beyond `PARTS`, by component."""
        found = {}
        for document in self.documents:
            name = document["kind"] if component_of(document) in PARTS else component_of(document)
            spec = document.get("spec", {})
            job = spec.get("jobTemplate", {}).get("spec", {})
            if document["kind"] == "Pod":
                found[name] = document
            elif "template" in spec or "template" in job:
                found[name] = spec.get("template") or job["template"]
        return found


def read_values(path: Path) -> Values:
    """One YAML document, keys unique."""
    loaded: Values = yaml.load(path.read_text(), Loader=_StrictLoader)
    return loaded


def value_sets() -> dict[str, Values]:
    """The value sets beside the chart, by name."""
    return {
        path.name.removesuffix("-values.yaml"): read_values(path)
        for path in sorted((CHART / "ci").glob("*-values.yaml"))
    }


def with_redis(**values: Any) -> Values:
    """The smallest accepted values and those given."""
    return {"redis": {"url": "redis://redis.example.internal:6379/0"}, **values}


def render(values: Values, *, release: str = RELEASE) -> Rendered:
    """Raises ``HelmValuesError`` where the schema refuses, ``HelmRenderError`` where a template does."""
    with helm.Chart.load(CHART) as chart:
        manifests = chart.render(values, name=release, namespace=NAMESPACE)
    notes, documents = "", []
    for path, text in manifests.items():
        if path.endswith("NOTES.txt"):
            notes = text
        else:
            documents += [document for document in yaml.load_all(text, Loader=_StrictLoader) if document]
    return Rendered(notes, documents)


def environment(
    pod: Document, *, secrets: dict[tuple[str, str], str], fields: dict[str, str]
) -> dict[str, str]:
    """What the kubelet hands to the pod's container. A secret or field that is not given is a KeyError."""
    (container,) = pod["spec"]["containers"]
    resolved: dict[str, str] = {}
    for variable in container["env"]:
        source = variable.get("valueFrom", {})
        if "secretKeyRef" in source:
            value = secrets[source["secretKeyRef"]["name"], source["secretKeyRef"]["key"]]
        elif "fieldRef" in source:
            value = fields[source["fieldRef"]["fieldPath"]]
        else:
            value = variable["value"]
        assert isinstance(value, str), f"{variable['name']} is not text, which Kubernetes refuses"
        resolved[variable["name"]] = value
    return resolved
