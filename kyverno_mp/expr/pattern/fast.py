"""Compile a pattern to closures that only return whether a resource passes.

Room: expr.pattern. Takes: Node records. Gives: ``check(value) -> bool`` without paths
and strings. Where anchors can skip, closures return codes internally. Next: link.
Source: docs/behaviour/engine 5.5, 5.6; tests/fuzz/test_pattern_fuzz.py verifies that
the results equal explain.py's.
"""

from typing import Final, NamedTuple

from kyverno_mp.expr.pattern.anchors import parse_anchor
from kyverno_mp.expr.pattern.checks import (
    Chain,
    Keys,
    chain_check,
    each_chain_check,
    each_check,
    exists_check,
    map_check,
    positional_check,
)
from kyverno_mp.expr.pattern.codes import (
    Code,
    Step,
    code_of,
    each_code,
    map_code,
    positional_code,
)
from kyverno_mp.expr.pattern.explain import FAILED, PASSED, PLAIN_SKIP, Walk
from kyverno_mp.expr.pattern.labels import block_plan, choose_key
from kyverno_mp.expr.pattern.leaf import Check, compile_leaf
from kyverno_mp.expr.pattern.nodes import (
    CONDITION,
    EQUALITY,
    EXISTENCE,
    GLOBAL,
    NEGATION,
    PLAIN,
    Leaf,
    ListPattern,
    MapPattern,
    Node,
    PatternEntry,
)
from kyverno_mp.values.jsonvalue import Json

_SKIPPING: Final = frozenset((CONDITION, GLOBAL))


class _Part(NamedTuple):
    """A compiled node.

    ``code``: set if an anchor in the node can skip; ``chain``: set if the node is a map
    with one equality anchor.
    """

    check: Check
    code: Code | None = None
    chain: Chain | None = None


def compile_check(node: Node) -> Check:
    """Compile the test of a node."""
    return _compile(node).check


def _compile(node: Node) -> _Part:
    if type(node) is Leaf:
        return _Part(compile_leaf(node))
    if type(node) is ListPattern:
        return _compile_list(node)
    assert type(node) is MapPattern
    if node.expands and _is_irregular(node):
        return _from_code(_walked(node))
    if node.block:
        return _compile_block(node)
    return _compile_entries(node.first, node.then)


def _from_code(code: Code) -> _Part:
    return _Part(lambda value: code(value) == PASSED, code)


def _code(part: _Part) -> Code:
    return part.code or code_of(part.check)


def _compile_list(node: ListPattern) -> _Part:
    if not node.items:
        return _Part(lambda _value: False)
    element_pattern = node.items[0]
    part = _compile(element_pattern)
    check = part.check
    if type(element_pattern) is Leaf:
        # A leaf's test itself checks every element of a list.
        return _Part(lambda value: type(value) is list and check(value))
    if type(element_pattern) is MapPattern:
        if part.code is not None:
            return _from_code(each_code(part.code))
        if part.chain is not None:
            return _Part(each_chain_check(part.chain))
        return _Part(each_check(check))
    parts = [part, *[_compile(item) for item in node.items[1:]]]
    if any(part.code is not None for part in parts):
        return _from_code(positional_code([_code(part) for part in parts]))
    return _Part(positional_check([part.check for part in parts]))


def _compile_entries(
    first: tuple[PatternEntry, ...], then: tuple[PatternEntry, ...]
) -> _Part:
    parts = {entry.text: _compile_value(entry) for entry in (*first, *then)}
    if any(
        entry.kind in _SKIPPING or parts[entry.text].code is not None
        for entry in (*first, *then)
    ):
        return _from_code(
            map_code(
                [_step(entry, parts[entry.text]) for entry in first],
                [_step(entry, parts[entry.text]) for entry in then],
            )
        )
    return _unskipped((*first, *then), parts)


def _compile_value(entry: PatternEntry) -> _Part:
    node = entry.value
    if entry.kind == NEGATION:
        return _Part(lambda _value: False)
    if entry.kind == EXISTENCE:
        return _Part(_existence(node))
    if entry.kind == PLAIN and type(node) is Leaf and node.value == "*":
        return _Part(lambda value: value is not None)
    return _compile(node)


def _existence(node: Node) -> Check:
    if type(node) is not ListPattern:
        return lambda _value: False
    if any(type(item) is not MapPattern for item in node.items):
        return lambda _value: False
    return exists_check([compile_check(item) for item in node.items])


def _step(entry: PatternEntry, part: _Part) -> Step:
    if entry.kind == CONDITION:
        return Step(entry.key, code_of(part.check, PLAIN_SKIP), PLAIN_SKIP)
    if entry.kind == GLOBAL:
        return Step(entry.key, code_of(part.check, PLAIN_SKIP), PASSED)
    code = _code(part)
    # A plain key that is absent counts as null.
    absent = code(None) if entry.kind == PLAIN else PASSED
    return Step(entry.key, code, absent)


def _unskipped(entries: tuple[PatternEntry, ...], parts: dict[str, _Part]) -> _Part:
    keys = _keys(entries, parts)
    if len(entries) == 1 and entries[0].kind == EQUALITY:
        part = parts[entries[0].text]
        tail = part.chain or Chain((), part.check)
        chain = Chain((entries[0].key, *tail.keys), tail.last)
        return _Part(chain_check(chain), chain=chain)
    return _Part(map_check(keys))


def _keys(entries: tuple[PatternEntry, ...], parts: dict[str, _Part]) -> Keys:
    forbidden: list[str] = []
    present: list[str] = []
    required: list[tuple[str, Check]] = []
    optional: list[tuple[str, Check]] = []
    for entry in entries:
        check = parts[entry.text].check
        if entry.kind == NEGATION:
            forbidden.append(entry.key)
        elif entry.kind != PLAIN or check(None):
            optional.append((entry.key, check))
        elif type(entry.value) is Leaf and entry.value.value == "*":
            present.append(entry.key)
        else:
            required.append((entry.key, check))
    return Keys(tuple(forbidden), tuple(present), tuple(required), tuple(optional))


def _is_irregular(node: MapPattern) -> bool:
    """Return whether blocks of this map's metadata must be expanded at run time."""
    blocks = [
        inner.value
        for entry in (*node.first, *node.then)
        if entry.key == "metadata" and type(entry.value) is MapPattern
        for inner in (*entry.value.first, *entry.value.then)
        if type(inner.value) is MapPattern and inner.value.block
    ]
    return any(block_plan(block, can_skip=_can_skip(block)) is None for block in blocks)


def _can_skip(block: MapPattern) -> bool:
    return any(entry.kind in _SKIPPING for entry in (*block.first, *block.then))


def _walked(node: MapPattern) -> Code:
    def walk(value: Json) -> int:
        mismatch = Walk().start(node, value)
        return PASSED if mismatch is None else min(mismatch.code, FAILED)

    return walk


def _compile_block(block: MapPattern) -> _Part:
    plan = block_plan(block, can_skip=_can_skip(block))
    assert plan is not None
    fixed, wild = plan
    if wild is None:
        keys = {entry.text for entry in fixed}
        return _compile_entries(
            tuple([entry for entry in block.first if entry.text in keys]),
            tuple([entry for entry in block.then if entry.text in keys]),
        )
    part = _compile_value(wild)
    if wild.kind in _SKIPPING:
        return _from_code(_wildcard_code(wild, part))
    rest = _compile_entries((), fixed).check
    code = _wildcard_code(wild, part)
    return _Part(lambda value: rest(value) and code(value) == PASSED)


def _wildcard_code(entry: PatternEntry, part: _Part) -> Code:
    """Compile the code of a wildcard key, which is matched with the actual labels."""
    anchor = parse_anchor(entry.text)
    wildcard = anchor[1] if anchor else entry.text
    step = _step(entry, part)

    def match_wildcard(labels: Json) -> int:
        if type(labels) is not dict:
            return FAILED
        key = choose_key(entry, wildcard, labels)
        return step.code(labels[key]) if key in labels else step.absent

    return match_wildcard
