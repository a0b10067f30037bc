"""Inputs that made upstream ignore an error, panic, or work without a limit."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

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
    match: {any: [{resources: {kinds: [Pod]MATCH}}]}
    CONTEXT
    validate: VALIDATE
"""
REQUIRE = '{message: m, pattern: {metadata: {labels: {app: "?*"}}}}'


def bench(
    validate: str = REQUIRE, *, match: str = "", context: str = "", more: str = ""
) -> Bench:
    text = POLICY.replace("MATCH", match).replace("CONTEXT", context)
    return Bench(text.replace("VALIDATE", validate) + more)


def test_terminating_objects_are_evaluated() -> None:
    """CVE-2023-34091 (GHSA-hq4m-4948-64cc): finalizers bypassed policies."""
    made = pod()
    made["metadata"] |= {
        "deletionTimestamp": "2026-01-01T00:00:00Z",
        "finalizers": ["example.org/f"],
    }
    for operation in ("CREATE", "UPDATE"):
        assert bench().ask(made, operation=operation)["allowed"] is False


GUARD = '{message: m, pattern: {spec: {"=(ephemeralContainers)": [{image: "!bad"}]}}}'


@pytest.mark.parametrize("kind", ["Pod/ephemeralcontainers", "Pod/*", "*/*"])
def test_ephemeral_containers_are_evaluated(kind: str) -> None:
    """Like CVE-2023-34091: a rule that names a subresource gets its reviews."""
    text = POLICY.replace("[Pod]MATCH", f'["{kind}"]').replace("CONTEXT", "")
    judge = Bench(text.replace("VALIDATE", GUARD))
    made = pod(ephemeralContainers=[{"name": "d", "image": "bad"}])
    answer = judge.ask(made, operation="UPDATE", subResource="ephemeralcontainers")
    assert answer["allowed"] is False


class NoLabels:
    """Namespaces that are unknown, or that cannot be looked up."""

    def __init__(self, error: Exception | None) -> None:
        self._error = error

    def labels(self, namespace: str) -> Mapping[str, str] | None:
        assert namespace
        if self._error is not None:
            raise self._error
        return None


def test_matching_error_is_not_a_mismatch() -> None:
    """CVE-2025-46342 (GHSA-jrr2-x33p-6hvc): a failed look-up skipped rules."""
    match = ", namespaceSelector: {matchLabels: {team: a}}"
    text = POLICY.replace("MATCH", match).replace("CONTEXT", "")
    judge = Bench(
        text.replace("VALIDATE", REQUIRE), namespaces=NoLabels(OSError("no cluster"))
    )
    assert judge.ask(pod())["allowed"] is False


@pytest.mark.parametrize(
    "expression",
    ["@ | nonexistent", "@ | [0]", "@.a.b | length(@)", "`null` | keys(@)", "[]", "&a"],
)
def test_no_expression_crashes_a_worker(expression: str) -> None:
    """CVE-2025-47281 (GHSA-r5p3-955p-5ggq): ``{{@ | nonexistent}}`` caused a panic."""
    key = json.dumps("{{ " + expression + " }}")
    validate = (
        f"{{message: m, deny: {{conditions: {{all: [{{key: {key}, operator: Equals,"
        ' value: "{{ request.object.metadata.labels.x }}"}]}}}'
    )
    try:
        judge = bench(validate)
    except Exception as error:  # noqa: BLE001 - a policy may be rejected, in our words
        assert type(error).__module__.startswith("kyverno_mp")  # noqa: PT017 - as above
        return
    assert judge.ask(pod())["allowed"] is False
    assert "webhook.defect" not in judge.records.errors


def test_variables_cannot_multiply_without_bound() -> None:
    """CVE-2026-23881 (GHSA-r2rj-wwm5-x6mq): doubling variables exhausted memory."""
    entries = ["{name: v0, variable: {value: aaaaaaaaaaaaaaaa}}"] + [
        f"{{name: v{n}, variable: {{jmesPath: \"join('', [v{n - 1}, v{n - 1}])\"}}}}"
        for n in range(1, 30)
    ]
    judge = bench(
        "{message: m, deny: {conditions: {all:"
        ' [{key: "{{ v29 }}", operator: Equals, value: x}]}}}',
        context=f"context: [{', '.join(entries)}]",
    )
    assert judge.ask(pod())["allowed"] is False


EXCEPTION = """
---
apiVersion: kyverno.io/v2
kind: PolicyException
metadata: {name: NAME, namespace: default}
spec:
  exceptions: [{policyName: p, ruleNames: [r]}]
  match: {any: [{resources: {kinds: [Pod], names: [PODS]}}]}
  podSecurity: [{controlName: CONTROL}]
"""


def test_two_exceptions_exempt_only_their_union() -> None:
    """GHSA-gg4x-fgg2-h9w9 (GO-2026-4285): two exceptions together exempted all."""
    more = "".join(
        EXCEPTION.replace("NAME", name)
        .replace("PODS", '"x*"')
        .replace("CONTROL", control)
        for name, control in (("a", "Host Namespaces"), ("b", "HostPath Volumes"))
    )
    judge = bench("{podSecurity: {level: baseline, version: latest}}", more=more)
    assert judge.ask(pod(hostNetwork=True))["allowed"] is True
    container = {
        "name": "c",
        "image": "i",
        "securityContext": {"privileged": True},
    }
    broken = pod(hostNetwork=True, containers=[container])
    assert judge.ask(broken)["allowed"] is False


def test_seccomp_is_checked_in_every_place_and_version() -> None:
    """CVE-2023-33191 (GHSA-33hq-f2mf-jm3c): a version-specific check was bypassed."""
    unconfined = {"seccompProfile": {"type": "Unconfined"}}
    container = {"name": "c", "image": "i"}
    for version in ("v1.19", "v1.24", "v1.25", "latest"):
        judge = bench(f"{{podSecurity: {{level: restricted, version: {version}}}}}")
        for spec in (
            {"securityContext": unconfined},
            {"containers": [{**container, "securityContext": unconfined}]},
            {"initContainers": [{**container, "securityContext": unconfined}]},
            {"ephemeralContainers": [{**container, "securityContext": unconfined}]},
        ):
            assert judge.ask(pod(**spec))["allowed"] is False


def test_odd_elements_in_foreach_crash_no_worker() -> None:
    """CVE-2026-41485 (GHSA-fpjq-c37h-cqcv): a nil in forEach caused a crash loop."""
    judge = bench(
        "{message: m, foreach: [{list: request.object.spec.containers,"
        ' pattern: {image: "a*"}}]}'
    )
    odd: list[Any] = [[None], [[]], ["x"], [1], [{}], [{"image": None}], {"a": 1}, 5]
    for containers in odd:
        judge.ask(pod(containers=containers))
    assert "webhook.defect" not in judge.records.errors
