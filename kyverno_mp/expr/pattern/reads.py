"""Determine which parts of a resource a pattern reads.

Room: expr.pattern. Takes: Node, and the place of the value that it evaluates. Gives:
marks on Reads. Next: program/rule_reads.py.
Source: docs/behaviour/engine 5.5, 5.6; checked by tests/fuzz/test_reads_fuzz.py.
"""

from kyverno_mp.expr.pattern.nodes import (
    NEGATION,
    Leaf,
    ListPattern,
    MapPattern,
    Node,
)
from kyverno_mp.expr.reads import Reads


def mark_pattern(node: Node, reads: Reads) -> None:
    """Mark everything that evaluating ``node`` may read, including for its messages."""
    if type(node) is Leaf:
        # The message contains the value.
        reads.whole = True
        return
    if type(node) is MapPattern:
        if node.block:
            # Which keys are relevant depends on all keys.
            reads.whole = True
        for entry in (*node.first, *node.then):
            below = reads.field(entry.key)
            if entry.kind != NEGATION:
                mark_pattern(entry.value, below)
        return
    assert type(node) is ListPattern
    for item in node.items:
        if type(item) is Leaf:
            # A scalar element is compared with the whole list.
            reads.whole = True
        else:
            mark_pattern(item, reads.each)
