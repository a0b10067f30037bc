"""Estimate the memory that a policy takes in each process that links it.

Room: compiler. Takes: EncodedPolicy, compiled exceptions. Gives: linked_bytes,
exception_sizes, exceptions_over_budget, why_too_large.
Next: leader/documents/linked_memory.py, webhook/policy_review.py, background, cleanup.

The estimate uses the record instead of the document: for every policy kind, the record
contains everything that is linked, including autogen rules. The weights are upper
bounds, measured as resident memory of 4,000 parts of one type, such as comparison
closures for three value types, or RE2 programs for wildcards. Most parts take half as
much.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from kyverno_mp.errors import PolicyInvalid, Where
from kyverno_mp.ir.index import EncodedPolicy, count_of, part_of
from kyverno_mp.ir.rules import ExceptionIR
from kyverno_mp.ir.validating_policy import CelExceptionIR
from kyverno_mp.limits import (
    LINKED_EXCEPTIONS_OF_POLICY_BYTES_MAX,
    LINKED_POLICY_BYTES_MAX,
)

EXCEPTION_TOO_LARGE: Final = "exception.too_large"
"""The error code of PolicyExceptions that exempt nothing because of their memory."""

_PER_ELEMENT: Final = 256
_PER_MEMBER: Final = 2048
"""Weight of a member of a map: assertion trees and patches are kept as written."""
_PER_CHARACTER: Final = 2
_PER_STAR: Final = 192
_PER_QUESTION_MARK: Final = 448
_PER_TAG: Final = {"leaf": 1536, "atom": 4096, "range": 2048}
"""Weights of the pattern nodes in expr/pattern/nodes.py."""


def linked_bytes(encoded: EncodedPolicy) -> int:
    """Return the estimate. Cost: about 0.2 us for each value in the record."""
    content = memoryview(encoded.content)
    return sum(
        _size_of(msgspec.msgpack.decode(part_of(content, number)))
        for number in range(count_of(content))
    )


def exception_sizes(
    exceptions: Iterable[ExceptionIR | CelExceptionIR],
) -> tuple[tuple[str, int], ...]:
    """Return the memory of exceptions by their keys; each rule has a copy of its own.

    Raises: OverflowError, UnicodeEncodeError, RecursionError if one cannot be stored.
    """
    weighed: dict[int, int] = {}
    sizes: dict[str, int] = {}
    for exception in exceptions:
        size = weighed.get(id(exception))
        if size is None:
            record = msgspec.msgpack.decode(msgspec.msgpack.encode(exception))
            size = weighed[id(exception)] = _size_of(record)
        sizes[exception.key] = sizes.get(exception.key, 0) + size
    return tuple(sorted(sizes.items()))


def exceptions_over_budget(
    exceptions: Iterable[ExceptionIR | CelExceptionIR], policy: str
) -> frozenset[str]:
    """Return the keys of exceptions that do not fit into their namespace's budget.

    ``exceptions``: of one policy, once for each rule that has them. ``policy``: its
    name. Small exceptions are kept first, then in the order of their keys, as in the
    leader, which also limits the sum over all policies. Raises: PolicyInvalid.
    """
    try:
        sizes = exception_sizes(exceptions)
    except (OverflowError, UnicodeEncodeError, RecursionError) as error:
        raise PolicyInvalid(
            "compiler.encode", str(error), Where(policy=policy)
        ) from error
    used: dict[str, int] = {}
    dropped = []
    for size, key in sorted((size, key) for key, size in sizes):
        namespace = key.rpartition("/")[0]
        total = used.get(namespace, 0) + size
        if total > LINKED_EXCEPTIONS_OF_POLICY_BYTES_MAX:
            dropped.append(key)
        else:
            used[namespace] = total
    return frozenset(dropped)


def why_too_large(encoded: EncodedPolicy, namespace: str) -> str:
    """Return why a namespaced policy is too large to link, "" if it is not.

    Cluster policies have no budget: their authors are administrators.
    """
    size = linked_bytes(encoded) if namespace else 0
    if size <= LINKED_POLICY_BYTES_MAX:
        return ""
    return (
        f"policy would take about {size >> 20} MiB of memory in every process,"
        f" more than the {LINKED_POLICY_BYTES_MAX >> 20} MiB of a namespaced policy;"
        " split it, or shorten its patterns and conditions"
    )


def _size_of(record: Any) -> int:
    size = 0
    waiting: list[Iterator[Any]] = [iter((record,))]
    while waiting:
        for value in waiting.pop():
            size += _PER_ELEMENT
            kind = type(value)
            if kind is str:
                size += _text_size(value)
            elif kind is list:
                if value and type(value[0]) is str:
                    size += _PER_TAG.get(value[0], 0)
                waiting.append(iter(value))
            elif kind is dict:
                size += _PER_MEMBER * len(value)
                waiting += [iter(value), iter(value.values())]
    return size


def _text_size(string: str) -> int:
    size = _PER_CHARACTER * len(string)
    if "*" in string or "?" in string:
        size += _PER_STAR * string.count("*") + _PER_QUESTION_MARK * string.count("?")
    return size
