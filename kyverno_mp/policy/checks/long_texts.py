"""Reject long strings of namespaced policies, which every worker keeps in memory.

Room: policy. Takes: a policy as JSON. Gives: Problems. Next: webhook/policy_review.py.
Source: docs/differences.md (upstream has no limit).

Only reviews check it: a stored policy stays in force, within its namespace's share
(leader/documents/tenant_room.py). The objects that a policy generates are not limited.
"""

from collections.abc import Iterator
from typing import Final

from kyverno_mp.limits import TENANT_TEXT_BYTES_MAX
from kyverno_mp.policy.problems import Problem, rule_name
from kyverno_mp.values.jsonvalue import Json

LONG_TEXT: Final = "policy.long_text"
_OTHERS: Final = frozenset({"generate", "schedule"})
"""Fields with objects to create, whose strings are their content, and with a limit of
their own."""
_SHOWN: Final = 63
"""Characters of a key that a path shows."""


def long_texts(raw: Json) -> Iterator[Problem]:
    """Yield a problem for each string of the spec above the limit."""
    waiting: list[tuple[str, Json]] = [("spec", raw.get("spec"))]
    while waiting:
        path, value = waiting.pop()
        if type(value) is str:
            size = len(value.encode(errors="surrogatepass"))
            if size > TENANT_TEXT_BYTES_MAX:
                yield _problem(raw, path, size)
        elif type(value) is list:
            waiting += [(f"{path}[{at}]", item) for at, item in enumerate(value)]
        elif type(value) is dict:
            for key, item in value.items():
                if key not in _OTHERS:
                    waiting += [(path, key), (f"{path}.{key[:_SHOWN]}", item)]


def _problem(raw: Json, path: str, size: int) -> Problem:
    reason = (
        f"a text of a namespaced policy may have {TENANT_TEXT_BYTES_MAX >> 10} KiB,"
        f" this one has {size >> 10} KiB [{LONG_TEXT}]"
    )
    return Problem(LONG_TEXT, path, rule_name(raw, path), reason)
