"""Record an assertion tree of validate.assert, so that a snapshot can carry it.

Room: expr.assertion. Takes: written by parse.parse_assertion. Gives: Assertion,
embedded in ir.rules.ValidateIR. Next: link.link_assertion.
May touch: nothing outside its arguments.
Source: spec/engine.md 6.7; kyverno-json pkg/core (projection, compilers, matching).
"""

import msgspec

from kyverno_mp.values.jsonvalue import Json


class Assertion(msgspec.Struct, frozen=True, array_like=True):
    """``validate.assert`` as written; its expressions were proven to parse.

    ``tree`` is the document itself: keys and texts are expressions only in part, and
    the linker needs the original texts for the messages.
    """

    tree: Json = None
