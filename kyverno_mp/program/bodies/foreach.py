"""Evaluate each element of lists with ``validate.foreach``.

Room: program. Takes: ForEachIR entries of one rule. Gives: fast codes and Outcomes.
Next: program/rule.py. Each element's body is one of the other bodies, or foreach again.
May touch: nothing outside its arguments; the scope is restored after each element.
Source: docs/behaviour/engine 6.3, 3.6.
"""

from collections.abc import Callable, Sequence

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.expr.conditions.link import ConditionsProgram, link_conditions
from kyverno_mp.expr.jmespath.link import Query
from kyverno_mp.expr.jmespath.query import search, search_raw
from kyverno_mp.expr.template.document import parse_lookup
from kyverno_mp.expr.template.lookup import query_failed
from kyverno_mp.ir.rules import ForEachIR
from kyverno_mp.program import result
from kyverno_mp.program.bodies.deny import DenyBody
from kyverno_mp.program.bodies.outcome import EXPLAIN, NONE, PASSED, SKIPPED, Outcome
from kyverno_mp.program.bodies.pattern import AnyPatternBody, PatternBody
from kyverno_mp.program.context.entries import link_entries
from kyverno_mp.program.context.rule_context import RuleContext
from kyverno_mp.program.words import Message
from kyverno_mp.values.go.gotext import go_type
from kyverno_mp.values.jsonvalue import Json

_STEPS_PER_ELEMENT = 8
"""Steps to add an element to the scope and to remove it."""
_Body = PatternBody | AnyPatternBody | DenyBody
_BuildBody = Callable[[ForEachIR], "_Body | ForEachBody | None"]


class _ValidateForEach:
    """One linked foreach entry."""

    __slots__ = (
        "_search",
        "body",
        "context",
        "element_scope",
        "is_plain",
        "list_query",
        "list_text",
        "preconditions",
    )

    def __init__(self, entry: ForEachIR, build: _BuildBody, namespace: str) -> None:
        self.list_text = entry.list_query
        self.list_query: Query | None = None
        self.element_scope = entry.element_scope
        self.context = link_entries(entry.context, namespace) if entry.context else None
        self.preconditions: ConditionsProgram | None = (
            link_conditions(entry.preconditions)
            if entry.preconditions is not None
            else None
        )
        self.body = build(entry)
        # PERF: deny reads elements only through the context, where ints count as
        # floats; patterns use the elements themselves.
        raw = isinstance(self.body, DenyBody) and entry.element_scope is None
        self._search = search_raw if raw else search
        self.is_plain = raw and self.context is None
        """Whether elements leave no entries in the scope."""

    def elements(self, scope: RuleContext) -> list[Json]:
        """Evaluate the list; raises ExpressionFailed (also for invalid syntax)."""
        scope.ensure(self.list_text)
        query = self.list_query
        if query is None:
            lookup = parse_lookup(self.list_text)
            if lookup.node is None:
                raise ExpressionFailed("template.query", lookup.error)
            query = self.list_query = self._search(self.list_text.strip())
        try:
            elements = query(scope.runtime, scope.root)
        except ExpressionFailed as error:
            raise query_failed(error) from error
        if not isinstance(elements, list):
            return [elements]
        scope.runtime.charge(_STEPS_PER_ELEMENT * len(elements))
        return elements

    def target(self, element: Json, resource: Json) -> Json:
        """Return the value that a pattern tests: the element or the whole object.

        Raises: ExpressionFailed if elementScope is set and the element is not a map.
        """
        if self.element_scope is None:
            return element if isinstance(element, dict) else resource
        if not self.element_scope:
            return resource
        if isinstance(element, dict):
            return element
        raise ExpressionFailed(
            "foreach.element_scope",
            "failed to process foreach: cannot use elementScope=true foreach rules for"
            " elements that are not maps, expected type=map got type="
            + go_type(element),
        )


class ForEachBody:
    """``validate.foreach``: every element of every list must pass."""

    def __init__(
        self,
        rule: str,
        message: Message,
        entries: Sequence[ForEachIR],
        namespace: str = "",
        depth: int = 0,
    ) -> None:
        self._depth = depth

        def build(entry: ForEachIR) -> "_Body | ForEachBody | None":
            if entry.deny is not None:
                return DenyBody(rule, message, entry.deny)
            if entry.pattern is not None:
                return PatternBody(rule, message, entry.pattern, repeated=True)
            if entry.any_pattern is not None:
                return AnyPatternBody(rule, message, entry.any_pattern, repeated=True)
            if entry.foreach:
                return ForEachBody(rule, message, entry.foreach, namespace, depth + 1)
            return None

        self._entries = [_ValidateForEach(entry, build, namespace) for entry in entries]
        self.failure = self._constant_failure()
        """The message of every failure, if it does not depend on the request.

        If it is set, ``fast`` returns EXPLAIN only if an element failed.
        """

    def _constant_failure(self) -> str | None:
        failures: set[str | None] = set()
        for entry in self._entries:
            body = entry.body if entry.is_plain else None
            failures.add(body.failure if isinstance(body, DenyBody) else None)
        failure = failures.pop() if len(failures) == 1 else None
        return None if failure is None else f"validation failure: {failure}"

    def fast(self, scope: RuleContext, target: Json) -> int:
        """Return whether all elements pass; any other result needs a message."""
        applied = False
        for entry in self._entries:
            body = entry.body
            if body is None:
                continue
            elements = entry.elements(scope)
            if entry.is_plain and not scope.has_entries:
                code = self._plain(entry, body, scope, elements, target)
                if code == EXPLAIN:
                    return EXPLAIN
                applied = applied or code == PASSED
                continue
            token = scope.checkpoint()
            try:
                for index, element in enumerate(elements):
                    if element is None:
                        continue
                    scope.restore(token)
                    scope.push_element(index, element, self._depth)
                    part = entry.target(element, target)
                    if entry.context is not None:
                        scope.add_entries(entry.context)
                    if entry.preconditions is not None and not (
                        entry.preconditions.holds(scope)
                    ):
                        continue
                    code = body.fast(scope, part)
                    if code == EXPLAIN:
                        return EXPLAIN
                    if code not in (NONE, SKIPPED):
                        applied = True
            finally:
                scope.leave(token)
        return PASSED if applied else NONE

    def _plain(
        self,
        entry: _ValidateForEach,
        body: "_Body | ForEachBody",
        scope: RuleContext,
        elements: list[Json],
        target: Json,
    ) -> int:
        """Evaluate the elements of a plain entry.

        PERF: all elements share one root, because nothing keeps a reference to it:
        without context entries, no value outlives its query.
        """
        outer = scope.root
        code = NONE
        holds = None if entry.preconditions is None else entry.preconditions.holds
        evaluate = body.fast
        root, names = scope.open_loop(self._depth)
        name, index_name = names
        try:
            for index, element in enumerate(elements):
                if element is None:
                    continue
                root["element"] = root[name] = element
                root["elementIndex"] = root[index_name] = index
                scope.enter(root)
                if holds is not None and not holds(scope):
                    continue
                element_code = evaluate(scope, target)
                if element_code == EXPLAIN:
                    return EXPLAIN
                if element_code == PASSED:
                    code = PASSED
        finally:
            scope.enter(outer)
        return code

    def explain(self, scope: RuleContext, target: Json) -> list[Outcome]:
        """Return the first failed element's outcome, a pass, or [] if none applied."""
        applied = False
        list_error = ""
        for entry in self._entries:
            try:
                elements = entry.elements(scope)
            except ExpressionFailed as error:
                if "Unknown key" not in error.message:
                    list_error = error.message
                continue
            token = scope.checkpoint()
            try:
                for index, element in enumerate(elements):
                    if element is None:
                        continue
                    scope.restore(token)
                    scope.push_element(index, element, self._depth)
                    outcome = self._element(entry, scope, element, target)
                    if outcome is None or outcome.status == result.SKIP:
                        continue
                    if outcome.status != result.PASS:
                        message = f"validation failure: {outcome.message}"
                        return [Outcome(outcome.status, message)]
                    applied = True
            except ExpressionFailed as error:
                return [Outcome(result.ERROR, error.message, code=error.code)]
            finally:
                scope.leave(token)
        if applied:
            return [Outcome(result.PASS, "rule passed")]
        if list_error:
            message = f"failed to evaluate list: {list_error}"
            return [Outcome(result.ERROR, message)]
        return []

    def _element(
        self, entry: _ValidateForEach, scope: RuleContext, element: Json, resource: Json
    ) -> Outcome | None:
        """Evaluate one element; return None if the element is skipped."""
        target = entry.target(element, resource)
        if entry.context is not None:
            try:
                scope.add_entries(entry.context)
            except ExpressionFailed as error:
                message = f"failed to load context: {error.message}"
                return Outcome(result.ERROR, message, code=error.code)
        if entry.preconditions is not None:
            try:
                if not entry.preconditions.holds(scope):
                    return None
            except ExpressionFailed:
                # KYVERNO: an error in foreach preconditions skips the element
                # (docs/behaviour/engine 3.6).
                return None
        if entry.body is None:
            return None
        outcomes = entry.body.explain(scope, target)
        return outcomes[0] if outcomes else None
