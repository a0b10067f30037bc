"""Run one generate rule on one trigger: does it apply, and what does it generate?

Room: program.generate. Takes: RuleIR linked once; Request and RuleContext. Gives:
RuleResult of the filter, Generated objects. Next: program/generate/generation.
May touch: the cluster data only through program/ports.py.
Source: docs/behaviour/engine 0.4, 1.7; docs/behaviour/controllers 5.4; Kyverno
pkg/engine/background.go, pkg/background/generate/generator.go.
"""

from dataclasses import replace
from typing import Final

from kyverno_mp.errors import BudgetExceeded, ExpressionFailed, InputError
from kyverno_mp.expr.conditions.link import ConditionsProgram, link_conditions
from kyverno_mp.expr.jmespath.query import search
from kyverno_mp.expr.template.link import link_document
from kyverno_mp.expr.template.nodes import Document
from kyverno_mp.ir.rules import GenerateForEachIR, GenerateIR, PolicyIR, RuleIR
from kyverno_mp.program import result
from kyverno_mp.program.context.entries import link_entries
from kyverno_mp.program.context.rule_context import RuleContext
from kyverno_mp.program.generate.pattern import Generated, make
from kyverno_mp.program.generate.sources import NO_SOURCE
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import RuleResult
from kyverno_mp.program.rule_gate import RuleGate
from kyverno_mp.values.jsonvalue import Json

_ELEMENT_STEPS: Final = 20


class ElementsFailed(ExpressionFailed):
    """Some elements failed; ``made``: the objects of the other elements."""

    def __init__(self, code: str, message: str, generated: list[Generated]) -> None:
        super().__init__(code, message)
        self.made = generated


class _Pattern:
    """One linked pattern."""

    __slots__ = ("_render", "_rule")

    def __init__(self, rule: str, document: Document) -> None:
        self._rule = rule
        self._render = link_document(document)

    def make(
        self, scope: RuleContext, policy: PolicyIR, trigger: dict[str, Json]
    ) -> list[Generated]:
        """Substitute the pattern and build its objects. Raises: ExpressionFailed."""
        return list(make(self._render(scope), scope, policy, self._rule, trigger))


class _GenerateForEach:
    """One linked foreach entry."""

    __slots__ = ("context", "list_text", "pattern", "preconditions")

    def __init__(self, rule: str, entry: GenerateForEachIR, namespace: str) -> None:
        self.list_text = entry.list_query
        self.pattern = _Pattern(rule, entry.pattern)
        self.context = link_entries(entry.context, namespace) if entry.context else None
        self.preconditions: ConditionsProgram | None = (
            link_conditions(entry.preconditions)
            if entry.preconditions is not None
            else None
        )

    def elements(self, scope: RuleContext) -> list[Json]:
        """Evaluate the foreach list. Raises: InputError."""
        scope.ensure(self.list_text)
        elements = search(self.list_text)(scope.runtime, scope.root)
        return elements if isinstance(elements, list) else [elements]


class LinkedGeneration:
    """One linked generate rule."""

    __slots__ = ("_entries", "_gate", "_pattern", "ir", "matches", "policy")

    def __init__(self, policy: PolicyIR, ir: RuleIR) -> None:
        self.policy = policy
        self.ir = ir
        self._gate = RuleGate(policy, ir)
        self.matches = self._gate.matches
        body = ir.generate or GenerateIR()
        self._pattern = (
            None if body.pattern is None else _Pattern(ir.name, body.pattern)
        )
        self._entries = [
            _GenerateForEach(ir.name, each, policy.namespace)
            for each in body.foreach or ()
        ]

    def evaluate(self, request: Request, scope: RuleContext) -> RuleResult | None:
        """Return what to do for the request; None if the rule does not match at all.

        pass: generate. fail: the rule applied to the old object but no longer does, so
        its generated objects have to be deleted. ``scope`` cannot be reused.
        """
        matched = self._gate.matched_exceptions(request, scope)
        if matched:
            keys = tuple(ir.key for ir in matched)
            message = f"rule is skipped due to policy exception {', '.join(keys)}"
            rule_result = self._result(scope, result.SKIP, message)
            rule_result.exceptions = keys
            return rule_result
        if not self.matches(request):
            return self._result(scope, result.FAIL) if self._matched(request) else None
        if self._gate.entries is not None:
            try:
                scope.add_entries(self._gate.entries)
            except InputError:
                # KYVERNO: if the context cannot be loaded, there is no result.
                return None
        return self._evaluate_preconditions(request, scope)

    def _matched(self, request: Request) -> bool:
        """Return whether the rule matched the old object."""
        old = request.old_object
        if not (old and request.object):
            return False
        return self.matches(replace(request, object=old, old_object={}))

    def _evaluate_preconditions(
        self, request: Request, scope: RuleContext
    ) -> RuleResult:
        preconditions = self._gate.preconditions
        if preconditions is None:
            return self._result(scope, result.PASS)
        step = "failed to evaluate conditions"
        try:
            if preconditions.holds(scope):
                return self._result(scope, result.PASS)
            if request.old_object:
                step = "failed to evaluate conditions for old resource"
                scope.set_object(request.old_object)
                holds, message = preconditions.evaluate(scope)
                if holds:
                    return self._result(scope, result.FAIL, message)
        except InputError as error:
            return self._result(scope, result.ERROR, f"{step}: {error.message}")
        return self._result(scope, result.SKIP)

    def _result(self, scope: RuleContext, status: str, message: str = "") -> RuleResult:
        return RuleResult(
            rule=self.ir.name,
            rule_type=result.GENERATION,
            status=status,
            message=message,
            properties=self._gate.report_properties(scope),
        )

    def generate(self, request: Request, scope: RuleContext) -> list[Generated]:
        """Return the objects that the rule generates for the request's object.

        Raises: ExpressionFailed with upstream's message; DependencyError.
        """
        trigger = request.object or request.old_object
        try:
            if self._gate.entries is not None:
                scope.add_entries(self._gate.entries)
        except InputError as error:
            message = f"failed to load rule level context: {error.message}"
            raise ExpressionFailed(error.code, message) from error
        if self._pattern is None:
            return self._elements(scope, trigger)
        if not _holds(self._gate.preconditions, scope):
            return []
        return self._pattern.make(scope, self.policy, trigger)

    def _elements(
        self, scope: RuleContext, trigger: dict[str, Json]
    ) -> list[Generated]:
        """Build the objects of all elements. Raises: ElementsFailed, BudgetExceeded.

        KYVERNO: the rule's own preconditions are not evaluated again, and a failed
        element does not stop the others (docs/behaviour/controllers 5.4).
        """
        generated: list[Generated] = []
        problems, codes = [], set()
        for position, entry in enumerate(self._entries):
            try:
                elements = entry.elements(scope)
            except InputError as error:
                problem = f"failed to evaluate {position} foreach list: {error.message}"
                problems.append(problem)
                codes.add(error.code)
                continue
            wrong = []
            token = scope.checkpoint()
            for index, element in enumerate(elements):
                if element is None:
                    continue
                scope.runtime.charge(_ELEMENT_STEPS)
                scope.restore(token)
                scope.push_element(index, element, 0)
                try:
                    generated += self._element(entry, scope, trigger)
                except BudgetExceeded:
                    # The next elements would exceed the budget again.
                    raise
                except InputError as error:
                    scope.runtime.charge_bytes(len(error.message))
                    codes.add(error.code)
                    wrong.append(f"failed to process {index} element: {error.message}")
            scope.leave(token)
            if wrong:
                rule = self.ir.name
                problems.append(
                    f"failed to process {position} foreach in rule {rule}: "
                    + "; ".join(wrong)
                )
        if problems:
            # The code is NO_SOURCE only if every failure is a missing source.
            code = NO_SOURCE if codes == {NO_SOURCE} else "generate.foreach"
            raise ElementsFailed(code, "; ".join(problems), generated)
        return generated

    def _element(
        self, entry: _GenerateForEach, scope: RuleContext, trigger: dict[str, Json]
    ) -> list[Generated]:
        if entry.context is not None:
            scope.add_entries(entry.context)
        if not _holds(entry.preconditions, scope):
            return []
        return entry.pattern.make(scope, self.policy, trigger)


def _holds(preconditions: ConditionsProgram | None, scope: RuleContext) -> bool:
    if preconditions is None:
        return True
    try:
        return preconditions.holds(scope)
    except InputError as error:
        message = f"failed to evaluate preconditions: {error.message}"
        raise ExpressionFailed(error.code, message) from error
