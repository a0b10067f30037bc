"""Evaluate CEL policies on existing objects.

Room: reports. Takes: a segment of CEL policies, a Request. Gives: CelRules for one kind
of policies. Next: reports/scan/evaluator.py, reports/scan/images.py. May touch: the
cluster through the ports of CEL; the log.
Source: Kyverno pkg/controllers/report/utils/scanner.go; docs/behaviour/controllers 6.4.

An object is evaluated as if an unknown user created it, as for other rules. A policy
that cannot be linked or evaluated has an error row, never no row. A PolicyException
that fails is ignored, as in a review.
"""

import contextlib
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from kyverno_mp.errors import (
    BudgetExceeded,
    DeadlinePassed,
    DependencyError,
    Error,
    ExpressionFailed,
    SnapshotUnusable,
)
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.ir.admission_policy import ConstraintsIR
from kyverno_mp.kube.resource import Resource
from kyverno_mp.program import result
from kyverno_mp.program.admission_policy.match import matches
from kyverno_mp.program.context.cel_scope import Shared
from kyverno_mp.program.ports import CelPorts
from kyverno_mp.program.relinking import decoded
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import RuleResult
from kyverno_mp.program.secrecy import hides_values, withheld
from kyverno_mp.program.validating_policy.scope import Facts
from kyverno_mp.reports.digests import AnyCelIR
from kyverno_mp.reports.feed import Keys
from kyverno_mp.reports.fingerprints import key_of_names
from kyverno_mp.reports.plan import ScannedRule, scanned_policy
from kyverno_mp.reports.policies.admission_rules import creation_of
from kyverno_mp.reports.scanned_kinds import CelScan, reported_in
from kyverno_mp.results.entries import merge_key_of
from kyverno_mp.snapshot.cel_segments import CelSegment
from kyverno_mp.values.jsonvalue import Json

_log = logging.getLogger(__name__)
_EVALUATION: Final = "evaluation"


@dataclass(frozen=True, slots=True)
class _Linked:
    """One policy. Either ``linked``, or ``failure``: why it cannot be linked."""

    ir: AnyCelIR
    linked: Any = None
    failure: Exception | None = None

    @property
    def key(self) -> bytes:
        return key_of_names(merge_key_of(self.ir.policy, ""))

    @property
    def reads_namespace(self) -> bool:
        return self.linked is not None and bool(self.linked.reads_namespace)


class CelRules:
    """The policies of one generation, each linked on first use.

    Not thread-safe.
    """

    def __init__(self, ports: CelPorts, types: frozenset[str], scan: CelScan) -> None:
        """``types``: the reported types of rules."""
        self._ports = ports
        self._types = types
        self._scan = scan
        self._segment: CelSegment[Any] | None = None
        self._scanned: list[tuple[ScannedRule, AnyCelIR]] = []
        self._linked: dict[bytes, _Linked] = {}
        self._of: dict[tuple[str, str, str], list[_Linked]] = {}
        self._policies: list[_Linked] = []
        self._logged: set[str] = set()
        """Policies of this generation with a failed exception."""

    def begin(
        self,
        segment: CelSegment[Any] | None,
        resource: Resource,
        only: Keys | None = None,
    ) -> None:
        """Take the policies with the keys ``only`` for the objects of a batch.

        Raises: SnapshotUnusable.
        """
        if segment is not self._segment:
            self._take(segment)
        key = (resource.group, resource.version, resource.plural)
        policies = self._of.get(key)
        if policies is None:
            policies = self._of[key] = list(self._link(resource))
        self._policies = [
            policy for policy in policies if only is None or policy.key in only
        ]

    def results(
        self, request: Request, resource: Resource, runtime: Runtime
    ) -> Iterator[tuple[AnyCelIR, RuleResult | Error]]:
        """Yield the result of each policy that matches.

        An error means that a policy cannot be evaluated now.
        """
        names = ("", request.namespace)
        policies = [
            policy for policy in self._policies if policy.ir.policy.namespace in names
        ]
        if not policies:
            return
        creation = creation_of(request, resource)
        faults: list[ExpressionFailed] = []
        facts, problem = Facts(creation, runtime, self._ports, faults=faults), None
        if any(policy.reads_namespace for policy in policies):
            try:
                facts = facts._replace(namespace=self._namespace(creation, runtime))
            except DependencyError as error:
                problem = error
        shared = Shared(creation)
        for policy in policies:
            if problem is not None and policy.reads_namespace:
                yield policy.ir, problem
                continue
            runtime.begin_policy(policy, is_tenant=bool(policy.ir.policy.namespace))
            rule_result = self._guarded(policy, facts, shared)
            if faults:
                self._log_failure(policy, faults[0], request.kind)
                faults.clear()
            if rule_result is not None:
                yield policy.ir, rule_result

    def _take(self, segment: CelSegment[Any] | None) -> None:
        """Take the policies of a generation. Raises: SnapshotUnusable."""
        is_on = self._scan.kind.rule_type in self._types
        # PERF: each record is decoded once, not once for each resource.
        self._scanned = [
            (scanned_policy(ir), ir)
            for ir in (reported_in(segment) if is_on else ())
            if self._scan.is_scanned(ir)
        ]
        self._segment, self._linked, self._of = segment, {}, {}
        self._logged = set()

    def _log_failure(self, policy: _Linked, fault: ExpressionFailed, kind: str) -> None:
        """Log the first failure of a policy's exceptions; objects may be many."""
        key = policy.ir.policy.key
        if key not in self._logged:
            self._logged.add(key)
            reason = withheld(fault.code) if hides_values(kind) else fault.message
            _log.warning("policy %s: an exception exempts nothing: %s", key, reason)

    def _link(self, resource: Resource) -> Iterator[_Linked]:
        for rule, ir in self._scanned:
            if rule.may_match(resource):
                if rule.key not in self._linked:
                    self._linked[rule.key] = self._link_one(ir)
                yield self._linked[rule.key]

    def _link_one(self, ir: AnyCelIR) -> _Linked:
        try:
            return _Linked(ir, self._scan.link(decoded(ir)))
        except SnapshotUnusable as error:
            # The segment has logged it.
            return _Linked(ir, failure=error)
        except Exception as error:  # noqa: BLE001 - the other policies have results
            _log.exception("policy %s cannot be linked", ir.policy.key)
            return _Linked(ir, failure=error)

    def _guarded(
        self, linked: _Linked, facts: Facts, shared: Shared
    ) -> RuleResult | Error | None:
        """Evaluate a policy; return a DependencyError other than a timeout."""
        request = facts.request
        try:
            if linked.linked is None:
                assert linked.failure is not None
                return self._failed(linked, request, linked.failure)
            # The budget that the previous policy used up does not affect this policy.
            with contextlib.suppress(BudgetExceeded):
                facts.runtime.check_clock()
            return _one_of(self._scan.results(linked.linked, facts, shared))
        except DeadlinePassed as error:
            failure: Exception = error
        except (DependencyError, SnapshotUnusable) as error:
            return error
        except Exception as error:  # noqa: BLE001 - the other policies have results
            # A traceback ends with the error's text, which may quote a value.
            _log.error(
                "policy %s cannot be evaluated (%s)",
                *(linked.ir.policy.key, type(error).__name__),
                exc_info=None if hides_values(request.kind) else error,
            )
            failure = error
        return self._failed(linked, request, failure)

    def _failed(
        self, linked: _Linked, request: Request, error: Exception
    ) -> RuleResult | None:
        """Return the error of a policy, or None if the policy does not match."""
        if not _may_match((body.constraints for body in linked.ir.bodies), request):
            return None
        message = "not evaluated (webhook.defect): internal error, see the log"
        if isinstance(error, Error):
            message = f"not evaluated ({error.code}): {error.message}"
        return RuleResult(_EVALUATION, self._scan.type_of_errors, result.ERROR, message)

    def _namespace(self, request: Request, runtime: Runtime) -> Json:
        """Return ``namespaceObject``; None for an object without a namespace.

        Raises: DependencyError.
        """
        objects = self._ports.namespaces
        if not request.namespace or objects is None:
            return None
        namespace = objects.namespace(request.namespace, runtime.deadline_ns)
        return None if namespace is None else {"spec": {}, "status": {}, **namespace}


def _one_of(results: Iterable[RuleResult | None]) -> RuleResult | None:
    """Return the reported result of a policy and its autogen copies.

    KYVERNO: of several results, the first by rule name (controllers 6.5, 6.6).
    """
    applying = [rule_result for rule_result in results if rule_result is not None]
    return min(applying, key=lambda rule_result: rule_result.rule, default=None)


def _may_match(constraints: Iterable[ConstraintsIR | None], request: Request) -> bool:
    try:
        return any(
            constraint is not None and matches(constraint, request)
            for constraint in constraints
        )
    except Exception:  # noqa: BLE001 - unknown: rather an error too many
        return True
