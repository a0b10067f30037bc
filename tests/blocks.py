"""Decode match and exclude blocks as written in a policy, for tests of rules."""

from typing import Any

from kyverno_mp.policy.documents.cluster_policy import ClusterPolicy, Rule
from kyverno_mp.policy.documents.exception import PolicyException
from kyverno_mp.policy.fields.match import MatchFilters, MatchResources
from kyverno_mp.policy.reading.decode import decode


def match_of(raw: Any) -> MatchResources:
    """Return the ``match`` block of a rule."""
    return _rule({"match": raw}).match


def exclude_of(raw: Any) -> MatchResources | None:
    """Return the ``exclude`` block of a rule; None if the rule has no such block."""
    return _rule({"match": {}, "exclude": raw}).exclude


def filters_of(raw: Any) -> MatchFilters:
    """Return the ``match`` block of a PolicyException."""
    document = decode(
        {
            "apiVersion": "kyverno.io/v2",
            "kind": "PolicyException",
            "metadata": {"name": "e", "namespace": "n"},
            "spec": {"match": raw, "exceptions": []},
        }
    )
    assert isinstance(document, PolicyException)
    return document.spec.match


def _rule(fields: dict[str, Any]) -> Rule:
    document = decode(
        {
            "apiVersion": "kyverno.io/v1",
            "kind": "ClusterPolicy",
            "metadata": {"name": "p"},
            "spec": {"rules": [{"name": "r", **fields}]},
        }
    )
    assert isinstance(document, ClusterPolicy)
    return document.spec.rules[0]
