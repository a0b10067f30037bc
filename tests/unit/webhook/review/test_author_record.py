"""The annotation with a policy's author names who wrote the content, and nobody else.

A failure means: a tenant names an administrator as the author of its policy.
"""

import json
from typing import Any

import pytest
from falcon.testing import TestClient

from kyverno_mp.admission.decode import decode
from kyverno_mp.controllers.webhook_config.options import WebhookOptions
from kyverno_mp.egress.author_rights import AUTHOR
from kyverno_mp.leader.control.options import static_configurations
from kyverno_mp.policy.ports import BuiltInKinds, ClusterView
from kyverno_mp.webhook.author_review import author_patch
from kyverno_mp.webhook.policy_review import ReviewOptions
from kyverno_mp.webhook.rest import make_app
from tests.unit.webhook.review.test_policy_author import Cluster, legacy

OTHER = json.dumps({"user": "admin", "groups": ["system:masters"]})
OWN = json.dumps({"user": "eve", "groups": ["g"]}, separators=(",", ":"))
BASE = legacy({"validate": {"message": "m", "deny": {}}})


def policy(author: str = "", **changes: Any) -> dict[str, Any]:
    annotations = {AUTHOR: author} if author else {}
    metadata = {**BASE["metadata"], **changes.pop("metadata", {})}
    if annotations:
        metadata["annotations"] = {**metadata.get("annotations", {}), **annotations}
    return {**BASE, "metadata": metadata, **changes}


def request_of(new: dict[str, Any], old: dict[str, Any] | None) -> dict[str, Any]:
    group, _, version = new["apiVersion"].rpartition("/")
    return {
        "uid": "u",
        "operation": "UPDATE" if old else "CREATE",
        "kind": {"group": group, "version": version, "kind": new["kind"]},
        "namespace": "team",
        "userInfo": {"username": "eve", "groups": ["g"]},
        "object": new,
        "oldObject": old,
    }


def written(new: dict[str, Any], old: dict[str, Any] | None = None) -> str | None:
    """Return the author that is stored if eve sends ``new``."""
    body = json.dumps({"request": request_of(new, old)}).encode()
    annotations = dict(new["metadata"].get("annotations") or {})
    for one in author_patch(decode(body, lambda *_: "")):
        if one["op"] == "remove":
            del annotations[AUTHOR]
        elif one["path"] == "/metadata/annotations":
            assert not annotations
            annotations = dict(one["value"])
        else:
            assert one["path"] == "/metadata/annotations/kyverno-mp.io~1author"
            annotations[AUTHOR] = one["value"]
    return annotations.get(AUTHOR)


CHANGED: dict[str, Any] = {"rules": []}
LABELS = {"labels": {"a": "b"}}
NOTE = {"annotations": {"a": "b"}}


@pytest.mark.parametrize(
    ("new", "old", "author"),
    [
        (policy(), None, OWN),
        (policy(OTHER), None, OWN),
        (policy(metadata=NOTE), None, OWN),
        (policy(OTHER, spec=CHANGED), policy(OTHER), OWN),
        (policy(spec=CHANGED), policy(OTHER), OWN),
        (policy(OTHER, metadata=NOTE), policy(OTHER), OWN),
        # Nothing but metadata changes: the author of the content stays.
        (policy(OTHER, metadata=LABELS), policy(OTHER), OTHER),
        (policy(metadata=LABELS), policy(OTHER), OTHER),
        (policy("forged"), policy(OTHER), OTHER),
        # Stored before the service recorded authors: nobody becomes its author.
        (policy("forged"), policy(), None),
        (policy(metadata=LABELS), policy(), None),
    ],
)
def test_author_cannot_be_forged(
    new: dict[str, Any], old: dict[str, Any] | None, author: str | None
) -> None:
    assert written(new, old) == author


def test_cluster_policies_have_no_such_annotation() -> None:
    raw = {**BASE, "kind": "ClusterPolicy", "metadata": {"name": "p"}}
    assert written(raw) is None


def test_every_namespaced_kind_is_recorded_and_reviewed() -> None:
    """DeletingPolicies, too: the pools carry them out with our permissions."""
    kinds = {
        "policies",
        "cleanuppolicies",
        *(
            f"namespaced{kind}policies"
            for kind in ("validating", "mutating", "generating", "deleting")
        ),
        "namespacedimagevalidatingpolicies",
    }
    paths: dict[str, set[str]] = {}
    for raw in static_configurations(WebhookOptions(ca_bundle=b"")):
        for hook in raw["webhooks"]:
            path = hook["clientConfig"]["service"]["path"]
            for rule in hook["rules"]:
                names = {one.partition("/")[0] for one in rule["resources"]}
                paths.setdefault(path, set()).update(names)
    assert kinds <= paths["/policymutate"]
    assert kinds <= paths["/policyvalidate"] | paths["/cleanuppolicyvalidate"]


@pytest.mark.parametrize("is_checked", [True, False])
def test_path_answers_with_the_patch_if_authors_are_checked(
    is_checked: bool,  # noqa: FBT001
) -> None:
    view = ClusterView(
        kinds=BuiltInKinds(), authors=Cluster(()) if is_checked else None
    )
    client = TestClient(make_app(lambda: True, ReviewOptions(view=view)))
    body = json.dumps({"request": request_of(policy(), None)})
    response = client.simulate_post("/policymutate", body=body).json["response"]
    assert response["allowed"]
    assert ("patch" in response) is is_checked
