"""Evaluate ``validate.pattern`` or ``validate.anyPattern``.

Room: program. Takes: PatternIR of one rule or foreach entry, linked once. Gives: fast
codes and Outcomes. Next: program/rule.py, program/bodies/foreach.py.
Source: docs/behaviour/engine 5.7-5.9, 3.6.
"""

from collections.abc import Callable, Sequence

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.expr.pattern.explain import PatternVerdict, any_pattern_text
from kyverno_mp.expr.pattern.leaf import Check
from kyverno_mp.expr.pattern.link import PatternProgram, link_pattern
from kyverno_mp.expr.pattern.parse import cached_program
from kyverno_mp.expr.scope import Scope
from kyverno_mp.expr.template.link import link_document
from kyverno_mp.ir.rules import PatternIR
from kyverno_mp.program import result
from kyverno_mp.program.bodies.outcome import EXPLAIN, NONE, PASSED, Outcome, joined
from kyverno_mp.program.context.rule_context import RuleContext
from kyverno_mp.program.words import Message
from kyverno_mp.values.effort import weigh
from kyverno_mp.values.jsonvalue import Json

_STEPS_PER_VALUE = 8
Locate = Callable[[Json], str | None]
_Resolve = Callable[[Scope], PatternProgram]


def _resolver(pattern: PatternIR, *, any_pattern: bool = False) -> _Resolve:
    """Return a function that returns the program, static or substituted."""
    if pattern.static is not None:
        program = link_pattern(pattern.static)
        return lambda _scope: program
    assert pattern.document is not None
    substitute = link_document(pattern.document)

    def resolve(scope: Scope) -> PatternProgram:
        value = substitute(scope)
        # Parsed and linked, unless it is in the cache.
        scope.runtime.charge(_STEPS_PER_VALUE * weigh(value, scope.runtime.charge))
        return cached_program(value, any_pattern=any_pattern)

    return resolve


def _passes(
    program: PatternProgram, scope: RuleContext, target: Json, *, repeated: bool
) -> bool:
    """Check a target; expensive work is charged per value."""
    if repeated or scope.shared.request.size > program.light_to:
        return program.passes_within(target, scope.runtime)
    return program.passes(target)


def _evaluated(
    program: PatternProgram, scope: RuleContext, target: Json
) -> PatternVerdict:
    heavy = scope.shared.request.size > program.light_to
    return program.evaluate(target, scope.runtime if heavy else None)


def _substitution_error(error: ExpressionFailed) -> list[Outcome]:
    message = f"variable substitution failed: {error.message}"
    return [Outcome(result.ERROR, message, code=error.code)]


class PatternBody:
    """``validate.pattern`` of one rule."""

    def __init__(
        self,
        rule: str,
        message: Message,
        pattern: PatternIR,
        *,
        repeated: bool = False,
    ) -> None:
        self._rule = rule
        self._repeated = repeated
        self._message = message
        self._resolve = _resolver(pattern)
        static = None if pattern.static is None else link_pattern(pattern.static)
        self.static = None if static is None else static.passes
        """The test without substitution, if the pattern does not depend on the
        request."""
        self.light_to = 0 if static is None else static.light_to
        """Maximum size in bytes of a review for which ``static`` is allowed."""
        self.where = self._locator(pattern, message.constant())
        """``where(target)`` returns the failure message; None means: explain.

        ``where`` itself is None if the message may depend on more than the failure's
        location.
        """

    def _locator(self, pattern: PatternIR, message: str | None) -> Locate | None:
        if pattern.static is None or message is None:
            return None
        locate = link_pattern(pattern.static).place
        head = joined(message, rest=f"rule {self._rule} failed at path ")

        def where(target: Json) -> str | None:
            path = locate(target)
            return head + path if path else None

        return where

    def fast(self, scope: RuleContext, target: Json) -> int:
        """Return whether the target passes; raises if a variable cannot be resolved."""
        program = self._resolve(scope)
        if target is None:
            return NONE
        passed = _passes(program, scope, target, repeated=self._repeated)
        return PASSED if passed else EXPLAIN

    def explain(self, scope: RuleContext, target: Json) -> list[Outcome]:
        """Return the outcome with its message; [] if there is nothing to check."""
        try:
            program = self._resolve(scope)
        except ExpressionFailed as error:
            return _substitution_error(error)
        if target is None:
            return []
        verdict = _evaluated(program, scope, target)
        if verdict.status == result.PASS:
            return [Outcome(result.PASS, f"validation rule '{self._rule}' passed.")]
        if verdict.status == result.SKIP:
            return [Outcome(result.SKIP, verdict.text)]
        message, problem = self._message.for_pattern(scope, verdict.text)
        if problem:
            return [Outcome(verdict.status, problem)]
        if verdict.status == result.FAIL:
            rest = f"rule {self._rule} failed at path {verdict.path}"
        else:
            rest = f"rule {self._rule} execution error: {verdict.text}"
        return [Outcome(verdict.status, joined(message, rest=rest))]


def _some_pass(tests: Sequence[Check]) -> Check:
    def some_pass(target: Json) -> bool:
        for test in tests:  # noqa: SIM110 - PERF: a generator costs more than the loop
            if test(target):
                return True
        return False

    return some_pass


class AnyPatternBody:
    """``validate.anyPattern`` of one rule: it passes if any of the patterns matches."""

    def __init__(
        self,
        rule: str,
        message: Message,
        patterns: Sequence[PatternIR],
        *,
        repeated: bool = False,
    ) -> None:
        self._rule = rule
        self._repeated = repeated
        self._message = message
        self._resolvers = [_resolver(p, any_pattern=True) for p in patterns]
        programs = [link_pattern(p.static) for p in patterns if p.static is not None]
        fixed = [program.passes for program in programs]
        self.static = _some_pass(fixed) if len(fixed) == len(patterns) else None
        """The test without substitution, if no pattern depends on the request."""
        self.light_to = min([program.light_to for program in programs], default=0)
        self.light_to //= max(len(programs), 1)
        self.where = self._locator(patterns, message.constant())
        """See PatternBody."""

    def _locator(
        self, patterns: Sequence[PatternIR], message: str | None
    ) -> Locate | None:
        if self.static is None or message is None or not patterns:
            return None
        head = joined(message, rest="")
        places = tuple(
            (
                f"rule {self._rule}[{index}] failed at path ",
                link_pattern(p.static).place,
            )
            for index, p in enumerate(patterns)
            if p.static is not None
        )

        def where(target: Json) -> str | None:
            failures: list[str] = []
            for label, locate in places:
                path = locate(target)
                if not path:
                    return None
                failures.append(label + path)
            return head + " ".join(failures)

        return where

    def fast(self, scope: RuleContext, target: Json) -> int:
        """Return whether any of the patterns matches."""
        programs = [resolve(scope) for resolve in self._resolvers]
        if target is None:
            return NONE
        for program in programs:
            if _passes(program, scope, target, repeated=self._repeated):
                return PASSED
        return EXPLAIN

    def explain(self, scope: RuleContext, target: Json) -> list[Outcome]:
        """Return the outcome: all failures and skips of the patterns, joined."""
        try:
            programs = [resolve(scope) for resolve in self._resolvers]
        except ExpressionFailed as error:
            return _substitution_error(error)
        if target is None:
            return []
        failures: list[str] = []
        skips: list[str] = []
        for index, program in enumerate(programs):
            verdict = _evaluated(program, scope, target)
            if verdict.status == result.PASS:
                message = f"validation rule '{self._rule}' anyPattern[{index}] passed."
                return [Outcome(result.PASS, message)]
            messages = skips if verdict.status == result.SKIP else failures
            messages.append(any_pattern_text(self._rule, index, verdict))
        return [self._combined(scope, failures, skips)]

    def _combined(self, scope: Scope, failures: list[str], skips: list[str]) -> Outcome:
        if failures:
            rest = " ".join(failures)
            message, problem = self._message.for_pattern(scope, rest)
            reason = problem or joined(message, rest=rest)
            return Outcome(result.FAIL, reason)
        if skips:
            return Outcome(result.SKIP, " ".join(skips))
        return Outcome(result.PASS, self._message.raw)
