"""Test that compile errors have the location in the original rule."""

from kyverno_mp.compiler.build import compile_policy
from kyverno_mp.compiler.expression_faults import expression_faults
from kyverno_mp.policy.documents.cluster_policy import ClusterPolicy
from kyverno_mp.policy.reading.decode import decode


def test_list_that_does_not_parse_is_reported_at_run_time() -> None:
    match = {"any": [{"resources": {"kinds": ["Pod"]}}]}
    good = {"name": "good", "match": match, "validate": {"deny": {}}}
    foreach = [{"list": "a[", "deny": {}}]
    bad = {"name": "bad", "match": match, "validate": {"foreach": foreach}}
    document = decode(
        {
            "apiVersion": "kyverno.io/v1",
            "kind": "ClusterPolicy",
            "metadata": {"name": "p"},
            "spec": {"rules": [good, bad]},
        }
    )
    assert isinstance(document, ClusterPolicy)
    compiled = compile_policy(document)
    assert [rule.name for rule in compiled.rules[:2]] == ["good", "bad"]
    (fault,) = expression_faults(document)
    assert (fault.rule, fault.path) == ("bad", "spec.rules[1].validate.foreach[0].list")
    assert fault.column == 3
    assert fault.reason.startswith("SyntaxError: ")
