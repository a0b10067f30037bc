"""Link a parsed pattern into a program.

Room: expr.pattern. Takes: Pattern. Gives: PatternProgram with ``passes`` (fast, without
strings) and ``evaluate`` (path and text). Next: program/bodies/pattern.
Source: docs/behaviour/engine 5.7.
"""

from typing import Final

from kyverno_mp.expr.pattern.explain import (
    PASS,
    Mismatch,
    PatternVerdict,
    Walk,
    evaluate,
    too_deep,
)
from kyverno_mp.expr.pattern.fast import compile_check
from kyverno_mp.expr.pattern.finder import Finder, Misfit, is_simple, link_finder
from kyverno_mp.expr.pattern.leaf import Check, leaf_terms
from kyverno_mp.expr.pattern.nodes import Leaf, ListPattern, Node, Pattern
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.limits import PATTERN_PRODUCT_MAX
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.wildcard import contains_wildcard

_LITERALS_PER_UNIT: Final = 64
_CHARACTERS_PER_UNIT: Final = 64


class PatternProgram:
    """One linked pattern.

    ``passes(resource)`` equals ``evaluate(resource).status == "pass"``, but builds no
    path and no text.
    """

    __slots__ = ("_finder", "_is_simple", "_pattern", "light_to", "passes")

    def __init__(self, pattern: Pattern) -> None:
        self._pattern = pattern
        self._is_simple = is_simple(pattern.root)
        self._finder: Finder | None = None
        self.passes: Check = compile_check(pattern.root)
        self.light_to = PATTERN_PRODUCT_MAX // _weight_of(pattern.root)
        """The largest review, in bytes, that runs without charging steps."""

    def passes_within(self, resource: Json, runtime: Runtime) -> bool:
        """Evaluate like ``passes``, but charge each value before visiting it."""
        return Walk(runtime).start(self._pattern.root, resource) is None

    def evaluate(
        self, resource: Json, runtime: Runtime | None = None
    ) -> PatternVerdict:
        """Return status, path and raw error message (docs/behaviour/engine 5.7).

        ``runtime``: set if the resource may be large; it is charged with each value.
        Raises: ExpressionFailed (pattern.resource_depth) if a value that must be
        printed is nested too deeply.
        """
        if runtime is not None or not self._is_simple:
            return evaluate(self._pattern, resource, runtime)
        mismatch = self._find(resource)
        if mismatch is None:
            return PASS
        if isinstance(mismatch, Misfit):
            mismatch = mismatch.mismatch()
        status = "fail" if mismatch.path else "error"
        return PatternVerdict(status, mismatch.path, mismatch.text)

    def place(self, resource: Json) -> str:
        """Return the path if ``evaluate`` returns fail, otherwise "".

        PERF: denials contain the path but not the text, which takes longer to build.
        Raises: as ``evaluate``.
        """
        if not self._is_simple:
            return evaluate(self._pattern, resource).path
        mismatch = self._find(resource)
        return "" if mismatch is None else mismatch.path

    def _find(self, resource: Json) -> Mismatch | Misfit | None:
        find = self._finder
        if find is None:
            # Most rules never fail, so this is linked on the first failure.
            find = self._finder = link_finder(self._pattern.root)
        try:
            return find(resource, "/")
        except RecursionError as error:
            raise too_deep() from error


def link_pattern(pattern: Pattern) -> PatternProgram:
    """Link a pattern; done once per rule and process."""
    return PatternProgram(pattern)


def _weight_of(root: Node) -> int:
    """Return the weight of a pattern; with a dozen keys it is about 20."""
    weight = 0
    pending: list[Node] = [root]
    while pending:
        node = pending.pop()
        weight += 1
        if type(node) is Leaf:
            weight += _leaf_weight(node)
        elif type(node) is ListPattern:
            pending.extend(node.items)
        else:
            assert not isinstance(node, (Leaf, ListPattern))
            pending += [entry.value for entry in (*node.first, *node.then)]
            if node.expands or node.block:
                weight += 16 * (len(node.first) + len(node.then))
    return weight


def _leaf_weight(leaf: Leaf) -> int:
    pattern = leaf.value
    if type(pattern) is not str:
        return 0
    terms = leaf_terms(pattern)
    if not contains_wildcard(pattern) and not any(mark in pattern for mark in "<>!-&"):
        # Literal names are looked up in a set.
        return terms // _LITERALS_PER_UNIT
    questions = len(pattern) // 4 if "?" in pattern else 0
    return terms + len(pattern) // _CHARACTERS_PER_UNIT + questions
