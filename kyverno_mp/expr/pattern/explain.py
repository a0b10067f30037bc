"""Evaluate a pattern on a resource as Kyverno does, with path and error message.

Room: expr.pattern. Takes: Pattern and a resource. Gives: PatternVerdict. Slower than
fast.py, but with the same result. Next: program/bodies/pattern.
Source: docs/behaviour/engine 5.5-5.8.
"""

from typing import Final, NamedTuple

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.expr.pattern.labels import expand_metadata
from kyverno_mp.expr.pattern.leaf import charge_leaf, leaf_check
from kyverno_mp.expr.pattern.nodes import (
    CONDITION,
    EQUALITY,
    EXISTENCE,
    GLOBAL,
    NEGATION,
    Leaf,
    ListPattern,
    MapPattern,
    Node,
    Pattern,
    PatternEntry,
)
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.values.effort import CHARACTERS_PER_STEP, uncharged
from kyverno_mp.values.go.gotext import go_type, sprint
from kyverno_mp.values.jsonvalue import Json

PASSED: Final = 0
PLAIN_SKIP: Final = 1
"""An anchor's own error."""
WRAPPED_SKIP: Final = 2
"""The skips that a map or a list collects."""
FAILED: Final = 3
NEGATED: Final = 4

_STEPS: Final = 3
"""The cost of one visited value and its path."""
_SKIPS_MAX: Final = 1000
_ABSENT: Final = object()
_GO_MAP: Final = "map[string]interface {}"
_GO_LIST: Final = "[]interface {}"


class PatternVerdict(NamedTuple):
    """The result of one pattern (docs/behaviour/engine 5.7).

    ``status``: pass, skip, fail or error; ``path``: "" except for fail; ``text``: the
    raw error message, "" for pass.
    """

    status: str
    path: str = ""
    text: str = ""


PASS: Final = PatternVerdict("pass")


class Mismatch(NamedTuple):
    """The (path, error) result of Kyverno's walk.

    KYVERNO: 5.5 - upstream also treats an error as a skip or a negation if its text
    contains the phrase of an anchor error, and a value of the resource could contain
    that phrase. Here only anchors count, so that no resource can disable a rule.
    """

    code: int
    path: str
    text: str


def evaluate(
    pattern: Pattern, resource: Json, runtime: Runtime | None = None
) -> PatternVerdict:
    """Evaluate one pattern: status, path and text.

    ``runtime``: charged with each visited value; None for small resources.

    Raises: ExpressionFailed (pattern.resource_depth) if a value that must be printed is
    nested too deeply.
    """
    walk = Walk(runtime)
    mismatch = walk.start(pattern.root, resource)
    if mismatch is None:
        return PASS
    if mismatch.code in (PLAIN_SKIP, WRAPPED_SKIP):
        return PatternVerdict("skip", "", mismatch.text)
    # KYVERNO: 5.7 - a missing condition or existence key turns a failure into an error.
    if mismatch.code != NEGATED and not all(walk.seen.values()):
        return PatternVerdict("error", "", mismatch.text)
    status = "fail" if mismatch.path else "error"
    return PatternVerdict(status, mismatch.path, mismatch.text)


def too_deep() -> ExpressionFailed:
    """Return the error for a value that is nested too deeply to be printed."""
    return ExpressionFailed(
        "pattern.resource_depth", "the resource is nested too deeply to print"
    )


def any_pattern_text(rule: str, index: int, verdict: PatternVerdict) -> str:
    """Return the text of one failed or skipped anyPattern entry (engine 5.8)."""
    label = f"rule {rule}[{index}]"
    if verdict.status == "skip":
        return f"{label} skipped: {verdict.text}"
    if verdict.path:
        return f"{label} failed at path {verdict.path}"
    return f"{label} failed: {verdict.text}"


class Walk:
    """One walk of a pattern over a resource.

    ``seen``: for each visited condition or existence key, whether any visited map of
    the resource contains the key.
    """

    def __init__(self, runtime: Runtime | None = None) -> None:
        self.seen: dict[str, bool] = {}
        self._runtime = runtime
        self._charge = uncharged if runtime is None else runtime.charge

    def start(self, node: Node, resource: Json) -> Mismatch | None:
        """Evaluate from the root path. Raises: InputError for an unprintable text."""
        try:
            return self.element(node, resource, "/")
        except RecursionError as error:
            raise too_deep() from error

    def element(self, node: Node, value: Json, path: str) -> Mismatch | None:
        """Evaluate a value; None if it satisfies the node."""
        self._charge(_STEPS + len(path) // CHARACTERS_PER_STEP)
        if type(node) is MapPattern:
            if type(value) is not dict:
                message = (
                    "pattern and resource have different structures. "
                    f"Path: {path}. Expected {_GO_MAP}, found {go_type(value)}"
                )
                return Mismatch(FAILED, path, message)
            return self._map(node, value, path)
        if type(node) is ListPattern:
            if type(value) is not list:
                message = (
                    f"validation rule failed at path {path}, "
                    "resource does not satisfy the expected overlay pattern"
                )
                return Mismatch(FAILED, path, message)
            return self._list(node, value, path)
        assert type(node) is Leaf
        return self._leaf(node, value, path)

    def _map(
        self, node: MapPattern, value: dict[str, Json], path: str
    ) -> Mismatch | None:
        self._record(node, value)
        self._charge(len(node.first) + len(node.then))
        if node.expands:
            node = expand_metadata(node, value, self._charge)
        skips: list[str] = []
        applied = False
        plain = False
        for entry in node.first:
            mismatch = self._first_phase(entry, value, path)
            if mismatch is None:
                applied = True
            elif mismatch.code in (PLAIN_SKIP, WRAPPED_SKIP):
                self._keep(skips, mismatch.text)
                plain = plain or mismatch.code == PLAIN_SKIP
            elif not plain:
                return mismatch
        if skips and (plain or not applied):
            return Mismatch(WRAPPED_SKIP, path, "; ".join(skips))
        for entry in node.then:
            mismatch = self._second_phase(entry, value, path)
            if mismatch is not None:
                return mismatch
        return None

    def _record(self, node: MapPattern, value: dict[str, Json]) -> None:
        for entry in node.first:
            if entry.kind in (CONDITION, EXISTENCE):
                present = entry.key in value or self.seen.get(entry.text, False)
                self.seen[entry.text] = present

    def _first_phase(
        self, entry: PatternEntry, resource: dict[str, Json], path: str
    ) -> Mismatch | None:
        value = resource.get(entry.key, _ABSENT)
        here = f"{path}{entry.key}/"
        if entry.kind == CONDITION:
            return self._condition(entry, value, here)
        if value is _ABSENT:
            return None
        if entry.kind == EQUALITY:
            return self.element(entry.value, value, here)
        if entry.kind == NEGATION:
            message = f"negation anchor matched in resource: {here} is not allowed"
            return Mismatch(NEGATED, here, message)
        return self._existence(entry.value, value, here)

    def _condition(
        self, entry: PatternEntry, value: Json, path: str
    ) -> Mismatch | None:
        if value is _ABSENT:
            message = "conditional anchor key doesn't exist in the resource"
        else:
            mismatch = self.element(entry.value, value, path)
            if mismatch is None:
                return None
            path, message = mismatch.path, mismatch.text
        return Mismatch(PLAIN_SKIP, path, f"conditional anchor mismatch: {message}")

    def _existence(self, pattern: Node, value: Json, path: str) -> Mismatch | None:
        if type(value) is not list:
            message = (
                f"invalid resource type {go_type(value)}: Existence ^ () anchor can be "
                "used only on list/array type resource"
            )
            return Mismatch(FAILED, path, message)
        if type(pattern) is not ListPattern:
            message = (
                f"invalid pattern type {_node_type(pattern)}: "
                "Pattern has to be of list to compare against resource"
            )
            return Mismatch(FAILED, path, message)
        for element_pattern in pattern.items:
            if type(element_pattern) is not MapPattern:
                message = (
                    f"invalid pattern type {_node_type(pattern)}: Pattern has to be of "
                    "type map to compare against items in resource"
                )
                return Mismatch(FAILED, path, message)
            if not self._exists(element_pattern, value, path):
                message = f"existence anchor validation failed at path {path}"
                return Mismatch(FAILED, path, message)
        return None

    def _exists(
        self, element_pattern: MapPattern, items: list[Json], path: str
    ) -> bool:
        return any(
            self.element(element_pattern, item, f"{path}{index}/") is None
            for index, item in enumerate(items)
        )

    def _second_phase(
        self, entry: PatternEntry, resource: dict[str, Json], path: str
    ) -> Mismatch | None:
        here = f"{path}{entry.key}/"
        if entry.kind == GLOBAL:
            if entry.key not in resource:
                return None
            mismatch = self.element(entry.value, resource[entry.key], here)
            if mismatch is None:
                return None
            message = f"global anchor mismatch: {mismatch.text}"
            return Mismatch(PLAIN_SKIP, mismatch.path, message)
        value = resource.get(entry.key)
        if type(entry.value) is Leaf and entry.value.value == "*":
            if value is not None:
                return None
            # KYVERNO: 5.6 - the path is the parent's, and the text has two slashes.
            return Mismatch(FAILED, path, f"{path}/{entry.key} not found")
        return self.element(entry.value, value, here)

    def _list(
        self, node: ListPattern, values: list[Json], path: str
    ) -> Mismatch | None:
        if not node.items:
            return Mismatch(FAILED, path, "pattern Array empty")
        # KYVERNO: 5.6 - the first element decides; unless it is a list, the others are
        # ignored.
        element_pattern = node.items[0]
        if type(element_pattern) is Leaf:
            return self._leaf(element_pattern, values, path)
        if type(element_pattern) is MapPattern:
            if self._runtime is not None:
                self._runtime.charge_items(len(values))
            return self._items([element_pattern] * len(values), values, path)
        if len(values) < len(node.items):
            message = (
                "validate Array failed, array length mismatch, resource Array len is "
                f"{len(values)} and pattern Array len is {len(node.items)}"
            )
            return Mismatch(FAILED, "", message)
        return self._items(list(node.items), values, path)

    def _items(
        self, nodes: list[Node], values: list[Json], path: str
    ) -> Mismatch | None:
        skips: list[str] = []
        applied = False
        for index, node in enumerate(nodes):
            mismatch = self.element(node, values[index], f"{path}{index}/")
            if mismatch is None:
                applied = True
            elif mismatch.code in (PLAIN_SKIP, WRAPPED_SKIP):
                self._keep(skips, mismatch.text)
            else:
                return mismatch
        if skips and not applied:
            return Mismatch(WRAPPED_SKIP, path, "; ".join(skips))
        return None

    def _leaf(self, leaf: Leaf, value: Json, path: str) -> Mismatch | None:
        if self._runtime is not None:
            charge_leaf(leaf, value, self._charge)
        if leaf_check(leaf)(value):
            return None
        printed = None if self._runtime is None else self._runtime.charge_printed
        message = (
            f"resource value '{sprint(value, printed)}' does not match "
            f"'{sprint(leaf.value)}' at path {path}"
        )
        return Mismatch(FAILED, path, message)

    def _keep(self, skips: list[str], message: str) -> None:
        """Record the text of a skip; only the first few are reported."""
        if len(skips) < _SKIPS_MAX:
            if self._runtime is not None:
                self._runtime.charge_bytes(len(message))
            skips.append(message)


def _node_type(node: Node) -> str:
    if type(node) is MapPattern:
        return _GO_MAP
    return go_type(node.value) if type(node) is Leaf else _GO_LIST
