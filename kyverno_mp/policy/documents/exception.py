"""Declare PolicyException.

Room: policy. Takes: nothing. Gives: PolicyException. Next: policy/reading/decode.py,
which creates it; the compiler, which attaches it to the named rules.
Source: docs/behaviour/engine 8.7; docs/behaviour/controllers 1.3.
"""

from collections.abc import Iterator
from typing import Literal

from kyverno_mp.policy.expiry import expiry_ns, expiry_problems
from kyverno_mp.policy.fields.conditions import AnyAllConditionsV2
from kyverno_mp.policy.fields.match import MatchFilters
from kyverno_mp.policy.fields.meta import ObjectMeta
from kyverno_mp.policy.fields.record import Fields
from kyverno_mp.policy.fields.validation import PodSecurityStandard
from kyverno_mp.policy.problems import Problem


class ExceptionTarget(Fields, frozen=True, kw_only=True):
    """Rules of one policy; only rule names can contain wildcards."""

    policy_name: str
    rule_names: tuple[str, ...]


class ExceptionSpec(Fields, frozen=True, kw_only=True):
    """``spec``; an absent ``background`` means true."""

    background: bool = True
    match: MatchFilters
    conditions: AnyAllConditionsV2 | None = None
    exceptions: tuple[ExceptionTarget, ...]
    pod_security: tuple[PodSecurityStandard, ...] = ()


class PolicyException(Fields, frozen=True, kw_only=True):
    """Objects that are exempt from the named rules."""

    api_version: str
    kind: Literal["PolicyException"]
    metadata: ObjectMeta
    spec: ExceptionSpec

    @property
    def key(self) -> str:
        """Return ``namespace/name``, or ``name`` alone, as skip messages show it."""
        namespace, name = self.metadata.namespace, self.metadata.name
        return f"{namespace}/{name}" if namespace else name

    @property
    def expires_at_ns(self) -> int | None:
        """Return the Unix time from which it has no effect; None: it stays."""
        return expiry_ns(self.metadata.annotations)

    def expiry_problems(self) -> Iterator[Problem]:
        """Yield why it has no effect at any time."""
        return expiry_problems(self.metadata.annotations)
