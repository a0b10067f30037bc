"""Decide whether a background rule depends on what only its review could tell.

Room: program. Takes: the IR of a rule or policy. Gives: needs_review, mentions. Next:
background/generate/lost.py.
Source: docs/SECURITY.md (the caller); docs/background.md (when the journal is full).

The object of a trigger can be read live; its requester and its old object cannot.
SAFETY: without a requester, matching leaves out criteria of users
(program/matching/match.py), so such a rule would run for everyone's objects.
"""

from typing import Any, Final

import msgspec

from kyverno_mp.expr.template.nodes import Variable
from kyverno_mp.ir.match import FilterIR

OLD_OBJECT: Final = "oldObject"
_ONLY_IN_REVIEWS: Final = (
    OLD_OBJECT,
    "userInfo",
    "authorizer",
    "serviceAccountName",
    "serviceAccountNamespace",
    "request.roles",
    "request.clusterRoles",
)


def needs_review(ir: msgspec.Struct) -> bool:
    """Return whether a rule, or one of its exceptions, reads user or old object."""
    return mentions(ir, _ONLY_IN_REVIEWS, with_users=True)


def mentions(ir: msgspec.Struct, words: tuple[str, ...], *, with_users: bool) -> bool:
    """Return whether a text of the IR contains a word.

    ``with_users``: criteria of users in match, exclude and exceptions also count.
    """
    waiting: list[Any] = [ir]
    while waiting:
        value = waiting.pop()
        if type(value) is str:
            if any(word in value for word in words):
                return True
        elif isinstance(value, Variable):
            # A query for DELETE always reads the old object, which a deletion includes
            # anyway.
            waiting.append(value.lookup)
        elif isinstance(value, FilterIR) and with_users:
            if value.subjects or value.roles or value.cluster_roles:
                return True
        elif isinstance(value, msgspec.Struct):
            waiting += [getattr(value, name) for name in value.__struct_fields__]
        elif isinstance(value, tuple | list):
            waiting += value
        elif isinstance(value, dict):
            waiting += [*value, *value.values()]
    return False
