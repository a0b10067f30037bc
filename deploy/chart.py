"""Write the Helm chart from the documents of install.yaml and install-split.yaml.

Takes: deploy/compose.py, which builds those documents from parts. Gives: the generated
files of deploy/chart: templates/generated.yaml, values.yaml, values.schema.json,
Chart.yaml, and copies of the definitions, alerts and dashboard. Run as ``python -m
deploy.chart`` after a change of a part; tests check that the files are up to date, and
compare the rendered chart with both manifests. Next: the files in
deploy/chart/templates that are written by hand: names, ConfigMaps, definitions,
monitoring, checks. May touch: those files.

A document becomes a template by inserting expressions at the places in the table of its
kind; each place has a value, whose default is the original content. Documents that
differ, or that only one manifest has, depend on the value ``split``. A new part needs
no change here unless users must be able to configure it.
"""

import copy
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from deploy import compose
from kyverno_mp import __version__

CHART: Final = Path(__file__).resolve().parent / "chart"
Document = dict[str, Any]
_COMPONENT: Final = "app.kubernetes.io/component"
_NAMESPACE: Final = '{{ include "kyverno.namespace" . }}'
_MARK: Final = "@@"
"""Marks an expression in a scalar until the YAML is written."""
_BY_HAND: Final = frozenset({"Namespace", "CustomResourceDefinition", "ConfigMap"})
"""Kinds with a separate template; Helm itself creates the namespace."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a document of one kind, and its value.

    ``path``: keys and positions. ``value``: name of the value below the component's.
    ``how``: scalar, text (a scalar in quotes), block (a map or list), extra (a block
    that is omitted while it is empty and is in no manifest).
    """

    path: str
    value: str
    how: str
    doc: str


_POD: Final = "spec.template.spec."
_DEPLOYMENT: Final = (
    Place("spec.replicas", "replicas", "scalar", "Number of pods."),
    Place("spec.revisionHistoryLimit", "revisionHistoryLimit", "scalar", ""),
    Place("spec.strategy", "updateStrategy", "block", "How new pods replace old ones."),
    Place(
        "metadata.annotations", "annotations", "extra", "Annotations of the Deployment."
    ),
    Place(
        "spec.template.metadata.annotations",
        "podAnnotations",
        "extra",
        "Annotations of pods.",
    ),
    Place(_POD + "imagePullSecrets", "imagePullSecrets", "extra", "[{name: x}]."),
    Place(_POD + "priorityClassName", "priorityClassName", "scalar", ""),
    Place(_POD + "nodeSelector", "nodeSelector", "block", "Labels of nodes for pods."),
    Place(_POD + "tolerations", "tolerations", "extra", "Taints that pods tolerate."),
    Place(_POD + "affinity.podAntiAffinity", "podAntiAffinity", "block", ""),
    Place(_POD + "affinity.podAffinity", "podAffinity", "extra", ""),
    Place(_POD + "affinity.nodeAffinity", "nodeAffinity", "extra", ""),
    Place(_POD + "topologySpreadConstraints", "topologySpreadConstraints", "block", ""),
    Place(_POD + "hostNetwork", "hostNetwork", "extra", "Use the node's network."),
    Place(_POD + "dnsPolicy", "dnsPolicy", "extra", ""),
    Place(_POD + "dnsConfig", "dnsConfig", "extra", ""),
    Place(
        _POD + "securityContext",
        "podSecurityContext",
        "block",
        "Security context of pods.",
    ),
    Place(_POD + "containers.0.startupProbe", "startupProbe", "block", ""),
    Place(_POD + "containers.0.livenessProbe", "livenessProbe", "block", ""),
    Place(_POD + "containers.0.readinessProbe", "readinessProbe", "block", ""),
    Place(_POD + "containers.0.imagePullPolicy", "@image.pullPolicy", "scalar", ""),
    Place(
        _POD + "containers.0.resources",
        "@resources",
        "block",
        "Resources of the container.",
    ),
    Place(_POD + "containers.0.securityContext", "@securityContext", "block", ""),
)
"""``@``: below ``container`` for the admission controller, as in upstream's values."""
_PLACES: Final[Mapping[str, tuple[Place, ...]]] = {
    "Deployment": _DEPLOYMENT,
    "ServiceAccount": (
        Place(
            "metadata.annotations",
            "rbac.serviceAccount.annotations",
            "extra",
            "For example for the identity of a cloud.",
        ),
    ),
}
_SERVICE: Final = (
    Place("spec.type", "{}.type", "scalar", ""),
    Place("metadata.annotations", "{}.annotations", "extra", ""),
)


def templates() -> str:
    """Return the text of templates/generated.yaml."""
    return _Chart().text


def values() -> Document:
    """Return the default values."""
    return _Chart().values


class _Chart:
    """One run, which walks over the documents and collects templates and values."""

    def __init__(self) -> None:
        self.values: Document = yaml.safe_load(
            (CHART / "values-common.yaml").read_text()
        )
        alone, split = _by_key(compose.install()), _by_key(compose.install_split())
        texts = []
        for key in dict.fromkeys((*alone, *split)):
            one, other = alone.get(key), split.get(key)
            if one == other:
                assert one is not None
                texts.append(self._template(one))
            if one is not None and one != other:
                texts.append(_when("not .Values.split", self._template(one)))
            if other is not None and one != other:
                texts.append(_when(".Values.split", self._template(other)))
        head = "{{- /* Generated by `python -m deploy.chart`; edit deploy/parts. */}}\n"
        self.text = head + "---\n" + "---\n".join(texts)

    def _template(self, document: Document) -> str:
        kind = document["kind"]
        component = document["metadata"]["labels"][_COMPONENT]
        name = _values_name(component)
        made = _with_namespace(document)
        for place in self._places(made):
            self._put(made, place, name)
        special: Callable[[Document, str, _Chart], str] = _SPECIAL.get(kind, _plain)
        return special(made, name, self)

    @staticmethod
    def _places(document: Document) -> tuple[Place, ...]:
        if document["kind"] != "Service":
            return _PLACES.get(document["kind"], ())
        is_metrics = document["metadata"]["name"].endswith("-metrics")
        word = "metricsService" if is_metrics else "service"
        return tuple(
            Place(one.path, one.value.format(word), one.how, one.doc)
            for one in _SERVICE
        )

    def _put(self, document: Document, place: Place, component: str) -> None:
        """Replace the content of a place by an expression; keep it as the default."""
        part, key = _parent(document, place.path)
        container = "container." if component == "admissionController" else ""
        name = f"{component}.{place.value.replace('@', container)}"
        found = part.get(key)
        if place.how == "extra":
            assert found is None, f"{place.path} has a default now: make it a block"
            found = _EMPTY.get(key, [])
        elif found is None:
            return
        self.add(name, found)
        part[key] = f"{_MARK}{place.how} .Values.{name}{_MARK}"

    def add(self, name: str, default: object) -> None:
        """Add a value. Two documents that share it must have the same default."""
        *path, last = name.split(".")
        part = self.values
        for word in path:
            part = part.setdefault(word, {})
        assert part.setdefault(last, copy.deepcopy(default)) == default, name


_EMPTY: Final = {
    "annotations": {},
    "dnsConfig": {},
    "podAffinity": {},
    "nodeAffinity": {},
    "hostNetwork": False,
    "dnsPolicy": "",
}


def _plain(document: Document, _name: str, _chart: _Chart) -> str:
    return _written(document)


def _deployment(document: Document, name: str, chart: _Chart) -> str:
    (container,) = document["spec"]["template"]["spec"]["containers"]
    within = f"{name}.container" if name == "admissionController" else name
    repository, _, tag = container["image"].rpartition(":")
    assert tag == __version__
    chart.add(f"{within}.image.registry", None)
    chart.add(f"{within}.image.repository", repository)
    chart.add(f"{within}.image.tag", None)
    for value, empty in (("extraArgs", {}), ("extraEnvVars", [])):
        chart.add(f"{within}.{value}", empty)
    for value in ("podLabels", "labels"):
        chart.add(f"{name}.{value}", {})
    for value in ("extraVolumes", "extraVolumeMounts", "extraContainers"):
        chart.add(f"{name}.{value}", [])
    container["image"] = _scalar(
        f'include "kyverno.image" (list $ .Values.{within}.image)'
    )
    args = container["args"]
    container["args"] = [*args, f"{_MARK}args .Values.{within}.extraArgs{_MARK}"]
    pod = document["spec"]["template"]
    for what, part in (
        ("env", container["env"]),
        ("ports", container["ports"]),
        ("mounts", container["volumeMounts"]),
        ("volumes", pod["spec"]["volumes"]),
    ):
        part += [
            _included(f"kyverno.{feature}.{what}", name)
            for feature in _FEATURES.get(name, ())
            if (feature, what) != ("recording", "ports")
        ]
    container["env"].append(f"{_MARK}items .Values.{within}.extraEnvVars{_MARK}")
    container["volumeMounts"].append(
        f"{_MARK}items .Values.{name}.extraVolumeMounts{_MARK}"
    )
    pod["spec"]["volumes"].append(f"{_MARK}items .Values.{name}.extraVolumes{_MARK}")
    pod["spec"]["containers"].append(
        f"{_MARK}items .Values.{name}.extraContainers{_MARK}"
    )
    pod["metadata"]["labels"]["@"] = f"{_MARK}entries .Values.{name}.podLabels{_MARK}"
    document["metadata"]["labels"]["@"] = f"{_MARK}entries .Values.{name}.labels{_MARK}"
    return _written(document)


_FEATURES: Final = {
    "admissionController": ("dashboard", "recording"),
    "reportsController": ("dashboard",),
}
"""Optional additions of templates/_features.tpl to a component's pods."""


def _included(helper: str, name: str) -> str:
    return f'{_MARK}included include "{helper}" (list . "{name}"){_MARK}'


def _service(document: Document, name: str, chart: _Chart) -> str:
    if not document["metadata"]["name"].endswith("-metrics"):
        return _written(document)
    create = f"{name}.metricsService.create"
    chart.add(create, default=True)
    monitor = _service_monitor(document, name, chart)
    service = _when(f".Values.{create}", _written(document))
    return f"{service}---\n{monitor}"


def _service_monitor(service: Document, name: str, chart: _Chart) -> str:
    """Build the template of a ServiceMonitor for the Prometheus operator."""
    document = yaml.safe_load((CHART.parent / "servicemonitor.yaml").read_text())
    value = f"{name}.serviceMonitor"
    chart.add(f"{value}.enabled", default=False)
    chart.add(f"{value}.namespace", None)
    chart.add(f"{value}.additionalLabels", {})
    (endpoint,) = document["spec"]["endpoints"]
    for key in ("interval", "scrapeTimeout"):
        chart.add(f"{value}.{key}", endpoint[key])
        endpoint[key] = _scalar(f".Values.{value}.{key}")
    selector = service["spec"]["selector"]
    document["spec"]["selector"]["matchLabels"] = selector
    document["spec"]["namespaceSelector"] = {
        "matchNames": [f'{_MARK}item include "kyverno.namespace" .{_MARK}']
    }
    document["metadata"] = {
        "name": service["metadata"]["name"].removesuffix("-metrics"),
        "namespace": _scalar(
            f'.Values.{value}.namespace | default (include "kyverno.namespace" .)'
        ),
        "labels": {
            **selector,
            "@": f"{_MARK}entries .Values.{value}.additionalLabels{_MARK}",
        },
    }
    return _when(f".Values.{value}.enabled", _written(document))


def _budget(document: Document, name: str, chart: _Chart) -> str:
    """Build the template of a PodDisruptionBudget; one of two bounds can be set."""
    spec = document["spec"]
    value = f"{name}.podDisruptionBudget"
    chart.add(f"{value}.enabled", default=True)
    chart.add(f"{value}.minAvailable", None)
    chart.add(f"{value}.maxUnavailable", spec.pop("maxUnavailable"))
    policy = "unhealthyPodEvictionPolicy"
    chart.add(f"{value}.{policy}", spec[policy])
    spec[policy] = _scalar(f".Values.{value}.{policy}")
    spec["@"] = f"{_MARK}bounds .Values.{value}{_MARK}"
    return _when(f".Values.{value}.enabled", _written(document))


def _network_policy(document: Document, name: str, chart: _Chart) -> str:
    value = f"{name}.networkPolicy"
    chart.add(f"{value}.enabled", default=True)
    chart.add(f"{value}.ingressFrom", [])
    for rule in document["spec"]["ingress"]:
        if [port["port"] for port in rule["ports"]] == ["metrics-port"]:
            chart.add(f"{value}.metricsFrom", rule["from"])
            rule["from"] = f"{_MARK}block .Values.{value}.metricsFrom{_MARK}"
        else:
            rule["from"] = f"{_MARK}extra .Values.{value}.ingressFrom{_MARK}"
    return _when(f".Values.{value}.enabled", _written(document))


def _priority_class(document: Document, name: str, _chart: _Chart) -> str:
    """Create the class only if pods use it."""
    class_ = document["metadata"]["name"]
    used = f'eq .Values.{name}.priorityClassName "{class_}"'
    return _when(used, _written(document))


def _cluster_role(document: Document, name: str, chart: _Chart) -> str:
    labels = document["metadata"]["labels"]
    for word in ("admin", "view"):
        label = f"rbac.authorization.k8s.io/aggregate-to-{word}"
        if label in labels:
            chart.add(f"rbac.roles.aggregate.{word}", default=True)
            labels[label] = f"{_MARK}text .Values.rbac.roles.aggregate.{word}{_MARK}"
    if "aggregationRule" not in document:
        return _written(document)
    value = f"{name}.rbac.clusterRole.extraResources"
    chart.add(value, [])
    more = {
        "apiVersion": document["apiVersion"],
        "kind": "ClusterRole",
        "metadata": {
            "name": f"{document['metadata']['name']}:additional",
            "labels": {
                **document["aggregationRule"]["clusterRoleSelectors"][0]["matchLabels"],
            },
        },
        "rules": f"{_MARK}block .Values.{value}{_MARK}",
    }
    return f"{_written(document)}---\n{_when(f'.Values.{value}', _written(more))}"


_SPECIAL: Final[Mapping[str, Callable[[Document, str, _Chart], str]]] = {
    "ClusterRole": _cluster_role,
    "Deployment": _deployment,
    "NetworkPolicy": _network_policy,
    "PodDisruptionBudget": _budget,
    "PriorityClass": _priority_class,
    "Service": _service,
}


def _by_key(manifest: str) -> dict[tuple[str, str], Document]:
    documents = yaml.load_all(manifest, Loader=yaml.CSafeLoader)
    return {
        (one["kind"], one["metadata"]["name"]): one
        for one in documents
        if one["kind"] not in _BY_HAND
    }


def _values_name(component: str) -> str:
    """Return ``admissionController`` for ``admission-controller``."""
    first, *rest = component.split("-")
    return first + "".join(word.capitalize() for word in rest)


def _with_namespace(document: Document) -> Document:
    """Copy a document; replace the namespace everywhere."""

    def follow(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {name: follow(one, name) for name, one in value.items()}
        if isinstance(value, list):
            return [follow(one) for one in value]
        if key == "namespace" and value == "kyverno":
            return _scalar('include "kyverno.namespace" .')
        return value

    found: Document = follow(document)
    return found


def _parent(document: Document, path: str) -> tuple[Document, str]:
    *way, key = path.split(".")
    part: Any = document
    for word in way:
        part = part[int(word)] if isinstance(part, list) else part.setdefault(word, {})
    return part, key


def _scalar(expression: str) -> str:
    return f"{_MARK}scalar {expression}{_MARK}"


def _when(condition: str, text: str) -> str:
    return f"{{{{- if {condition} }}}}\n{text}{{{{- end }}}}\n"


_LINE: Final = re.compile(
    rf"^(?P<space> *)(?P<item>- )?(?:(?P<key>['\"\w./@-]+): )?"
    rf"'?{_MARK}(?P<how>\w+) (?P<what>.*?){_MARK}'?$"
)


def _written(document: Document) -> str:
    """Return a document as YAML with its expressions in Helm's syntax."""
    labels = document["metadata"]["labels"]
    document["metadata"]["labels"] = {
        **labels,
        "@@": f'{_MARK}labels include "kyverno.labels" .{_MARK}',
    }
    text = yaml.safe_dump(document, sort_keys=False, width=10_000)
    return "".join(line for one in text.splitlines() for line in _line(one))


def _line(line: str) -> Iterator[str]:
    found = _LINE.match(line)
    if found is None:
        assert _MARK not in line, line
        yield line + "\n"
        return
    space, key = found["space"], found["key"]
    item, what = found["item"] or "", found["what"].replace("''", "'")
    inner = len(space) + len(item)
    lead = f"{space}{item}{key}:"
    match found["how"]:
        case "scalar":
            yield f"{lead} {{{{ {what} }}}}\n"
        case "item":
            yield f"{space}{item}{{{{ {what} }}}}\n"
        case "text":
            yield f"{lead} {{{{ {what} | quote }}}}\n"
        case "block":
            yield f"{lead}\n{{{{- toYaml {what} | nindent {inner + 2} }}}}\n"
        case "extra":
            assert not item
            yield f"{{{{- with {what} }}}}\n"
            yield f"{lead} {{{{- toYaml . | nindent {inner + 2} }}}}\n{{{{- end }}}}\n"
        case "items" | "included" as how:
            shown = "toYaml ." if how == "items" else "."
            yield f"{{{{- with {what} }}}}\n"
            yield f"{{{{- {shown} | nindent {len(space)} }}}}\n{{{{- end }}}}\n"
        case "entries":
            yield f"{{{{- with {what} }}}}\n"
            yield f"{{{{- toYaml . | nindent {inner} }}}}\n{{{{- end }}}}\n"
        case "args":
            args = f'include "kyverno.args" (list $ {what})'
            yield f"{{{{- {args} | nindent {len(space)} }}}}\n"
        case "labels":
            yield f"{{{{- {what} | nindent {inner} }}}}\n"
        case "bounds":
            yield f'{{{{- include "kyverno.bounds" {what} | nindent {inner} }}}}\n'
        case other:
            raise AssertionError(other)


def schema_of(value: object, name: str = "") -> Document:
    """Return the JSON schema of a value: an unknown value is an error, not ignored."""
    if value is None:
        return {"type": ["string", "number", "integer", "boolean", "object", "null"]}
    if isinstance(value, bool):
        return {"type": "boolean"}
    if isinstance(value, int):
        return {"type": ["integer", "string"]}
    if isinstance(value, str):
        return {"type": ["string", "null"]}
    if isinstance(value, list):
        return {"type": "array"}
    assert isinstance(value, dict)
    if not value or name in _FREE:
        return {"type": ["object", "null"]}
    return {
        "type": "object",
        "properties": {key: schema_of(one, key) for key, one in value.items()},
        "additionalProperties": False,
    }


_FREE: Final = frozenset(
    {
        *("updateStrategy", "nodeSelector", "podAntiAffinity", "podSecurityContext"),
        *("securityContext", "resources", "startupProbe", "livenessProbe"),
        *("readinessProbe", "metricsExposure", "webhooks", "annotations", "labels"),
        *("webhookAnnotations", "webhookLabels", "volume"),
    }
)
"""Values whose keys are defined by Kubernetes or the user."""


def values_text() -> str:
    """Return the text of values.yaml: the common values with their comments first."""
    common = (CHART / "values-common.yaml").read_text()
    known = yaml.safe_load(common)
    rest = {
        name: value
        for name, value in values().items()
        if name not in known or value != known[name]
    }
    assert not set(rest) & set(known), "a component may not add to common values"
    docs = {one.value: one.doc for one in _DEPLOYMENT if one.doc}
    lines = []
    for line in yaml.safe_dump(rest, sort_keys=True, width=100).splitlines():
        key = line.strip().partition(":")[0]
        if line.startswith("  ") and not line.startswith("   ") and key in docs:
            lines.append(f"  # {docs[key]}")
        lines.append(line)
    made = "# The rest is generated by `python -m deploy.chart` from deploy/parts.\n"
    return f"{common}\n{made}" + "\n".join(lines) + "\n"


def chart_text() -> str:
    """Return the text of Chart.yaml."""
    return f"""\
# Generated by `python -m deploy.chart`.
apiVersion: v2
name: kyverno-mp
description: Kyverno, the Kubernetes policy engine, as a multi-process Python service.
type: application
version: {__version__}
appVersion: "{__version__}"
kubeVersion: ">=1.28.0-0"
"""


def files() -> dict[Path, str]:
    """Return the text of each generated file."""
    schema = {
        "$schema": "https://json-schema.org/draft-07/schema#",
        **schema_of(values()),
    }
    # A parent chart may have values there for other charts.
    del schema["properties"]["global"]["additionalProperties"]
    return {
        CHART / "Chart.yaml": chart_text(),
        CHART / "values.yaml": values_text(),
        CHART / "values.schema.json": json.dumps(schema, indent=1) + "\n",
        CHART / "templates" / "generated.yaml": templates(),
        **_copies(CHART / "crds-files", CHART.parents[1] / "config" / "crds"),
        **_copies(CHART / "monitoring", CHART.parent / "monitoring"),
    }


def _copies(folder: Path, source: Path) -> dict[Path, str]:
    """Return the files to copy into the chart, because Helm reads none outside it.

    SAFETY: symbolic links are not used, because archives and some checkouts turn them
    into text files. Without the definitions, an upgrade of Kyverno's release would
    delete all policies.
    """
    return {folder / one.name: one.read_text() for one in sorted(source.iterdir())}


def main() -> None:
    """Write the files."""
    for path, text in files().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
