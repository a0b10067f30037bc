"""``authors`` lists the policies that an operator has to look at before an upgrade.

A failure means: it misses a policy that would stop, or accuses one that borrows
nothing.
"""

import json
from typing import Any

from kyverno_mp.egress.author_rights import AUTHOR, recorded
from kyverno_mp.policy.ports import Author
from tests.unit.cli.conftest import Command
from tests.unit.kube.fake_api import FakeApi

TARGET = {"apiVersion": "v1", "kind": "Secret", "namespace": "t", "name": "q"}
PATCH = {"patchStrategicMerge": {"data": {"a": "Yg=="}}}
MATCH = {"any": [{"resources": {"kinds": ["ConfigMap"]}}]}
BODIES: dict[str, Any] = {
    "borrows": {"mutate": {"targets": [TARGET], **PATCH}},
    "denies": {"validate": {"message": "m", "deny": {}}},
}


def store(api: FakeApi, name: str, body: str, author: str = "") -> None:
    annotations = {AUTHOR: recorded(Author(author))} if author else {}
    api.put(
        f"/apis/kyverno.io/v1/namespaces/t/policies/{name}",
        metadata={"annotations": annotations},
        spec={"rules": [{"name": "r", "match": MATCH, **BODIES[body]}]},
    )


def test_policies_of_unknown_authors_are_listed(api: FakeApi, command: Command) -> None:
    store(api, "old", "borrows")
    store(api, "harmless", "denies")
    store(api, "new", "borrows", "eve")
    done = command("authors")
    assert done.out == "Policy t/old: unknown\n"
    assert done.code == 0
    found = json.loads(command("authors", "-o", "json").out)
    assert [(one["name"], one["state"]) for one in found] == [("old", "unknown")]


def test_authors_without_rights_end_with_an_error(
    api: FakeApi, command: Command
) -> None:
    store(api, "new", "borrows", "eve")
    store(api, "harmless", "denies", "eve")
    api.may = lambda attributes: attributes["verb"] == "get"
    done = command("authors")
    assert done.code == 1
    (line,) = done.out.splitlines()
    assert line.startswith("Policy t/new (author: eve): lacks rights: auth check fails")
    assert "requires permissions update,patch for resource secrets" in line


def test_clean_up_policies_are_among_them(api: FakeApi, command: Command) -> None:
    api.put(
        "/apis/kyverno.io/v2/namespaces/t/cleanuppolicies/c",
        spec={"match": MATCH, "schedule": "* * * * *"},
    )
    rules = [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}]
    api.put(
        "/apis/policies.kyverno.io/v1beta1/namespaces/t/namespaceddeletingpolicies/d",
        spec={"matchConstraints": {"resourceRules": rules}, "schedule": "* * * * *"},
    )
    assert command("authors").out == (
        "CleanupPolicy t/c: unknown\nNamespacedDeletingPolicy t/d: unknown\n"
    )


def test_nothing_to_look_at(api: FakeApi, command: Command) -> None:
    store(api, "harmless", "denies")
    done = command("authors")
    assert (done.code, done.out.count("\n")) == (0, 1)
    assert command("authors", "-o", "json").out == "[]\n"
