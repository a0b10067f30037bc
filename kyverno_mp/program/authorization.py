"""Decide HTTP and Envoy requests by policies: the first answer or error counts.

Room: program. Takes: AuthorizationPolicyIRs, linked once; a Check. Gives: Authorizer,
LinkedAuthorizationPolicy, Decision, Exchange. Next: cli/apply/stages/authorization.py,
webhook/authz/deciding.py.
May touch: external systems only through the Check's ports.
Source: docs/behaviour/cel 15.1, 15.6.

Without a decision, no policy has an answer, and the request is allowed. SAFETY: an
error is a decision that denies, unless the policy's failurePolicy is Ignore. Callers
have to deny a request if the time limit (DeadlinePassed) ends the evaluation.
"""

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Final, NamedTuple

from kyverno_mp.errors import BudgetExceeded, ExpressionFailed
from kyverno_mp.expr.cel.authz.library import Mode, mode_of
from kyverno_mp.expr.cel.authz.mcp import MCP
from kyverno_mp.expr.cel.authz.messages import Message, Verdict
from kyverno_mp.expr.cel.authz.tokens import KeySetPort, KeySets
from kyverno_mp.expr.cel.functions.kyverno.documents import JSON
from kyverno_mp.expr.cel.linking.program import Budget
from kyverno_mp.expr.cel.outside import HttpContext, ImageContext, ResourceContext
from kyverno_mp.expr.cel.values import CelFailed, Value
from kyverno_mp.expr.effects import EFFECT_PURE
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.ir.authorization import AuthorizationPolicyIR, ExchangeIR
from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.program.bodies.cel import COST_MAX
from kyverno_mp.program.bodies.cel_conditions import link_conditions
from kyverno_mp.program.context.cel_scope import (
    CelScope,
    Dialect,
    LinkedExpression,
    link,
    link_variables,
)
from kyverno_mp.program.ports import CelPorts
from kyverno_mp.program.validating_policy.exceptions import is_expired, link_exceptions

_RECORDS: Final = frozenset({"object", "mcp", "variables"})


class Check(NamedTuple):
    """One request to decide, with what its policies may read."""

    request: Message
    """Of the type ``mode_of(mode).request``."""
    runtime: Runtime
    ports: CelPorts = CelPorts()
    key_sets: KeySetPort | None = None


class Decision(NamedTuple):
    """The result of one policy: an answer, an error, or neither.

    ``rule``: the index of the validation that gave the answer, -1 for none.
    """

    policy: PolicyIR
    rule: int = -1
    response: Message | None = None
    verdict: Verdict | None = None
    """How the caller of the service reads the answer."""
    error: ExpressionFailed | BudgetExceeded | None = None

    @property
    def is_none(self) -> bool:
        """Return whether the policy says nothing about the request."""
        return self.response is None and self.error is None

    @property
    def is_allowed(self) -> bool:
        """Return whether this result lets the request through."""
        return self.error is None and (self.verdict is None or self.verdict.is_allowed)


class LinkedAuthorizationPolicy:
    """One linked policy; safe to share between threads."""

    __slots__ = (
        "_conditions",
        "_exceptions",
        "_mode",
        "_validations",
        "_variables",
        "ir",
    )

    def __init__(self, ir: AuthorizationPolicyIR) -> None:
        self.ir = ir
        self._mode = mode_of(ir.mode)
        dialect = _dialect(ir.mode)
        early = dialect._replace(absent=frozenset({"variables"}))
        self._conditions = link_conditions(ir.conditions, early)
        self._variables = link_variables(ir.variables, dialect)
        self._validations = [link(validation, dialect) for validation in ir.validations]
        self._exceptions = link_exceptions(ir.exceptions, dialect)

    def decide(self, check: Check, values: tuple[Value, ...] = ()) -> Decision:
        """Return what the policy says about a request. Raises: DeadlinePassed.

        ``values``: those of the check, if they are known.
        """
        policy = self.ir.policy
        check.runtime.begin_policy(self, is_tenant=False)
        scope = _Scope(check, self._variables, values or _values_of(check))
        try:
            return self._answered(check, scope)
        except (ExpressionFailed, BudgetExceeded) as error:
            if policy.failure_policy == "Ignore":
                return Decision(policy)
            return Decision(policy, error=error)

    def _answered(self, check: Check, scope: "_Scope") -> Decision:
        """Return the first answer. Raises: ExpressionFailed, BudgetExceeded."""
        policy = self.ir.policy
        if self.ir.error:
            raise ExpressionFailed("cel.invalid", self.ir.error)
        if not scope.all_true(self._conditions):
            return Decision(policy)
        for exception in self._exceptions:
            # Upstream ignores expiresAt here, so an exception would never end.
            if not is_expired(exception.ir, check.runtime) and scope.all_true(
                exception.conditions
            ):
                return Decision(policy)
        for rule, validation in enumerate(self._validations):
            response = scope.value(validation)
            if response is None:
                continue
            if not _is_answer(response, self._mode):
                message = f"rule result is expected to be {self._mode.response}"
                raise ExpressionFailed("cel.answer", message)
            verdict = self._mode.verdict_of(response)
            return Decision(policy, rule, response, verdict)
        return Decision(policy)


class Authorizer:
    """The policies of one mode, in the order in which they decide: by name."""

    def __init__(self, policies: Iterable[AuthorizationPolicyIR], mode: str) -> None:
        """Link the policies of the mode; others are left out."""
        chosen = (ir for ir in policies if ir.mode == mode)
        self._policies = [
            LinkedAuthorizationPolicy(ir)
            for ir in sorted(chosen, key=lambda ir: ir.policy.name)
        ]
        self.is_pure = all(
            policy.ir.effects == EFFECT_PURE for policy in self._policies
        )
        """Whether no policy declares an external call."""

    def decisions(self, check: Check) -> Iterator[Decision]:
        """Yield the result of each policy, as if it were alone."""
        values = _values_of(check)
        for policy in self._policies:
            yield policy.decide(check, values)

    def decide(self, check: Check) -> Decision | None:
        """Return the first answer or error; None if no policy has one.

        Raises: DeadlinePassed.
        """
        return next(
            (decision for decision in self.decisions(check) if not decision.is_none),
            None,
        )


class Exchange:
    """An expression that turns a message of the HTTP authorizer into another one."""

    def __init__(self, ir: ExchangeIR) -> None:
        self._linked = link(ir.expression, _dialect("HTTP"))
        self.is_pure = ir.effects == EFFECT_PURE

    def result(self, check: Check) -> Message | None:
        """Return the value for ``check.request``, None for null.

        Raises: ExpressionFailed, BudgetExceeded, DeadlinePassed.
        """
        check.runtime.begin_policy(self, is_tenant=False)
        value: Message | None = _Scope(check, {}, _values_of(check)).value(self._linked)
        return value


@cache
def _dialect(mode: str) -> Dialect:
    described = mode_of(mode)
    return Dialect(
        names=tuple(described.names()),
        records=_RECORDS,
        library=described.library,
        # No value outlives its policy, so that policies cannot observe each other.
        is_shared=lambda _expression: False,
        constructors=described.constructors(),
    )


def _is_answer(value: Value, mode: Mode) -> bool:
    return value.__class__ is Message and value.kind.name == mode.response


def _values_of(check: Check) -> tuple[Value, ...]:
    """Return the variables that all policies share, as none can change them."""
    deadline_ns, ports = check.runtime.deadline_ns, check.ports
    return (
        check.request,
        ResourceContext(ports.resources, "", deadline_ns),
        ImageContext(ports.images, deadline_ns),
        HttpContext(ports.services, deadline_ns=deadline_ns),
        JSON,
        KeySets(check.key_sets, deadline_ns),
        MCP,
    )


class _Scope(CelScope):
    """The variables of one policy, for one request."""

    __slots__ = ()
    type_name = "kyverno.variables"

    def __init__(
        self,
        check: Check,
        variables: dict[str, LinkedExpression],
        values: tuple[Value, ...],
    ) -> None:
        """``values``: as returned by ``_values_of(check)``."""
        self._runtime = check.runtime
        self._budget = Budget(COST_MAX)
        self._variables = variables
        self._found = {}
        self._values = values

    def value(self, linked: LinkedExpression) -> Value:
        """Evaluate. Raises: ExpressionFailed, BudgetExceeded, DeadlinePassed."""
        assert linked.program is not None  # The compiler rejects invalid expressions.
        return self.run(linked.program)

    def all_true(self, conditions: list[LinkedExpression]) -> bool:
        """Return whether all conditions are true; false takes precedence over errors.

        Raises: ExpressionFailed with all errors, BudgetExceeded.
        """
        problems = []
        for condition in conditions:
            try:
                if self.value(condition) is not True:
                    return False
            except ExpressionFailed as error:
                problems.append(error.message)
        if problems:
            raise ExpressionFailed("cel.conditions", "; ".join(problems))
        return True

    def _evaluated(self, name: str) -> Value:
        linked = self._variables.get(name)
        if linked is None or linked.program is None:
            return CelFailed(f"no such key: {name}")
        try:
            return self.run(linked.program)
        except ExpressionFailed as error:
            return CelFailed(error.message)
