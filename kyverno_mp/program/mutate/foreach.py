"""Apply a patch for each element of lists.

Room: program.mutate. Takes: MutateForEachIR linked once; a scope and an object. Gives:
the patched object. Next: program/mutate/rule.
May touch: nothing outside its arguments; the scope is restored after each list.
Source: docs/behaviour/engine 7.5.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from kyverno_mp.errors import InputError
from kyverno_mp.expr.conditions.link import link_conditions
from kyverno_mp.expr.template.document import parse_lookup
from kyverno_mp.expr.template.lookup import link_lookup
from kyverno_mp.ir.rules import MutateForEachIR
from kyverno_mp.program import result
from kyverno_mp.program.context.entries import link_entries
from kyverno_mp.program.context.rule_context import RuleContext
from kyverno_mp.program.mutate.merge_steps import Values
from kyverno_mp.program.mutate.patch import (
    NOTHING,
    LinkedPatch,
    Patched,
    failed,
    not_substituted,
)
from kyverno_mp.program.mutate.row import OBJECT, Frame, object_path
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.patches.json_equal import same
from kyverno_mp.values.spending import Spender

_ELEMENT_STEPS = 20
_ELEMENTS_PAID = 16
"""PERF: this many elements are charged together."""
_ROWS_AT_ONCE = 64
"""Number of elements whose values are kept, so long lists do not take more memory."""

Resource = dict[str, Json]
_ApplyEach = Callable[
    [LinkedPatch, Sequence[Values], Resource, Spender], Patched | None
]


class _MutateForEach:
    """One linked foreach entry."""

    __slots__ = (
        "_query",
        "context",
        "is_descending",
        "list",
        "nested",
        "patch",
        "path",
        "row",
        "test",
    )

    def __init__(self, entry: MutateForEachIR, namespace: str, depth: int) -> None:
        self.list = entry.list_query
        self._query = link_lookup(parse_lookup(entry.list_query))
        self.is_descending = entry.is_descending
        self.context = link_entries(entry.context, namespace) if entry.context else None
        self.test = (
            link_conditions(entry.preconditions)
            if entry.preconditions is not None
            else None
        )
        self.nested = (
            ForEach(entry.foreach, namespace, depth + 1) if entry.foreach else None
        )
        self.patch = LinkedPatch(entry.patch) if entry.patch else None
        self.path = None
        """The path of the list in the object, if the query is a plain path."""
        self.row = None
        """Function that computes the patch's values, if they need no scope."""
        more = entry.context or entry.preconditions or entry.foreach
        if self.patch is not None and not more:
            self.path = object_path(parse_lookup(entry.list_query))
            self.row = self.patch.row

    def elements(self, scope: RuleContext) -> list[Json]:
        """Evaluate the list; a value that is not a list becomes the only element."""
        elements = self._query(scope)
        return elements if type(elements) is list else [elements]

    def order(self, elements: list[Json]) -> Iterator[tuple[int, Json]]:
        """Yield (index, element) of the elements that are not null, in patch order."""
        places = range(len(elements))
        for index in reversed(places) if self.is_descending else places:
            if elements[index] is not None:
                yield index, elements[index]


class ForEach:
    """The ``foreach`` of a rule, or a nested one in an entry."""

    __slots__ = ("_depth", "_entries", "is_plain")

    def __init__(
        self, entries: Sequence[MutateForEachIR], namespace: str = "", depth: int = 0
    ) -> None:
        self._depth = depth
        self._entries = [_MutateForEach(entry, namespace, depth) for entry in entries]
        self.is_plain = all(
            each.path is not None and each.row is not None for each in self._entries
        )
        """Whether ``apply_plain`` can be used."""

    @property
    def patches(self) -> "list[tuple[LinkedPatch | None, list[str] | None]]":
        """The patch of each entry, and the path of its list in the object."""
        return [(entry.patch, entry.path) for entry in self._entries]

    def apply_plain(
        self,
        frame: Frame,
        resource: Resource,
        spend: Spender,
        apply: _ApplyEach = LinkedPatch.apply_each,
    ) -> Patched | None:
        """Apply without a scope; None if one is needed, as for nested entries."""
        count = 0
        # The element must not become a variable of later rules.
        frame = frame.copy()
        for entry in self._entries:
            frame[OBJECT] = resource
            patched = _plain(entry, frame, spend, apply)
            if patched is None:
                return None
            if patched.status == result.ERROR:
                return _not_mutated(patched)
            if patched.status == result.PASS:
                count += 1
                resource = patched.resource
        return _counted(count, resource)

    def apply_linked(
        self, frame: Frame, resource: Resource, spend: Spender
    ) -> Patched | None:
        """Apply linked patches without a scope; None if this is not possible."""
        return self.apply_plain(frame, resource, spend, LinkedPatch.apply_each_linked)

    def apply(self, scope: RuleContext, resource: Resource) -> Patched:
        """Apply every entry, each to the result of the previous one."""
        count = 0
        for entry in self._entries:
            try:
                elements = entry.elements(scope)
            except InputError as error:
                # KYVERNO: upstream's message contains the error twice.
                message = f"failed to evaluate list {entry.list}: {error.message}"
                return failed(f"{message}: {error.message}")
            token = scope.checkpoint()
            try:
                patched = self._elements(entry, elements, scope, token, resource)
            finally:
                scope.leave(token)
            if patched.status == result.ERROR:
                return _not_mutated(patched)
            if patched.resource is not resource and not same(
                patched.resource, resource
            ):
                count += 1
                resource = patched.resource
                scope.set_object(resource)
        return _counted(count, resource)

    def _elements(
        self,
        entry: _MutateForEach,
        elements: list[Json],
        scope: RuleContext,
        token: int,
        resource: Resource,
    ) -> Patched:
        """Patch for all elements; only nested foreach elements see earlier changes."""
        patch = entry.patch
        if entry.nested is not None or patch is None or not patch.has_values:
            return self._one_by_one(entry, elements, scope, token, resource)
        problems: list[Patched] = []

        def rows() -> Iterator[Values]:
            for index, element in entry.order(elements):
                problem = self._enter(entry, index, element, scope, token)
                if problem is None:
                    try:
                        yield patch.values(scope)
                        continue
                    except InputError as error:
                        problem = not_substituted(error)
                if problem.status == result.ERROR:
                    problems.append(problem)
                    return

        patched = _in_batches(patch, rows(), resource, scope.runtime)
        if patched.status != result.ERROR and problems:
            # Earlier elements are patched first, so their failure takes precedence.
            return problems[0]
        return patched

    def _one_by_one(
        self,
        entry: _MutateForEach,
        elements: list[Json],
        scope: RuleContext,
        token: int,
        resource: Resource,
    ) -> Patched:
        for index, element in entry.order(elements):
            patched = self._enter(entry, index, element, scope, token)
            if patched is None:
                patched = _element(entry, scope, resource)
                resource = patched.resource
            if patched.status == result.ERROR:
                return patched
        return Patched(result.PASS, "", resource)

    def _enter(
        self,
        entry: _MutateForEach,
        index: int,
        element: Json,
        scope: RuleContext,
        token: int,
    ) -> Patched | None:
        """Put an element into the scope; return None, or the reason not to patch."""
        if not index % _ELEMENTS_PAID:
            scope.runtime.charge(_ELEMENTS_PAID * _ELEMENT_STEPS)
        scope.restore(token)
        scope.push_element(index, element, self._depth)
        if entry.context is not None:
            try:
                scope.add_entries(entry.context)
            except InputError as error:
                message = f"failed to load to mutate.foreach[{index}].context"
                return failed(f"{message}: {error.message}")
        if entry.test is not None:
            try:
                if not entry.test.holds(scope):
                    return _LEFT_OUT
            except InputError as error:
                message = f"failed to evaluate mutate.foreach[{index}].preconditions"
                return failed(f"{message}: {error.message}")
        return None


_LEFT_OUT = Patched(result.SKIP, "", {})
"""Result for an element whose preconditions are false."""


def _element(entry: _MutateForEach, scope: RuleContext, resource: Resource) -> Patched:
    if entry.nested is not None:
        return entry.nested.apply(scope, resource)
    if entry.patch is None:
        return failed("empty mutate rule")
    return entry.patch.apply(scope, resource)


def _plain(
    entry: _MutateForEach, frame: Frame, spend: Spender, apply: _ApplyEach
) -> Patched | None:
    """Patch for all elements of a plain entry; None if a scope is needed."""
    patch, row, path = entry.patch, entry.row, entry.path
    assert patch is not None
    assert row is not None
    assert path is not None
    resource = elements = frame[OBJECT]
    for name in path:
        if type(elements) is not dict:
            return None
        elements = elements.get(name)
    if type(elements) is not list or len(elements) > _ROWS_AT_ONCE:
        return None
    spend.charge(_ELEMENT_STEPS * len(elements))
    rows: list[Values] = []
    for index, element in entry.order(elements):
        frame["element"] = frame["element0"] = element
        frame["elementIndex"] = frame["elementIndex0"] = index
        values = row(frame, spend)
        if values is None:
            return None
        rows.append(values)
    return apply(patch, rows, resource, spend)


def _in_batches(
    patch: LinkedPatch, rows: Iterator[Values], resource: Resource, spend: Spender
) -> Patched:
    """Apply the rows in batches, so only a part of them is kept in memory."""
    is_changed = False
    while batch := [*islice(rows, _ROWS_AT_ONCE)]:
        patched = patch.apply_each(batch, resource, spend)
        if patched.status == result.ERROR:
            return patched
        is_changed = is_changed or patched.status == result.PASS
        resource = patched.resource
    return Patched(result.PASS if is_changed else result.SKIP, NOTHING, resource)


def _not_mutated(patched: Patched) -> Patched:
    return failed(f"failed to mutate elements: {patched.message}")


def _counted(count: int, resource: Resource) -> Patched:
    status = result.PASS if count else result.SKIP
    return Patched(status, f"{count} elements processed", resource)
