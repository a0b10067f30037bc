"""Test the check of a policy's CEL against the schemas of its kinds.

``verdicts.json``: the results of the Kubernetes type checker (apiserver 0.35.4, as in
Kyverno 1.18.2) for each expression over ``openapi.json``, without the numbers that it
appends to the names of kinds. A failure means: an author gets a wrong warning, or
misses one.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kyverno_mp.compiler import type_check as module
from kyverno_mp.compiler.type_check import type_warnings
from kyverno_mp.limits import TYPE_CHECK_KINDS_MAX
from kyverno_mp.policy.documents.cluster_policy import ClusterPolicy, Policy
from kyverno_mp.policy.ports import BuiltInKinds, ClusterView, KnownSchemas
from kyverno_mp.policy.reading.decode import examine
from kyverno_mp.values.kubernetes.built_in_kinds import ApiResource
from kyverno_mp.values.kubernetes.openapi import GroupVersionKind, Schema, read_schemas

FOLDER = Path(__file__).parent / "type_check"
DOCUMENT = read_schemas((FOLDER / "openapi.json").read_bytes())
VERDICTS = json.loads((FOLDER / "verdicts.json").read_text())
NUMBERED = re.compile(r"\b(Thing|Limit)\d+")
HEAD = "things.test/v1, Kind=Thing: "


class Published:
    """Schemas as published by the API server; records the requests."""

    def __init__(self, known: KnownSchemas) -> None:
        self.known = known
        self.asked: list[tuple[str, str]] = []

    def schemas(self, group_versions: Iterable[tuple[str, str]]) -> KnownSchemas:
        self.asked += group_versions
        return self.known


def resource(kind: str, group: str = "things.test", version: str = "v1") -> ApiResource:
    parts = ("status",) if kind == "Thing" else ()
    return ApiResource(group, version, kind, f"{kind.lower()}s", True, parts)


def view(*more: ApiResource, known: KnownSchemas | None = None) -> ClusterView:
    kinds = BuiltInKinds([resource("Thing"), resource("Limit"), *more])
    given = {("things.test", "v1"): DOCUMENT} if known is None else known
    return ClusterView(kinds=kinds, schemas=Published(given))


def policy(
    cel: dict[str, Any], kind: str = "ClusterPolicy", **more: Any
) -> ClusterPolicy | Policy:
    match = more.pop("match", {"any": [{"resources": {"kinds": ["Thing"]}}]})
    rule = {
        "name": "r",
        "match": match,
        "validate": {"cel": cel},
        **more.pop("rule", {}),
    }
    rules = [rule, *more.pop("rules", [])]
    found = examine(
        {
            "apiVersion": "kyverno.io/v1",
            "kind": kind,
            "metadata": {"name": "p"},
            "spec": {"rules": rules, **more},
        }
    )
    assert isinstance(found.document, ClusterPolicy | Policy), found.problems
    return found.document


def expressions(*texts: str, **more: Any) -> dict[str, Any]:
    return {"expressions": [{"expression": text} for text in texts], **more}


WRONG = expressions("object.spec.typo")
EXPECTED_WARNING = (
    f"spec.rules[0].validate.cel.expressions[0].expression:{HEAD}ERROR: <input>:1:12:"
    " undefined field 'typo'; | object.spec.typo; | ...........^;"
)


def warnings_of(
    cel: dict[str, Any], seen: ClusterView | None = None, **more: Any
) -> list[str]:
    return [str(one) for one in type_warnings(policy(cel, **more), seen or view())]


def known(text: str) -> str:
    """Return the text up to the position where cel-go resumes after a syntax error."""
    if "no viable alternative" not in text:
        return text
    return text.partition(";ERROR:")[0].rstrip(";")


def test_every_verdict_equals_the_type_checkers() -> None:
    cases = VERDICTS["cases"]
    parameters = {"paramKind": {"apiVersion": "things.test/v1", "kind": "Limit"}}
    named = VERDICTS["variables"].items()
    variables = [{"name": name, "expression": text} for name, text in named]
    cel = expressions(*cases, variables=variables, **parameters)
    found = type_warnings(policy(cel), view())
    shown = {one.place: known(NUMBERED.sub(r"\1", one.text)) for one in found}
    place = "spec.rules[0].validate.cel.expressions[{}].expression"
    differing = {
        text: (wanted, shown.get(place.format(index), ""))
        for index, (text, wanted) in enumerate(cases.items())
        if shown.get(place.format(index), "") != known(wanted.replace("\n", ";"))
    }
    assert differing == {}
    assert len(shown) == sum(map(bool, cases.values())) > 100


@pytest.mark.parametrize("kind", ["ClusterPolicy", "Policy"])
def test_warning_text(kind: str) -> None:
    assert warnings_of(WRONG, kind=kind) == [EXPECTED_WARNING]


def test_messages_are_checked_and_named() -> None:
    given = {"expression": "true", "messageExpression": "object.spec.typo"}
    (found,) = warnings_of({"expressions": [given]})
    assert found == EXPECTED_WARNING.replace("].expression:", "].messageExpression:")


def test_kinds_are_reported_in_order_with_their_errors() -> None:
    """A kind whose schema has the field causes no warning."""
    match = {"any": [{"resources": {"kinds": ["Thing", "Limit"]}}]}
    assert (
        warnings_of(expressions("object.spec.most > 1"), match=match)[0].count("Kind=")
        == 1
    )
    (found,) = warnings_of(WRONG, match=match)
    place, _, thing = EXPECTED_WARNING.partition(":")
    limit = thing.replace("Thing", "Limit")
    assert found == f"{place}:{limit};{thing}"


@pytest.mark.parametrize(
    "resources",
    [
        {"kinds": ["Thing"]},
        {"kinds": ["v1/Thing"]},
        {"kinds": ["things.test/*/Thing"], "names": ["a"]},
        {"kinds": ["Thing"], "namespaces": ["a"], "operations": ["CREATE"]},
        {"kinds": ["Thing"], "selector": {"matchLabels": {"a": "b"}}},
        {"kinds": ["Thing", "Thing/status", "*"]},
    ],
)
def test_policies_that_are_checked(resources: dict[str, Any]) -> None:
    for match in (
        {"any": [{"resources": resources}]},
        {"all": [{"resources": resources}]},
        {"resources": resources},
    ):
        assert warnings_of(WRONG, match=match) == [EXPECTED_WARNING]


THING = {"resources": {"kinds": ["Thing"]}}
USERS = [{"kind": "User", "name": "u"}]
LABELLED = {"kinds": ["Thing"], "selector": {"matchLabels": {"a": "b"}}}


@pytest.mark.parametrize(
    "more",
    [
        {"match": {"any": [{"resources": {"kinds": ["*"]}}]}},
        {"match": {"any": [{"resources": {"kinds": ["Thing/status"]}}]}},
        {"match": {"any": [{"resources": {"kinds": ["Thing"], "names": ["a*"]}}]}},
        {"match": {"any": [{"resources": {"kinds": ["Thing"], "name": "a?"}}]}},
        {"match": {"any": [{"resources": {"kinds": ["Thing"], "namespaces": ["*"]}}]}},
        {
            "match": {
                "any": [{"resources": {"kinds": ["Thing"], "annotations": {"a": "b"}}}]
            }
        },
        {"match": {"any": [{**THING, "subjects": USERS}]}},
        {"match": {"any": [{**THING, "clusterRoles": ["c"]}]}},
        {"match": {**THING, "roles": ["a:b"]}},
        {"match": {"all": [THING, THING]}},
        {"match": {"any": [THING, {"resources": LABELLED}]}},
        {"rule": {"exclude": {"any": [{"resources": LABELLED}]}}},
        {
            "rule": {
                "exclude": {
                    "any": [{"resources": {"kinds": ["Thing"], "namespaces": ["a"]}}]
                }
            }
        },
        {"rule": {"exclude": {"any": [{**THING, "subjects": USERS}]}}},
        {"rules": [{"name": "s", "match": {"any": [THING]}, "validate": {"deny": {}}}]},
        {
            "validationFailureActionOverrides": [
                {"action": "Audit", "namespaces": ["a"]},
            ]
        },
    ],
)
def test_policies_not_convertible_to_an_admission_policy_are_not_checked(
    more: dict[str, Any],
) -> None:
    assert warnings_of(WRONG, **more) == []


def test_no_warnings_without_schemas() -> None:
    """A kind without a schema is skipped even if other kinds have one."""
    assert warnings_of(WRONG, view(known={})) == []
    assert warnings_of(WRONG, view(known={("things.test", "v1"): {}})) == []
    blind = ClusterView(kinds=BuiltInKinds([resource("Thing")]))
    assert warnings_of(WRONG, blind) == []
    match = {"any": [{"resources": {"kinds": ["Thing", "Other"]}}]}
    assert warnings_of(WRONG, view(resource("Other")), match=match) == [
        EXPECTED_WARNING
    ]


def test_params_without_schema_are_not_a_variable() -> None:
    """K8S: the type checker reports an error although the policy has parameters."""
    known = {"paramKind": {"apiVersion": "none.test/v1", "kind": "None"}}
    (found,) = warnings_of(expressions("params.x == 1", **known))
    assert "undeclared reference to 'params'" in found


def test_core_group_kind_also_matches_kinds_of_other_groups() -> None:
    """K8S: the mapper treats an empty group as any group."""
    text = Schema(type="object", kinds=(GroupVersionKind("", "v1", "Twin"),))
    other = Schema(type="object", kinds=(GroupVersionKind("x.test", "v1", "Twin"),))
    known = {("", "v1"): {"a": text}, ("x.test", "v1"): {"b": other}}
    seen = view(resource("Twin", ""), resource("Twin", "x.test"), known=known)
    match = {"any": [{"resources": {"kinds": ["Twin"]}}]}
    (found,) = warnings_of(expressions("object.typo"), seen, match=match)
    assert re.findall(r"[:;]([\w./]*), Kind=Twin", found) == ["/v1", "x.test/v1"]


def test_number_of_kinds_is_limited_like_in_the_type_checker() -> None:
    kinds = [f"Kind{number}" for number in range(TYPE_CHECK_KINDS_MAX + 5)]
    shape = Schema(type="object")
    document = {
        kind: msgspec.structs.replace(
            shape, kinds=(GroupVersionKind("things.test", "v1", kind),)
        )
        for kind in kinds
    }
    seen = view(*map(resource, kinds), known={("things.test", "v1"): document})
    match = {"any": [{"resources": {"kinds": kinds}}]}
    (found,) = warnings_of(expressions("object.typo"), seen, match=match)
    assert found.count("Kind=") == TYPE_CHECK_KINDS_MAX


def test_only_the_documents_of_matched_kinds_are_requested() -> None:
    published = Published({("things.test", "v1"): DOCUMENT})
    seen = ClusterView(
        kinds=BuiltInKinds([resource("Thing"), resource("Limit")]), schemas=published
    )
    warnings_of(WRONG, seen, match={"any": [{"resources": {"kinds": ["*"]}}]})
    assert published.asked == []
    warnings_of(WRONG, seen)
    assert published.asked == [("things.test", "v1")]


def test_type_check_of_a_policy_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check only produces warnings, so it stops at an expensive expression."""
    monkeypatch.setattr(module, "TYPE_CHECK_STEPS_MAX", 5000)
    heavy = " && ".join(["object.spec.count == object.spec.count"] * 100)
    found = warnings_of(
        expressions("object.spec.typo", *[heavy] * 20, "object.spec.typo")
    )
    assert found == [EXPECTED_WARNING]
