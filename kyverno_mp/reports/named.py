"""Decide which resources the rules of a plan name.

Room: reports. Takes: the kinds of a rule; a Resource. Gives: Named, is_scannable,
names, is_derived_rule. Next: plan.py, kinds.py.
Source: docs/behaviour/controllers 6.3; docs/behaviour/engine 1.3, 10.6.
"""

from typing import NamedTuple

from kyverno_mp.ir.index import ANY_MATCH
from kyverno_mp.ir.match import KindIR
from kyverno_mp.ir.rules import PolicyIR, RuleIR
from kyverno_mp.kube.resource import Resource
from kyverno_mp.values.wildcard import matches


class Named(NamedTuple):
    """A resource that a policy with matchConstraints names; ``*`` = any."""

    group: str
    version: str
    plural: str

    @property
    def is_one(self) -> bool:
        """Whether it names one resource that can be listed."""
        return "*" not in self and "/" not in self.plural

    def is_of(self, resource: Resource) -> bool:
        """Return whether this names a resource."""
        return (
            self.group in ("*", resource.group)
            and self.version in ("*", resource.version)
            and self.plural in ("*", "*/*", resource.plural)
        )


def is_scannable(kind: KindIR) -> bool:
    """Return whether objects of an entry of ``kinds`` can be scanned.

    Subresources cannot be listed. KYVERNO: a policy for all kinds cannot be scanned,
    but ``v1/*`` can.
    """
    is_any = (kind.group, kind.version, kind.kind) == ("*", "*", "*")
    return not kind.subresource and not is_any


def names(kind: KindIR, resource: Resource) -> bool:
    """Return whether one entry of ``kinds`` names the objects of a resource."""
    return (
        is_scannable(kind)
        and matches(kind.kind, resource.kind)
        and matches(kind.group, resource.group)
        and matches(kind.version, resource.version)
    )


def is_derived_rule(policy: PolicyIR, rule: RuleIR) -> bool:
    """Return whether only scans produce the rows of a scanned rule.

    The rows of a rule whose match cannot be decoded stay: no scan knows its objects.
    """
    return rule.name not in policy.review_rules and rule.match != ANY_MATCH
