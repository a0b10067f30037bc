"""Which policies read the request's namespace from the cluster.

A failure means: reviews in a new namespace get a wrong verdict, or each of them costs
an API call.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from kyverno_mp.program.generate.triggers import Triggered
from kyverno_mp.program.request import Request
from tests.fuzz.bench import Bench, pod

_PROGRAM = Path(__file__).resolve().parents[3] / "kyverno_mp" / "program"
_PODS: dict[str, Any] = {"kinds": ["Pod"]}
_OF_TEAM = {"matchLabels": {"team": "a"}}
_FAILS = {"pattern": {"metadata": {"labels": {"app": "?*"}}}}
_PERMITS = {"failureAction": "Audit", **_FAILS}
_ENFORCES = [{"action": "Enforce", "namespaceSelector": _OF_TEAM}]
_GENERATES = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "name": "made",
    "namespace": "{{request.namespace}}",
    "data": {"data": {"a": "b"}},
}
_EXCEPTION = {
    "apiVersion": "kyverno.io/v2",
    "kind": "PolicyException",
    "metadata": {"name": "e", "namespace": "ops"},
    "spec": {
        "match": {"any": [{"resources": _PODS}]},
        "exceptions": [{"policyName": "p", "ruleNames": ["r"]}],
    },
}


def _policy(
    rule: dict[str, Any],
    match: dict[str, Any] | None = None,
    exclude: dict[str, Any] | None = None,
    **spec: Any,
) -> str:
    full = {"name": "r", "match": {"any": [{"resources": {**_PODS, **(match or {})}}]}}
    if exclude is not None:
        full["exclude"] = {"any": [{"resources": {**_PODS, **exclude}}]}
    document = {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {"name": "p"},
        "spec": {"validationFailureAction": "Enforce", **spec, "rules": [full | rule]},
    }
    return yaml.safe_dump(document)


_SELECTS = {"namespaceSelector": _OF_TEAM}
_KEYLESS = {"issuer": "i", "subject": "s", "rekor": {"url": "https://example.org"}}
_VERIFIES = {
    "verifyImages": [
        {
            "imageReferences": ["example.org/*"],
            "attestors": [{"entries": [{"keyless": _KEYLESS}]}],
        }
    ]
}
_LABELLED = {"patchStrategicMerge": {"metadata": {"labels": {"tier": "web"}}}}
READ = {
    "match": _policy({"validate": _FAILS}, match=_SELECTS),
    "exclude": _policy({"validate": _FAILS}, exclude=_SELECTS),
    "mutation": _policy({"mutate": _LABELLED}, match=_SELECTS),
    "generation": _policy({"generate": _GENERATES}, match=_SELECTS),
    "action of the rule": _policy(
        {"validate": {**_PERMITS, "failureActionOverrides": _ENFORCES}}
    ),
    "action of the policy": _policy(
        {"validate": _FAILS},
        validationFailureAction="Audit",
        validationFailureActionOverrides=_ENFORCES,
    ),
    "exception": "---\n".join(
        (_policy({"validate": _FAILS}), yaml.safe_dump(_EXCEPTION))
    ),
    "CEL": _policy({"validate": {"cel": {"expressions": [{"expression": "true"}]}}}),
    "assertion": _policy({"validate": {"assert": {"namespaceLabels": {"team": "a"}}}}),
}
NOT_READ = {
    "pattern": _policy({"validate": _FAILS}),
    "name of the namespace": _policy(
        {"validate": {**_PERMITS}},
        validationFailureAction="Audit",
        validationFailureActionOverrides=[
            {"action": "Enforce", "namespaces": ["default"]}
        ],
    ),
    "variable": _policy(
        {
            "validate": {
                "deny": {
                    "conditions": {
                        "any": [
                            {
                                "key": "{{request.namespace}}",
                                "operator": "Equals",
                                "value": "default",
                            }
                        ]
                    }
                }
            }
        }
    ),
    "selector of objects": _policy({"validate": _FAILS}, match={"selector": _OF_TEAM}),
    "pod security": _policy(
        {"validate": {"podSecurity": {"level": "restricted", "version": "latest"}}}
    ),
    "mutation": _policy({"mutate": _LABELLED}),
    "generation": _policy({"generate": _GENERATES}),
}


class Namespaces:
    """All namespaces have these labels; None: no namespace is known."""

    def __init__(self, labels: dict[str, str] | None) -> None:
        self._labels = labels

    def labels(self, _namespace: str) -> dict[str, str] | None:
        return self._labels


class Recorder:
    """A recorder of triggers."""

    def __init__(self) -> None:
        self.got: list[Any] = []

    def triggered(self, request: Request, found: Sequence[Triggered]) -> None:
        del request
        self.got.append(list(found))

    def changed(self, *_: object) -> None:
        raise AssertionError


def _answers(text: str, labels: dict[str, str] | None) -> list[Any]:
    """Return the answers and records of both webhooks with these labels."""
    recorder = Recorder()
    bench = Bench(
        text,
        namespaces=Namespaces(labels),
        triggers=recorder,
        background_user="pool",
    )
    found = [bench.ask(pod(), path) for path in (b"/validate/fail", b"/mutate/fail")]
    return [*found, recorder.got]


def _reads(text: str) -> bool:
    """Return the namespace reads of both webhooks' plans."""
    plans = []
    bench = Bench(text, background_user="pool")
    for handler in bench.handlers.values():
        request = Request(kind="Pod", version="v1", object=pod(), namespace="default")
        plans.append(handler.plan(request, frozenset({"Fail"}), ""))
    return any(plan is not None and plan.reads_namespace for plan in plans)


@pytest.mark.parametrize("text", READ.values(), ids=READ)
def test_rules_that_read_the_namespace(text: str) -> None:
    """Each of these answers differs without the namespace, or with other labels."""
    assert _reads(text)
    known = [_answers(text, {"team": "a"}), _answers(text, {"team": "b"})]
    assert any(_answers(text, None) != one for one in known)


@pytest.mark.parametrize("text", NOT_READ.values(), ids=NOT_READ)
def test_rules_that_do_not_read_the_namespace(text: str) -> None:
    assert not _reads(text)
    unknown = _answers(text, None)
    assert unknown == _answers(text, {"team": "a"}) == _answers(text, {})


def test_images_recorded_by_another_path() -> None:
    """The labels that the policies select decide which rules wrote the record."""
    later = _policy(_VERIFIES, failurePolicy="Ignore")
    earlier = yaml.safe_load(_policy(_VERIFIES, match=_SELECTS, failurePolicy="Fail"))
    earlier["metadata"]["name"] = "earlier"
    alone = Bench(later).handlers["mutate"]
    both = Bench("---\n".join((later, yaml.safe_dump(earlier)))).handlers["mutate"]
    request = Request(kind="Pod", version="v1", object=pod(), namespace="default")
    found = [one.plan(request, frozenset({"Ignore"}), "") for one in (alone, both)]
    assert [plan is not None and plan.reads_namespace for plan in found] == [
        False,
        True,
    ]


def test_no_other_module_reads_the_namespace() -> None:
    """A new reader belongs in program/recall/namespace_reads.py and in this list."""
    reader = re.compile(r"request\.namespace_(labels|known)")
    found = {
        str(path.relative_to(_PROGRAM))
        for path in _PROGRAM.rglob("*.py")
        if reader.search(path.read_text())
    }
    assert found == {
        # kubectl's kinds, which only the command line evaluates
        "admission_policy/match.py",
        "bodies/assertion.py",
        "bodies/cel.py",
        "engine.py",  # explains for the command line
        # Images are verified on the command line only.
        "images/verification.py",
        # Policies of other paths; mutation_plan.py includes them too.
        "images/earlier.py",
        "context/cel_scope.py",  # for bodies/cel.py
        "matching/filter.py",
        "mutation.py",
        "recall/mutations.py",  # nor is a patch
        "plans/plan.py",
        "recall/verdicts.py",  # a verdict without the namespace is not remembered
        "rule_gate.py",  # exceptions
    }
