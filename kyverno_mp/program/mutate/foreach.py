"""Apply a patch for each element of lists.

Room: program.mutate. Takes: MutateForEachIR linked once; a scope and an object. Gives:
the patched object. Next: program/mutate/rule.
May touch: nothing outside its arguments; the scope is restored after each list.
Source: docs/behaviour/engine 7.5.
"""

from collections.abc import Iterator, Sequence

from kyverno_mp.errors import InputError
from kyverno_mp.expr.conditions.link import link_conditions
from kyverno_mp.expr.template.document import parse_lookup
from kyverno_mp.expr.template.lookup import link_lookup
from kyverno_mp.ir.rules import MutateForEachIR
from kyverno_mp.program import result
from kyverno_mp.program.context.entries import link_entries
from kyverno_mp.program.context.rule_context import RuleContext
from kyverno_mp.program.mutate.patch import LinkedPatch, Patched, failed
from kyverno_mp.program.mutate.strategic import Working
from kyverno_mp.values.json_equal import same
from kyverno_mp.values.jsonvalue import Json

_ELEMENT_STEPS = 20
_ELEMENTS_PAID = 16
"""PERF: this many elements are charged at once."""


class _MutateForEach:
    """One linked foreach entry."""

    __slots__ = (
        "_query",
        "context",
        "is_descending",
        "list",
        "nested",
        "patch",
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
        self.patch = LinkedPatch(entry.patch) if entry.patch is not None else None

    def elements(self, scope: RuleContext) -> list[Json]:
        """Evaluate the list; any other value becomes the only element."""
        found = self._query(scope)
        return found if type(found) is list else [found]

    def order(self, elements: list[Json]) -> Iterator[tuple[int, Json]]:
        """Yield the elements that are not null with their indexes, in patch order."""
        places = range(len(elements))
        for index in reversed(places) if self.is_descending else places:
            if elements[index] is not None:
                yield index, elements[index]


class ForEach:
    """The ``foreach`` of a rule, or one inside another's entry."""

    __slots__ = ("_depth", "_entries")

    def __init__(
        self, entries: Sequence[MutateForEachIR], namespace: str = "", depth: int = 0
    ) -> None:
        self._depth = depth
        self._entries = [_MutateForEach(entry, namespace, depth) for entry in entries]

    def apply(self, scope: RuleContext, working: Working) -> Patched:
        """Patch by every entry, each on the result of the previous one."""
        count = 0
        for entry in self._entries:
            try:
                elements = entry.elements(scope)
            except InputError as error:
                # KYVERNO: upstream repeats the reason.
                text = f"failed to evaluate list {entry.list}: {error.message}"
                return failed(f"{text}: {error.message}")
            token = scope.checkpoint()
            try:
                patched = self._elements(entry, elements, scope, token, working)
            finally:
                scope.leave(token)
            if patched.status == result.ERROR:
                return failed(f"failed to mutate elements: {patched.message}")
            if patched.status == result.PASS:
                count += 1
                working = patched.left
                scope.set_object(working.resource)
        status = result.PASS if count else result.SKIP
        return Patched(status, f"{count} elements processed", working)

    def _elements(
        self,
        entry: _MutateForEach,
        elements: list[Json],
        scope: RuleContext,
        token: int,
        working: Working,
    ) -> Patched:
        before = working.resource
        for index, element in entry.order(elements):
            if not index % _ELEMENTS_PAID:
                scope.runtime.charge(_ELEMENTS_PAID * _ELEMENT_STEPS)
            scope.restore(token)
            scope.push_element(index, element, self._depth)
            patched = self._element(entry, index, scope, working)
            if patched is None:
                continue
            if patched.status == result.ERROR:
                return patched
            working = patched.left
        if working.resource is before or same(working.resource, before):
            return Patched(result.SKIP, "no patches applied", working)
        return Patched(result.PASS, "", working)

    def _element(
        self, entry: _MutateForEach, index: int, scope: RuleContext, working: Working
    ) -> Patched | None:
        """Patch for one element; return None when its preconditions are false."""
        if entry.context is not None:
            try:
                scope.add_entries(entry.context)
            except InputError as error:
                text = f"failed to load to mutate.foreach[{index}].context"
                return failed(f"{text}: {error.message}")
        if entry.test is not None:
            try:
                if not entry.test.holds(scope):
                    return None
            except InputError as error:
                text = f"failed to evaluate mutate.foreach[{index}].preconditions"
                return failed(f"{text}: {error.message}")
        if entry.nested is not None:
            return entry.nested.apply(scope, working)
        if entry.patch is None:
            return failed("empty mutate rule")
        return entry.patch.apply(scope, working)
