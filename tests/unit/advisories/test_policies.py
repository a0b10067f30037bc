"""Ignored fields of policies, unintended network access, and injected markup."""

import json
from pathlib import Path
from typing import Any

import pytest

from kyverno_mp.cli.main import run
from kyverno_mp.compiler.rules.cel import build_cel
from kyverno_mp.policy.fields.match import ResourceDescription, ResourceFilter
from kyverno_mp.policy.fields.validation import CEL, CELValidation
from tests.fuzz.bench import Bench, pod

POLICY = """
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: p}
spec:
  validationFailureAction: Enforce
  background: false
  rules:
  - name: r
    match: {any: [MATCH]}
    validate: {message: m, deny: {}}
"""


class Labels:
    """Namespaces with a single label that contains their name."""

    def labels(self, namespace: str) -> dict[str, str]:
        """Return the label of the namespace."""
        return {"name": namespace}


USER = {"kind": "User", "name": "alice"}
FIELDS: dict[str, tuple[Any, Any]] = {
    "kinds": (["Pod"], ["Secret"]),
    "name": ("x*", "y*"),
    "names": (["x", "z"], ["y"]),
    "namespaces": (["def*"], ["other"]),
    "annotations": ({"a": "1"}, {"a": "2"}),
    "selector": ({"matchLabels": {"l": "1"}}, {"matchLabels": {"l": "2"}}),
    "namespaceSelector": (
        {"matchLabels": {"name": "default"}},
        {"matchLabels": {"name": "other"}},
    ),
    "operations": (["CREATE"], ["DELETE"]),
    "roles": (["default:dev"], ["default:ops"]),
    "clusterRoles": (["edit"], ["view"]),
    "subjects": ([USER], [{**USER, "name": "bob"}]),
}
"""For each field, a value that matches the request and a value that does not."""
USER_FIELDS = ("roles", "clusterRoles", "subjects")


class Roles:
    """The roles of the user alice."""

    def roles_of(self, *_: object) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return these roles for every user."""
        return ("default:dev",), ("edit",)


def test_all_match_fields_are_tested() -> None:
    """CVE-2025-29778 (GHSA-46mp-8w32-6g94): a field was parsed, but then ignored."""
    known = ResourceDescription.__struct_encode_fields__
    known += ResourceFilter.__struct_encode_fields__
    assert {*FIELDS, "resources"} == set(known)


@pytest.mark.parametrize("name", FIELDS)
def test_every_match_field_is_evaluated(name: str) -> None:
    """CVE-2025-29778 (GHSA-46mp-8w32-6g94): each field can prevent a match."""
    made = pod()
    made["metadata"] |= {"annotations": {"a": "1"}, "labels": {"l": "1"}}
    for value, holds in zip(FIELDS[name], (True, False), strict=True):
        filters: dict[str, Any] = {"resources": {"kinds": ["Pod"]}}
        (filters if name in USER_FIELDS else filters["resources"])[name] = value
        bench = Bench(
            POLICY.replace("MATCH", json.dumps(filters)),
            namespaces=Labels(),
            roles=Roles(),
        )
        assert bench.ask(made)["allowed"] is not holds, (name, value)


@pytest.mark.parametrize(
    "text",
    [
        "http.Get('http://169.254.169.254/') != null",
        "resource.Get('v1', 'secrets', 'kube-system', 's') != null",
        "globalContext.Get('g', '') != null",
    ],
)
def test_cel_of_rules_cannot_call_out(text: str) -> None:
    """CVE-2026-4789 (GHSA-rggm-jjmc-3394): http.Get allowed SSRF."""
    compiled = build_cel(CEL(expressions=(CELValidation(expression=text),)), "")
    (validation,) = compiled.validations
    assert "undeclared reference" in validation.expression.error


MUTATION = """
apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: p}
spec:
  rules:
  - name: r
    match: {any: [{resources: {kinds: [Pod]}}]}
    mutate:
      foreach:
      - list: request.object.spec.LIST
        patchesJson6902: |-
          PATCH
"""
PATCHES = [
    "null",
    "[]",
    "[null]",
    "- op: add",
    "- {op: add, path: /a}",
    "x",
    "{}",
    "- 1",
]


@pytest.mark.parametrize("patch", PATCHES)
@pytest.mark.parametrize("elements", ["[null]", "[1, x]", "{a: 1}", "null", "[[]]"])
def test_malformed_patches_in_foreach_crash_no_process(
    tmp_path: Path, patch: str, elements: str
) -> None:
    """CVE-2026-41485 (GHSA-fpjq-c37h-cqcv): a nil patch caused a crash loop."""
    policy, objects = tmp_path / "p.yaml", tmp_path / "o.yaml"
    policy.write_text(MUTATION.replace("LIST", "x").replace("PATCH", patch))
    objects.write_text(
        "{apiVersion: v1, kind: Pod, metadata: {name: n}, spec: {x: ELEMENTS}}".replace(
            "ELEMENTS", elements
        )
    )
    assert run(["apply", str(policy), "-r", str(objects)]) in (0, 1)


SCRIPT = "<script>alert('x')</script><img src=x onerror=alert(1)>"


@pytest.mark.parametrize("form", ["junit", "markdown", "sarif"])
def test_object_values_are_never_markup(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    """CVE-2026-44245 (GHSA-q98m-7w8c-w388): result properties were rendered as HTML."""
    match = json.dumps({"resources": {"kinds": ["Pod"]}})
    text = POLICY.replace("MATCH", match).replace(
        "message: m", 'message: "{{ request.object.metadata.annotations.a }}"'
    )
    made = pod()
    made["metadata"]["annotations"] = {"a": SCRIPT}
    policy, objects = tmp_path / "p.yaml", tmp_path / "o.json"
    policy.write_text(text)
    objects.write_text(json.dumps(made))
    flags = ("-r", str(objects), "--output-format", form)
    assert run(["apply", str(policy), *flags]) == 1
    out = capsys.readouterr().out
    if form == "sarif":
        # The field holds data instead of markup: readers treat ``text`` as plain text.
        messages = [one["message"] for one in json.loads(out)["runs"][0]["results"]]
        assert [set(message) for message in messages] == [{"text"}]
        return
    assert "<script" not in out
    assert "<img" not in out
    assert "&lt;script&gt;" in out
