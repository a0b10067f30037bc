"""deploy/ matches its parts, meets our own policies, and grants minimal permissions.

A failure means: a part was changed without `python deploy/compose.py`, or a manifest
got excessive permissions or unfinished parts that would affect our users.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from packaging.requirements import Requirement

from deploy import compose, pin
from kyverno_mp import __version__
from kyverno_mp.cli.main import cli
from kyverno_mp.controllers.caller_path.controller import TEMPLATE_KNOWS
from kyverno_mp.limits import ROLE_END_S_MAX
from kyverno_mp.process.roles import table as roles
from kyverno_mp.settings.read import read
from kyverno_mp.values.kubernetes.policy_kinds import (
    CEL_POLICY_EXCEPTION,
    CEL_POLICY_KINDS,
    POLICY_KINDS,
    PolicyKind,
)

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy"
MANIFESTS = ("install.yaml", "install-split.yaml")
NAME = "kyverno-admission-controller"
SELECTOR = {
    "app.kubernetes.io/component": "admission-controller",
    "app.kubernetes.io/instance": "kyverno",
    "app.kubernetes.io/part-of": "kyverno",
}
ROLES = {
    "install.yaml": {"admission", "background", "reports", "cleanup"},
    "install-split.yaml": {"admission", "background", "reports", "cleanup"},
}
DEPLOYMENTS = {
    "install.yaml": {"admission"},
    "install-split.yaml": {"admission", "background", "reports", "cleanup"},
}
PROBES = {
    "startup": "/health/liveness",
    "liveness": "/health/liveness",
    "readiness": "/health/readiness",
}


POLICIES_IN_REVIEWS = [row for row in POLICY_KINDS if row.segment]


def plurals_of(rows: Iterable[PolicyKind]) -> list[str]:
    return [one.plural for row in rows for one in row.stored]


@cache
def documents(manifest: str) -> list[dict[str, Any]]:
    text = (DEPLOY / manifest).read_text()
    return list(yaml.load_all(text, Loader=yaml.CSafeLoader))


@pytest.fixture(scope="module", params=MANIFESTS)
def manifest(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def objects(manifest: str) -> list[dict[str, Any]]:
    return documents(manifest)


def of_kind(objects: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [one for one in objects if one["kind"] == kind]


def labels_of(role: str) -> dict[str, str]:
    return {**SELECTOR, "app.kubernetes.io/component": f"{role}-controller"}


def deployment(objects: list[dict[str, Any]], role: str = "admission") -> Any:
    """Return the Deployment of a role."""
    (found,) = (
        one
        for one in of_kind(objects, "Deployment")
        if one["metadata"]["name"] == f"kyverno-{role}-controller"
    )
    return found


def container(objects: list[dict[str, Any]], role: str = "admission") -> dict[str, Any]:
    (found,) = deployment(objects, role)["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found


def rules(objects: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for one in objects:
        if one["kind"] in ("Role", "ClusterRole"):
            yield from one.get("rules") or ()


def test_manifests_are_generated_from_their_parts() -> None:
    assert (DEPLOY / "install.yaml").read_text() == compose.install()
    assert (DEPLOY / "install-split.yaml").read_text() == compose.install_split()
    without = (DEPLOY / "install-without-crds.yaml").read_text()
    assert without == compose.install_without_crds()
    assert (DEPLOY / "kustomization.yaml").read_text() == compose.kustomization()


def test_one_manifest_omits_the_crds() -> None:
    """Deleting the manifest's objects therefore keeps definitions and policies."""
    whole = documents("install.yaml")
    kept = [one for one in whole if one["kind"] != "CustomResourceDefinition"]
    assert documents("install-without-crds.yaml") == kept


def test_every_object_has_the_recommended_labels(objects: list[dict[str, Any]]) -> None:
    """The labels name the application and the version.

    Definitions have no such labels.
    """
    for one in objects:
        if one["kind"] == "CustomResourceDefinition":
            continue
        labels = one["metadata"]["labels"]
        assert labels["app.kubernetes.io/name"] == "kyverno-mp"
        assert labels["app.kubernetes.io/version"] == __version__
        assert labels["app.kubernetes.io/part-of"] == "kyverno"
        if one["kind"] != "Namespace":
            assert {"app.kubernetes.io/instance", "app.kubernetes.io/component"} <= {
                *labels
            }


def test_objects_are_unique_and_in_no_other_namespace(
    objects: list[dict[str, Any]],
) -> None:
    places = [
        (one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"])
        for one in objects
    ]
    assert len(places) == len(set(places))
    assert {namespace for _, namespace, _ in places} == {None, "kyverno"}


def test_every_crd_is_included(objects: list[dict[str, Any]]) -> None:
    found = {
        one["metadata"]["name"] for one in of_kind(objects, "CustomResourceDefinition")
    }
    files = (ROOT / "config" / "crds").glob("*.yaml")
    assert found == {
        yaml.load(file.read_text(), Loader=yaml.CSafeLoader)["metadata"]["name"]
        for file in files
    }


def test_accounts_equal_upstreams(objects: list[dict[str, Any]], manifest: str) -> None:
    """Each account has a `:core` role, and another role that users can extend."""
    names = ROLES[manifest]
    accounts = {one["metadata"]["name"] for one in of_kind(objects, "ServiceAccount")}
    assert accounts == {f"kyverno-{role}-controller" for role in names}
    clusterroles = {
        one["metadata"]["name"]: one for one in of_kind(objects, "ClusterRole")
    }
    for role in names:
        name = f"kyverno:{role}-controller"
        core = clusterroles[f"{name}:core"]["metadata"]["labels"]
        ours = labels_of(role)
        assert ours.items() <= core.items()
        selectors = [
            one["matchLabels"]
            for one in clusterroles[name]["aggregationRule"]["clusterRoleSelectors"]
        ]
        users = {f"rbac.kyverno.io/aggregate-to-{role}-controller": "true"}
        assert selectors == [users, ours]


def test_bindings_refer_to_existing_roles(objects: list[dict[str, Any]]) -> None:
    accounts = {one["metadata"]["name"] for one in of_kind(objects, "ServiceAccount")}
    names = {
        kind: {one["metadata"]["name"] for one in of_kind(objects, kind)}
        for kind in ("Role", "ClusterRole")
    }
    names["ClusterRole"].add("view")
    bindings = [
        *of_kind(objects, "RoleBinding"),
        *of_kind(objects, "ClusterRoleBinding"),
    ]
    for binding in bindings:
        assert binding["roleRef"]["name"] in names[binding["roleRef"]["kind"]]
        for subject in binding["subjects"]:
            assert subject["name"] in accounts
            assert subject["namespace"] == "kyverno"


def test_every_existing_role_has_its_deployment(
    objects: list[dict[str, Any]], manifest: str
) -> None:
    found = {one["metadata"]["name"] for one in of_kind(objects, "Deployment")}
    wanted = DEPLOYMENTS[manifest]
    assert found == {f"kyverno-{role}-controller" for role in wanted}


def test_each_pool_runs_once_with_its_own_account(
    objects: list[dict[str, Any]], manifest: str
) -> None:
    """In a shared pod, pools use tokens; otherwise, they use the pod's account."""
    runs = {}
    for role in DEPLOYMENTS[manifest]:
        env = {
            one["name"]: one.get("value", "") for one in container(objects, role)["env"]
        }
        settings = read(env)
        assert settings.has_background_pool or not settings.runs_webhook
        assert settings.has_reports_pool or not settings.runs_webhook
        runs[role] = (
            settings.runs_webhook,
            settings.background_workers,
            settings.cleanup_workers,
            settings.reports_workers,
        )
        spec = deployment(objects, role)["spec"]["template"]["spec"]
        assert spec["serviceAccountName"] == f"kyverno-{role}-controller"
        (account,) = (
            one["valueFrom"]["fieldRef"]["fieldPath"]
            for one in container(objects, role)["env"]
            if one["name"] == "KYVERNO_MP_SERVICE_ACCOUNT_NAME"
        )
        assert account == "spec.serviceAccountName"
    tokens = [
        (rule["resourceNames"], rule["verbs"])
        for rule in rules(objects)
        if "serviceaccounts/token" in rule["resources"]
    ]
    if manifest == "install.yaml":
        assert runs == {"admission": (True, 4, 1, 1)}
        accounts = [
            "kyverno-background-controller",
            "kyverno-cleanup-controller",
            "kyverno-reports-controller",
        ]
        assert tokens == [(accounts, ["create"])]
    else:
        assert runs == {
            "admission": (True, 0, 0, 0),
            "background": (False, 4, 0, 0),
            "reports": (False, 0, 0, 1),
            "cleanup": (False, 0, 1, 0),
        }
        assert tokens == []


def test_each_pool_can_acquire_its_lease(objects: list[dict[str, Any]]) -> None:
    """A role's part of deploy/ grants the lease to the account in the role's entry."""
    for entry in roles.ROLES:
        if not entry.account:
            continue
        (role,) = (
            one
            for one in of_kind(objects, "Role")
            if one["metadata"]["name"] == entry.account.replace("-", ":", 1)
        )
        granted = [
            set(rule["verbs"])
            for rule in role["rules"]
            if rule.get("resourceNames") == [entry.account]
        ]
        assert any({"get", "update"} <= verbs for verbs in granted)


def test_no_role_has_wildcard_permissions(objects: list[dict[str, Any]]) -> None:
    """No wildcards, no verbs that can extend permissions, only our own three Secrets.

    Tokens are allowed only for the named accounts
    (test_each_pool_runs_once_with_its_own_account).
    """
    for rule in rules(objects):
        assert not {"*"} & {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}
        assert not {"escalate", "bind", "impersonate"} & set(rule["verbs"])
        if "secrets" in rule["resources"] and rule["verbs"] != ["create"]:
            ours = {
                f"kyverno-svc.kyverno.svc.{name}"
                for name in ("kyverno-tls-ca", "kyverno-tls-pair", "kyverno-mp-caller")
            }
            assert set(rule["resourceNames"]) <= ours
        assert not {"pods/exec", "nodes/proxy"} & set(rule["resources"])
        if "customresourcedefinitions" in rule["resources"]:
            # Otherwise, definitions from Git could differ from the live ones.
            assert set(rule["verbs"]) <= {"get", "list", "watch"}
        if "serviceaccounts/token" in rule["resources"]:
            assert rule["resourceNames"]


def writes_of(objects: list[dict[str, Any]], role: str) -> dict[str, set[str]]:
    """Return the write permissions of a role's account by resource."""
    labels = labels_of(role).items()
    granting = [one for one in objects if one["kind"] in ("Role", "ClusterRole")]
    ours = [one for one in granting if labels <= one["metadata"]["labels"].items()]
    found: dict[str, set[str]] = {}
    for rule in rules(ours):
        writes = {*rule["verbs"]} - {"get", "list", "watch"}
        for resource in rule["resources"] if writes else ():
            found.setdefault(resource, set()).update(writes)
    return found


def test_background_role_can_write_only_required_kinds(
    objects: list[dict[str, Any]],
) -> None:
    """Besides generated objects: requests, Events, results, its Lease, its record."""
    changes = {"create", "delete", "patch", "update"}
    generated = (
        *("ingresses", "ingressclasses", "networkpolicies"),
        *("rolebindings", "roles", "resourcequotas", "limitranges"),
        *("configmaps", "resourceclaims", "resourceclaimtemplates"),
    )
    assert writes_of(objects, "background") == {
        **dict.fromkeys(generated, changes),
        "updaterequests": {"create", "delete"},
        "updaterequests/status": {"patch"},
        "events": {"create", "patch"},
        "ephemeralreports": {"create", "update"},
        "subjectaccessreviews": {"create"},
        "leases": changes,
    }


def test_reports_role_can_write_only_required_kinds(
    objects: list[dict[str, Any]],
) -> None:
    """The role writes reports and its Lease, and removes merged records of reviews."""
    changes = {"create", "delete", "update"}
    patched = {*changes, "patch"}
    names = ("policyreports", "reports")
    kinds = [prefix + name for name in names for prefix in ("", "cluster")]
    assert writes_of(objects, "reports") == {
        **dict.fromkeys(kinds, patched),
        "ephemeralreports": {"delete", "update"},
        "clusterephemeralreports": {"delete", "update"},
        "events": {"create", "patch"},
        "subjectaccessreviews": {"create"},
        "leases": patched,
    }


def test_cleanup_role_can_write_only_required_kinds(
    objects: list[dict[str, Any]],
) -> None:
    """Users grant the permission to delete."""
    rows = [row for row in POLICY_KINDS if not row.segment]
    statuses = [f"{name}/status" for name in plurals_of(rows)]
    assert writes_of(objects, "cleanup") == {
        **dict.fromkeys(statuses, frozenset({"update"})),
        "events": {"create", "patch"},
        "subjectaccessreviews": {"create"},
        "leases": {"create", "delete", "patch", "update"},
    }


def test_roles_for_users_have_each_kind_of_policies() -> None:
    """A failure means: a new kind is missing in the roles, so users cannot see it."""
    roles = {
        one["metadata"]["name"]: one["rules"][0]
        for one in yaml.safe_load_all((DEPLOY / "parts/user-roles.yaml").read_text())
    }
    in_cel = {*plurals_of(CEL_POLICY_KINDS), CEL_POLICY_EXCEPTION.plural}
    others = set(plurals_of([row for row in POLICY_KINDS if not row.is_in_cel]))
    for role in ("admin", "view"):
        rule = roles[f"kyverno:rbac:{role}:celpolicies"]
        assert set(rule["resources"]) == in_cel
        assert set(roles[f"kyverno:rbac:{role}:policies"]["resources"]) >= others


def test_admission_role_reads_each_kind_in_reviews(
    objects: list[dict[str, Any]],
) -> None:
    """A failure means: the leader cannot watch a kind of policies."""
    (role,) = (
        one
        for one in of_kind(objects, "ClusterRole")
        if one["metadata"]["name"] == "kyverno:admission-controller:core"
    )
    watching = [one for one in role["rules"] if "watch" in one["verbs"]]
    watched = {name for rule in watching for name in rule["resources"]}
    assert watched >= set(plurals_of(POLICIES_IN_REVIEWS))


def test_admission_role_can_write_only_required_kinds(
    objects: list[dict[str, Any]], manifest: str
) -> None:
    """An attacker who controls a pod gets only these permissions."""
    found = writes_of(objects, "admission")
    if manifest == "install.yaml":
        assert found.pop("serviceaccounts/token") == {"create"}
    assert found == {
        "validatingwebhookconfigurations": {"create", "update", "delete"},
        "mutatingwebhookconfigurations": {"create", "update", "delete"},
        **dict.fromkeys(
            (
                "validatingadmissionpolicies",
                "validatingadmissionpolicybindings",
                "mutatingadmissionpolicies",
                "mutatingadmissionpolicybindings",
            ),
            frozenset({"create", "update", "delete"}),
        ),
        "globalcontextentries/status": {"update"},
        **{f"{one}/status": {"update"} for one in plurals_of(POLICIES_IN_REVIEWS)},
        "updaterequests": {"create", "update"},
        "updaterequests/status": {"patch"},
        "ephemeralreports": {"create", "update"},
        "events": {"create", "patch"},
        "subjectaccessreviews": {"create"},
        "secrets": {"create", "update", "delete"},
        "leases": {"create", "update", "delete"},
        "configmaps": {"create", "patch"},
    }


def test_secrets_are_accessed_only_in_our_namespace(
    objects: list[dict[str, Any]],
) -> None:
    for one in of_kind(objects, "ClusterRole"):
        for rule in one.get("rules") or ():
            assert "secrets" not in rule["resources"]


def test_services_select_the_pods(objects: list[dict[str, Any]], manifest: str) -> None:
    ports = {}
    for role in DEPLOYMENTS[manifest]:
        template = deployment(objects, role)["spec"]["template"]
        labels = {
            **labels_of(role),
            "app.kubernetes.io/name": "kyverno-mp",
            "app.kubernetes.io/version": __version__,
        }
        if role == "admission":
            # controllers/caller_path: these pods accept paths with a segment.
            labels[TEMPLATE_KNOWS] = "known"
        assert template["metadata"]["labels"] == labels
        spec = deployment(objects, role)["spec"]
        assert spec["selector"]["matchLabels"] == labels_of(role)
        ports[f"{role}-controller"] = {
            one["name"] for one in container(objects, role)["ports"]
        }
    for kind in ("Service", "PodDisruptionBudget", "NetworkPolicy"):
        for one in of_kind(objects, kind):
            spec = one["spec"]
            selector = spec.get("podSelector") or spec["selector"]
            selector = selector.get("matchLabels", selector)
            component = one["metadata"]["labels"]["app.kubernetes.io/component"]
            assert selector == labels_of(component.removesuffix("-controller"))
            for port in spec.get("ports") or ():
                assert port["targetPort"] in ports[component]


def test_probe_port_is_closed_to_other_pods(
    objects: list[dict[str, Any]], manifest: str
) -> None:
    """The API server has no address to allow; clients of metrics have a namespace."""
    policies = of_kind(objects, "NetworkPolicy")
    assert len(policies) == len(DEPLOYMENTS[manifest])
    for policy in policies:
        rules = {
            port["port"]: rule.get("from")
            for rule in policy["spec"]["ingress"]
            for port in rule["ports"]
        }
        if policy["metadata"]["name"] == NAME:
            assert rules.pop("https") is None
        assert set(rules) == {"metrics-port"}
        assert rules["metrics-port"]
        assert {} not in rules["metrics-port"]
        assert {"namespaceSelector": {}} not in rules["metrics-port"]


def test_environment_of_a_pool_is_valid(
    objects: list[dict[str, Any]], manifest: str
) -> None:
    for role in DEPLOYMENTS[manifest] - {"admission"}:
        one = container(objects, role)
        settings = read({e["name"]: e.get("value", "from-the-pod") for e in one["env"]})
        assert [port["containerPort"] for port in one["ports"]] == [
            settings.health_port
        ]
        mounts = [mount["mountPath"] for mount in one["volumeMounts"]]
        assert any(settings.runtime_dir.startswith(f"{path}/") for path in mounts)
        for kind, path in PROBES.items():
            assert one[f"{kind}Probe"]["httpGet"]["path"] == path
        assert one["image"] == f"kyverno-mp:{__version__}"
        assert one["securityContext"]["readOnlyRootFilesystem"] is True
        spec = deployment(objects, role)["spec"]["template"]["spec"]
        assert spec["terminationGracePeriodSeconds"] >= 15


def test_environment_is_valid(objects: list[dict[str, Any]]) -> None:
    """Each variable is a valid setting, and addresses are consistent."""
    given = {
        one["name"]: one.get("value", "from-the-pod")
        for one in container(objects)["env"]
    }
    settings = read(given)
    assert settings.deployment_name == deployment(objects)["metadata"]["name"] == NAME
    services = {one["metadata"]["name"] for one in of_kind(objects, "Service")}
    assert settings.service_name in services
    ports = {one["name"]: one["containerPort"] for one in container(objects)["ports"]}
    assert ports == {
        "https": settings.webhook_port,
        "metrics-port": settings.health_port,
    }
    (mount,) = (
        one["mountPath"]
        for one in container(objects)["volumeMounts"]
        if settings.runtime_dir.startswith(one["mountPath"])
    )
    # K8S: the folder of a volume belongs to root; ours must belong to us.
    assert settings.runtime_dir != mount


def test_pods_are_spread_and_prioritized(objects: list[dict[str, Any]]) -> None:
    """If a node or a zone fails or is full, one replica continues to answer."""
    spec = deployment(objects)["spec"]
    pod = spec["template"]["spec"]
    assert spec["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    (class_,) = of_kind(objects, "PriorityClass")
    assert pod["priorityClassName"] == class_["metadata"]["name"]
    assert not class_["globalDefault"]
    # K8S: higher values are only for names that begin with system-.
    assert class_["value"] <= 1_000_000_000
    (spread,) = pod["topologySpreadConstraints"]
    (apart,) = pod["affinity"]["podAntiAffinity"][
        "preferredDuringSchedulingIgnoredDuringExecution"
    ]
    selectors = (spread["labelSelector"], apart["podAffinityTerm"]["labelSelector"])
    assert all(one["matchLabels"] == SELECTOR for one in selectors)
    # One node or zone must suffice where no others exist.
    assert spread["whenUnsatisfiable"] == "ScheduleAnyway"


def test_a_drain_leaves_a_replica_of_each_role(objects: list[dict[str, Any]]) -> None:
    replicas = {
        one["metadata"]["name"]: one["spec"]["replicas"]
        for one in of_kind(objects, "Deployment")
    }
    budgets = {
        one["metadata"]["name"]: one["spec"]
        for one in of_kind(objects, "PodDisruptionBudget")
    }
    assert set(budgets) == set(replicas)
    for name, budget in budgets.items():
        assert 0 < budget["maxUnavailable"] < replicas[name]
        # A pod that is not ready must not block a drain.
        assert budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
        component = name.removeprefix("kyverno-")
        assert budget["selector"]["matchLabels"] == {
            **SELECTOR,
            "app.kubernetes.io/component": component,
        }


def test_probes_use_existing_endpoints(objects: list[dict[str, Any]]) -> None:
    """A pod that only has to leave the service must not be killed."""
    one = container(objects)
    paths = {kind: one[f"{kind}Probe"]["httpGet"]["path"] for kind in PROBES}
    assert paths == PROBES
    assert all(
        one[f"{kind}Probe"]["httpGet"]["port"] == "metrics-port" for kind in PROBES
    )
    start = one["startupProbe"]
    assert start["periodSeconds"] * start["failureThreshold"] >= 120


def test_grace_period_covers_the_shutdown(objects: list[dict[str, Any]]) -> None:
    given = {one["name"]: one.get("value", "x") for one in container(objects)["env"]}
    settings = read(given)
    spec = deployment(objects)["spec"]["template"]["spec"]
    # A killed process gets a second, and so does the end of the supervisor.
    rest_s = 3.0 + ROLE_END_S_MAX + 2.0
    needed_s = max(settings.drain_delay_s, 10.0) + settings.drain_timeout_s + rest_s
    assert spec["terminationGracePeriodSeconds"] >= needed_s


def test_image_tag_equals_this_version(objects: list[dict[str, Any]]) -> None:
    assert container(objects)["image"] == f"kyverno-mp:{__version__}"


@pytest.mark.parametrize("kind", ["policies", "cel"])
def test_our_pods_pass_our_pod_security_policies(manifest: str, kind: str) -> None:
    """All seventeen policies, baseline and restricted, apply through autogen."""
    path = str(DEPLOY / manifest)
    policies = str(ROOT / "config" / "samples" / kind)
    done = CliRunner().invoke(cli, ["apply", policies, "-r", path])
    assert done.exit_code == 0, done.output
    assert "fail: 0, warn: 0, error: 0" in done.output
    passed = int(done.output.split("pass: ")[1].split(",")[0])
    assert passed >= 17, done.output


def test_our_pods_are_restricted(objects: list[dict[str, Any]]) -> None:
    (namespace,) = of_kind(objects, "Namespace")
    labels = namespace["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"
    assert container(objects)["securityContext"]["readOnlyRootFilesystem"] is True


def test_dockerfile_matches_tree_and_manifest(objects: list[dict[str, Any]]) -> None:
    """The image runs as the manifest's user and has the expected entry point."""
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    copied = {
        name
        for line in lines
        if line.startswith("COPY ") and "--from" not in line
        for name in line.split()[1:-1]
    }
    assert all((ROOT / name).exists() for name in copied)
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    assert {line[1:] for line in ignored if line.startswith("!")} == copied
    assert f'    org.opencontainers.image.version="{__version__}" \\' in lines
    security = deployment(objects)["spec"]["template"]["spec"]["securityContext"]
    assert f"USER {security['runAsUser']}:{security['runAsGroup']}" in lines
    assert 'ENTRYPOINT ["kyverno-mp"]' in lines
    scripts = (ROOT / "setup.cfg").read_text()
    assert "kyverno-mp = kyverno_mp.__main__:main" in scripts
    assert "command" not in container(objects)


def test_image_has_the_declared_dependencies() -> None:
    """The image contains all requirements except omitted ones, in allowed versions."""
    text = (DEPLOY / "requirements.txt").read_text()
    pinned = dict(re.findall(r"^([a-z0-9-]+)==([^ ]+)", text, re.MULTILINE))
    assert "kubernetes" not in pinned
    wanted = [Requirement(line) for line in pin.wanted()]
    assert len(wanted) > 10
    for one in wanted:
        version = pinned[one.name.lower().replace("_", "-")]
        assert one.specifier.contains(version), one
    hashed = re.findall(r"^[a-z0-9-]+==.*\\\n +--hash=", text, re.MULTILINE)
    assert len(hashed) == len(pinned)


def test_no_module_imports_what_the_image_omits() -> None:
    """One module is an exception and names the missing package (test_login.py)."""
    does_without = ROOT / "kyverno_mp" / "cli" / "cluster" / "kubeconfig.py"
    assert does_without.exists()
    for module in {*(ROOT / "kyverno_mp").rglob("*.py")} - {does_without}:
        source = module.read_text()
        if not any(name in source for name in pin.LEFT_OUT):
            continue
        for node in ast.walk(ast.parse(source)):
            names = (
                [one.name for one in node.names] if isinstance(node, ast.Import) else []
            )
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            assert not {name.split(".")[0] for name in names} & {*pin.LEFT_OUT}, module


def test_overlay_applies() -> None:
    base = yaml.safe_load((DEPLOY / "kustomization.yaml").read_text())
    assert base["kind"] == "Kustomization"
    assert all((DEPLOY / name).is_file() for name in base["resources"])


def test_servicemonitor_selects_our_metrics(objects: list[dict[str, Any]]) -> None:
    monitor = yaml.safe_load((DEPLOY / "servicemonitor.yaml").read_text())
    assert monitor["spec"]["selector"]["matchLabels"] == SELECTOR
    ports = {
        port["name"]
        for one in of_kind(objects, "Service")
        for port in one["spec"]["ports"]
    }
    assert {one["port"] for one in monitor["spec"]["endpoints"]} <= ports
