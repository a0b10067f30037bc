"""Define the records of preconditions, deny conditions and exception conditions.

Room: expr. Takes: written by expr/conditions/parse.py. Gives: Conditions, embedded in
the IR and read by expr/conditions/link.py. No behaviour here. Source:
docs/behaviour/engine 4.1.
"""

import msgspec

from kyverno_mp.expr.template.nodes import Document


class Condition(msgspec.Struct, frozen=True, array_like=True):
    """One ``{key, operator, value, message}``; top-level numbers are floats."""

    key: Document
    operator: str
    value: Document
    message: str = ""


class Conditions(msgspec.Struct, frozen=True, array_like=True):
    """A block; ``any`` is None if the key is absent, which differs from an empty list.

    ``legacy``: the block is a plain list, stored in ``all``, and its messages are
    joined differently. ``of_exception``: ``all`` comes first, and an empty ``any`` is
    true.
    """

    any: tuple[Condition, ...] | None = None
    all: tuple[Condition, ...] = ()
    legacy: bool = False
    of_exception: bool = False
