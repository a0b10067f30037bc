"""Lists of ``validate.foreach`` that cannot be evaluated, called through the engine.

Texts are those of Kyverno 1.18.2. A failure means: a broken rule passes silently.
"""

from datetime import UTC, datetime

import pytest

from kyverno_mp.compiler.build import compile_policy
from kyverno_mp.policy.documents.cluster_policy import ClusterPolicy
from kyverno_mp.policy.reading.decode import decode
from kyverno_mp.program.engine import Clock, Engine, link_policy
from kyverno_mp.program.ports import OFFLINE
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import ERROR, PASS


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        (
            "v1.2.3",
            (
                "incorrect query v1.2.3: SyntaxError: Expected identifier, lbracket, or"
                " lbrace"
            ),
        ),
        (
            "keys(request.object.metadata.name)",
            (
                "JMESPath query failed: JMESPath function 'keys': argument #1: Invalid"
                " type for: x, expected:"
                ' []jmespath.JpType{"object"}'
            ),
        ),
    ],
)
def test_failed_list_is_a_rule_error(query: str, reason: str) -> None:
    match = {"any": [{"resources": {"kinds": ["ConfigMap"]}}]}
    foreach = [{"list": query, "pattern": {"a": "?*"}}]
    good = {"name": "good", "match": match, "validate": {"pattern": {"kind": "?*"}}}
    bad = {"name": "bad", "match": match, "validate": {"foreach": foreach}}
    policy = decode(
        {
            "apiVersion": "kyverno.io/v1",
            "kind": "ClusterPolicy",
            "metadata": {"name": "p"},
            "spec": {"rules": [bad, good]},
        }
    )
    assert isinstance(policy, ClusterPolicy)
    linked = link_policy(compile_policy(policy))
    engine = Engine(
        OFFLINE, Clock(now=lambda: datetime.now(UTC), monotonic_ns=lambda: 0)
    )
    thing = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}}
    request = Request(kind="ConfigMap", name="x", object=thing)
    found = engine.explain(linked, engine.open(request)).results
    error, passed = [(r.rule, r.status, r.message) for r in found]
    assert error == ("bad", ERROR, f"failed to evaluate list: {reason}")
    assert passed[:2] == ("good", PASS)
