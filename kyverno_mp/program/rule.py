"""Run one rule on one request: match, context, preconditions, exceptions, body.

Room: program. Takes: RuleIR linked once; Request and RuleContext per review. Gives:
fast codes and RuleResults. Next: program/engine.py.
Only here does a rule's InputError become a
status; DependencyError and internal errors propagate.
Source: docs/behaviour/engine 0.5, 6.1, 6.8, 8.7. Over 400 lines: the selection of a
body and the fast paths that bypass it belong together.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from kyverno_mp.errors import InputError
from kyverno_mp.expr.assertion.nodes import Assertion
from kyverno_mp.expr.conditions.nodes import Conditions
from kyverno_mp.expr.conditions.reads import reads_operation_only
from kyverno_mp.expr.effects import EFFECT_REGISTRY
from kyverno_mp.expr.reads import Reads
from kyverno_mp.ir.rules import (
    ExceptionIR,
    ImageRegistryEntryIR,
    ManifestsIR,
    PolicyIR,
    RuleIR,
    ValidateIR,
)
from kyverno_mp.program import result
from kyverno_mp.program.bodies.deny import DenyBody
from kyverno_mp.program.bodies.foreach import ForEachBody
from kyverno_mp.program.bodies.outcome import (
    EXPLAIN,
    FAILED,
    NONE,
    SKIPPED,
    Outcome,
    cut,
)
from kyverno_mp.program.bodies.pattern import AnyPatternBody, Locate, PatternBody
from kyverno_mp.program.context.rule_context import RequestContext, RuleContext
from kyverno_mp.program.creation import as_created, as_created_by_nobody
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import RuleResult
from kyverno_mp.program.rule_gate import EXCEPTED, RuleGate, excepted
from kyverno_mp.program.rule_reads import rule_reads
from kyverno_mp.program.words import Message
from kyverno_mp.values.jsonvalue import Json

if TYPE_CHECKING:
    from kyverno_mp.program.bodies.cel import CelBody
    from kyverno_mp.program.bodies.pod_security import PodSecurityBody
    from kyverno_mp.program.images.outcomes import ImageCheckBody

_EXISTING_ALLOWED = (
    "skipping the rule evaluation as pre-existing violations are allowed"
)
_UNKNOWN: Final = Reads()
"""Marks a value that has not been computed yet."""
_PATTERNS = (PatternBody, AnyPatternBody)
_DENIALS = (DenyBody, ForEachBody)


class _Body(Protocol):
    def fast(self, scope: RuleContext, target: Json, /) -> int: ...

    def explain(self, scope: RuleContext, target: Json, /) -> list[Outcome]: ...


class _NothingBody:
    """A validate rule without a body."""

    def fast(self, _scope: RuleContext, _target: Json) -> int:
        return NONE

    def explain(self, _scope: RuleContext, _target: Json) -> list[Outcome]:
        return []


def _link_body(ir: RuleIR, validate: ValidateIR, namespace: str) -> _Body:
    """Link any body except CEL, podSecurity and images.

    The order is upstream's (docs/behaviour/engine 0.4, 6.1).
    """
    rule = ir.name
    message = Message(rule, validate)
    if validate.manifests is not None:
        return _manifests(validate.manifests, namespace)
    if validate.assertion is not None:
        return _assertion(rule, validate.assertion)
    if validate.deny is not None:
        return DenyBody(rule, message, validate.deny)
    if validate.pattern is not None:
        return PatternBody(rule, message, validate.pattern)
    if validate.any_pattern is not None:
        return AnyPatternBody(rule, message, validate.any_pattern)
    if validate.foreach:
        return ForEachBody(rule, message, validate.foreach, namespace)
    return _NothingBody()


# PERF: imported late for a fast start of the CLI: each of these languages is as large
# as the rest of a short run, and most runs need none. The service loads them before it
# forks.


def _assertion(rule: str, assertion: Assertion) -> _Body:
    from kyverno_mp.program.bodies.assertion import AssertionBody

    return AssertionBody(rule, assertion)


def _manifests(ir: ManifestsIR, namespace: str) -> _Body:
    from kyverno_mp.program.bodies.manifests import ManifestBody

    return ManifestBody(ir, namespace)


def _link_pod_security(rule: str, validate: ValidateIR) -> "PodSecurityBody | None":
    """Return the podSecurity body, if it is the rule's first body, otherwise None."""
    if validate.pod_security is None or validate.assertion is not None:
        return None
    from kyverno_mp.program.bodies.pod_security import PodSecurityBody

    return PodSecurityBody(rule, validate.pod_security)


def _link_cel(ir: RuleIR, validate: ValidateIR) -> "CelBody | None":
    """Return the CEL body, if it is the rule's first body, otherwise None."""
    before = validate.assertion is not None or validate.pod_security is not None
    if validate.cel is None or before:
        return None
    from kyverno_mp.program.bodies.cel import CelBody

    return CelBody(ir.name, validate.cel, ir.cel_preconditions)


def _link_image_check(policy: PolicyIR, ir: RuleIR) -> "ImageCheckBody | None":
    """Return the body of a verifyImages rule in the validate stage."""
    if ir.verify_images is None:
        return None
    from kyverno_mp.program.images.outcomes import ImageCheckBody

    return ImageCheckBody(ir.verify_images, policy, ir.name)


def evaluated_object(request: Request) -> dict[str, Json] | None:
    """Return the object that patterns test; None on DELETE (engine 5.9)."""
    if request.operation == "DELETE" or not request.object:
        return None
    return request.object


def check_effects(ir: RuleIR) -> int:
    """Return the effects of a verifyImages rule in the validate stage."""
    reads = any(type(entry) is ImageRegistryEntryIR for entry in ir.context)
    return ir.effects if reads else ir.effects & ~EFFECT_REGISTRY


class LinkedRule:
    """One linked validate rule."""

    __slots__ = (
        "_cel",
        "_enforced_alone",
        "_gate",
        "_image_check",
        "_looks_back",
        "_pod_security",
        "_reads",
        "_where",
        "bare",
        "body",
        "effects",
        "failure",
        "ir",
        "light_to",
        "matches",
        "operation_only",
        "plain",
        "policy",
        "validate",
    )

    def __init__(self, policy: PolicyIR, ir: RuleIR) -> None:
        self.policy = policy
        self.ir = ir
        self.validate = ir.validate or ValidateIR()
        self._gate = RuleGate(policy, ir)
        self.matches = self._gate.matches
        self._cel = _link_cel(ir, self.validate)
        self._pod_security = _link_pod_security(ir.name, self.validate)
        self._image_check = _link_image_check(policy, ir)
        self.effects = ir.effects if self._image_check is None else check_effects(ir)
        """Effects in this stage: an image check reads no registry."""
        self.body: _Body = (
            self._cel
            or self._image_check
            or self._pod_security
            or _link_body(ir, self.validate, policy.namespace)
        )
        self._enforced_alone = (ir.action.action or policy.action.action) == "Enforce"
        preconditions = ir.preconditions
        reads_more = bool(ir.context or ir.unsupported or self._image_check)
        self.operation_only: Conditions | None = None
        """Preconditions with the same outcome for all rules of a request."""
        if (
            preconditions is not None
            and not reads_more
            and reads_operation_only(preconditions)
        ):
            self.operation_only = preconditions
        plain = not (reads_more or ir.exceptions) and preconditions is None
        self.bare: Callable[[Json], bool] | None = (
            self.body.static if plain and isinstance(self.body, _PATTERNS) else None
        )
        """The complete test of a rule that is a single static pattern and needs no
        scope."""
        self.light_to = self.body.light_to if isinstance(self.body, _PATTERNS) else 0
        """Maximum size in bytes of a review for which ``bare`` is allowed."""
        speaks_alone = not (reads_more or ir.exceptions or ir.report_properties)
        self.failure: str | None = None
        """The message of every failure, if it does not depend on the request."""
        if speaks_alone and isinstance(self.body, _DENIALS):
            self.failure = self.body.failure
        self.plain: Callable[[RequestContext], int] | None = None
        """The ``fast`` function of a CEL rule that needs no scope."""
        if plain and self._cel is not None and self._cel.reads_object_only:
            self.plain = self._cel.fast_plain
        self._reads: Reads | None = _UNKNOWN
        self._where: Locate | None = None
        if self.bare is not None and speaks_alone and isinstance(self.body, _PATTERNS):
            self._where = self.body.where
        self._looks_back = (
            self._enforced_alone
            and self.validate.allow_existing_violations
            and preconditions is None
            and self._image_check is None
        )

    @property
    def reads(self) -> Reads | None:
        """The new object's fields that the rule reads; None: see rule_reads.py."""
        if self._reads is _UNKNOWN:
            self._reads = rule_reads(self.ir)
        return self._reads

    def preconditions_hold(self, scope: RuleContext) -> bool:
        """Evaluate only the preconditions. Raises: InputError."""
        conditions = self._gate.preconditions
        return conditions is None or conditions.holds(scope)

    def located(self, request: Request, target: Json) -> str | None:
        """Return the failure message of a rule whose ``bare`` test failed.

        None: only ``explain`` can determine the outcome. PERF: it needs no scope;
        ``explain`` makes a denial by five rules 40 us slower.
        """
        if self._where is None or (self._looks_back and request.old_object):
            return None
        try:
            return self._where(target)
        except InputError:
            return None

    def failed(self, message: str) -> RuleResult:
        """Return the result for a message from ``located`` or ``failure``."""
        return RuleResult(
            rule=self.ir.name,
            rule_type=result.VALIDATION,
            status=result.FAIL,
            message=cut(message),
        )

    def fast(self, request: Request, scope: RuleContext) -> int:
        """Return the fast code; EXPLAIN for errors and results that need a message."""
        if self.ir.unsupported or self._image_check is not None:
            # Images are checked before the preconditions: no images means no result.
            return EXPLAIN
        entries = self._gate.entries
        try:
            if entries is not None:
                scope.add_entries(entries)
            if not self.preconditions_hold(scope):
                return SKIPPED
        except InputError:
            return EXPLAIN
        return self.fast_within(request, scope, evaluated_object(request))

    def fast_within(self, request: Request, scope: RuleContext, target: Json) -> int:
        """Return the fast code if preconditions hold; ``target``: evaluated_object."""
        try:
            gate = self._gate
            if gate.exceptions:
                for exception in gate.possible_exceptions(request):
                    if exception.applies(request, scope):
                        return EXPLAIN
            code = self.body.fast(scope, target)
        except InputError:
            return EXPLAIN
        if code != EXPLAIN or self.failure is None:
            return code
        return EXPLAIN if self._looks_back and request.old_object else FAILED

    def explain(self, request: Request, scope: RuleContext) -> list[RuleResult]:
        """Return the results with their messages: none, one, or several (assert)."""
        check = self._image_check
        if check is not None and not check.concerns(scope, evaluated_object(request)):
            return []
        refused = None if self.ir.unsupported else self._gate.refusal(scope)
        keys: tuple[str, ...] = ()
        if refused is not None:
            # KYVERNO: properties are filled in after the preconditions (0.5).
            outcomes = [refused]
            properties = self._gate.written_properties
        else:
            outcomes, keys = self._outcomes(request, scope)
            if not outcomes:
                return []
            properties = self._gate.report_properties(scope)
        return [
            RuleResult(
                rule=self.ir.name,
                rule_type=(
                    result.VALIDATION
                    if self._image_check is None
                    else result.IMAGE_VERIFY
                ),
                status=outcome.status,
                message=cut(outcome.message),
                properties={**properties, **(outcome.properties or {})},
                exceptions=keys if outcome.status == result.SKIP else (),
                code=outcome.code,
            )
            for outcome in outcomes
        ]

    def _outcomes(
        self, request: Request, scope: RuleContext
    ) -> tuple[list[Outcome], tuple[str, ...]]:
        if self.ir.unsupported:
            message = f"{self.ir.unsupported} is not evaluated by this version"
            return [Outcome(result.ERROR, message)], ()
        try:
            return self._evaluated(request, scope)
        except InputError as error:
            return [Outcome(result.ERROR, error.message, code=error.code)], ()

    def _evaluated(
        self, request: Request, scope: RuleContext
    ) -> tuple[list[Outcome], tuple[str, ...]]:
        """Apply exceptions, then the body, then allowExistingViolations."""
        if not self._gate.exceptions:
            outcomes = self.body.explain(scope, evaluated_object(request))
            return self._existing_allowed(request, outcomes, scope), ()
        matched = self._gate.matched_exceptions(request, scope)
        keys = tuple(e.key for e in matched)
        if matched and self._pod_security is None:
            return [excepted(matched)], keys
        outcomes = self._under_exceptions(matched, request, scope)
        return self._existing_allowed(request, outcomes, scope), keys

    def _under_exceptions(
        self, matched: list[ExceptionIR], request: Request, scope: RuleContext
    ) -> list[Outcome]:
        """Evaluate podSecurity; exceptions may remove only some controls."""
        for ir in matched:
            if not ir.pod_security:
                message = f"rule is skipped due to policy exception {ir.key}"
                return [Outcome(result.SKIP, message)]
        outcomes = self.body.explain(scope, evaluated_object(request))
        if not matched or not any(o.status == result.FAIL for o in outcomes):
            return outcomes
        assert self._pod_security is not None
        controls = tuple(c for ir in matched for c in ir.pod_security)
        remaining = self._pod_security.explain(
            scope, evaluated_object(request), controls
        )
        if any(o.status != result.PASS for o in remaining):
            return remaining
        keys = ", ".join(ir.key for ir in matched)
        return [Outcome(result.SKIP, f"{EXCEPTED} {keys}")]

    def _existing_allowed(
        self, request: Request, outcomes: list[Outcome], scope: RuleContext
    ) -> list[Outcome]:
        """Turn a failure into a skip if the old object failed, too (engine 6.8)."""
        if (
            not (
                self._enforced_alone
                and self.validate.allow_existing_violations
                and request.old_object
                and request.object
                and any(o.status == result.FAIL for o in outcomes)
            )
            or self._cel is not None
            or self._image_check is not None
        ):
            # KYVERNO: allowExistingViolations has no effect on CEL rules (6.4), and
            # image rules have no such field.
            return outcomes
        if self.ir.preconditions is not None:
            # KYVERNO: for rules with preconditions, the old object never counts as
            # matched.
            return outcomes
        if not self._gate.describes(as_created_by_nobody(request)):
            return outcomes
        if self._violated_before(as_created(request), scope):
            return [Outcome(result.SKIP, _EXISTING_ALLOWED)]
        return outcomes

    def _violated_before(self, created: Request, scope: RuleContext) -> bool:
        """Return whether the old object already failed.

        Context entries are evaluated again, so the old object is not evaluated with the
        new object's data. If the old object cannot be evaluated, the failure remains.
        """
        before = scope.shared.of_creation(created).rule_scope(
            self.ir.name,
            policy_namespace=scope.policy_namespace,
            runtime=scope.runtime,
        )
        try:
            if self._gate.entries is not None:
                before.add_entries(self._gate.entries)
            if self._pod_security is not None:
                # KYVERNO: only podSecurity exceptions are matched again
                # (docs/behaviour/engine 6.8).
                matched = self._gate.matched_exceptions(created, before)
                outcomes = self._under_exceptions(matched, created, before)
            else:
                outcomes = self.body.explain(before, evaluated_object(created))
        except InputError:
            return False
        return any(outcome.status == result.FAIL for outcome in outcomes)
