"""Decide whether a rule's body runs: match, context, preconditions, exceptions.

Room: program. Takes: RuleIR linked once. Gives: RuleGate, for every rule type.
Next: program/rule (validate), program/mutate/rule.
Source: docs/behaviour/engine 0.5, 8.7.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

from kyverno_mp.errors import BudgetExceeded, ExpressionFailed, InputError
from kyverno_mp.expr.conditions.link import ConditionsProgram, link_conditions
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.expr.template.link import link_document
from kyverno_mp.ir.rules import ExceptionIR, PolicyIR, RuleIR
from kyverno_mp.program import result
from kyverno_mp.program.bodies.outcome import Outcome
from kyverno_mp.program.context.entries import link_entries
from kyverno_mp.program.context.rule_context import RuleContext
from kyverno_mp.program.matching.match import link_match, reads_namespace_labels
from kyverno_mp.program.request import Request
from kyverno_mp.values.go.gotime import unix_ns

if TYPE_CHECKING:
    from kyverno_mp.program.matching.exceptions import ExceptionIndex

Matches: TypeAlias = Callable[[Request], bool]

EXCEPTED = "rule is skipped due to policy exceptions"


class LinkedException:
    """A PolicyException, linked when a request first needs it."""

    __slots__ = ("_conditions", "_matches", "ir")

    def __init__(self, ir: ExceptionIR) -> None:
        self.ir = ir
        self._matches: Matches | None = None
        self._conditions: ConditionsProgram | None = None

    def applies(self, request: Request, scope: RuleContext) -> bool:
        """Return whether the exception applies; failed conditions count as false."""
        # Threads may link it twice, with equal results.
        matches = self._matches
        if matches is None:
            matches = link_match(self.ir.match, None, for_exception=True).matches
            self._matches = matches
        if not (request.namespace_known and matches(request)):
            return False
        if not request.labels_known and reads_namespace_labels(self.ir.match, None):
            return False
        expires_at_ns = self.ir.expires_at_ns
        # PERF: the clock is read only for an exception that matches and expires.
        if expires_at_ns is not None and expires_at_ns <= unix_ns(scope.runtime.now()):
            return False
        if self.ir.conditions is None:
            return True
        conditions = self._conditions
        if conditions is None:
            conditions = self._conditions = link_conditions(self.ir.conditions)
        try:
            return conditions.holds(scope)
        except ExpressionFailed:
            return False


def _gated(policy: PolicyIR, matches: Matches) -> Matches:
    if not policy.match_conditions:
        return matches
    # PERF: imported late for a fast start of the command line, which rarely needs CEL.
    from kyverno_mp.program.bodies.cel_conditions import gated

    return gated(policy.match_conditions, matches)


def _index_of(exceptions: Sequence[ExceptionIR]) -> "ExceptionIndex | None":
    if not exceptions:
        return None
    # PERF: start of the command line, which rarely needs exceptions.
    from kyverno_mp.program.matching.exceptions import ExceptionIndex

    return ExceptionIndex(exception.match for exception in exceptions)


class RuleGate:
    """The linked checks before a rule's body."""

    __slots__ = (
        "_exception_index",
        "_properties",
        "describes",
        "entries",
        "exceptions",
        "matches",
        "preconditions",
        "written_properties",
    )

    def __init__(self, policy: PolicyIR, ir: RuleIR) -> None:
        self.describes = link_match(
            ir.match, ir.exclude, policy_namespace=policy.namespace
        ).matches
        """The rule's match and exclude, without the policy's matchConditions."""
        self.matches = _gated(policy, self.describes)
        self.preconditions: ConditionsProgram | None = (
            link_conditions(ir.preconditions) if ir.preconditions is not None else None
        )
        self.entries = (
            link_entries(ir.context, policy.namespace) if ir.context else None
        )
        self.exceptions = tuple(map(LinkedException, ir.exceptions))
        self._exception_index = _index_of(ir.exceptions)
        self._properties = tuple(
            (key, link_document(document)) for key, document in ir.report_properties
        )
        self.written_properties = {
            key: str(document.source) for key, document in ir.report_properties
        }
        """The unsubstituted properties of the rule, used if substitution fails."""

    @property
    def is_open(self) -> bool:
        """Return whether every matching request passes the gate."""
        return self.preconditions is None and self.entries is None

    def refusal(self, scope: RuleContext) -> Outcome | None:
        """Load the context and evaluate the preconditions; None: the body can run."""
        try:
            if self.entries is not None:
                scope.add_entries(self.entries)
        except InputError as error:
            message = f"failed to load context: {error.message}"
            return Outcome(result.ERROR, message, code=error.code)
        if self.preconditions is None:
            return None
        return refused_by(self.preconditions, scope)

    def matched_exceptions(
        self, request: Request, scope: RuleContext
    ) -> list[ExceptionIR]:
        """Return the exceptions that cover the request."""
        possible = self.possible_exceptions(request)
        return [e.ir for e in possible if e.applies(request, scope)]

    def possible_exceptions(self, request: Request) -> Iterator[LinkedException]:
        """Yield the exceptions that may cover the request, in their order."""
        index = self._exception_index
        for position in index.positions(request) if index is not None else ():
            yield self.exceptions[position]

    def report_properties(self, scope: RuleContext) -> dict[str, str]:
        """Substitute reportProperties.

        KYVERNO: if any property fails or is not a string, none is substituted (3.6).
        """
        properties: dict[str, str] = {}
        for key, render in self._properties:
            try:
                value = render(scope)
            except InputError:
                return self.written_properties
            if value is not None and not isinstance(value, str):
                return self.written_properties
            properties[key] = value or ""
        return properties


def matches_at_own_cost(
    matches: Callable[[Request], bool],
    policy: PolicyIR,
    request: Request,
    runtime: Runtime,
) -> bool:
    """Return whether a rule matches; the steps are charged to the rule's policy.

    A policy's budget starts with its first matched rule. Until then the previous
    policy's budget is used, which may be exhausted. Raises: BudgetExceeded, which is an
    error of the rule and never means that it does not match.
    """
    try:
        return matches(request)
    except BudgetExceeded:
        if runtime.policy is policy:
            raise
        runtime.begin_policy(policy, is_tenant=bool(policy.namespace))
        return matches(request)


def refused_by(preconditions: ConditionsProgram, scope: RuleContext) -> Outcome | None:
    """Return the outcome of preconditions that are false or failed, otherwise None."""
    try:
        holds, message = preconditions.evaluate(scope)
    except InputError as error:
        message = f"failed to evaluate preconditions: {error.message}"
        return Outcome(result.ERROR, message, code=error.code)
    if holds:
        return None
    tail = f"; {message}" if message else ""
    return Outcome(result.SKIP, f"preconditions not met{tail}")


def excepted(matched: list[ExceptionIR]) -> Outcome:
    """Return the skip outcome for exceptions.

    KYVERNO: there is no space before the first key (docs/behaviour/engine 8.7).
    """
    return Outcome(result.SKIP, EXCEPTED + ", ".join(e.key for e in matched))
