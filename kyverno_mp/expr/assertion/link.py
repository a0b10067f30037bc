"""Compile an assertion tree to closures, and evaluate payloads with them.

Room: expr.assertion. Takes: Assertion. Gives: AssertionProgram. Next: program/bodies.
May touch: nothing outside its arguments; the Scope loads context entries.
Source: docs/behaviour/engine 6.7; kyverno-json pkg/engine/assert.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from kyverno_mp.errors import BudgetExceeded, ExpressionFailed, ExpressionInvalid
from kyverno_mp.expr.assertion.dialect import link_dialect
from kyverno_mp.expr.assertion.match import matches
from kyverno_mp.expr.assertion.nodes import Assertion
from kyverno_mp.expr.assertion.parse import AssertionExpression, parse_expression
from kyverno_mp.expr.assertion.words import (
    Path,
    child,
    expected,
    internal,
    invalid,
    path_text,
    required,
)
from kyverno_mp.expr.jmespath.interim import GoInt
from kyverno_mp.expr.jmespath.parse import parse
from kyverno_mp.expr.scope import Runtime, Scope
from kyverno_mp.limits import VIOLATIONS_MAX
from kyverno_mp.values.jsonvalue import Json

_STEPS: Final = 3
_STEPS_PER_PLACE: Final = 3
_STEPS_PER_VIOLATION: Final = 8
_PLACE_BYTES: Final = 300
_ABSENT: Final = object()
_NO_ENTRIES: Final = frozenset(
    {
        "request",
        "images",
        "element",
        "elementIndex",
        "serviceAccountName",
        "serviceAccountNamespace",
    }
)
"""Members of the JSON context that are not context entries of a rule."""


class Violation(NamedTuple):
    """One field that violates the assertion; ``message`` includes the path.

    Shape: ``Violation("object.spec.x", 'object.spec.x: Invalid value: ...')``.
    """

    path: str
    message: str


class AssertionProgram:
    """A linked assertion tree; reusable for any number of requests."""

    __slots__ = ("_evaluate",)

    def __init__(self, evaluate: "_Evaluate") -> None:
        self._evaluate = evaluate

    def evaluate(
        self,
        payload: Json,
        scope: Scope,
        *,
        path: Path = None,
        hidden: frozenset[str] = _NO_ENTRIES,
    ) -> list[Violation]:
        """Return the violations of the assertion; [] if there are none.

        ``scope``: provides the rule's context entries for ``$name`` on demand.
        ``path``: of the assertion itself. ``hidden``: members of the scope's root that
        are not context entries.

        Raises: ExpressionFailed with the text of the field error, for failing
        expressions and values that cannot be compared.
        """
        outer = scope.runtime
        # KYVERNO: the payload is the unstructured object, so integers are int64 even on
        # an admission request, where the JSON context contains float64 (0.2, 6.7).
        runtime = outer.with_int64()
        run = _Run(runtime)
        try:
            self._evaluate(run, path, payload, _Names(scope, {}, hidden))
        except (RecursionError, OverflowError, MemoryError) as error:
            raise ExpressionFailed(
                "assertion.too_much", f"assertion failed: {error}"
            ) from error
        finally:
            outer.steps_left = runtime.steps_left
            outer.bytes_left = runtime.bytes_left
        return run.violations


def link_assertion(assertion: Assertion) -> AssertionProgram:
    """Link a tree; as in upstream, invalid expressions fail at run time."""
    return AssertionProgram(_link(assertion.tree))


class _Names:
    """The values of ``$name``: bindings of the tree, then context entries."""

    __slots__ = ("_bound", "_hidden", "_scope")

    def __init__(
        self, scope: Scope, bound: dict[str, Json], hidden: frozenset[str]
    ) -> None:
        self._scope = scope
        self._bound = bound
        self._hidden = hidden

    def get(self, name: str, default: Json, /) -> Json:
        if name in self._bound:
            return self._bound[name]
        entry = name[1:]
        if entry in self._hidden:
            return default
        self._scope.ensure(entry)
        return self._scope.root.get(entry, default)

    def bind(self, name: str, value: Json) -> "_Names":
        bound = {**self._bound, f"${name}": value}
        return _Names(self._scope, bound, self._hidden)


class _Run:
    """One evaluation: its budget and the violations found."""

    __slots__ = ("runtime", "violations")

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.violations: list[Violation] = []

    def violated(self, path: Path, message: str) -> None:
        self.runtime.charge(_STEPS_PER_VIOLATION)
        self.runtime.charge_bytes(2 * len(message) + _PLACE_BYTES)
        if len(self.violations) >= VIOLATIONS_MAX:
            raise BudgetExceeded("assertion.violations", "too many violations")
        self.violations.append(Violation(path_text(path), message))


_Evaluate = Callable[[_Run, Path, Json, _Names], None]
_Project = Callable[[_Run, Json, _Names], Json]


def _link(tree: Json) -> _Evaluate:
    if type(tree) is dict:
        return _link_map(tree)
    if type(tree) is list:
        return _link_list([_link(item) for item in tree])
    return _link_scalar(tree)


def _link_map(tree: dict[str, Json]) -> _Evaluate:
    if not tree:
        return _not_null
    members = [_link_member(key, value) for key, value in tree.items()]

    def evaluate(run: _Run, path: Path, value: Json, names: _Names) -> None:
        # KYVERNO: a binding is valid for the members after it. Upstream walks a Go map
        # in random order; here the order of the document applies.
        for member in members:
            names = member(run, path, value, names)

    return evaluate


def _not_null(run: _Run, path: Path, value: Json, _names: _Names) -> None:
    if value is None:
        message = invalid(path, None, "invalid value, must not be null", run.runtime)
        run.violated(path, message)


def _link_member(key: str, tree: Json) -> Callable[[_Run, Path, Json, _Names], _Names]:
    expression = parse_expression(key) or AssertionExpression("")
    project = _link_projection(key, expression)
    evaluate = _link(tree)
    binding = expression.binding
    if expression.each:
        evaluate = _link_each(expression.place, evaluate)

    def evaluate_member(run: _Run, path: Path, value: Json, names: _Names) -> _Names:
        run.runtime.charge(_STEPS)
        at = child(path, key)
        try:
            projected = project(run, value, names)
        except ExpressionFailed as error:
            raise _failed(internal(at, error.message)) from error
        if projected is _ABSENT:
            run.violated(at, required(at))
            return names
        if binding:
            names = names.bind(binding, projected)
        evaluate(run, at, projected, names)
        return names

    return evaluate_member


def _link_projection(key: str, expression: AssertionExpression) -> _Project:
    if expression.computed:
        return _link_statement(expression.statement)
    name = expression.statement or key
    null_is_absent = bool(expression.statement)

    def project(_run: _Run, value: Json, _names: _Names) -> Json:
        if isinstance(value, dict):
            return value.get(name, _ABSENT)
        if value is None and null_is_absent:
            return _ABSENT
        raise _failed("projection not recognized")

    return project


def _link_statement(statement: str) -> _Project:
    try:
        query = link_dialect(parse(statement, community=True))
    except ExpressionInvalid as error:
        return _failing(error.message)

    def execute(run: _Run, value: Json, names: _Names) -> Json:
        run.runtime.bindings = names
        return query(run.runtime, value)

    return execute


def _failing(message: str) -> _Project:
    def fail(_run: _Run, _value: Json, _names: _Names) -> Json:
        raise _failed(message)

    return fail


def _link_each(index: str, evaluate: _Evaluate) -> _Evaluate:
    """Evaluate each item of a list or map; ``index``: a variable's name, or ""."""

    def evaluate_each(run: _Run, path: Path, value: Json, names: _Names) -> None:
        if isinstance(value, (list, dict)):
            run.runtime.charge_items(_STEPS_PER_PLACE * len(value))
            run.runtime.charge_bytes(_PLACE_BYTES * len(value))
        if isinstance(value, list):
            places = [(f"[{i}]", GoInt(i), item) for i, item in enumerate(value)]
        elif isinstance(value, dict):
            places = [(f"[{key}]", key, item) for key, item in value.items()]
        else:
            message = invalid(path, value, "expected a slice or a map", run.runtime)
            raise _failed(message)
        for part, key, item in places:
            inner = names.bind(index, key) if index else names
            evaluate(run, (path, part), item, inner)

    return evaluate_each


def _link_list(evaluates: list[_Evaluate]) -> _Evaluate:
    def evaluate_list(run: _Run, path: Path, value: Json, names: _Names) -> None:
        if value is None:
            run.violated(path, invalid(path, None, "value is null", run.runtime))
        elif not isinstance(value, list):
            message = invalid(path, value, "expected a slice", run.runtime)
            raise _failed(message)
        elif len(value) != len(evaluates):
            message = invalid(path, value, "lengths of slices don't match", run.runtime)
            run.violated(path, message)
        else:
            for index, evaluate in enumerate(evaluates):
                evaluate(run, (path, f"[{index}]"), value[index], names)

    return evaluate_list


def _link_scalar(scalar: Json) -> _Evaluate:
    expression = parse_expression(scalar) if type(scalar) is str else None
    if expression is None or not expression.computed:
        return _link_comparison(lambda _run, _value, _names: scalar)
    for name, refused in (
        (expression.place, "foreach"),
        (expression.binding, "binding"),
    ):
        if name:
            return _refusing(scalar, f"{refused} is not supported on the RHS")
    return _link_comparison(_link_statement(expression.statement))


def _refusing(statement: str, detail: str) -> _Evaluate:
    def refuse(run: _Run, path: Path, _value: Json, _names: _Names) -> None:
        raise _failed(invalid(path, statement, detail, run.runtime))

    return refuse


def _link_comparison(project: _Project) -> _Evaluate:
    def compare(run: _Run, path: Path, value: Json, names: _Names) -> None:
        run.runtime.charge(_STEPS)
        try:
            required = project(run, value, names)
            same = matches(required, value, run.runtime)
        except ExpressionFailed as error:
            raise _failed(internal(path, error.message)) from error
        if not same:
            detail = expected(required, run.runtime)
            run.violated(path, invalid(path, value, detail, run.runtime))

    return compare


def _failed(message: str) -> ExpressionFailed:
    return ExpressionFailed("assertion.failed", message)
