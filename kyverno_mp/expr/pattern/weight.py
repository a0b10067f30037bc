"""Estimate a pattern's cost: its maximum number of comparisons with a resource.

Room: expr.pattern. Takes: Node. Gives: a number that grows with the cost per value of a
resource. Next: link.
May touch: nothing outside its arguments.
"""

from typing import Final

from kyverno_mp.expr.pattern.leaf import leaf_terms
from kyverno_mp.expr.pattern.nodes import Leaf, ListPattern, Node
from kyverno_mp.values.wildcard import contains_wildcard

_LITERALS_PER_UNIT: Final = 64
_CHARACTERS_PER_UNIT: Final = 64


def weight_of(root: Node) -> int:
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
