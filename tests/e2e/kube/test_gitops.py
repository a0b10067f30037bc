"""Tools that apply policies from Git see no difference, and try them without a trace.

A failure means: Argo CD shows a policy as OutOfSync for ever, or the dry runs that Flux
sends every few minutes create objects, reports or Events.
"""

import json
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from deploy.release.source import INSTALLS
from tests.argo_health import health
from tests.e2e.api import Api
from tests.e2e.background import BACKGROUND, POOL, Space, space_in
from tests.e2e.conftest import Cluster
from tests.e2e.control_plane import ControlPlane
from tests.e2e.product import Product, holder_of, started
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

Json = Any
DEPLOY: Final = Path(__file__).resolve().parents[3] / "deploy"
_NOT_TRIED: Final = ("CustomResourceDefinition", "Namespace")
_ELSEWHERE: Final = "namespace: default"
CONSTRAINTS: Final = {
    "matchConstraints": {
        "resourceRules": [
            {
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "operations": ["CREATE"],
                "resources": ["configmaps"],
            }
        ]
    }
}
CALL: Final = {"name": "x", "apiCall": {"urlPath": "/api/v1/namespaces"}}
MATCH: Final = {"match": {"any": [{"resources": {"kinds": ["ConfigMap"]}}]}}
PATTERN: Final = {"metadata": {"name": "?*"}}
KEY: Final = {"keys": {"publicKeys": "k8s://default/key"}}
IMAGES: Final = {
    "imageReferences": ["ghcr.io/x/*"],
    "attestors": [{"entries": [KEY]}],
    "attestations": [{"type": "t", "attestors": [{"entries": [KEY]}]}],
}
RULES: Final[tuple[Json, ...]] = (
    {"validate": {"message": "m", "pattern": PATTERN}, "context": [CALL]},
    {"validate": {"cel": {"expressions": [{"expression": "true"}]}}},
    {"validate": {"foreach": [{"list": "[]", "context": [CALL], "pattern": PATTERN}]}},
    {"validate": {"manifests": {"attestors": [{"entries": [KEY]}]}}},
    {
        "mutate": {
            "targets": [
                {
                    "apiVersion": "v1",
                    "kind": "ConfigMap",
                    "name": "c",
                    "context": [CALL],
                }
            ],
            "patchStrategicMerge": {"data": {"a": "b"}},
        }
    },
    {
        "mutate": {
            "foreach": [
                {
                    "list": "[]",
                    "context": [CALL],
                    "patchStrategicMerge": {"data": {"a": "b"}},
                }
            ]
        }
    },
    {
        "generate": {
            "foreach": [
                {
                    "list": "[]",
                    "context": [CALL],
                    "apiVersion": "v1",
                    "kind": "ConfigMap",
                    "name": "x",
                    "data": {"data": {"a": "b"}},
                }
            ]
        }
    },
    {"verifyImages": [IMAGES]},
)
SPEC: Final = {
    "rules": [
        {"name": f"r{number}", **MATCH, **rule} for number, rule in enumerate(RULES)
    ]
}
"""Every list of ClusterPolicy and Policy that had a default in an item."""
CEL: Final = "policies.kyverno.io/v1"
POLICIES: Final[tuple[tuple[str, str, Json], ...]] = (
    ("kyverno.io/v1", "ClusterPolicy", SPEC),
    ("kyverno.io/v1", "Policy", SPEC),
    (
        "kyverno.io/v2",
        "ClusterCleanupPolicy",
        {**MATCH, "schedule": "@yearly", "context": [CALL]},
    ),
    (
        "kyverno.io/v2",
        "CleanupPolicy",
        {**MATCH, "schedule": "@yearly", "context": [CALL]},
    ),
    (
        "kyverno.io/v2",
        "PolicyException",
        {**MATCH, "exceptions": [{"policyName": "p", "ruleNames": ["r"]}]},
    ),
    (
        "kyverno.io/v2beta1",
        "GlobalContextEntry",
        {"kubernetesResource": {"version": "v1", "resource": "configmaps"}},
    ),
    *(
        (CEL, f"{prefix}{kind}", spec)
        for prefix in ("", "Namespaced")
        for kind, spec in (
            (
                "ValidatingPolicy",
                {**CONSTRAINTS, "validations": [{"expression": "true"}]},
            ),
            (
                "MutatingPolicy",
                {
                    **CONSTRAINTS,
                    "mutations": [
                        {
                            "patchType": "ApplyConfiguration",
                            "applyConfiguration": {"expression": "Object{}"},
                        }
                    ],
                },
            ),
            (
                "GeneratingPolicy",
                {
                    **CONSTRAINTS,
                    "generate": [{"template": {"value": "kind: ConfigMap"}}],
                },
            ),
            (
                "ImageValidatingPolicy",
                {
                    **CONSTRAINTS,
                    "matchImageReferences": [{"glob": "ghcr.io/x/*"}],
                    "attestors": [
                        {
                            "name": "a",
                            "cosign": {
                                "key": {"data": "k"},
                                "source": {"repository": "r", "PullSecrets": [{}]},
                            },
                        }
                    ],
                    "validations": [{"expression": "true"}],
                },
            ),
            ("DeletingPolicy", {**CONSTRAINTS, "schedule": "@yearly"}),
        )
    ),
    (
        CEL,
        "PolicyException",
        {"policyRefs": [{"kind": "ValidatingPolicy", "name": "p"}]},
    ),
)


@pytest.mark.parametrize(
    "row", POLICIES, ids=[f"{row[0]}-{row[1]}".replace("/", "-") for row in POLICIES]
)
def test_policy_is_in_sync_after_it_was_applied(
    cluster: Cluster,
    shared_plane: ControlPlane,
    row: tuple[str, str, Json],
) -> None:
    """A second apply has nothing to send, and a server-side one changes nothing."""
    api_version, kind, spec = row
    raw = {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {"name": "in-sync"},
        "spec": spec,
    }
    run = partial(kubectl, cluster, text=json.dumps(raw))
    try:
        assert "created" in run("apply")
        assert "unchanged" in run("apply")
        assert "serverside-applied" in run(
            "apply", "--server-side", "--force-conflicts"
        )
        (live,) = json.loads(run("get", "-o", "json"))["items"]
        dry = ("--dry-run=server", "-o", "json")
        tried = run("apply", "--server-side", "--force-conflicts", *dry)
        assert comparable(json.loads(tried)) == comparable(live)
    finally:
        run("delete", "--ignore-not-found")


@pytest.mark.parametrize("name", INSTALLS)
def test_api_server_knows_every_field_of_a_manifest(
    cluster: Cluster, name: str
) -> None:
    """An unknown one is an error of ``kubectl apply``: the rest is not installed."""
    loaded = yaml.load_all((DEPLOY / name).read_text(), Loader=yaml.CSafeLoader)
    documents = [document for document in loaded if document["kind"] not in _NOT_TRIED]
    # The namespace of the manifest does not exist in this dry run.
    text = yaml.safe_dump_all(documents).replace(
        "namespace: kyverno\n", f"{_ELSEWHERE}\n"
    )
    tried = kubectl(
        cluster,
        "apply",
        "--dry-run=server",
        "--validate=strict",
        "-o",
        "name",
        text=text,
    )
    assert len(tried.splitlines()) == len(documents)


def kubectl(cluster: Cluster, verb: str, *options: str, text: str) -> str:
    done = subprocess.run(
        [
            *(str(cluster.kubectl), f"--kubeconfig={cluster.kubeconfig}"),
            *(verb, "-f", "-", *options),
        ],
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def comparable(raw: Json) -> Json:
    """Return what a diff compares."""
    metadata = {
        name: value
        for name, value in raw["metadata"].items()
        if name not in ("managedFields", "resourceVersion")
    }
    return {**raw, "metadata": metadata}


@pytest.fixture(scope="module")
def running(
    shared_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Product]:
    extra = {**POOL, "REPORTS_SCAN": "false", "REPORTS_WORKERS": "1"}
    with started(shared_plane, tmp_path_factory.mktemp("gitops"), extra) as product:
        yield product


@pytest.fixture
def space(api: Api, shared_plane: ControlPlane, running: Product) -> Iterator[Space]:
    wait_for(running.is_ready)
    wait_for(lambda: holder_of(api, BACKGROUND) == "first")
    with space_in(api, shared_plane.etcd_url) as made:
        yield made


def test_dry_run_leaves_nothing_behind(api: Api, space: Space) -> None:
    """A real request after it leaves everything that the dry run must not leave."""
    violation = {
        "message": "m",
        "failureAction": "Audit",
        "pattern": {"metadata": {"labels": {"owner": "?*"}}},
    }
    path = space.policy(
        space.generate("g", data={"data": {"a": "b"}}),
        space.rule("v", validate=violation),
    )
    assert health(api.get(path)) == "Healthy"
    labels = {"labels": {"team": "blue"}}
    for name, query in (("tried", "?dryRun=All"), ("real", "")):
        api.create(f"{space.accounts}{query}", {"metadata": {"name": name, **labels}})
        api.patch(f"{space.accounts}/default{query}", {"metadata": labels})
    space.await_data("real", a="b")
    space.await_data("default", a="b")
    wait_for(lambda: {"real", "default"} <= named(api, space))
    assert "tried" not in named(api, space)
    assert space.names() == {"real", "default"}
    assert "tried" not in json.dumps(space.requests())


def named(api: Api, space: Space) -> set[str]:
    """Return the names of the objects that reports or Events are about."""
    parent = f"namespaces/{space.name}"
    events = api.get(f"/apis/events.k8s.io/v1/{parent}/events")["items"]
    reports = api.get(f"/apis/wgpolicyk8s.io/v1alpha2/{parent}/policyreports")["items"]
    return {
        one["name"]
        for one in (
            *(event.get("regarding") or {} for event in events),
            *(event.get("related") or {} for event in events),
            *(report.get("scope") or {} for report in reports),
        )
        if "name" in one
    }
