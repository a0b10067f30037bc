"""Mend outdated parts of policies in their text, and nothing else.

Room: cli. Takes: the text of a file. Gives: Edits, and the text with them. Next:
cli/lint/mend.py.
Source: docs/behaviour/engine 1, 4, 6.9
(the action that counts).

An edit replaces the bytes of one finding; comments, order and layout of the rest stay.
What cannot be shown to mean the same is not mended.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import yaml

from kyverno_mp.policy.reading.decode import POLICIES

_ACTION: Final = "validationFailureAction"
_ACTIONS: Final = {"enforce": "Enforce", "audit": "Audit"}
_OPERATORS: Final = {"Equal": "Equals", "NotEqual": "NotEquals"}
_INLINE: Final = frozenset({"resources", "subjects", "roles", "clusterRoles"})
_DATA: Final = frozenset(
    {"matchExpressions", "pattern", "anyPattern", "patchStrategicMerge", "data"}
)
"""Fields whose content may look like a condition, but is data."""


class Edit(NamedTuple):
    """A replacement of the characters from ``start`` to ``end``."""

    start: int
    end: int
    text: str
    what: str


def edits_of(text: str) -> list[Edit]:
    """Return the edits of all policies in a file, in order; [] if it is not YAML."""
    try:
        roots = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError):
        return []
    found: list[Edit] = []
    for root in roots:
        if isinstance(root, yaml.MappingNode) and _is_policy(root):
            found += _Mender(text).of_policy(root)
    return sorted(found)


def mended(text: str, edits: Sequence[Edit]) -> str:
    """Return the text with edits, which do not overlap."""
    for edit in reversed(edits):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text


def _is_policy(root: yaml.MappingNode) -> bool:
    kind, version = _scalar(_get(root, "kind")), _scalar(_get(root, "apiVersion"))
    return kind in POLICIES and version.startswith("kyverno.io/")


def _get(node: yaml.Node | None, name: str) -> yaml.Node | None:
    return next((value for key, value in _pairs(node) if key.value == name), None)


def _pairs(node: yaml.Node | None) -> list[tuple[yaml.ScalarNode, yaml.Node]]:
    if not isinstance(node, yaml.MappingNode):
        return []
    return [
        (key, value) for key, value in node.value if isinstance(key, yaml.ScalarNode)
    ]


def _scalar(node: yaml.Node | None) -> str:
    return str(node.value) if isinstance(node, yaml.ScalarNode) else ""


def _items(node: yaml.Node | None) -> list[yaml.Node]:
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _last(node: yaml.Node) -> int:
    """Return the position after the last character of a node, without comments."""
    while isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        node = last[1] if isinstance(last, tuple) else last
    return int(node.end_mark.index)


class _Mender:
    """The edits of one policy."""

    def __init__(self, text: str) -> None:
        self._text = text

    def of_policy(self, root: yaml.MappingNode) -> Iterator[Edit]:
        """Yield the edits of a policy."""
        spec = _get(root, "spec")
        rules = _items(_get(spec, "rules"))
        yield from self._action(spec, rules)
        for rule in rules:
            for name in ("match", "exclude"):
                yield from self._inline(_get(rule, name), name)
            yield from self._preconditions(rule)
            yield from self._operators(rule)

    def _action(self, spec: yaml.Node | None, rules: list[yaml.Node]) -> Iterator[Edit]:
        """Move the action of the policy to its rules.

        KYVERNO: the first rule with its own action decides for the whole response, and
        a rule's action hides the policy's overrides. So nothing is moved if a rule has
        an action, or if there are overrides.
        """
        given = _get(spec, _ACTION)
        action = _ACTIONS.get(_scalar(given).lower(), "")
        if given is None or not action or self._is_shared(given):
            return
        named = [_get(rule, "validate") for rule in rules]
        validates = [node for node in named if node is not None]
        verifies = [one for rule in rules for one in _items(_get(rule, "verifyImages"))]
        holders = [*validates, *verifies]
        own = ("failureAction", "failureActionOverrides")
        is_moved = (
            bool(holders)
            and _get(spec, f"{_ACTION}Overrides") is None
            and not any(
                _get(node, name) is not None for node in holders for name in own
            )
            and all(map(self._takes_a_line, (spec, *holders)))
            and self._is_alone(spec, given)
        )
        if not is_moved:
            if _scalar(given) != action:
                yield self._value(given, action, f"{_ACTION} {_scalar(given)}")
            return
        what = f"{_ACTION} is deprecated: failureAction of each rule"
        yield self._without_line(spec, given, what)
        for node in holders:
            start = self._first(node)
            line = f"failureAction: {action}\n{' ' * self._column(start)}"
            yield Edit(start, start, line, what)

    def _is_alone(self, spec: yaml.Node | None, given: yaml.Node) -> bool:
        """Return whether the field begins its line."""
        key = next(key for key, value in _pairs(spec) if value is given)
        start = int(key.start_mark.index)
        return not self._text[start - self._column(start) : start].strip()

    def _takes_a_line(self, node: yaml.Node | None) -> bool:
        return (
            isinstance(node, yaml.MappingNode)
            and self._is_block(node)
            and not self._is_shared(node)
        )

    def _is_block(self, node: yaml.CollectionNode) -> bool:
        is_plain = "\t" not in self._text and "\r" not in self._text
        return is_plain and not node.flow_style and bool(node.value)

    def _is_shared(self, node: yaml.Node) -> bool:
        """Return whether anchors or merge keys can give the node to other places."""
        line = self._text[: node.start_mark.index + 1].rpartition("\n")[2]
        return (
            "&" in line
            or "*" in line
            or any(key.value == "<<" for key, _ in _pairs(node))
        )

    def _first(self, node: yaml.Node) -> int:
        return int(node.value[0][0].start_mark.index)

    def _column(self, position: int) -> int:
        return position - self._text.rfind("\n", 0, position) - 1

    def _without_line(
        self, spec: yaml.Node | None, given: yaml.Node, what: str
    ) -> Edit:
        """Return the edit that removes the line of a field of spec."""
        key = next(key for key, value in _pairs(spec) if value is given)
        start = self._text.rfind("\n", 0, key.start_mark.index) + 1
        end = self._text.find("\n", given.end_mark.index)
        if end >= 0 and self._text[given.end_mark.index : end].strip():
            # A comment on the line stays.
            start = int(key.start_mark.index)
            return Edit(start, int(given.end_mark.index), "", what)
        return Edit(start, len(self._text) if end < 0 else end + 1, "", what)

    def _value(self, node: yaml.Node, text: str, what: str) -> Edit:
        start, end = int(node.start_mark.index), int(node.end_mark.index)
        quote = self._text[start] if self._text[start] in "'\"" else ""
        return Edit(start, end, f"{quote}{text}{quote}", what)

    def _inline(self, node: yaml.Node | None, name: str) -> Iterator[Edit]:
        """Move the criteria of a block into a filter of ``any``."""
        names = {key.value for key, _ in _pairs(node)}
        if node is None or not names or not names <= _INLINE:
            return
        if not self._takes_a_line(node):
            return
        what = f"resources directly under {name} are deprecated: any"
        yield from self._nested(node, "any", "- ", what)

    def _preconditions(self, rule: yaml.Node) -> Iterator[Edit]:
        """Move a list of preconditions into ``all``."""
        node = _get(rule, "preconditions")
        if not isinstance(node, yaml.SequenceNode) or not self._is_block(node):
            return
        what = "preconditions without any or all are deprecated: all"
        key = next(key for key, value in _pairs(rule) if value is node)
        # The dashes of a list can stand below the first letter of its key.
        column = self._column(int(key.start_mark.index))
        is_below = self._column(int(node.start_mark.index)) == column
        yield from self._nested(node, "  all" if is_below else "all", "  ", what)

    def _nested(
        self, node: yaml.Node, name: str, first: str, what: str
    ) -> Iterator[Edit]:
        """Indent the lines of a block below a new key."""
        start = int(node.start_mark.index)
        indent = self._column(start)
        if self._text[start - indent : start].strip() or "\n" in self._literals(node):
            return
        yield Edit(start, start, f"{name}:\n{' ' * indent}{first}", what)
        end = _last(node)
        line = self._text.find("\n", start)
        while 0 <= line < end:
            if self._text[line + 1 : line + 2] not in ("\n", ""):
                yield Edit(line + 1, line + 1, "  ", what)
            line = self._text.find("\n", line + 1)

    def _literals(self, node: yaml.Node) -> str:
        """Return the texts of quoted scalars, which a new indent could change."""
        if isinstance(node, yaml.ScalarNode):
            text = self._text[node.start_mark.index : node.end_mark.index]
            return text if node.style in ("'", '"') else ""
        parts = [
            part
            for value in node.value
            for part in (value if isinstance(value, tuple) else (value,))
        ]
        return "".join(map(self._literals, parts))

    def _operators(self, node: yaml.Node) -> Iterator[Edit]:
        for item in _items(node):
            yield from self._operators(item)
        pairs = _pairs(node)
        names = {key.value for key, _ in pairs}
        for key, value in pairs:
            old = _scalar(value)
            if key.value == "operator" and "key" in names and old in _OPERATORS:
                what = f"operator {old} is deprecated: {_OPERATORS[old]}"
                yield self._value(value, _OPERATORS[old], what)
            elif key.value not in _DATA:
                yield from self._operators(value)
