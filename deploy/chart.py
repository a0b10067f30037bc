"""Write the Helm chart from the documents of install.yaml and install-split.yaml.

Takes: deploy/compose.py, which builds those documents from parts; authorizer.yaml,
which a value installs. Gives: the generated files of deploy/chart:
templates/generated.yaml, values.yaml, values.schema.json, Chart.yaml, and copies of the
definitions, alerts and dashboard. Run as ``python -m deploy.chart`` after a change of a
part; tests check that the files are up to date, and compare the rendered chart with the
manifests. Next: the files in deploy/chart/templates that are written by hand: names,
ConfigMaps, definitions, monitoring, checks. May touch: those files.

A document becomes a template by inserting expressions at the places in the table of its
kind; each place has a value, whose default is the original content. Documents that
differ, or that only one manifest has, depend on the value ``split``. A new part needs
no change here unless users must be able to configure it.
"""

import contextlib
import copy
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from deploy import compose, foreign
from kyverno_mp import __version__

CHART: Final = Path(__file__).resolve().parent / "chart"
Document = dict[str, Any]
_COMPONENT: Final = "app.kubernetes.io/component"
_NAMESPACE: Final = '{{ include "kyverno.namespace" . }}'
_MARK: Final = "@@"
"""Marks an expression in a scalar until the YAML is written."""
_RBAC: Final = frozenset(
    {"ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "ServiceAccount"}
)
_OWNER: Final = "kyverno:webhook"
"""The role that owns the webhook configurations, and grants nothing."""
POOLS: Final = ("backgroundController", "cleanupController", "reportsController")
_AUTHORIZER: Final = "authzServer"
_ACCOUNTS: Final = (*POOLS, "admissionController", _AUTHORIZER)
"""The components whose permissions can be left out."""
_BY_HAND: Final = frozenset({"Namespace", "CustomResourceDefinition", "ConfigMap"})
"""Kinds with a separate template; Helm itself creates the namespace."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a document of one kind, and its value.

    ``path``: keys and positions. ``value``: name of the value below the component's.
    ``how``: scalar, text (a scalar in quotes), block (a map or list), extra (a block
    that is omitted while it is empty and is in no manifest). ``expression``: what is
    written instead of the value, which {} stands for. ``when``: the condition without
    which the place is empty, where {} stands for the component.
    """

    path: str
    value: str
    how: str
    doc: str
    expression: str = "{}"
    when: str = ""


_POD: Final = "spec.template.spec."
_DEPLOYMENT: Final = (
    Place(
        "spec.replicas",
        "replicas",
        "scalar",
        "Number of pods.",
        when='not (dig "autoscaling" "enabled" false {})',
    ),
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
    Place(
        _POD + "imagePullSecrets",
        "imagePullSecrets",
        "extra",
        "[{name: x}].",
        "({} | default .Values.global.imagePullSecrets)",
    ),
    Place(
        _POD + "priorityClassName",
        "priorityClassName",
        "extra",
        "",
        'include "kyverno.priorityClassName" (list $ {})',
    ),
    Place(
        _POD + "nodeSelector",
        "nodeSelector",
        "block",
        "Labels of nodes for pods, besides those of global.nodeSelector.",
        "(merge (dict) ({} | default dict) .Values.global.nodeSelector)",
    ),
    Place(
        _POD + "tolerations",
        "tolerations",
        "extra",
        "Taints that pods tolerate.",
        "({} | default .Values.global.tolerations)",
    ),
    Place(
        _POD + "affinity.podAntiAffinity",
        "podAntiAffinity",
        "block",
        "",
        when="{}.antiAffinity.enabled",
    ),
    Place(_POD + "affinity.podAffinity", "podAffinity", "extra", ""),
    Place(_POD + "affinity.nodeAffinity", "nodeAffinity", "extra", ""),
    Place(_POD + "topologySpreadConstraints", "topologySpreadConstraints", "extra", ""),
    Place(_POD + "initContainers", "extraInitContainers", "extra", ""),
    Place(_POD + "hostNetwork", "hostNetwork", "extra", "Use the node's network."),
    Place(_POD + "dnsPolicy", "dnsPolicy", "extra", ""),
    Place(_POD + "dnsConfig", "dnsConfig", "extra", ""),
    Place(
        _POD + "securityContext",
        "podSecurityContext",
        "context",
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
    Place("spec.trafficDistribution", "{}.trafficDistribution", "extra", ""),
    Place("spec.ports.0.nodePort", "{}.nodePort", "extra", ""),
    Place("metadata.annotations", "{}.annotations", "extra", ""),
)


class _Chart:
    """One run, which walks over the documents and collects templates and values."""

    def __init__(self) -> None:
        self.values: Document = yaml.safe_load(
            (CHART / "values-common.yaml").read_text()
        )
        self._used_alone: set[str] = set()
        self._used_split: set[str] = set()
        self._users: tuple[set[str], ...] = (self._used_alone, self._used_split)
        """The sets that get the values which the current document uses."""
        alone, split = _by_key(compose.install()), _by_key(compose.install_split())
        texts = []
        for key in dict.fromkeys((*alone, *split)):
            one, other = alone.get(key), split.get(key)
            if one == other:
                assert one is not None
                self._users = (self._used_alone, self._used_split)
                texts.append(self._template(one))
            if one is not None and one != other:
                self._users = (self._used_alone,)
                texts.append(_when("not .Values.split", self._template(one)))
            if other is not None and one != other:
                self._users = (self._used_split,)
                pool = _pool_of(other)
                is_on = f"and .Values.split .Values.{pool}.enabled"
                condition = ".Values.split" if one or not pool else is_on
                texts.append(_when(condition, self._template(other)))
        self._users = (self._used_alone, self._used_split)
        self.add(f"{_AUTHORIZER}.enabled", default=False)
        authorizer = _by_key((CHART.parent / "authorizer.yaml").read_text())
        texts += [
            _when(f".Values.{_AUTHORIZER}.enabled", self._template(document))
            for document in authorizer.values()
        ]
        head = "{{- /* Generated by `python -m deploy.chart`; edit deploy/parts. */}}\n"
        self.text = head + "---\n" + "---\n".join(texts)

    def split_only(self) -> Document:
        """Return the values that act only with ``split``, with their defaults."""
        return {
            name: _at(self.values, name)
            for name in sorted(self._used_split - self._used_alone)
        }

    def _template(self, document: Document) -> str:
        kind = document["kind"]
        component = document["metadata"]["labels"][_COMPONENT]
        name = _values_name(component)
        made = _with_namespace(document)
        for place in self._places(made):
            self._put(made, place, name)
        special: Callable[[Document, str, _Chart], str] = _SPECIAL.get(kind, _plain)
        text = special(made, name, self)
        if kind not in _RBAC or name not in _ACCOUNTS:
            return text
        if document["metadata"]["name"] == _OWNER:
            return text
        self.add(f"{name}.rbac.create", default=True)
        return _when(f".Values.{name}.rbac.create", text)

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
        if found is None:
            if place.how != "extra":
                return
            found = _EMPTY.get(key, [])
        self.add(name, found)
        written = f"{place.how} {place.expression.format(f'.Values.{name}')}"
        if place.when:
            written = f"when {place.when.format(f'.Values.{component}')} ## {written}"
        part[key] = f"{_MARK}{written}{_MARK}"

    @contextlib.contextmanager
    def everywhere(self) -> Iterator[None]:
        """Let the values that are added act with and without ``split``."""
        before, self._users = self._users, (self._used_alone, self._used_split)
        yield
        self._users = before

    def add(self, name: str, default: object) -> None:
        """Add a value. Two documents that share it must have the same default."""
        for users in self._users:
            users.add(name)
        *path, last = name.split(".")
        part = self.values
        for word in path:
            part = part.setdefault(word, {})
        assert part.setdefault(last, copy.deepcopy(default)) == default, name


_EMPTY: Final[Document] = {
    "annotations": {},
    "priorityClassName": "",
    "trafficDistribution": None,
    "nodePort": None,
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
    pod = document["spec"]["template"]
    if name == _AUTHORIZER:
        how = "flags"
        _authorizer_arguments(container, chart)
    else:
        how = "args"
        _pool_switches(container["env"], chart)
        _ports(container, name, chart)
        _token(pod["spec"]["volumes"], chart)
    for value, default in _TELEMETRY.items():
        chart.add(f"{name}.{value}", default)
    chart.add(f"{name}.caCertificates.data", None)
    chart.add(f"{name}.caCertificates.volume", {})
    chart.add(f"{name}.antiAffinity.enabled", default=True)
    if name == "admissionController":
        chart.add(f"{name}.tlsKeyAlgorithm", None)
        for value, empty in _AUTOSCALING.items():
            chart.add(f"{name}.autoscaling.{value}", empty)
        for value, default in _CERTIFICATES.items():
            chart.add(f"{name}.certManager.{value}", default)
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
    container["args"] = [
        *args,
        f"{_MARK}{how} .Values.{within}.extraArgs{_MARK}",
    ]
    for what, part in (
        ("env", container["env"]),
        ("ports", container["ports"]),
        ("mounts", container["volumeMounts"]),
        ("volumes", pod["spec"]["volumes"]),
    ):
        part += [
            _included(f"kyverno.{feature}.{what}", name)
            for feature, places in _FEATURES[name].items()
            if what in places
        ]
    variables = f"(concat .Values.global.extraEnvVars .Values.{within}.extraEnvVars)"
    container["env"].append(f"{_MARK}items {variables}{_MARK}")
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


_WITH_FILES: Final = ("env", "mounts", "volumes")
_ALL: Final = {"caCertificates": _WITH_FILES, "telemetry": _WITH_FILES}
_EVERYWHERE: Final = {"names": ("env",), **_ALL}
_REPORTS: Final = {
    "dashboard": ("env", "ports", "mounts", "volumes"),
    "notifications": ("env", "mounts", "volumes"),
}
_FEATURES: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "admissionController": {
        **_EVERYWHERE,
        "webhook": ("env",),
        **_REPORTS,
        "recording": ("env", "mounts", "volumes"),
    },
    "backgroundController": _EVERYWHERE,
    "cleanupController": _EVERYWHERE,
    "reportsController": {**_EVERYWHERE, **_REPORTS},
    _AUTHORIZER: _ALL,
}
"""Optional additions of templates/_features.tpl to a component's pods."""
_TELEMETRY: Final[Document] = {
    "tracing.enabled": False,
    "tracing.address": None,
    "tracing.port": None,
    "tracing.creds": None,
    "tracing.sampled": None,
    "metering.disabled": False,
    "metering.config": "prometheus",
    "metering.collector": None,
    "metering.collectorPort": None,
    "metering.creds": None,
    "metering.secure": False,
    "metering.tlsSecret": None,
    "otlpProtocol": None,
}
"""The values of kyverno.telemetry. Ours are sampled, collectorPort, tlsSecret and
otlpProtocol."""
_AUTOSCALING: Final[Document] = {
    "enabled": False,
    "minReplicas": 3,
    "maxReplicas": 10,
    "targetCPUUtilizationPercentage": 80,
    "targetMemoryUtilizationPercentage": None,
    "reviewsMetric": "",
    "targetReviews": 8,
    "behavior": {},
}
_CERTIFICATES: Final = {
    "enabled": False,
    "createSelfSignedIssuer": True,
    "issuerRef.name": "",
    "issuerRef.kind": "ClusterIssuer",
    "issuerRef.group": "cert-manager.io",
    "algorithm": "RSA",
    "size": 2048,
    "ca.duration": "87600h",
    "ca.renewBefore": "720h",
    "tls.duration": "8760h",
    "tls.renewBefore": "720h",
}
"""The values of templates/certificates.yaml, with the defaults of Kyverno's chart."""
_SWITCH: Final = re.compile(r"KYVERNO_MP_(CLEANUP|BACKGROUND|REPORTS)_(\w+)")
"""The variables that turn a pool on in a pod, or tell that it is elsewhere."""


def _pool_switches(variables: list[Document], chart: _Chart) -> None:
    """Let ``enabled`` of a pool decide about its processes, wherever they run."""
    for variable in variables:
        found = _SWITCH.fullmatch(variable["name"])
        if found is None or found[2] not in ("WORKERS", "ELSEWHERE"):
            continue
        pool, count = f"{found[1].lower()}Controller", variable["value"]
        if count == "0":
            continue
        on = f".Values.{pool}.enabled"
        with chart.everywhere():
            chart.add(f"{pool}.enabled", default=True)
        if found[2] == "ELSEWHERE":
            variable["value"] = f"{_MARK}text {on}{_MARK}"
            continue
        if found[1] == "REPORTS":
            scan = ".Values.features.backgroundScan.backgroundScanWorkers"
            count = f"({scan} | default {count} | int)"
        variable["value"] = f"{_MARK}text ternary {count} 0 {on}{_MARK}"


def _authorizer_arguments(container: Document, chart: _Chart) -> None:
    """Let values decide about the protocol and the number of workers."""
    values = f".Values.{_AUTHORIZER}"
    expressions = {
        "--mode": f'printf "--mode=%s" {values}.mode',
        "--grpc-address": (
            f'printf "--%s-address=%s" (ternary "grpc" "server" {_IS_GRPC}) ":9081"'
        ),
        "--workers": f'printf "--workers=%d" ({values}.workers | int)',
    }
    arguments = [argument.partition("=") for argument in container["args"]]
    for flag, _, value in arguments:
        if flag in ("--mode", "--workers"):
            default = int(value) if value.isdecimal() else value
            chart.add(f"{_AUTHORIZER}.{flag[2:]}", default)
    container["args"] = [
        f"{_MARK}item {expressions[flag]}{_MARK}"
        if flag in expressions
        else f"{flag}{equals}{value}"
        for flag, equals, value in arguments
    ]


_IS_GRPC: Final = f'(eq .Values.{_AUTHORIZER}.mode "envoy")'


def _ports(container: Document, name: str, chart: _Chart) -> None:
    """Let values decide about the ports on which the pods listen."""
    for port in container["ports"]:
        is_webhook = port["name"] == "https"
        value = f"{name}.{'webhookServer' if is_webhook else 'metering'}.port"
        chart.add(value, port["containerPort"])
        port["containerPort"] = _scalar(f".Values.{value} | int")
    for variable in container["env"]:
        if variable["name"] == "KYVERNO_MP_HEALTH_PORT":
            expression = f".Values.{name}.metering.port | int"
            variable["value"] = f"{_MARK}text {expression}{_MARK}"


def _token(volumes: list[Document], chart: _Chart) -> None:
    """Let values decide about the token that policies' calls to services carry."""
    (volume,) = (one for one in volumes if one["name"] == "apicall-token")
    (source,) = volume["projected"]["sources"]
    token = source["serviceAccountToken"]
    for key in ("audience", "expirationSeconds"):
        chart.add(f"apiCallToken.{key}", token[key])
    token["audience"] = _scalar(".Values.apiCallToken.audience | quote")
    token["expirationSeconds"] = _scalar(".Values.apiCallToken.expirationSeconds | int")


def _included(helper: str, name: str) -> str:
    return f'{_MARK}included include "{helper}" (list . "{name}"){_MARK}'


def _service(document: Document, name: str, chart: _Chart) -> str:
    is_metrics = document["metadata"]["name"].endswith("-metrics")
    value = f"{name}.{'metricsService' if is_metrics else 'service'}.port"
    (port,) = document["spec"]["ports"]
    chart.add(value, port["port"])
    port["port"] = _scalar(f".Values.{value} | int")
    if name == _AUTHORIZER:
        port["name"] = _scalar(f'ternary "grpc" "http" {_IS_GRPC}')
    if not is_metrics:
        return _written(document)
    create = f"{name}.metricsService.create"
    chart.add(create, default=True)
    monitor = _service_monitor(document, name, chart)
    is_on = f"(not .Values.{name}.metering.disabled)"
    service = _when(f"and .Values.{create} {is_on}", _written(document))
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
    for key in ("relabelings", "metricRelabelings"):
        chart.add(f"{value}.{key}", [])
        endpoint[key] = f"{_MARK}extra .Values.{value}.{key}{_MARK}"
    chart.add(f"{value}.additionalAnnotations", {})
    chart.add(f"{value}.secure", default=False)
    chart.add(f"{value}.tlsConfig", {})
    secured = {"scheme": '"https"', "tlsConfig": f".Values.{value}.tlsConfig"}
    for key, content in secured.items():
        expression = f'(ternary {content} "" .Values.{value}.secure)'
        endpoint[key] = f"{_MARK}extra {expression}{_MARK}"
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
        "annotations": f"{_MARK}extra .Values.{value}.additionalAnnotations{_MARK}",
    }
    is_on = f"(not .Values.{name}.metering.disabled)"
    return _when(f"and .Values.{value}.enabled {is_on}", _written(document))


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
            # A pool has no other port.
            peers = (
                ("metricsFrom", "ingressFrom") if name in POOLS else ("metricsFrom",)
            )
            given = " ".join(f".Values.{value}.{peer}" for peer in peers)
            rule["from"] = f"{_MARK}block (concat {given}){_MARK}"
        else:
            rule["from"] = f"{_MARK}extra .Values.{value}.ingressFrom{_MARK}"
    return _when(f".Values.{value}.enabled", _written(document))


def _priority_class(document: Document, name: str, _chart: _Chart) -> str:
    """Create the class only if pods use it."""
    class_ = document["metadata"]["name"]
    given = f"(list $ .Values.{name}.priorityClassName)"
    used = f'eq (include "kyverno.priorityClassName" {given}) "{class_}"'
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
    values = [f"{name}.rbac.{role}.extraResources" for role in _EXTENDED]
    for value in values:
        chart.add(value, [])
    extra = " ".join(f".Values.{value}" for value in values)
    more = {
        "apiVersion": document["apiVersion"],
        "kind": "ClusterRole",
        "metadata": {
            "name": f"{document['metadata']['name']}:additional",
            "labels": {
                **document["aggregationRule"]["clusterRoleSelectors"][0]["matchLabels"],
            },
        },
        "rules": f"{_MARK}block (concat {extra}){_MARK}",
    }
    return f"{_written(document)}---\n{_when(f'or {extra}', _written(more))}"


_EXTENDED: Final = ("clusterRole", "coreClusterRole")
"""The roles of Kyverno's chart whose additions the aggregated role gets."""


def _view(document: Document, name: str, chart: _Chart) -> str:
    """Build the template of a binding; the one to ``view`` can be replaced."""
    role = document["roleRef"]
    if role["name"] != "view":
        return _written(document)
    create = f"{name}.rbac.createViewRoleBinding"
    chart.add(create, default=True)
    chart.add(f"{name}.rbac.viewRoleName", role["name"])
    role["name"] = _scalar(f".Values.{name}.rbac.viewRoleName")
    return _when(f".Values.{create}", _written(document))


_SPECIAL: Final[Mapping[str, Callable[[Document, str, _Chart], str]]] = {
    "ClusterRole": _cluster_role,
    "ClusterRoleBinding": _view,
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


def _pool_of(document: Document) -> str:
    """Return the pool that a document belongs to, "" for none."""
    name = _values_name(document["metadata"]["labels"][_COMPONENT])
    return name if name in POOLS else ""


def _at(part: Any, name: str) -> Any:
    for word in name.split("."):
        part = part[word]
    return part


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
    lead = f"{space}{item}{key}:"
    if found["how"] == "when":
        condition, _, rest = what.partition(" ## ")
        part = "".join(_line(f"{lead} '{_MARK}{rest}{_MARK}'"))
        yield _when(condition, part)
        return
    inner = len(space) + len(item)
    yield _HOW[found["how"]].format(
        what=what,
        lead=lead,
        space=space,
        item=item,
        depth=len(space),
        inner=inner,
        below=inner + 2,
    )


_WITH: Final = "{{{{- with {what} }}}}\n"
_END: Final = "{{{{- end }}}}\n"
_CONTEXT: Final = 'include "kyverno.podSecurityContext" (list $ {what})'
_HOW: Final[Mapping[str, str]] = {
    "scalar": "{lead} {{{{ {what} }}}}\n",
    "item": "{space}{item}{{{{ {what} }}}}\n",
    "text": "{lead} {{{{ {what} | quote }}}}\n",
    "block": "{lead}\n{{{{- toYaml {what} | nindent {below} }}}}\n",
    "context": f"{{lead}}\n{{{{{{{{- {_CONTEXT} | nindent {{below}} }}}}}}}}\n",
    "extra": f"{_WITH}{{lead}} {{{{{{{{- toYaml . | nindent {{below}} }}}}}}}}\n{_END}",
    "items": f"{_WITH}{{{{{{{{- toYaml . | nindent {{depth}} }}}}}}}}\n{_END}",
    "included": f"{_WITH}{{{{{{{{- . | nindent {{depth}} }}}}}}}}\n{_END}",
    "entries": f"{_WITH}{{{{{{{{- toYaml . | nindent {{inner}} }}}}}}}}\n{_END}",
    "flags": '{{{{- include "kyverno.flags" {what} | nindent {depth} }}}}\n',
    "args": '{{{{- include "kyverno.args" (list $ {what}) | nindent {depth} }}}}\n',
    "labels": "{{{{- {what} | nindent {inner} }}}}\n",
    "bounds": '{{{{- include "kyverno.bounds" {what} | nindent {inner} }}}}\n',
}
"""What stands in the template for each kind of expression."""


def schema_of(value: object, name: str = "") -> Document:
    """Return the JSON schema of a value: an unknown value is an error, not ignored."""
    if value is None:
        return {}
    if isinstance(value, bool):
        return {"type": "boolean"}
    if isinstance(value, int):
        return {"type": ["integer", "string"]}
    if isinstance(value, str):
        return {"type": ["string", "null"]}
    if isinstance(value, list):
        return {"type": "array"}
    assert isinstance(value, dict)
    if not value or name in FREE:
        return {"type": ["object", "null"]}
    return {
        "type": "object",
        "properties": {key: schema_of(one, key) for key, one in value.items()},
        "additionalProperties": False,
    }


FREE: Final = frozenset(
    {
        *("updateStrategy", "nodeSelector", "podAntiAffinity", "podSecurityContext"),
        *("securityContext", "resources", "startupProbe", "livenessProbe"),
        *("readinessProbe", "metricsExposure", "webhooks", "annotations", "labels"),
        *("webhookAnnotations", "webhookLabels", "volume", "tlsConfig"),
    }
)
"""Values whose keys are defined by Kubernetes or the user."""


_DOCS: Final = {
    "mode": "What asks: envoy (ext_authz v3 over gRPC) or http.",
    "workers": "Number of worker processes of a pod.",
}


def values_text(values: Document) -> str:
    """Return the text of values.yaml: the common values with their comments first."""
    common = (CHART / "values-common.yaml").read_text()
    known = yaml.safe_load(common)
    rest = {
        name: value
        for name, value in values.items()
        if name not in known or value != known[name]
    }
    assert not set(rest) & set(known), "a component may not add to common values"
    docs = {one.value: one.doc for one in _DEPLOYMENT if one.doc} | _DOCS
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
    chart = _Chart()
    schema = {
        "$schema": "https://json-schema.org/draft-07/schema#",
        **schema_of(chart.values),
    }
    # A parent chart may have values there for other charts; templates/checks.yaml.
    del schema["properties"]["global"]["additionalProperties"]
    foreign.add_to(schema)
    return {
        CHART / "Chart.yaml": chart_text(),
        CHART / "values.yaml": values_text(chart.values),
        CHART / "values.schema.json": json.dumps(schema, indent=1) + "\n",
        CHART / "templates" / "generated.yaml": chart.text,
        CHART / "values-of-kyverno.json": foreign.for_chart(),
        CHART / "values-of-split.json": json.dumps(chart.split_only(), indent=1) + "\n",
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
