"""The objects of a Kyverno 1.18 that helm installed, by its chart's names and shapes.

Takes: a certificate. Gives: documents for kubectl, in an order in which they can be
created; what Kyverno itself writes later (Secrets, Leases, webhook configurations) is
among them. Only what an upgrade could trip over is here: who selects whom, permissions,
containers with their arguments, variables and probes, labels and annotations of helm.
May touch: nothing. Source: docs/behaviour/controllers 3.1, 4, 8, 10.3-10.5.
"""

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

Object = dict[str, Any]
NAMESPACE: Final = "kyverno"
REGISTRY: Final = "reg.kyverno.io/kyverno"
OTHERS: Final = ("background-controller", "reports-controller", "cleanup-controller")
FILTERED: Final = "filtered-by-the-operator"
"""A ConfigMap that the operator's own resourceFilters exempt."""
_CRDS: Final = Path(__file__).resolve().parents[2] / "config" / "crds"
_HELM: Final = {
    "app.kubernetes.io/managed-by": "Helm",
    "app.kubernetes.io/version": "3.8.2",
    "helm.sh/chart": "kyverno-3.8.2",
}
_RELEASE: Final = {
    "meta.helm.sh/release-name": "kyverno",
    "meta.helm.sh/release-namespace": NAMESPACE,
}
_READ: Final = ["get", "list", "watch"]
_ALL: Final = [*_READ, "create", "delete", "patch", "update", "deletecollection"]


@dataclass(frozen=True)
class Certificates:
    """Kyverno's serving certificates, as PEM."""

    authority: bytes
    authority_key: bytes
    server: bytes
    server_key: bytes


def objects(certificates: Certificates) -> Iterator[Object]:
    """Yield everything but the webhook configurations, which need running pods."""
    yield _of_helm("v1", "Namespace", NAMESPACE, namespaced=False)
    yield from _definitions()
    for component in ("admission-controller", *OTHERS):
        yield from _account(component)
    yield from _configuration()
    yield from _secrets(certificates)
    yield from _leases()
    yield _service("kyverno-svc", "admission-controller", 443, "https")
    yield _service("kyverno-svc-metrics", "admission-controller", 8000, 8000)
    yield _service("kyverno-cleanup-controller", "cleanup-controller", 443, "https")
    yield _admission_deployment()
    yield _disruption_budget()
    for component in OTHERS:
        yield _deployment(component, {"name": "controller", **_image(component)})


def webhook_configurations(authority: bytes) -> Iterator[Object]:
    """Yield all ten, as Kyverno's two servers keep them.

    One webhook belongs to a deleted policy: it existed when Kyverno stopped. The
    webhooks of an ImageValidatingPolicy ``pinned`` see each ConfigMap.
    """
    bundle = base64.b64encode(authority).decode()
    fail, gone = "validate.kyverno.svc-fail", "validate.kyverno.svc-ignore-finegrained"
    yield _webhooks(
        bundle,
        "resource-validating",
        [
            (fail, "/validate/fail", "Fail", _rule("", "configmaps")),
            (f"{gone}-x", "/validate/ignore/finegrained/x", "Ignore", _rule("", "*")),
            (
                "ivpol.validate.kyverno.svc-fail",
                "/ivpol/validate/pinned",
                "Fail",
                _rule("", "configmaps"),
            ),
        ],
    )
    yield _webhooks(
        bundle,
        "resource-mutating",
        [
            ("mutate.kyverno.svc-fail", "/mutate/fail", "Fail", _rule("", "secrets")),
            (
                "ivpol.mutate.kyverno.svc-fail",
                "/ivpol/mutate/pinned",
                "Fail",
                _rule("", "configmaps"),
            ),
        ],
    )
    own = "kyverno-svc.kyverno.svc"
    kyverno, cel = "kyverno.io", "policies.kyverno.io"
    for name, path, rule in (
        ("policy-validating", "/policyvalidate", _rule(kyverno, "clusterpolicies")),
        ("policy-mutating", "/policymutate", _rule(kyverno, "clusterpolicies")),
        ("verify-mutating", "/verifymutate", _rule("coordination.k8s.io", "leases")),
        (
            "exception-validating",
            "/exceptionvalidate",
            _rule(kyverno, "policyexceptions"),
        ),
        (
            "cel-exception-validating",
            "/celexception/validate",
            _rule(cel, "policyexceptions"),
        ),
        (
            "global-context-validating",
            "/globalcontextvalidate",
            _rule(kyverno, "globalcontextentries"),
        ),
    ):
        policy = "Ignore" if name.startswith("verify") else "Fail"
        yield _webhooks(bundle, name, [(own, path, policy, rule)])
    cleanup = "kyverno-cleanup-controller"
    of_cleanup = f"{cleanup}.kyverno.svc"
    yield _webhooks(
        bundle,
        "cleanup-validating",
        [(of_cleanup, "/validate", "Fail", _rule(kyverno, "cleanuppolicies"))],
        cleanup,
    )
    yield _webhooks(
        bundle,
        "ttl-validating",
        [(of_cleanup, "/verifyttl", "Ignore", _rule("apps", "deployments"))],
        cleanup,
    )


def _of_helm(version: str, kind: str, name: str, *, namespaced: bool = True) -> Object:
    metadata: Object = {
        "name": name,
        "labels": {**_labels(""), **_HELM},
        "annotations": dict(_RELEASE),
    }
    if namespaced:
        metadata["namespace"] = NAMESPACE
    return {"apiVersion": version, "kind": kind, "metadata": metadata}


def _labels(component: str) -> dict[str, str]:
    named = {"app.kubernetes.io/component": component} if component else {}
    return {
        **named,
        "app.kubernetes.io/instance": "kyverno",
        "app.kubernetes.io/part-of": "kyverno",
    }


def _definitions() -> Iterator[Object]:
    """Yield the definitions with upstream's versions and helm's labels."""
    for path in sorted(_CRDS.glob("*.yaml")):
        if path.name.startswith("openreports"):
            continue
        made: Object = yaml.load(path.read_text(), Loader=yaml.CSafeLoader)
        labels = {"app.kubernetes.io/component": "crds", **_labels(""), **_HELM}
        made["metadata"] = {
            "name": made["metadata"]["name"],
            "labels": {**labels, "app.kubernetes.io/part-of": "kyverno-crds"},
            "annotations": dict(_RELEASE),
        }
        yield made


def _account(component: str) -> Iterator[Object]:
    name, role = f"kyverno-{component}", f"kyverno:{component}"
    subject = {"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE}
    rbac = "rbac.authorization.k8s.io"
    version, match = f"{rbac}/v1", _labels(component)
    yield _with(_of_helm("v1", "ServiceAccount", name), match)
    aggregated = _of_helm(version, "ClusterRole", role, namespaced=False)
    label = f"rbac.kyverno.io/aggregate-to-{component}"
    selectors = [{"matchLabels": {label: "true"}}, {"matchLabels": match}]
    yield {
        **_with(aggregated, match),
        "aggregationRule": {"clusterRoleSelectors": selectors},
    }
    core = _of_helm(version, "ClusterRole", f"{role}:core", namespaced=False)
    kinds = ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"]
    yield {
        **_with(core, match),
        "rules": [
            _may("admissionregistration.k8s.io", kinds, _ALL),
            _may("kyverno.io", ["*"], _ALL),
            _may("", ["configmaps", "namespaces"], _READ),
        ],
    }
    bound = _of_helm(version, "ClusterRoleBinding", role, namespaced=False)
    to_cluster = {"apiGroup": rbac, "kind": "ClusterRole", "name": role}
    yield {**_with(bound, match), "roleRef": to_cluster, "subjects": [subject]}
    own = _of_helm(version, "Role", role)
    rules = [
        _may("", ["secrets", "serviceaccounts"], _ALL),
        _may("coordination.k8s.io", ["leases"], _ALL),
        _may("apps", ["deployments", "deployments/scale"], [*_READ, "patch", "update"]),
    ]
    yield {**_with(own, match), "rules": rules}
    tied = _of_helm(version, "RoleBinding", role)
    to_role = {"apiGroup": rbac, "kind": "Role", "name": role}
    yield {**_with(tied, match), "roleRef": to_role, "subjects": [subject]}


def _may(group: str, resources: list[str], verbs: list[str]) -> Object:
    return {"apiGroups": [group], "resources": resources, "verbs": verbs}


def _with(made: Object, labels: dict[str, str]) -> Object:
    made["metadata"]["labels"] |= labels
    return made


def _configuration() -> Iterator[Object]:
    """Yield both ConfigMaps with the chart's keys, and a filter of the operator's."""
    kyverno = _of_helm("v1", "ConfigMap", "kyverno")
    selector = {
        "matchExpressions": [
            {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": [one]}
            for one in ("kube-system", NAMESPACE)
        ],
        "matchLabels": None,
    }
    kyverno["data"] = {
        "enableDefaultRegistryMutation": "true",
        "defaultRegistry": "docker.io",
        "generateSuccessEvents": "false",
        "excludeGroups": "system:nodes",
        "updateRequestThreshold": "1000",
        "resourceFilters": (
            "[*/*,kyverno,*]\n[Event,*,*]\n[*/*,kube-system,*]\n[Node,*,*]\n"
            "[Pod/binding,*,*]\n[Secret,kyverno,kyverno-svc.kyverno.svc.*]\n"
            f"[ConfigMap,default,{FILTERED}]"
        ),
        "webhooks": json.dumps([{"namespaceSelector": selector}]),
        "webhookAnnotations": json.dumps({"admissions.enforcer/disabled": "true"}),
    }
    yield kyverno
    metrics = _of_helm("v1", "ConfigMap", "kyverno-metrics")
    metrics["data"] = {
        "namespaces": json.dumps({"exclude": [], "include": []}),
        "bucketBoundaries": "0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5",
    }
    yield metrics


def _secrets(certificates: Certificates) -> Iterator[Object]:
    pairs = {
        "ca": (certificates.authority, certificates.authority_key),
        "pair": (certificates.server, certificates.server_key),
    }
    for kind, (certificate, key) in pairs.items():
        yield {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "kubernetes.io/tls",
            "metadata": {
                "name": f"kyverno-svc.kyverno.svc.kyverno-tls-{kind}",
                "namespace": NAMESPACE,
                "labels": {"cert.kyverno.io/managed-by": "kyverno"},
            },
            "data": {
                "tls.crt": base64.b64encode(certificate).decode(),
                "tls.key": base64.b64encode(key).decode(),
            },
        }
    yield {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "helm.sh/release.v1",
        "metadata": {
            "name": "sh.helm.release.v1.kyverno.v1",
            "namespace": NAMESPACE,
            "labels": {
                "name": "kyverno",
                "owner": "helm",
                "status": "deployed",
                "version": "1",
            },
        },
        # Too large for the annotation of a client-side apply, as a real one.
        "data": {"release": base64.b64encode(b"what helm knows " * 2**15).decode()},
    }


def _leases() -> Iterator[Object]:
    """Yield the init container's marker and the lease of the watchdog."""
    for name in ("kyvernopre-lock", "kyverno-health"):
        yield {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": name,
                "namespace": NAMESPACE,
                "labels": {"app.kubernetes.io/name": "kyverno"},
                "annotations": {"kyverno.io/last-request-time": "2026-01-01T00:00:00Z"},
            },
        }


def _service(name: str, component: str, port: int, target: int | str) -> Object:
    made = _with(_of_helm("v1", "Service", name), _labels(component))
    port_name = "https" if target == "https" else "metrics-port"
    made["spec"] = {
        "type": "ClusterIP",
        "selector": _labels(component),
        "ports": [{"name": port_name, "port": port, "targetPort": target}],
    }
    return made


def _image(name: str) -> Object:
    return {"image": f"{REGISTRY}/{name}:v1.18.2", "imagePullPolicy": "IfNotPresent"}


def _admission_deployment() -> Object:
    own = {"valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}}
    pod = {"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    environment = [
        {"name": "INIT_CONFIG", "value": "kyverno"},
        {"name": "METRICS_CONFIG", "value": "kyverno-metrics"},
        {"name": "KYVERNO_NAMESPACE", **own},
        {"name": "KYVERNO_POD_NAME", **pod},
        {"name": "KYVERNO_SVC", "value": "kyverno-svc"},
        {"name": "KYVERNO_DEPLOYMENT", "value": "kyverno-admission-controller"},
        {"name": "TUF_ROOT", "value": "/.sigstore"},
    ]
    container = {
        "name": "kyverno",
        **_image("kyverno"),
        "args": ["--servicePort=443", "--webhookServerPort=9443", "--v=2"],
        "env": environment,
        "ports": [
            {"containerPort": 9443, "name": "https", "protocol": "TCP"},
            {"containerPort": 8000, "name": "metrics-port", "protocol": "TCP"},
        ],
        "startupProbe": _probe("liveness", 6, 20),
        "livenessProbe": _probe("liveness", 30, 2),
        "readinessProbe": _probe("readiness", 10, 6),
        "volumeMounts": [{"mountPath": "/.sigstore", "name": "sigstore"}],
    }
    made = _deployment("admission-controller", container)
    made["spec"]["replicas"] = 2
    template = made["spec"]["template"]["spec"]
    template["initContainers"] = [
        {"name": "kyverno-pre", **_image("kyvernopre"), "env": environment[:-1]}
    ]
    template["volumes"] = [{"name": "sigstore", "emptyDir": {}}]
    return made


def _disruption_budget() -> Object:
    """Return the budget of a Kyverno with several replicas."""
    made = _of_helm("policy/v1", "PodDisruptionBudget", "kyverno-admission-controller")
    selector = {"matchLabels": _labels("admission-controller")}
    return {**made, "spec": {"minAvailable": 1, "selector": selector}}


def _probe(what: str, period_s: int, threshold: int) -> Object:
    return {
        "httpGet": {"path": f"/health/{what}", "port": 9443, "scheme": "HTTPS"},
        "periodSeconds": period_s,
        "failureThreshold": threshold,
    }


def _deployment(component: str, container: Object) -> Object:
    name = f"kyverno-{component}"
    made = _with(_of_helm("apps/v1", "Deployment", name), _labels(component))
    made["spec"] = {
        "replicas": 1,
        "selector": {"matchLabels": _labels(component)},
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxSurge": 1, "maxUnavailable": "40%"},
        },
        "template": {
            "metadata": {"labels": {**_labels(component), **_HELM}},
            "spec": {
                "serviceAccountName": name,
                "containers": [_restricted(container)],
                "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
            },
        },
    }
    return made


def _restricted(container: Object) -> Object:
    context = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
    }
    return {**container, "securityContext": context}


def _rule(group: str, resource: str) -> Object:
    return {
        "apiGroups": [group],
        "apiVersions": ["*"],
        "operations": ["CREATE", "UPDATE"],
        "resources": [resource],
        "scope": "*",
    }


def _webhooks(
    bundle: str,
    name: str,
    rows: list[tuple[str, str, str, Object]],
    service: str = "kyverno-svc",
) -> Object:
    kind = "Mutating" if name.endswith("-mutating") else "Validating"
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": f"{kind}WebhookConfiguration",
        "metadata": {
            "name": f"kyverno-{name}-webhook-cfg",
            "labels": {"webhook.kyverno.io/managed-by": "kyverno"},
        },
        "webhooks": [
            {
                "name": webhook,
                "clientConfig": {
                    "caBundle": bundle,
                    "service": {"namespace": NAMESPACE, "name": service, "path": path},
                },
                "rules": [rule],
                "failurePolicy": policy,
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
                "namespaceSelector": {
                    "matchExpressions": [
                        {
                            "key": "kubernetes.io/metadata.name",
                            "operator": "NotIn",
                            "values": ["kube-system", NAMESPACE],
                        }
                    ]
                },
            }
            for webhook, path, policy, rule in rows
        ],
    }
