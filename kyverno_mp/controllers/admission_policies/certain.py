"""Decide which conditions of exceptions the API server can always evaluate.

Room: controllers. Takes: expressions, the resources that a policy matches. Gives:
whether no evaluation can fail.
Next: controllers/admission_policies/from_cel_policy.py.
Source: docs/behaviour/cel 8; Kubernetes apiserver: matchConditions (matcher.go), create
handler, rest.BeforeCreate.

SAFETY: a generated policy contains the conditions of exceptions as match conditions. If
one fails to evaluate, the API server denies the request (``failurePolicy: Fail``), so
the author of an exception could deny everything that the policy matches. The webhook
ignores such an exception. A guard inside the expression does not help, because a match
condition cannot turn an error into a match.
"""

import re
from collections.abc import Iterable
from typing import Final

from kyverno_mp.policy.cel_kinds.admission_policy import (
    MatchResources,
    NamedRuleWithOperations,
)

_NAME: Final = "object.metadata.name"
_COMPARISON: Final = re.compile(
    r"\s*(object\.metadata\.name|object\.metadata\.namespace"
    r"|namespaceObject\.metadata\.name)"
    r"""\s*[!=]=\s*(?:'[^'"\\\r\n]*'|"[^'"\\\r\n]*")\s*""",
)
"""A comparison of a field that every stored namespaced object has."""
_WORKLOADS: Final = (
    *(("apps", one) for one in ("daemonsets", "deployments", "statefulsets")),
)
_NAMESPACED: Final = frozenset(
    (
        *_WORKLOADS,
        *(("", one) for one in ("configmaps", "persistentvolumeclaims", "pods")),
        *(("", one) for one in ("secrets", "serviceaccounts", "services")),
        ("apps", "replicasets"),
        *(("batch", one) for one in ("cronjobs", "jobs")),
        *(("networking.k8s.io", one) for one in ("ingresses", "networkpolicies")),
    )
)
"""Group and plural. Other resources can lack a name (reviews) or a namespace."""
_NAMED: Final = frozenset(_WORKLOADS)
"""Resources that controllers and users create by name, not by ``generateName``.

K8S: an object with a ``generateName`` has no name yet when mutating policies run. It
has one when validating policies run.
"""
_WITH_OBJECT: Final = frozenset(("CREATE", "UPDATE"))


def cannot_fail(
    expressions: Iterable[str], match_resources: MatchResources | None, *, mutates: bool
) -> bool:
    """Return whether no expression can fail for any object that a policy matches.

    ``mutates``: whether the policy runs before names are generated.
    """
    for expression in expressions:
        found = _COMPARISON.fullmatch(expression)
        if found is None or match_resources is None:
            return False
        needs_name = mutates and found[1] == _NAME
        if not all(
            _is_known(rule, needs_name=needs_name)
            for rule in match_resources.resource_rules
        ):
            return False
    return True


def _is_known(rule: NamedRuleWithOperations, *, needs_name: bool) -> bool:
    if not rule.operations or not _WITH_OBJECT.issuperset(rule.operations):
        return False
    needs_name = needs_name and "CREATE" in rule.operations
    known = _NAMED if needs_name else _NAMESPACED
    return all(
        (group, resource) in known
        for group in rule.api_groups or ("",)
        for resource in rule.resources or ("",)
    )
