"""Lint names kinds that no cluster serves, wherever a policy can name a kind."""

import json
from pathlib import Path

import pytest
import yaml

from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.built_in_kinds import BUILT_IN
from tests.unit.cli.apply.test_custom_kinds import DEFINITION
from tests.unit.cli.conftest import Command

_DENY: Json = {"message": "m", "deny": {}}
_PATCH: Json = {"metadata": {"labels": {"a": "b"}}}


def _rule(**parts: Json) -> Json:
    match = {"any": [{"resources": {"kinds": ["Pod"]}}]}
    return {"name": "r", "match": match, **parts}


def _document(version: str, kind: str, **spec: Json) -> Json:
    metadata = (
        {"name": "p", "namespace": "ns"} if "Exception" in kind else {"name": "p"}
    )
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}


def _of(*rules: Json) -> Json:
    return _document("kyverno.io/v1", "ClusterPolicy", background=False, rules=[*rules])


def _filters(kind: str) -> Json:
    return {"any": [{"resources": {"kinds": [kind]}}]}


def _places(kind: str) -> dict[str, Json]:
    """Return a document for each place that can name a kind."""
    target = {"apiVersion": "apps/v1", "kind": kind, "name": "x", "namespace": "ns"}
    return {
        "match": _of(_rule(match=_filters(kind), validate=_DENY)),
        "match, directly": _of(
            _rule(match={"resources": {"kinds": [kind]}}, validate=_DENY)
        ),
        "exclude": _of(_rule(exclude=_filters(kind), validate=_DENY)),
        "targets": _of(
            _rule(mutate={"targets": [target], "patchStrategicMerge": _PATCH})
        ),
        "generate": _of(_rule(generate={**target, "data": {}})),
        "generate, foreach": _of(
            _rule(generate={"foreach": [{"list": "a", **target, "data": {}}]})
        ),
        "cloneList": _of(
            _rule(generate={"namespace": "ns", "cloneList": {"kinds": [kind]}})
        ),
        "clean-up": _document(
            "kyverno.io/v2",
            "ClusterCleanupPolicy",
            schedule="* * * * *",
            match=_filters(kind),
        ),
        "exception": _document(
            "kyverno.io/v2",
            "PolicyException",
            match=_filters(kind),
            exceptions=[{"policyName": "p", "ruleNames": ["r"]}],
        ),
    }


def _found(command: Command, folder: Path, document: Json, *flags: object) -> Json:
    file = folder / "policy.yaml"
    file.write_text(yaml.safe_dump(document))
    done = command("lint", file, "-o", "json", "--target", "cli", *flags)
    return [
        (one["code"], one["level"], one["message"])
        for one in json.loads(done.out)
        if one["code"].startswith("lint.kind_")
    ]


@pytest.mark.parametrize("place", _places(""))
def test_a_misspelt_kind_is_found_in_every_place(
    command: Command, tmp_path: Path, place: str
) -> None:
    """Otherwise the rule, or a part of it, silently never applies."""
    ((code, level, text),) = _found(command, tmp_path, _places("Deploymnet")[place])
    assert (code, level) == ("lint.kind_misspelt", "warning")
    assert text.endswith("did you mean Deployment?") or "apps/v1/Deployment?" in text
    assert _found(command, tmp_path, _places("Deployment")[place]) == []


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("pod", "Pod"),
        ("Pods", "Pod"),
        ("Configmap", "ConfigMap"),
        ("ingresses", "Ingress"),
        ("NetworkPolcy", "NetworkPolicy"),
        ("StatefullSet", "StatefulSet"),
        ("extensions/v1beta1/Deployment", "apps/v1/Deployment"),
        ("batch/v1beta1/CronJob", "batch/v1/CronJob"),
        ("v1beta1/Ingress", "networking.k8s.io/v1/Ingress"),
        ("core/v1/Secret", "v1/Secret"),
        ("Pod/evction", "Pod/eviction"),
        ("Pod/Exec", "Pod/exec"),
        ("Pod.portForward", "Pod.portforward"),
        ("v1/Service/statuses", "v1/Service/status"),
        ("apps/v1/ReplicaSet/scales", "apps/v1/ReplicaSet/scale"),
        ("Po*/lgo", "Po*/log"),
        ("*/scal", "*/scale"),
    ],
)
def test_near_misses(
    command: Command, tmp_path: Path, written: str, meant: str
) -> None:
    """Case, number, a wrong letter, and a version that is no longer served."""
    ((code, _, text),) = _found(command, tmp_path, _places(written)["match"])
    assert (code, text) == (
        "lint.kind_misspelt",
        f"kind {written} is not known: did you mean {meant}?",
    )


@pytest.mark.parametrize(
    "written",
    [
        "Gadget",
        "x.org/v1/Gadget",
        "x.org/v1/Service",
        "x.org/v1/Pods",
        "Role*x",
        "Rule",
    ],
)
def test_other_unknown_kinds_are_notes_that_name_the_flags(
    command: Command, tmp_path: Path, written: str
) -> None:
    """A custom kind can have any name, also one of a built-in kind."""
    ((code, level, text),) = _found(command, tmp_path, _places(written)["match"])
    assert (code, level) == ("lint.kind_unknown", "note")
    assert "--crd-path" in text
    assert "--cluster" in text


@pytest.mark.parametrize("written", ["ConfigMap/exec", "apps/v1/Deployment/tokens"])
def test_unlike_subresources_of_built_in_kinds_are_notes(
    command: Command, tmp_path: Path, written: str
) -> None:
    ((code, level, text),) = _found(command, tmp_path, _places(written)["match"])
    assert (code, level) == ("lint.kind_unknown", "note")
    assert text.startswith(f"kind {written} is not known")


@pytest.mark.parametrize(
    "written",
    [
        "*",
        "Pod/exec",
        "Pod/*",
        "Pod/ephemeralcontainers",
        "*/*",
        "Job/status",
        "Deploy*",
        "apps/v1/Deployment/scale",
        "*/scale",
        "Scale",
    ]
    + [f"{one.api_version}/{one.kind}" for one in BUILT_IN],
)
def test_known_kinds_are_no_findings(
    command: Command, tmp_path: Path, written: str
) -> None:
    """Wildcards, subresources and every built-in kind."""
    assert _found(command, tmp_path, _places(written)["match"]) == []


def test_definitions_make_kinds_known(command: Command, tmp_path: Path) -> None:
    """With --crd-path, a misspelt custom kind is found, too."""
    (tmp_path / "crd.yaml").write_text(DEFINITION)
    flags = ("--crd-path", tmp_path / "crd.yaml")
    assert _found(command, tmp_path, _places("x.org/v1/Gadget")["match"], *flags) == []
    ((_, _, text),) = _found(command, tmp_path, _places("Gadgte")["match"], *flags)
    assert text.endswith("did you mean Gadget?")


@pytest.mark.parametrize(
    ("group", "version", "resource", "meant"),
    [
        ("", "v1", "pods", ""),
        ("", "v1", "pods/exec", ""),
        ("*", "*", "*", ""),
        ("apps", "v1", "deployments/*", ""),
        ("", "v1", "pod", "pods"),
        ("apps", "v1", "Deployments", "deployments"),
        ("", "v1", "configmpas", "configmaps"),
        ("", "v1", "pods/evction", "pods/eviction"),
        ("apps", "*", "statefulsets/Scale", "statefulsets/scale"),
        ("apps", "v1", "*/scal", "*/scale"),
        ("", "v1", "pods/*", ""),
        ("*", "*", "*/scale", ""),
        ("extensions", "v1beta1", "ingresses", "ingresses in networking.k8s.io/v1"),
        ("policy", "v1beta1", "poddisruptionbudgets", "poddisruptionbudgets in policy"),
    ],
)
def test_resources_of_policies_in_cel(
    command: Command,
    tmp_path: Path,
    group: str,
    version: str,
    resource: str,
    meant: str,
) -> None:
    """A resource name that nothing serves makes the whole policy vacuous."""
    rule = {
        "apiGroups": [group],
        "apiVersions": [version],
        "operations": ["CREATE"],
        "resources": [resource],
    }
    document = _document(
        "policies.kyverno.io/v1",
        "ValidatingPolicy",
        matchConstraints={"resourceRules": [rule]},
        validations=[{"expression": "true"}],
    )
    found = _found(command, tmp_path, document)
    assert [f"did you mean {meant}" in text for _, _, text in found] == [True] * bool(
        meant
    )


def test_expressions_of_exceptions_and_clean_up_policies(
    command: Command, tmp_path: Path
) -> None:
    """Every expression that is evaluated is checked, not only those of rules."""

    def conditions(key: str) -> Json:
        return {"any": [{"key": key, "operator": "Equals", "value": "x"}]}

    def codes(document: Json) -> set[str]:
        file = tmp_path / "policy.yaml"
        file.write_text(yaml.safe_dump(document))
        done = command("lint", file, "-o", "json")
        return {one["code"] for one in json.loads(done.out)}

    calls, wrong = "{{ time_since('', a) }}", "{{ request.object.a/b }}"
    exception, cleanup = _places("Pod")["exception"], _places("Pod")["clean-up"]
    for document in (exception, cleanup):
        document["spec"]["conditions"] = conditions("{{ request.object.a }}")
        assert codes(document) <= {"lint.exception_unused"}
        document["spec"]["conditions"] = conditions(calls)
        assert "lint.call" in codes(document)
    exception["spec"]["conditions"] = conditions(wrong)
    assert "policy.expression" in codes(exception)
    of_cel = _document(
        "policies.kyverno.io/v1",
        "PolicyException",
        policyRefs=[{"name": "p", "kind": "ValidatingPolicy"}],
        matchConditions=[{"name": "c", "expression": "object.nme =="}],
    )
    assert "policy.expression" in codes(of_cel)
    of_cel["spec"]["matchConditions"][0]["expression"] = "object.nme == ''"
    assert codes(of_cel) == set()
