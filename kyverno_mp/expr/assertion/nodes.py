"""Define the record of an assertion tree, which a snapshot contains.

Room: expr.assertion. Takes: written by parse.parse_assertion. Gives: Assertion,
embedded in ir.rules.ValidateIR. Next: link.link_assertion.
Source: docs/behaviour/engine 6.7; kyverno-json pkg/core (projection, compilers,
matching).
"""

import msgspec

from kyverno_mp.values.jsonvalue import Json


class Assertion(msgspec.Struct, frozen=True, array_like=True):
    """The value of ``validate.assert`` in a policy.

    ``tree`` is the unparsed document, because only some keys and strings are
    expressions, and the linker needs the original strings for its messages.
    """

    tree: Json = None
