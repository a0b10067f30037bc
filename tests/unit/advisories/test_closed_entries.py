"""A namespaced policy reads no GlobalContextEntry that is not opened to its namespace.

An entry may hold data of any namespace, such as a Secret of kube-system. Expected:
Kyverno 1.19.1 refuses such a policy on creation, and a stored one fails at run time.
Every namespaced kind and every field that can read an entry is tested.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kyverno_mp.cli.cluster.given_entries import Given, GivenEntries
from kyverno_mp.cli.main import run as run_command
from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.leader.context.entries import entry_values
from kyverno_mp.policy.check import check
from kyverno_mp.policy.documents.global_context_entry import OPENED_TO
from kyverno_mp.policy.ports import BuiltInKinds, ClusterView
from kyverno_mp.policy.reading.decode import decode
from kyverno_mp.snapshot.data import DataSegment, encode_data
from kyverno_mp.snapshot.read import Segment
from kyverno_mp.webhook.policy_review import PolicyReview, ReviewOptions
from kyverno_mp.webhook.shared import SharedClusterData

Json = Any
LEGACY = "globalReference is not allowed in namespaced policies"
CEL = "globalContext.* is not allowed in namespaced policies"
MATCH: Json = {"any": [{"resources": {"kinds": ["ConfigMap"]}}]}
MAPS: Json = {
    "resourceRules": [
        {
            "apiGroups": [""],
            "apiVersions": ["v1"],
            "operations": ["CREATE"],
            "resources": ["configmaps"],
        }
    ]
}


def opens(name: str, namespace: str) -> bool:
    return (name, namespace) == ("shared", "team")


def rules(context: Json, namespace: str) -> dict[str, Json]:
    """Return a rule for each field of a rule that can have context entries."""
    deny = {"message": "m", "deny": {"conditions": {}}}
    patch = {"patchStrategicMerge": {"data": {"a": "b"}}}
    made = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": "made",
        "namespace": namespace,
        "data": {"data": {"a": "b"}},
    }
    each = {"list": "request.object.data.keys(@)", "context": context}
    target = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "namespace": namespace,
        "name": "x",
        "context": context,
    }
    return {
        "rule": {"context": context, "validate": deny},
        "validate.foreach": {
            "validate": {"message": "m", "foreach": [{**each, "deny": deny["deny"]}]}
        },
        "mutate.foreach": {"mutate": {"foreach": [{**each, **patch}]}},
        "nested foreach": {
            "mutate": {
                "foreach": [
                    {
                        "list": "request.object.data.keys(@)",
                        "foreach": [{**each, **patch}],
                    }
                ]
            }
        },
        "targets": {"mutate": {"targets": [target], **patch}},
        "generate.foreach": {"generate": {"foreach": [{**each, **made}]}},
    }


def policy(body: Json, namespace: str, kind: str = "") -> Json:
    return {
        "apiVersion": "kyverno.io/v1",
        "kind": kind or ("Policy" if namespace else "ClusterPolicy"),
        "metadata": {"name": "p", "namespace": namespace},
        "spec": {"rules": [{"name": "r", "match": MATCH, **body}]},
    }


def cleanup(context: Json, namespace: str) -> Json:
    return {
        "apiVersion": "kyverno.io/v2",
        "kind": "CleanupPolicy" if namespace else "ClusterCleanupPolicy",
        "metadata": {"name": "p", "namespace": namespace},
        "spec": {"match": MATCH, "schedule": "* * * * *", "context": context},
    }


def cel_specs(text: str) -> dict[str, tuple[str, Json]]:
    """Return kind and spec for each kind in CEL, by the field that has the text."""
    match = {"matchConstraints": MAPS}
    valid = {"validations": [{"expression": "true"}]}
    named = {"name": "v", "expression": text}
    apply = {
        "patchType": "ApplyConfiguration",
        "applyConfiguration": {"expression": "Object{}"},
    }
    made = {"expression": 'generator.Apply("team", [])'}
    image = {
        **match,
        "matchImageReferences": [{"glob": "*"}],
        "attestors": [{"name": "a", "cosign": {"key": {"data": "k"}}}],
    }
    check_images = {"validations": [{"expression": "images.containers.size() > 0"}]}
    return {
        "validations": (
            "ValidatingPolicy",
            {**match, "validations": [{"expression": f"{text} != null"}]},
        ),
        "messages": (
            "ValidatingPolicy",
            {
                **match,
                "validations": [
                    {"expression": "true", "messageExpression": f"string({text})"}
                ],
            },
        ),
        "variables": ("ValidatingPolicy", {**match, **valid, "variables": [named]}),
        "mutations": (
            "MutatingPolicy",
            {
                **match,
                "mutations": [
                    {
                        "patchType": "JSONPatch",
                        "jsonPatch": {
                            "expression": "[JSONPatch{op: 'add', path: '/data/a',"
                            f" value: string({text})}}]"
                        },
                    }
                ],
            },
        ),
        "target conditions": (
            "MutatingPolicy",
            {
                **match,
                "evaluation": {"mutateExisting": {"enabled": True}},
                "targetMatchConstraints": MAPS,
                "targetMatchConditions": [
                    {"name": "c", "expression": f"{text} != null"}
                ],
                "mutations": [apply],
            },
        ),
        "generating": (
            "GeneratingPolicy",
            {**match, "variables": [named], "generate": [made]},
        ),
        "deleting": (
            "DeletingPolicy",
            {
                **match,
                "schedule": "* * * * *",
                "conditions": [{"name": "c", "expression": f"{text} != null"}],
            },
        ),
        "images": (
            "ImageValidatingPolicy",
            {**image, **check_images, "variables": [named]},
        ),
    }


def in_cel(kind: str, spec: Json, namespace: str) -> Json:
    return {
        "apiVersion": "policies.kyverno.io/v1",
        "kind": f"Namespaced{kind}" if namespace else kind,
        "metadata": {"name": "p", "namespace": namespace},
        "spec": spec,
    }


def reference(name: str) -> Json:
    return [{"name": "read", "globalReference": {"name": name}}]


def documents(entry: str, namespace: str) -> Iterator[tuple[str, Json]]:
    for place, body in rules(reference(entry), namespace or "team").items():
        yield f"rules: {place}", policy(body, namespace)
    yield "cleanup", cleanup(reference(entry), namespace)
    text = f'globalContext.Get("{entry}", "")'
    for place, (kind, spec) in cel_specs(text).items():
        yield f"cel: {place}", in_cel(kind, spec, namespace)


PLACES = [place for place, _ in documents("e", "n")]


def review(raw: Json) -> str:
    """Return the reason of a denial, "" if the policy is admitted."""
    group, _, version = raw["apiVersion"].rpartition("/")
    request = {
        "uid": "u",
        "operation": "CREATE",
        "kind": {"group": group, "version": version, "kind": raw["kind"]},
        "namespace": raw["metadata"]["namespace"],
        "object": raw,
    }
    view = ClusterView(kinds=BuiltInKinds(), opens=opens)
    path = "/cleanuppolicyvalidate" if "Cleanup" in raw["kind"] else "/policyvalidate"
    body = json.dumps({"request": request}).encode()
    response = json.loads(
        PolicyReview(ReviewOptions(view=view), lambda: 0.0).answer(path, body)
    )["response"]
    return "" if response["allowed"] else str(response["status"]["message"])


@pytest.mark.parametrize("place", PLACES)
def test_creation(place: str) -> None:
    """Only an entry that is opened to the namespace can be read."""
    reason = CEL if place.startswith("cel") else LEGACY
    for entry, namespace, expected in (
        ("secret", "team", True),
        ("shared", "other", True),
        ("shared", "team", False),
        ("secret", "", False),
    ):
        answer = review(dict(documents(entry, namespace))[place])
        assert (reason in answer) is expected, (entry, namespace, answer)


@pytest.mark.parametrize(
    "text",
    [
        "globalContext.Get(object.metadata.name, '')",
        "globalContext.get('sha' + 'red')",
        "globalContext.Get('shared', string(globalContext.Get('secret', '')))",
        "(true ? globalContext : globalContext).Get('shared', '')",
    ],
)
def test_names_that_are_not_literal_are_refused(text: str) -> None:
    for place, (kind, spec) in cel_specs(text).items():
        assert CEL in review(in_cel(kind, spec, "team")), place


def test_variable_name_of_a_reference_is_refused() -> None:
    for place, body in rules(reference("{{ request.object.data.n }}"), "team").items():
        assert LEGACY in review(policy(body, "team")), place


def test_body_that_looks_like_an_entry_is_admitted() -> None:
    body = {"validate": {"pattern": {"spec": {"context": reference("secret")}}}}
    assert review(policy(body, "team")) == ""


@pytest.mark.parametrize("place", PLACES)
def test_lint_reports_it(
    place: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(json.dumps(dict(documents("secret", "team"))[place]))
    code = run_command(["lint", str(file)])
    out, _ = capfd.readouterr()
    assert code != 0
    assert (CEL if place.startswith("cel") else LEGACY) in out


# Run time.

ENTRY: Json = {
    "apiVersion": "kyverno.io/v2beta1",
    "kind": "GlobalContextEntry",
    "metadata": {"name": "maps"},
    "spec": {
        "kubernetesResource": {
            "version": "v1",
            "resource": "configmaps",
            "namespace": "team",
        }
    },
}
MAP: Json = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "a", "namespace": "team"},
    "data": {"key": "value"},
}


def opened(names: str | None) -> Json:
    annotations = {} if names is None else {OPENED_TO: names}
    return {**ENTRY, "metadata": {"name": "maps", "annotations": annotations}}


def stored(kind: str) -> Json:
    """Return a policy that allows the ConfigMap if the entry can be read."""
    if kind == "Policy":
        deny = {
            "message": "m",
            "deny": {
                "conditions": {
                    "any": [
                        {
                            "key": "{{ read[0].metadata.name }}",
                            "operator": "NotEquals",
                            "value": "a",
                        }
                    ]
                }
            },
        }
        body = {"context": reference("maps"), "validate": deny}
        return policy(body, "team")
    text = 'globalContext.Get("maps", "")[0].metadata.name == "a"'
    spec = {
        "matchConstraints": MAPS,
        "validations": [{"expression": text, "message": "m"}],
    }
    return in_cel("ValidatingPolicy", spec, "team")


@pytest.mark.parametrize("kind", ["Policy", "NamespacedValidatingPolicy"])
@pytest.mark.parametrize(
    ("names", "is_open"),
    [(None, False), ("other", False), ("team", True), ("other, team", True)],
)
def test_command_line(
    kind: str,
    names: str | None,
    is_open: bool,  # noqa: FBT001
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    policies, objects = tmp_path / "policy.yaml", tmp_path / "objects.yaml"
    policies.write_text(json.dumps(stored(kind)))
    objects.write_text("\n---\n".join(map(json.dumps, (MAP, opened(names)))))
    code = run_command(["apply", str(policies), "-r", str(objects), "-o", "json"])
    out, err = capfd.readouterr()
    assert (code == 0) is is_open, out + err


def shared(*entries: Json) -> SharedClusterData:
    values: dict[str, Json] = {}
    for raw in entries:
        values.update(entry_values(raw, {}))
    encoded = {key: msgspec.json.encode(value) for key, value in values.items()}
    content = bytes(encode_data("globalcontext", encoded, generation=1, salt=bytes(16)))
    segment = DataSegment(Segment.from_bytes(content, "globalcontext"))
    names = ("namespaces", "configmaps", "roles", "apicalls")
    current: dict[str, Callable[[], DataSegment | None]] = {
        name: lambda: None for name in names
    }
    return SharedClusterData({**current, "globalcontext": lambda: segment})


@pytest.mark.parametrize(
    ("names", "is_open"),
    [(None, False), ("", False), ("*", False), ("te*", False), ("a,team", True)],
)
def test_published_entry_opens_to_named_namespaces(
    names: str | None,
    is_open: bool,  # noqa: FBT001
) -> None:
    data = shared(opened(names))
    assert data.opens("maps", "team") is is_open
    assert not data.opens("maps", "other")
    assert not data.opens("other", "team")


def dotted(name: str, names: str | None) -> Json:
    """Return an entry, e.g. a closed one whose name begins with that of an open one."""
    raw = opened(names)
    return {**raw, "metadata": {**raw["metadata"], "name": name}}


@pytest.mark.parametrize("order", [1, -1])
def test_open_entry_does_not_open_one_whose_name_continues_it(order: int) -> None:
    """``maps.secrets`` is an entry of its own, not a projection of ``maps``."""
    entries = [dotted("maps", "team"), dotted("maps.secrets", None)][::order]
    data = shared(*entries)
    assert data.opens("maps", "team")
    assert not data.opens("maps.secrets", "team")
    with pytest.raises(ExpressionFailed, match="projection"):
        data.entry("maps.secrets")
    with pytest.raises(ExpressionFailed, match="projection"):
        data.reference("maps", "secrets")
    given = GivenEntries({"maps": Given([], {}), "maps.secrets": Given(["s"], {})})
    with pytest.raises(ExpressionFailed, match="projection"):
        given.entry("maps.secrets")


@pytest.mark.parametrize("names", ["", "A", "a b", "a,,b", "a/b", "*", "x" * 64])
def test_invalid_annotation_is_refused(names: str) -> None:
    document = decode(opened(names))
    assert any(OPENED_TO in one.path for one in check(document).problems)
