"""What does not compile is told with its place, by the rule as it was written."""

import pytest

from kyverno_mp.compiler.build import compile_policy
from kyverno_mp.errors import PolicyInvalid
from kyverno_mp.policy.cluster_policy import ClusterPolicy
from kyverno_mp.policy.decode import decode


def test_an_error_names_policy_rule_field_and_column() -> None:
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
    with pytest.raises(PolicyInvalid) as caught:
        compile_policy(document)
    where = caught.value.where
    assert (where.policy, where.rule) == ("p", "bad")
    assert (where.path, where.column) == ("spec.rules[1]", 3)
    assert caught.value.message.startswith("SyntaxError: ")
