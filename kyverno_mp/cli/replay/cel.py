"""Evaluate recorded reviews with ValidatingPolicies and MutatingPolicies.

Room: cli. Takes: a PolicySet, ports that note what is not recorded. Gives: CelPolicies,
and CelReplay with the planners for the webhook's handlers. Next: verdicts.
Source: docs/replay.md; docs/behaviour/cel 3, 6, 10.1.

The planners are the server's. A policy is a candidate if the request's resource,
operation and namespace select it; with redacted values, all candidates are undecided,
because their conditions may read any field.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kyverno_mp.cli.sources.compiled import Compiled, compile_cel, compile_others
from kyverno_mp.cli.sources.policy_set import PolicySet
from kyverno_mp.compiler.cel_kinds.index import encode_cel_policy
from kyverno_mp.expr.scope import Pace
from kyverno_mp.ir.cel_policies import AnyCelPolicyIR, MutatingPolicyIR
from kyverno_mp.ir.validating_policy import ValidatingPolicyIR
from kyverno_mp.program.cel_sources import PlanContext
from kyverno_mp.program.engine import Engine
from kyverno_mp.program.request import Request
from kyverno_mp.program.validating_policy.reads import expressions_of
from kyverno_mp.snapshot.policies import PoliciesWriter
from kyverno_mp.snapshot.read import Segment
from kyverno_mp.values.kubernetes.policy_kinds import (
    OF_TYPE,
    PolicyKind,
    rule_type_of,
)
from kyverno_mp.webhook.attach.followed import link

_NAMESPACE_OBJECT: Final = "namespaceObject"
_SALT: Final = bytes(16)
AnyIR = ValidatingPolicyIR | MutatingPolicyIR


@dataclass(frozen=True, slots=True)
class CelPolicies:
    """The compiled policies in CEL of one side of a comparison."""

    validating: Sequence[ValidatingPolicyIR] = ()
    mutating: Sequence[MutatingPolicyIR] = ()
    generating: Sequence[AnyCelPolicyIR] = ()

    @property
    def all(self) -> list[AnyIR]:
        """All policies that decide about requests."""
        return [*self.validating, *self.mutating]


def cel_policies_of(policy_set: PolicySet, compiled: Compiled) -> CelPolicies:
    """Compile the policies; add those that do not compile to ``invalid``."""
    other_policies = compile_others(policy_set, policy_set.cel_exceptions, compiled)
    return CelPolicies(
        compile_cel(policy_set, policy_set.cel_exceptions, compiled),
        [ir for ir in other_policies if isinstance(ir, MutatingPolicyIR)],
        [ir for ir in other_policies if rule_type_of(ir.policy.kind) == "generate"],
    )


class _Planner:
    """A planner that keeps the candidates, and selects policies of new paths, too."""

    def __init__(
        self,
        planner: Any,
        candidates: Callable[[Request, str, Pace | None], Iterable[Any]],
        names_of: Callable[[str, frozenset[str]], frozenset[str]],
        current: "CelReplay",
    ) -> None:
        self._planner = planner
        self._candidates = candidates
        self._names_of = names_of
        self._current = current

    def plan(
        self,
        request: Request,
        names: frozenset[str],
        *,
        is_namespaced: bool,
        pace: Pace | None = None,
    ) -> Any:
        """Select the policies of a path; without names, all policies."""
        del pace  # nothing else waits for the event loop
        namespace = request.namespace if is_namespaced else ""
        if names:
            names = self._names_of(namespace, names)
        self._current.candidates = [
            candidate.ir.policy.key
            for candidate in self._candidates(request, namespace, None)
            if not names or candidate.ir.policy.name in names
        ]
        return self._planner.plan(request, names, is_namespaced=is_namespaced)

    def require(self, keys: Iterable[str]) -> None:
        """Accept all keys, because policies of the recording may be gone."""


class CelReplay:
    """The policies in CEL of one Replayer. ``candidates``: of the current review."""

    def __init__(self, policies: CelPolicies) -> None:
        self._policies = policies
        self.candidates: Sequence[str] = ()
        self.called: frozenset[tuple[str, str]] = frozenset()
        """(namespace or "", name) of the policies on recorded paths."""
        self._reading = {ir.policy.key for ir in policies.all if _reads_namespace(ir)}

    def reading_namespace(self) -> list[str]:
        """Return the candidates that read more of a Namespace than its labels."""
        return [key for key in self.candidates if key in self._reading]

    def planners(self, engine: Engine) -> dict[PolicyKind, Callable[[], Any]]:
        """Return functions for the planners of the kinds that are replayed."""
        policies: Mapping[str, Sequence[AnyIR]] = {
            "validate": self._policies.validating,
            "mutate": self._policies.mutating,
        }
        return {
            OF_TYPE[rule_type]: self._planner(engine, OF_TYPE[rule_type], of_type)
            for rule_type, of_type in policies.items()
        }

    def _planner(
        self, engine: Engine, kind: PolicyKind, policies: Sequence[AnyIR]
    ) -> Callable[[], Any]:
        content = PoliciesWriter().encode(
            [encode_cel_policy(each) for each in policies],
            generation=1,
            salt=_SALT,
            segment=kind.segment,
        )
        linked = link(
            kind,
            PlanContext(engine),
            Segment.from_bytes(content, kind.segment),
            lambda _key: True,
        )
        source: Any = linked.sources[0]
        planner = _Planner(
            linked.planner, source.candidates, self._names(policies), self
        )
        return lambda: planner

    def _names(
        self, policies: Sequence[AnyIR]
    ) -> Callable[[str, frozenset[str]], frozenset[str]]:
        by_namespace: Mapping[str, set[str]] = {
            policy.policy.namespace: set() for policy in policies
        }
        for policy in policies:
            by_namespace[policy.policy.namespace].add(policy.policy.name)

        def names(namespace: str, recorded: frozenset[str]) -> frozenset[str]:
            new = {
                name
                for name in by_namespace.get(namespace, ())
                if not self.called & {(namespace, name), ("", name)}
            }
            return recorded | new

        return names


def _reads_namespace(ir: AnyIR) -> bool:
    return any(_NAMESPACE_OBJECT in each.text for each in expressions_of(ir))
