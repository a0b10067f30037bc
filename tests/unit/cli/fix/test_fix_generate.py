"""A GeneratingPolicy that ``fix`` prints generates what its ClusterPolicy generates.

The objects that are expected come from Kyverno's rules for ``data``
(docs/behaviour/controllers 5.4), not from either of the two.
"""

from typing import Any

import msgspec
import pytest

from kyverno_mp.cli.fix import to_cel
from kyverno_mp.cli.fix.rewrite.policy import documents_of
from kyverno_mp.cli.fix.to_cel import Rewrite, rewrite
from kyverno_mp.limits import REWRITE_INPUTS_MAX, REWRITE_INPUTS_MIN
from kyverno_mp.policy.documents.cluster_policy import ClusterPolicy
from tests.examples import scaled
from tests.unit.cli.conftest import Command

Json = Any
COUNTED = "kyverno_mp.cli.fix.rewrite.inputs.REWRITE_INPUTS_MIN"
INPUTS = min(scaled(REWRITE_INPUTS_MIN) // 4, REWRITE_INPUTS_MAX)


@pytest.fixture(autouse=True)
def _budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare on the requests of this run's budget, as in other property tests."""
    monkeypatch.setattr(COUNTED, INPUTS)
    monkeypatch.setattr(COUNTED.replace("MIN", "MAX"), INPUTS)


def rule(kind: str, generate: Json, name: str = "r0", **body: Json) -> Json:
    head = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": "made",
        "namespace": "{{ request.object.metadata.name }}",
    }
    return {
        "name": name,
        "match": {"any": [{"resources": {"kinds": [kind]}}]},
        "generate": {**head, **generate},
        **body,
    }


def policy(*rules: Json, **spec: Json) -> Json:
    return {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "p"},
        "spec": {**spec, "rules": [*rules]},
    }


def selecting(labels: Json) -> Json:
    resources = {"kinds": ["Namespace"], "selector": {"matchLabels": labels}}
    return {"match": {"any": [{"resources": resources}]}}


def precondition(query: str, value: Json) -> Json:
    return {
        "all": [{"key": f"{{{{ {query} }}}}", "operator": "Equals", "value": value}]
    }


def moved(*rules: Json, **spec: Json) -> Json:
    """Return the spec of the policy that replaces one with these rules."""
    found = rewrite(policy(*rules, **spec))
    assert (found.reason, list(found.differences)) == ("", [])
    (document,) = found.documents
    assert document["kind"] == "GeneratingPolicy"
    return document["spec"]


DATA = {"data": {"data": {"a": "b"}}}
LABEL = "request.object.metadata.labels.team"
OWNED = {
    "apiVersion": "policy/v1",
    "kind": "PodDisruptionBudget",
    "name": "{{ request.object.metadata.name }}-default",
    "namespace": "{{ request.object.metadata.namespace }}",
    "data": {
        "spec": {"minAvailable": 1, "selector": "{{ request.object.spec.selector }}"}
    },
}

MOVED: dict[str, list[Json]] = {
    "data": [rule("Namespace", DATA)],
    "a map of the trigger": [rule("Deployment", OWNED)],
    "a name in the data": [
        rule(
            "Namespace",
            {
                "data": {
                    "metadata": {
                        "name": "other",
                        "namespace": "other",
                        "labels": {"of": f"{{{{ {LABEL} }}}}", "by": "us"},
                    },
                    "data": {"a": f"team {{{{ {LABEL} }}}}"},
                }
            },
        )
    ],
    "lists of several types": [
        rule(
            "Namespace",
            {
                "apiVersion": "networking.k8s.io/v1",
                "kind": "NetworkPolicy",
                "data": {
                    "spec": {
                        "podSelector": {},
                        "policyTypes": ["Egress"],
                        "egress": [
                            {"ports": [{"port": 53, "protocol": "UDP"}]},
                            {"to": [{"podSelector": {"matchLabels": {"a": "b"}}}]},
                        ],
                    }
                },
            },
        )
    ],
    "no namespace": [
        rule(
            "Namespace",
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRole",
                "namespace": "",
                "data": {"rules": [{"apiGroups": [""], "resources": ["pods"]}]},
            },
        )
    ],
    "a label with a wildcard": [rule("Namespace", DATA, **selecting({"team": "?*"}))],
    "a precondition": [
        rule("Namespace", DATA, preconditions=precondition(f"{LABEL} || ''", "x"))
    ],
    "two rules": [
        rule("Namespace", DATA),
        rule("Namespace", {**DATA, "name": "second"}, name="r1"),
    ],
    "two rules for other kinds": [
        rule("Namespace", DATA),
        rule("Deployment", OWNED, name="r1"),
    ],
    "two rules, one with a precondition": [
        rule("Namespace", DATA),
        rule(
            "Namespace",
            {**DATA, "name": "second"},
            name="r1",
            preconditions=precondition(f"{LABEL} || ''", "x"),
        ),
    ],
    "only creations": [
        rule(
            "Namespace",
            DATA,
            match={
                "any": [
                    {"resources": {"kinds": ["Namespace"], "operations": ["CREATE"]}}
                ]
            },
        )
    ],
    "a custom kind": [
        rule(
            "cert-manager.io/v1/Certificate",
            {**DATA, "namespace": "{{ request.object.metadata.namespace }}"},
        )
    ],
}


@pytest.mark.parametrize("name", MOVED)
def test_the_same_objects_are_generated(name: str) -> None:
    assert len(moved(*MOVED[name])["generate"]) == len(MOVED[name])


def test_the_call_is_what_a_person_would_write() -> None:
    """As in the examples of docs/behaviour/cel 12."""
    spec = moved(rule("Namespace", DATA))
    ((call,),) = [one.values() for one in spec["generate"]]
    assert " ".join(call.split()) == (
        "generator.Apply(object.metadata.name, [ { 'apiVersion': dyn('v1'),"
        " 'kind': dyn('ConfigMap'), 'metadata': dyn({'name': 'made'}),"
        " 'data': dyn({'a': 'b'}) } ] )"
    )
    assert spec["matchConstraints"]["resourceRules"] == [
        {
            "apiGroups": [""],
            "apiVersions": ["*"],
            "operations": ["CREATE", "UPDATE"],
            "resources": ["namespaces"],
        }
    ]


@pytest.mark.parametrize(
    ("generate", "spec", "evaluation"),
    [
        ({}, {}, {}),
        ({"synchronize": True}, {}, {"synchronize": {"enabled": True}}),
        ({}, {"generateExisting": True}, {"generateExisting": {"enabled": True}}),
        ({"generateExisting": False}, {"generateExisting": True}, {}),
        (
            {"synchronize": True, "orphanDownstreamOnPolicyDelete": True},
            {},
            {
                "synchronize": {"enabled": True},
                "orphanDownstreamOnPolicyDelete": {"enabled": True},
            },
        ),
        ({}, {"admission": False}, {"admission": {"enabled": False}}),
    ],
)
def test_what_happens_afterwards(generate: Json, spec: Json, evaluation: Json) -> None:
    expected = {"admission": {"enabled": True}, **evaluation}
    assert (
        moved(rule("Namespace", {**DATA, **generate}), **spec)["evaluation"] == expected
    )


REFUSED: list[tuple[list[Json], str]] = [
    (
        [rule("Namespace", {"clone": {"namespace": "default", "name": "made"}})],
        "rule r0: generate without data",
    ),
    (
        [rule("Namespace", {"data": {"data": {"a": "{{ random('x') }}"}}})],
        "rule r0: JMESPath random()",
    ),
    (
        [
            rule(
                "Namespace",
                {**DATA, "synchronize": True},
                match={
                    "any": [
                        {
                            "resources": {
                                "kinds": ["Namespace"],
                                "operations": ["CREATE"],
                            }
                        }
                    ]
                },
            )
        ],
        "rule r0: operations beside synchronize",
    ),
    (
        [
            rule(
                "Namespace",
                DATA,
                match={
                    "any": [
                        {
                            "resources": {
                                "kinds": ["Namespace"],
                                "operations": ["CREATE", "DELETE"],
                            }
                        }
                    ]
                },
            )
        ],
        "rule r0: generate for deletions or connections",
    ),
    (
        [
            rule("Namespace", {**DATA, "synchronize": True}),
            rule("Namespace", {**DATA, "name": "second"}, name="r1"),
        ],
        "rules that differ in synchronize or the like",
    ),
]


@pytest.mark.parametrize(("rules", "reason"), REFUSED)
def test_parts_without_equivalent_are_named(rules: list[Json], reason: str) -> None:
    found = rewrite(policy(*rules))
    assert found.documents == ()
    assert found.reason == reason


def test_an_error_of_one_rule_does_not_stop_the_others() -> None:
    """Upstream runs each rule; the second expression is not reached after an error."""
    failing = {"data": {"data": {"a": f"{{{{ {LABEL} }}}}"}}}
    rules = [
        rule("Namespace", failing),
        rule("Namespace", {**DATA, "name": "second"}, name="r1"),
    ]
    found = rewrite(policy(*rules))
    assert not found.documents
    differences = [(one.before, one.after) for one in found.differences]
    assert differences
    assert all("second" in old and new == "[]" for old, new in differences)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("data", "'made'", "'mad'"),
        ("data", "'a': 'b'", "'a': 'c'"),
        ("a map of the trigger", "dyn(1)", "dyn(2)"),
        ("a label with a wildcard", "!= ''", "== 'x'"),
        ("a precondition", "== 'x'", "!= 'x'"),
        ("only creations", '"CREATE"', '"CREATE","UPDATE"'),
    ],
)
def test_the_requests_show_a_defect(
    monkeypatch: pytest.MonkeyPatch, name: str, old: str, new: str
) -> None:
    """A converter with a defect is shown the object that is generated otherwise."""
    original = documents_of

    def wrong(given: ClusterPolicy) -> Json:
        ((part, document),) = original(given)
        text = msgspec.json.encode(document["spec"]).decode()
        assert old in text
        spec = msgspec.json.decode(text.replace(old, new))
        return [(part, {**document, "spec": spec})]

    monkeypatch.setattr(to_cel, "documents_of", wrong)
    found: Rewrite = rewrite(policy(*MOVED[name]))
    assert not found.documents
    assert found.differences


def test_a_policy_that_no_request_triggers_is_not_moved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(to_cel, "reviews", lambda *_rules: iter(()))
    found = rewrite(policy(rule("Namespace", DATA)))
    assert not found.documents
    assert found.reason == "no request that was tried generates an object"


def test_the_command_prints_it(command: Command, tmp_path: Any) -> None:
    file = tmp_path / "p.yaml"
    file.write_bytes(msgspec.json.encode(policy(rule("Namespace", DATA))))
    done = command("fix", "policy", file, "--to", "CEL")
    assert done.code == 0
    assert "kind: GeneratingPolicy" in done.out
    assert "rewritten as GeneratingPolicy; both decide" in done.err
    (tmp_path / "unreadable.yaml").write_text("a: [")
    assert command("fix", "policy", tmp_path, "--to", "CEL").code == 1
    refused = command("fix", "policy", file, "--to", "ValidatingPolicy")
    assert refused.code == 1
    assert "it becomes a GeneratingPolicy (--to CEL)" in refused.err
