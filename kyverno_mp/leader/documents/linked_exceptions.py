"""Keep the linked PolicyExceptions of each namespace within a budget of memory.

Room: leader. Takes: the policies in force. Gives: the exceptions that each policy
loses. Next: leader/documents/linked_memory.py.
Source: docs/architecture.md 1 (promise 4); limits.LINKED_EXCEPTIONS_BYTES_MAX.

SAFETY: an exception is charged to its own namespace, never to that of the policy, whose
rules would become errors. Beyond the budget it exempts nothing. Small exceptions come
first, then the order of their names.
"""

from collections.abc import Iterable
from typing import Final

from kyverno_mp.compiler.linked_size import EXCEPTION_TOO_LARGE
from kyverno_mp.ir.index import EncodedPolicy
from kyverno_mp.leader.stored_document import Key
from kyverno_mp.limits import (
    LINKED_EXCEPTIONS_BYTES_MAX,
    LINKED_EXCEPTIONS_OF_POLICY_BYTES_MAX,
)

_MIB: Final = 1024 * 1024


def dropped_exceptions(
    policies: Iterable[tuple[Key, EncodedPolicy]],
) -> dict[Key, frozenset[str]]:
    """Return, for each policy that loses exceptions, their keys."""
    weighed = [
        (size, exception, key)
        for key, encoded in policies
        for exception, size in encoded.exceptions
    ]
    if sum(size for size, _, _ in weighed) <= LINKED_EXCEPTIONS_OF_POLICY_BYTES_MAX:
        return {}
    weighed.sort()
    of_policy: dict[tuple[str, Key], int] = {}
    of_all: dict[str, int] = {}
    dropped: dict[Key, set[str]] = {}
    for size, exception, key in weighed:
        namespace = namespace_of(exception)
        here = of_policy.get((namespace, key), 0) + size
        total = of_all.get(namespace, 0) + size
        if (
            here > LINKED_EXCEPTIONS_OF_POLICY_BYTES_MAX
            or total > LINKED_EXCEPTIONS_BYTES_MAX
        ):
            dropped.setdefault(key, set()).add(exception)
            continue
        of_policy[namespace, key] = here
        of_all[namespace] = total
    return {key: frozenset(keys) for key, keys in dropped.items()}


def why_dropped(dropped: frozenset[str]) -> str:
    """Return what the status of a policy says of the exceptions that it lost."""
    first = min(dropped)
    rest = f" and {len(dropped) - 1} others are" if len(dropped) > 1 else " is"
    return (
        f"PolicyException {first}{rest} ignored: the exceptions of a namespace may"
        f" take {LINKED_EXCEPTIONS_OF_POLICY_BYTES_MAX // _MIB} MiB of memory for one"
        " policy in every process, and"
        f" {LINKED_EXCEPTIONS_BYTES_MAX // _MIB} MiB for all in admission and scans"
        f" [{EXCEPTION_TOO_LARGE}]"
    )


def namespace_of(exception: str) -> str:
    """Return the namespace of the key of an exception."""
    return exception.rpartition("/")[0]
