"""Define the records of the rule index: the keys by which a request finds its rules.

Room: ir. Takes: written by compiler/index. Gives: read by snapshot/policies and by
program/matching/candidates, which looks up the same keys. No behaviour beyond the
layout of a key.
Source: docs/architecture.md 1 (promise 2), 3; docs/behaviour/engine 1.
"""

from array import array
from collections.abc import Sequence
from sys import byteorder
from typing import Final

import msgspec

from kyverno_mp.ir.match import FilterIR, KindIR, MatchIR

ANY_KIND: Final = KindIR("*", "*", "*", "*")
"""Kind selector of a filter without kinds."""
ANY_MATCH: Final = MatchIR(filters=(FilterIR(kinds=(ANY_KIND,)),))
"""The match of a rule whose own cannot be decoded: everything under its index keys."""
ANY_OPERATION: Final = ""

BY_NOTHING: Final = 0
BY_NAMESPACE: Final = 1
BY_NAME: Final = 2
BY_USER: Final = 3
"""User names, and service accounts as ``system:serviceaccount:<ns>:<name>``."""
BY_GROUP: Final = 4
BY_ROLE: Final = 5
BY_CLUSTER_ROLE: Final = 6
BY_ABSENT_USER: Final = 7
"""Rules found by user info, with a second entry for requests without user info (engine
1.6)."""
BY_NAMESPACE_PREFIX: Final = 8
BY_NAME_PREFIX: Final = 9
BY_USER_PREFIX: Final = 10
BY_GROUP_PREFIX: Final = 11
"""Patterns with wildcards, indexed by the literal string before the first wildcard."""
EXCLUDING: Final = 16
"""Flag of a dimension: rules found under it are certainly excluded, so they are
removed."""

PREFIX_LENGTH_MAX: Final = 32
"""Longer literal prefixes are cut, which limits the number of look-ups for one
string."""

RULES_PER_POLICY_MAX: Final = 1 << 16
"""A rule reference: the policy's position, and in the lower 16 bits the rule's
position."""


class IndexEntryIR(msgspec.Struct, frozen=True, array_like=True):
    """One key of a rule: (kind selector, operation, dimension, value)."""

    kind: KindIR
    operation: str
    dimension: int
    value: str


class RuleHeadIR(msgspec.Struct, frozen=True, array_like=True):
    """The leading fields of RuleIR, which matching decodes without the rule's body."""

    name: str
    rule_type: str
    match: MatchIR
    exclude: MatchIR | None = None


class PolicyHeadIR(msgspec.Struct, frozen=True, array_like=True):
    """The leading fields of PolicyIR."""

    kind: str
    name: str
    namespace: str = ""


class SelectorRow(msgspec.Struct, frozen=True, array_like=True):
    """A kind selector and its number in the index."""

    number: int
    selector: KindIR


class EncodedPolicy(msgspec.Struct, frozen=True, array_like=True):
    """One policy as bytes with its index keys: encoded once, published many times.

    ``content`` contains the policy's record and the records of its rules, joined by
    ``pack_parts``; ``entries`` has one tuple per rule. ``is_cel``: the policy belongs
    to policies.kyverno.io; it has a single record, and its keys name resources instead
    of kinds. ``exceptions``: the key of each PolicyException in the policy, with an
    estimate of its memory when linked.
    """

    key: str
    content: bytes
    entries: tuple[tuple[IndexEntryIR, ...], ...]
    is_cel: bool = False
    exceptions: tuple[tuple[str, int], ...] = ()


def pack_parts(parts: Sequence[bytes]) -> bytes:
    """Join records: their count (u32), their lengths (u32 each), then the records."""
    lengths = array("I", (len(parts), *map(len, parts)))
    return b"".join((lengths.tobytes(), *parts))


def count_of(content: memoryview) -> int:
    """Return the number of records that ``pack_parts`` joined."""
    return int.from_bytes(content[:4], byteorder)


def part_of(content: memoryview, number: int) -> memoryview:
    """Return one of the records that ``pack_parts`` joined.

    Raises: IndexError if there is no such record, ValueError if the content is damaged.
    """
    count = count_of(content)
    if not 0 <= number < count:
        raise IndexError(number)
    lengths = content[4 : 4 + 4 * count].cast("I")
    start = 4 + 4 * count + sum(lengths[:number])
    return content[start : start + lengths[number]]


def gate_namespace(policy: PolicyHeadIR) -> str:
    """Return the namespace that a policy is limited to, "" for a ClusterPolicy.

    KYVERNO: a Policy without a namespace belongs to ``default``
    (docs/behaviour/engine 1.9).
    """
    return (policy.namespace or "default") if policy.kind == "Policy" else ""


def posting_key(selector: int, operation: str, dimension: int, value: str) -> bytes:
    """Return the key of the posting for one index entry.

    SAFETY: the length of the operation delimits it, so a policy's strings cannot forge
    another key, whatever they contain.
    """
    key = f"i{selector},{dimension},{len(operation)},{operation}{value}"
    return key.encode("utf-8", "surrogatepass")
