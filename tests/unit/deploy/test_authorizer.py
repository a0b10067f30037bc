"""The manifest of the authorizer starts it with few permissions.

A failure means: its pod would not start, is not protected, or may do more than read
policies.
"""

from typing import Any

import click
import pytest
import yaml

from kyverno_mp import __version__
from kyverno_mp.cli.main import cli
from kyverno_mp.cli.serve_authz import settings_of
from kyverno_mp.settings.read import read
from tests.unit.docs.citing import ROOT

DOCUMENTS: dict[str, dict[str, Any]] = {
    one["kind"]: one
    for one in yaml.safe_load_all((ROOT / "deploy/authorizer.yaml").read_text())
}
POD = DOCUMENTS["Deployment"]["spec"]["template"]
(CONTAINER,) = POD["spec"]["containers"]


def settings(*arguments: str) -> Any:
    found: click.Command = cli
    context = click.Context(found)
    words = list(arguments)
    while isinstance(found, click.Group) and not words[0].startswith("-"):
        child = found.get_command(context, words.pop(0))
        assert child is not None
        found = child
    flags = found.make_context("authz", words).params
    return read({}, settings_of(flags))


def test_its_arguments_are_accepted_and_its_ports_declared() -> None:
    found = settings(*CONTAINER["args"])
    assert found.authz_mode == "envoy"
    ports = {port["name"]: port["containerPort"] for port in CONTAINER["ports"]}
    assert ports == {"authz": found.webhook_port, "metrics-port": found.health_port}
    (port,) = DOCUMENTS["Service"]["spec"]["ports"]
    assert (port["port"], port["targetPort"]) == (9081, "authz")
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert CONTAINER[probe]["httpGet"]["path"] in ("/livez", "/readyz")
        assert CONTAINER[probe]["httpGet"]["port"] == "metrics-port"


def test_it_only_reads_policies() -> None:
    (rule,) = DOCUMENTS["ClusterRole"]["rules"]
    assert rule["resources"] == ["validatingpolicies", "policyexceptions"]
    assert rule["verbs"] == ["list", "watch"]
    account = DOCUMENTS["ServiceAccount"]["metadata"]["name"]
    assert POD["spec"]["serviceAccountName"] == account
    (subject,) = DOCUMENTS["ClusterRoleBinding"]["subjects"]
    assert (subject["name"], subject["namespace"]) == (account, "kyverno")


def test_its_pod_is_restricted() -> None:
    security = CONTAINER["securityContext"]
    assert security["readOnlyRootFilesystem"]
    assert not security["allowPrivilegeEscalation"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert POD["spec"]["securityContext"]["runAsNonRoot"]
    assert {one["emptyDir"]["medium"] for one in POD["spec"]["volumes"]} == {"Memory"}


@pytest.mark.parametrize("kind", ["Service", "PodDisruptionBudget", "NetworkPolicy"])
def test_objects_select_its_pods(kind: str) -> None:
    spec = DOCUMENTS[kind]["spec"]
    found = spec.get("selector") or spec["podSelector"]
    found = found.get("matchLabels", found)
    assert found.items() <= POD["metadata"]["labels"].items()


def test_probes_and_metrics_are_closed_to_other_pods() -> None:
    requests, probes = DOCUMENTS["NetworkPolicy"]["spec"]["ingress"]
    assert [port["port"] for port in requests["ports"]] == ["authz"]
    assert [port["port"] for port in probes["ports"]] == ["metrics-port"]
    assert probes["from"]


def test_versions_are_ours() -> None:
    assert CONTAINER["image"] == f"kyverno-mp:{__version__}"
    for one in DOCUMENTS.values():
        labels = one["metadata"]["labels"]
        assert labels["app.kubernetes.io/version"] == __version__


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ("--mode http --grpc-address :1", "--grpc-address: not of --mode http"),
        ("--mode envoy --server-address :1", "--server-address: not of --mode envoy"),
        ("--mode envoy --grpc-network unix", "expected tcp"),
        ("--mode http --server-address 9081", "expected host:port"),
        ("--mode http --external-policy-source git+https://h/r", "git-sync"),
        (
            "--mode http --probes-address :9080 --metrics-address :9082",
            "one port serves probes and metrics",
        ),
    ],
)
def test_flags_without_effect_are_rejected_with_the_reason(
    flags: str, reason: str
) -> None:
    """A user of upstream's server would otherwise believe that they act."""
    with pytest.raises(click.UsageError, match=reason):
        settings("serve", "authz", *flags.split())


def test_flags_of_upstream_act() -> None:
    found = settings(
        *("serve", "authz", "--mode=http", "--nested-request", "--server-address=:1"),
        *("--external-policy-source=file://data/p", "--policies=/q"),
        *("--probes-address=:2", "--metrics-address=:2", "--cert-file=c"),
        *("--key-file=k", "--allow-insecure-registry=false"),
        *("--external-policy-source=oci://r.example.com/p:1",),
        *("--image-pull-secret=a", "--image-pull-secret=b"),
    )
    assert found.authz_nested_request
    assert (found.webhook_port, found.health_port) == (1, 2)
    assert found.authz_sources == "/q,data/p,oci://r.example.com/p:1"
    assert found.image_pull_secrets == "a,b"
    assert found.allow_insecure_registry is False
    assert (found.tls_cert_file, found.tls_key_file) == ("c", "k")
