"""Rewrite patterns with anchors ``(key)``, which skip what does not match.

Room: cli. Takes: parsed patterns. Gives: an expression that is true if a pattern, or
anyPattern, does not fail. Next: rules.py.
Source: docs/behaviour/engine 5.5, 5.6, 5.8.
"""

from collections.abc import Sequence

from kyverno_mp.cli.fix.rewrite.pattern import Writer
from kyverno_mp.cli.fix.rewrite.texts import (
    NotRewritten,
    absent,
    all_of,
    any_of,
    has,
    negated,
)
from kyverno_mp.cli.fix.rewrite.typed import Typed, name_for
from kyverno_mp.expr.pattern.nodes import (
    CONDITION,
    EQUALITY,
    PLAIN,
    ListPattern,
    MapPattern,
    Node,
    PatternEntry,
)
from kyverno_mp.expr.pattern.parse import parse_pattern
from kyverno_mp.values.jsonvalue import Json


def patterns_expression(patterns: Sequence[Json], root: Typed) -> str:
    """Return an expression for a pattern, or for anyPattern. Raises: NotRewritten.

    It is also true if each pattern is skipped, because an anchor ``(key)`` does not
    match.
    """
    nodes = [parse_pattern(pattern).root for pattern in patterns]
    if any(type(node) is not MapPattern for node in nodes):
        raise NotRewritten("a pattern that is not a map")
    maps = [node for node in nodes if type(node) is MapPattern]
    allowed = [_Writer().allowed(node, root) for node in maps]
    if len(maps) == 1:
        return allowed[0]
    passed = [_Writer().passed(node, root) for node in maps]
    if passed == allowed:
        return any_of(passed)
    return any_of((*passed, all_of(allowed)))


class _Writer(Writer):
    """Writer of a pattern with anchors ``(key)``, which skip what does not match.

    A map or list passes, fails or is skipped; what has no such anchor below it is never
    skipped. Source: docs/behaviour/engine 5.6.
    """

    def allowed(self, node: MapPattern, holder: Typed) -> str:
        """Return an expression that is true if the map passes or is skipped."""
        if not _skips(node):
            return self.entries(node, holder)
        anchors, others = _anchors(node)
        is_mixed = others and not _is_all_nested(anchors, others)
        if is_mixed and not anchors and not any(_skips(one.value) for one in node.then):
            # The map itself is never skipped.
            return self.passed(node, holder)
        rest = self._in_turn(node, holder)
        if _is_all_nested(anchors, others):
            applied = any_of(self._part(one, holder, is_pass=True) for one in others)
            rest = "true" if rest == "true" else any_of((negated(applied), rest))
        tests = [self._part(one, holder, is_pass=False) for one in others]
        body = all_of((*tests, rest))
        if not anchors or body == "true":
            return body
        return any_of((negated(self._matched(anchors, holder)), body))

    def passed(self, node: MapPattern, holder: Typed) -> str:
        """Return an expression that is true if the map passes."""
        if not _skips(node):
            return self.entries(node, holder)
        anchors, others = _anchors(node)
        tests = [self._matched(anchors, holder)] if anchors else []
        tests += [self._part(one, holder, is_pass=False) for one in others]
        if _is_all_nested(anchors, others):
            tests.append(
                any_of(self._part(one, holder, is_pass=True) for one in others)
            )
        tests += [self._part(one, holder, is_pass=True) for one in node.then]
        return all_of(tests)

    def _matched(self, anchors: Sequence[PatternEntry], holder: Typed) -> str:
        tests = []
        for entry in anchors:
            if _skips(entry.value):
                raise NotRewritten("an anchor (key) below another one")
            place = holder.field(entry.key)
            is_present = "true" if not place.maybe else has(holder.plain, entry.key)
            inner = self.value(entry.value, place._replace(maybe=""))
            tests.append(all_of((is_present, inner)))
        return all_of(tests)

    def _in_turn(self, node: MapPattern, holder: Typed) -> str:
        """Return the test of the keys without anchors: the first skip ends it."""
        whole = "true"
        for entry in reversed(node.then):
            test = self._part(entry, holder, is_pass=False)
            if _skips(entry.value) and whole != "true":
                passes = self._part(entry, holder, is_pass=True)
                whole = any_of((negated(passes), whole))
            whole = all_of((test, whole))
        return whole

    def _part(self, entry: PatternEntry, holder: Typed, *, is_pass: bool) -> str:
        if not _skips(entry.value):
            return self.entry(entry, holder)
        if entry.kind not in (EQUALITY, PLAIN):
            raise NotRewritten("an anchor (key) below another one")
        place = holder.field(entry.key)
        is_present = "true" if not place.maybe else has(holder.plain, entry.key)
        inner = self._within(entry.value, place._replace(maybe=""), is_pass=is_pass)
        if entry.kind == EQUALITY and is_present != "true":
            return any_of((absent(holder.plain, entry.key), inner))
        return all_of((is_present, inner))

    def _within(self, node: Node, place: Typed, *, is_pass: bool) -> str:
        if type(node) is MapPattern:
            write = self.passed if is_pass else self.allowed
            is_map = "true" if place.kind == "map" else f"type({place.plain}) == map"
            return all_of((is_map, write(node, place)))
        assert type(node) is ListPattern
        first = node.items[0]
        if type(first) is not MapPattern:
            raise NotRewritten("an anchor (key) in a list of lists")
        element = place.element(name_for(place.plain, f"x{next(self.numbers)}"))
        is_list = "true" if place.kind == "list" else f"type({place.plain}) == list"
        allowed = self._within(first, element, is_pass=False)
        tests = [is_list, f"{place.plain}.all({element.plain}, {allowed})"]
        if is_pass:
            passed = self._within(first, element, is_pass=True)
            some = f"{place.plain}.exists({element.plain}, {passed})"
            tests.append(f"size({place.plain}) == 0 || {some}")
        return all_of(tests)


def _skips(node: Node) -> bool:
    """Return whether a pattern has an anchor ``(key)``."""
    if type(node) is MapPattern:
        entries = (*node.first, *node.then)
        return any(one.kind == CONDITION or _skips(one.value) for one in entries)
    return type(node) is ListPattern and any(map(_skips, node.items))


def _anchors(
    node: MapPattern,
) -> tuple[Sequence[PatternEntry], Sequence[PatternEntry]]:
    """Return the anchors ``(key)`` of a map, which come first, and its others."""
    if node.expands or node.block:
        raise NotRewritten("an anchor (key) beside wildcards in names")
    anchors = [one for one in node.first if one.kind == CONDITION]
    return anchors, [one for one in node.first if one.kind != CONDITION]


def _is_all_nested(
    anchors: Sequence[PatternEntry], others: Sequence[PatternEntry]
) -> bool:
    """Return whether a map is skipped if all of its anchored keys are."""
    return bool(others) and not anchors and all(_skips(one.value) for one in others)
