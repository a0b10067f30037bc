"""Judge an object by ``validate.pattern`` or ``validate.anyPattern``.

Room: program. Takes: PatternIR of one rule or foreach entry, linked once. Gives: fast
codes and Outcomes. Next: program/rule.py, program/body_foreach.py.
May touch: nothing outside its arguments.
Source: spec/engine.md 5.7-5.9, 3.6.
"""

from collections.abc import Callable, Sequence

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.expr.pattern.leaf import Check
from kyverno_mp.expr.pattern.link import PatternProgram, link_pattern
from kyverno_mp.expr.pattern.parse import cached_program
from kyverno_mp.expr.scope import Scope
from kyverno_mp.expr.template.link import link_document
from kyverno_mp.ir.rules import PatternIR
from kyverno_mp.program import result
from kyverno_mp.program.outcome import EXPLAIN, NONE, PASSED, Outcome, joined
from kyverno_mp.program.words import Message
from kyverno_mp.values.jsonvalue import Json

Locate = Callable[[Json], str | None]
_Resolve = Callable[[Scope], PatternProgram]


def _resolver(pattern: PatternIR, *, any_pattern: bool = False) -> _Resolve:
    """Return how to get the program: fixed, or substituted on each request."""
    if pattern.static is not None:
        program = link_pattern(pattern.static)
        return lambda _scope: program
    assert pattern.document is not None
    substitute = link_document(pattern.document)
    return lambda scope: cached_program(substitute(scope), any_pattern=any_pattern)


def _substitution_error(error: ExpressionFailed) -> list[Outcome]:
    return [Outcome(result.ERROR, f"variable substitution failed: {error.message}")]


class PatternBody:
    """``validate.pattern`` of one rule."""

    def __init__(self, rule: str, message: Message, pattern: PatternIR) -> None:
        self._rule = rule
        self._message = message
        self._resolve = _resolver(pattern)
        self.static = (
            link_pattern(pattern.static).passes if pattern.static is not None else None
        )
        """The bare test, when nothing of the pattern depends on the request."""
        self.where = self._locator(pattern, message.constant())
        """``where(target)``: the text of a failure; None asks to explain.

        Itself None where the text may depend on more than the place of the failure.
        """

    def _locator(self, pattern: PatternIR, message: str | None) -> Locate | None:
        if pattern.static is None or message is None:
            return None
        place = link_pattern(pattern.static).place
        head = joined(message, rest=f"rule {self._rule} failed at path ")

        def where(target: Json) -> str | None:
            path = place(target)
            return head + path if path else None

        return where

    def fast(self, scope: Scope, target: Json) -> int:
        """Tell whether the target passes; an unresolved variable asks for words."""
        program = self._resolve(scope)
        if target is None:
            return NONE
        return PASSED if program.passes(target) else EXPLAIN

    def explain(self, scope: Scope, target: Json) -> list[Outcome]:
        """Return the outcome with its text; [] when there is nothing to judge."""
        try:
            program = self._resolve(scope)
        except ExpressionFailed as error:
            return _substitution_error(error)
        if target is None:
            return []
        verdict = program.judge(target)
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
    """``validate.anyPattern`` of one rule: the first pattern that holds decides."""

    def __init__(
        self, rule: str, message: Message, patterns: Sequence[PatternIR]
    ) -> None:
        self._rule = rule
        self._message = message
        self._resolvers = [_resolver(p, any_pattern=True) for p in patterns]
        fixed = [
            link_pattern(p.static).passes for p in patterns if p.static is not None
        ]
        self.static = _some_pass(fixed) if len(fixed) == len(patterns) else None
        """The bare test, when nothing of the patterns depends on the request."""
        self.where = self._locator(patterns, message.constant())
        """As in PatternBody."""

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
            for label, place in places:
                path = place(target)
                if not path:
                    return None
                failures.append(label + path)
            return head + " ".join(failures)

        return where

    def fast(self, scope: Scope, target: Json) -> int:
        """Tell whether one of the patterns holds."""
        programs = [resolve(scope) for resolve in self._resolvers]
        if target is None:
            return NONE
        for program in programs:
            if program.passes(target):
                return PASSED
        return EXPLAIN

    def explain(self, scope: Scope, target: Json) -> list[Outcome]:
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
            verdict = program.judge(target)
            label = f"rule {self._rule}[{index}]"
            if verdict.status == result.PASS:
                text = f"validation rule '{self._rule}' anyPattern[{index}] passed."
                return [Outcome(result.PASS, text)]
            if verdict.status == result.SKIP:
                skips.append(f"{label} skipped: {verdict.text}")
            elif verdict.path:
                failures.append(f"{label} failed at path {verdict.path}")
            else:
                failures.append(f"{label} failed: {verdict.text}")
        return [self._combined(scope, failures, skips)]

    def _combined(self, scope: Scope, failures: list[str], skips: list[str]) -> Outcome:
        if failures:
            told = " ".join(failures)
            message, problem = self._message.for_pattern(scope, told)
            text = problem or joined(message, rest=told)
            return Outcome(result.FAIL, text)
        if skips:
            return Outcome(result.SKIP, " ".join(skips))
        return Outcome(result.PASS, self._message.raw)
