"""``validate.manifests`` with ``dryRun``: the API server adds fields to objects."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from kyverno_mp import limits
from kyverno_mp.errors import DeadlinePassed, ExpressionFailed
from kyverno_mp.images.manifests.verifier import ManifestVerifier
from kyverno_mp.policy.documents.cluster_policy import Policy
from kyverno_mp.policy.reading.decode import decode
from kyverno_mp.program.ports import ClusterData, ManifestQuery
from kyverno_mp.program.result import ERROR, FAIL, PASS
from tests.image_rig import Signer
from tests.images import manifest_rig as rig
from tests.images.test_manifest_rules import judged, key, policy

SIGNER = Signer()
MAP = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "aa", "namespace": "n"},
    "data": {"a": "1"},
}
CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "cars.example.org"},
    "spec": {
        "group": "example.org",
        "names": {"kind": "Car", "plural": "cars", "singular": "car"},
    },
}


class Cluster:
    """Creates objects in a dry run: a webhook adds an entry and a name."""

    def __init__(self) -> None:
        self.created: list[tuple[dict[str, Any], str]] = []
        self.may_create = True
        self.error: Exception | None = None

    def __call__(
        self,
        document: dict[str, Any],
        namespace: str,
        _deadline_ns: int,
        _is_tenants: object,
    ) -> dict[str, Any] | None:
        self.created.append((copy.deepcopy(document), namespace))
        if self.error is not None:
            raise self.error
        if not self.may_create:
            return None
        made = copy.deepcopy(document)
        made["metadata"] |= {"namespace": namespace, "uid": "1"}
        made.setdefault("data", {})["added"] = "yes"
        if made["kind"] == CRD["kind"]:
            # As the API server does.
            names = made["spec"]["names"]
            names.setdefault("listKind", names["kind"] + "List")
        return made


def verdict(
    cluster: Cluster,
    change: Callable[[dict[str, Any]], object] = lambda _made: None,
    *,
    document: dict[str, Any] = MAP,
    signer: Signer = SIGNER,
    dry_run: dict[str, Any] | None = None,
) -> tuple[str, str]:
    """Return status and message for a completed object; ``change`` alters it."""
    made = copy.deepcopy(rig.signed(document, signer))
    made.setdefault("data", {})["added"] = "yes"
    change(made)
    options = {"enable": True} if dry_run is None else dry_run
    rule = policy({"entries": [key(SIGNER)]}, dryRun=options)
    verifier = ManifestVerifier().with_dry_runs(cluster)
    return judged(rule, made, ClusterData(manifests=verifier))


def test_fields_that_the_api_server_adds_are_no_change() -> None:
    assert verdict(Cluster(), dry_run={})[0] == FAIL
    cluster = Cluster()
    assert verdict(cluster)[0] == PASS
    ((created, namespace),) = cluster.created
    assert namespace == "kyverno-dryrun"
    # The object exists already, so the one of the dry run has another name.
    assert created == {**MAP, "metadata": {"name": "aa-dry-run"}}


def test_other_changes_still_fail() -> None:
    cluster = Cluster()
    status, text = verdict(cluster, lambda made: made["data"].update(a="2"))
    assert status == FAIL
    assert '"key":"data.a","values":{"after":"2","before":"1"}' in text
    assert "data.added" not in text
    status, text = verdict(cluster, lambda made: made["data"].pop("added"))
    assert (status, len(cluster.created)) == (PASS, 1), "it is equal without a dry run"


@pytest.mark.parametrize("error", [None, DeadlinePassed("kube.deadline", "late")])
def test_many_attestors_need_one_dry_run(error: Exception | None) -> None:
    cluster = Cluster()
    cluster.error = error
    made = rig.signed(MAP, SIGNER)
    made["data"] = {"a": "2"}
    entries = [key(SIGNER)] * 50
    rule = policy({"count": 50, "entries": entries}, dryRun={"enable": True})
    ports = ClusterData(manifests=ManifestVerifier().with_dry_runs(cluster))
    status, _ = judged(rule, made, ports)
    assert status == (FAIL if error is None else ERROR)
    assert len(cluster.created) == 1


def test_a_renamed_object_fails() -> None:
    """SAFETY: upstream's dry run does not compare names."""
    rename = {"name": "bb"}
    status, text = verdict(Cluster(), lambda made: made["metadata"].update(rename))
    assert status == FAIL
    assert '"key":"metadata.name"' in text


def test_only_a_signed_manifest_is_sent_to_the_api_server() -> None:
    """SAFETY: upstream first creates the manifest, and then checks who signed it."""
    cluster = Cluster()
    status, text = verdict(cluster, signer=Signer())
    assert status == ERROR
    assert "failed to verify signature" in text
    assert not cluster.created


def test_without_permission_the_dry_run_is_off() -> None:
    cluster = Cluster()
    cluster.may_create = False
    status, text = verdict(cluster)
    assert status == FAIL
    assert '"key":"data.added"' in text


def test_the_namespace_of_the_policy_is_used() -> None:
    cluster = Cluster()
    assert verdict(cluster, dry_run={"enable": True, "namespace": "tests"})[0] == PASS
    assert [namespace for _, namespace in cluster.created] == ["tests"]


def test_a_rejected_manifest_is_an_error() -> None:
    cluster = Cluster()
    cluster.error = ExpressionFailed("kube.invalid", "data: Invalid value")
    text = (
        "error occurred during manifest verification: .attestors[0].entries[0].keys:"
        " error occurred during matching manifest: error occured during dryrun create"
        " match: failed to dryrun with the found YAML in image: Error in creating"
        " resource /v1, Kind=ConfigMap: data: Invalid value"
    )
    assert verdict(cluster) == (ERROR, text)
    cluster.error = DeadlinePassed("kube.deadline", "no answer in time")
    status, text = verdict(cluster)
    assert status == ERROR
    assert text.endswith("no answer in time")


def test_names_of_custom_resources_are_unique() -> None:
    cluster = Cluster()
    verifier = ManifestVerifier().with_dry_runs(cluster)
    made = copy.deepcopy(rig.signed(CRD, SIGNER))
    made["data"] = {"added": "yes"}
    made["spec"]["names"]["listKind"] = "CarList"
    asked = query(made)
    assert verifier.verify(asked, 0).is_verified
    ((created, _),) = cluster.created
    assert created["metadata"]["name"] == "simcars.example.org"
    assert created["spec"]["names"] == {
        "kind": "SimCar",
        "plural": "simcars",
        "singular": "simcar",
    }
    for place, name in (
        (made["spec"], "group"),
        (made["spec"]["names"], "kind"),
        (made["metadata"], "name"),
    ):
        right = place[name]
        place[name] = "Other"
        assert not verifier.verify(asked, 0).is_verified, name
        place[name] = right
    assert verifier.verify(asked, 0).is_verified


def test_manifests_of_other_versions_are_not_created() -> None:
    """Their permission was not checked, and they cannot be equal."""
    cluster = Cluster()
    other = {**MAP, "apiVersion": "example.org/v1"}
    verifier = ManifestVerifier().with_dry_runs(cluster)
    message = rig.of_objects(other)
    made = rig.annotated(MAP, message, SIGNER.sign(message))
    assert not verifier.verify(query(made), 0).is_verified
    assert not cluster.created


def test_a_renamed_object_is_compared_with_few_dry_runs() -> None:
    cluster = Cluster()
    others = [{**MAP, "metadata": {"name": f"b{index}"}} for index in range(8)]
    made = copy.deepcopy(rig.signed(others[0], SIGNER, *others[1:]))
    made["metadata"]["name"] = "aa"
    made["data"] = {"a": "3", "added": "yes"}
    verifier = ManifestVerifier().with_dry_runs(cluster)
    assert not verifier.verify(query(made), 0).is_verified
    assert len(cluster.created) == limits.MANIFEST_CANDIDATES_MAX


def query(document: dict[str, Any]) -> ManifestQuery:
    return ManifestQuery(document, rig.DOMAIN, key=SIGNER.pem, dry_run="kyverno-dryrun")


@pytest.mark.parametrize(
    ("namespace", "expected"),
    [("", PASS), ("n", PASS), ("kyverno-dryrun", PASS), ("other", FAIL)],
)
def test_a_namespaced_policy_cannot_choose_a_namespace(
    namespace: str, expected: str
) -> None:
    """SAFETY: messages contain what the webhooks of that namespace have added."""
    given = policy({"entries": [key(SIGNER)]})
    raw = {
        "apiVersion": "kyverno.io/v1",
        "kind": "Policy",
        "metadata": {"name": "signed", "namespace": "n"},
        "spec": copy.deepcopy(given.spec.raw()),
    }
    (rule,) = raw["spec"]["rules"]
    options = {"enable": True, "namespace": namespace}
    rule["validate"]["manifests"]["dryRun"] = options
    document = decode(raw)
    assert isinstance(document, Policy)
    made = copy.deepcopy(rig.signed(MAP, SIGNER))
    made["data"]["added"] = "yes"
    cluster = Cluster()
    ports = ClusterData(manifests=ManifestVerifier().with_dry_runs(cluster))
    assert judged(document, made, ports, namespace="n")[0] == expected
    assert bool(cluster.created) is (expected == PASS)
