"""Choose the index keys of a rule, and encode a policy once for publication.

Room: compiler. Takes: CompiledPolicy. Gives: IndexEntryIR keys, EncodedPolicy.
Next: snapshot/policies.
Source: docs/architecture.md 1 (promise 2); docs/behaviour/engine 1.

If a filter matches a request, the request must look up one of the filter's keys; a
look-up may also return rules that do not match. A filter is indexed by its most
selective criterion with exact values: namespaces, names, subjects, roles, cluster
roles. A filter without such a criterion is indexed by a criterion with wildcards, using
the literal prefixes of the patterns, and otherwise by kind and operation only.
"""

import re
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import msgspec

from kyverno_mp.compiler.linked_size import exception_sizes
from kyverno_mp.errors import PolicyInvalid, Where
from kyverno_mp.expr.compile_budget import spend
from kyverno_mp.ir.index import (
    ANY_KIND,
    ANY_OPERATION,
    BY_ABSENT_USER,
    BY_CLUSTER_ROLE,
    BY_GROUP,
    BY_GROUP_PREFIX,
    BY_NAME,
    BY_NAME_PREFIX,
    BY_NAMESPACE,
    BY_NAMESPACE_PREFIX,
    BY_NOTHING,
    BY_ROLE,
    BY_USER,
    BY_USER_PREFIX,
    EXCLUDING,
    PREFIX_LENGTH_MAX,
    RULES_PER_POLICY_MAX,
    EncodedPolicy,
    IndexEntryIR,
    PolicyHeadIR,
    gate_namespace,
    pack_parts,
)
from kyverno_mp.ir.match import FilterIR, KindIR, MatchIR, SubjectIR
from kyverno_mp.ir.rules import CompiledPolicy, PolicyIR, RuleIR
from kyverno_mp.limits import INDEX_KEYS_PER_FILTER_MAX
from kyverno_mp.values.wildcard import contains_wildcard

_Values: TypeAlias = tuple[tuple[int, str], ...]
"""(dimension, value) pairs; if the criterion matches, so does one of the pairs."""
_NO_CRITERION: _Values = ((BY_NOTHING, ""),)
_COARSEST = 100
_ANY_RESOURCE = FilterIR()
"""The record of a filter without criteria."""
_WILDCARD = re.compile(r"[*?]")
_PREFIX_OF = {
    BY_NAMESPACE: BY_NAMESPACE_PREFIX,
    BY_NAME: BY_NAME_PREFIX,
    BY_USER: BY_USER_PREFIX,
    BY_GROUP: BY_GROUP_PREFIX,
}
_PREFIX_DIMENSIONS = frozenset(_PREFIX_OF.values())
_USER_DIMENSIONS = frozenset(
    (
        BY_USER,
        BY_USER_PREFIX,
        BY_GROUP,
        BY_GROUP_PREFIX,
        BY_ROLE,
        BY_CLUSTER_ROLE,
    )
)


def encode_policy(compiled: CompiledPolicy) -> EncodedPolicy:
    """Encode one policy with its rules and keys.

    Raises: PolicyInvalid if a value cannot be stored (a number beyond 64 bits, text
    that is not valid Unicode) or the policy has too many rules.
    """
    policy = compiled.policy
    location = Where(policy=policy.key)
    if len(compiled.rules) > RULES_PER_POLICY_MAX:
        raise PolicyInvalid("compiler.rules", "policy has too many rules", location)
    encode = msgspec.msgpack.Encoder().encode
    try:
        return EncodedPolicy(
            key=policy.key,
            content=pack_parts(
                [encode(policy), *(encode(rule) for rule in compiled.rules)]
            ),
            entries=tuple(index_rule(policy, rule) for rule in compiled.rules),
            exceptions=exception_sizes(
                exception for rule in compiled.rules for exception in rule.exceptions
            ),
        )
    except (OverflowError, UnicodeEncodeError, RecursionError) as error:
        raise PolicyInvalid("compiler.encode", str(error), location) from error


def index_rule(policy: PolicyIR, rule: RuleIR) -> tuple[IndexEntryIR, ...]:
    """Return the keys of one rule; a rule that can never match has none."""
    gate = gate_namespace(PolicyHeadIR(policy.kind, policy.name, policy.namespace))
    entries = _match_entries(rule.match, gate)
    if entries and rule.exclude is not None:
        entries += _exclude_entries(rule.exclude)
    return tuple(dict.fromkeys(entries))


def _match_entries(match: MatchIR, gate: str) -> list[IndexEntryIR]:
    limiting = [record for record in match.filters if record != _ANY_RESOURCE]
    if len(limiting) < len(match.filters) and match.mode == "all":
        return []
    ranked = [_rank_filter(record, gate) for record in limiting]
    if not ranked:
        return []
    if match.mode == "all":
        # Every filter must match, so the keys of the most selective one suffice.
        return min(ranked, key=lambda pair: pair[0])[1]
    return [entry for _, entries in ranked for entry in entries]


def _rank_filter(record: FilterIR, gate: str) -> tuple[int, list[IndexEntryIR]]:
    """Return the rank of the filter's key (lower is more selective) and its entries."""
    keys = _kind_operations(record)
    choices = [values for values in _criteria(record) if values]
    choices.sort(key=_has_prefix)
    if gate:
        choices.insert(0, ((BY_NAMESPACE, gate),))
    for rank, values in enumerate(choices):
        if len(keys) * len(values) <= INDEX_KEYS_PER_FILTER_MAX:
            entries = _expand(keys, values)
            if values[0][0] in _USER_DIMENSIONS:
                entries += _expand(keys, ((BY_ABSENT_USER, ""),))
            return rank, entries
    return _COARSEST, _expand(keys, _NO_CRITERION)


def _criteria(record: FilterIR) -> list[_Values]:
    """Return the criteria, most selective first; an empty one has no exact values."""
    return [
        _text_values(BY_NAMESPACE, record.namespaces),
        _text_values(BY_NAME, (record.name,) if record.name else record.names),
        _subject_values(record.subjects),
        tuple((BY_ROLE, role) for role in record.roles),
        tuple((BY_CLUSTER_ROLE, role) for role in record.cluster_roles),
    ]


def _has_prefix(values: _Values) -> bool:
    return any(dimension in _PREFIX_DIMENSIONS for dimension, _ in values)


def _text_values(dimension: int, patterns: Iterable[str]) -> _Values:
    """Return the values of patterns; () if any pattern starts with a wildcard."""
    values: list[tuple[int, str]] = []
    for pattern in patterns:
        if not contains_wildcard(pattern):
            values.append((dimension, pattern))
            continue
        beginning = _WILDCARD.split(pattern, maxsplit=1)[0]
        if not beginning:
            return ()
        values.append((_PREFIX_OF[dimension], beginning[:PREFIX_LENGTH_MAX]))
    return tuple(values)


def _subject_values(subjects: tuple[SubjectIR, ...]) -> _Values:
    values: _Values = ()
    for subject in subjects:
        if subject.kind == "User":
            subject_values = _text_values(BY_USER, (subject.name,))
        elif subject.kind == "Group":
            subject_values = _text_values(BY_GROUP, (subject.name,))
        elif subject.kind == "ServiceAccount":
            name = f"system:serviceaccount:{subject.namespace}:{subject.name}"
            subject_values = _text_values(BY_USER, (name,))
        else:
            continue
        if not subject_values:
            return ()
        values += subject_values
    return values


def _exclude_entries(exclude: MatchIR) -> list[IndexEntryIR]:
    """Return keys for which the rule is certainly excluded.

    Only filters with kinds, operations and at most one exact criterion are used: such a
    filter matches if and only if its key is found.
    """
    filters = exclude.filters
    if exclude.mode == "all" and len(filters) != 1:
        return []
    entries: list[IndexEntryIR] = []
    for record in filters:
        values = _only_criterion(record)
        keys = _kind_operations(record)
        if values and len(keys) * len(values) <= INDEX_KEYS_PER_FILTER_MAX:
            entries += _expand(keys, [(d + EXCLUDING, value) for d, value in values])
    return entries


def _only_criterion(record: FilterIR) -> _Values:
    presence = [
        bool(criterion)
        for criterion in (
            record.namespaces,
            record.name or record.names,
            record.subjects,
            record.roles,
            record.cluster_roles,
        )
    ]
    if (
        record == _ANY_RESOURCE
        or sum(presence) > 1
        or (record.name and record.names)
        or record.annotations
        or record.selector is not None
        or record.namespace_selector is not None
    ):
        return ()
    if not any(presence):
        return _NO_CRITERION
    values = _criteria(record)[presence.index(True)]
    return () if _has_prefix(values) else values


def _kind_operations(record: FilterIR) -> list[tuple[KindIR, str]]:
    kinds = dict.fromkeys(
        KindIR(k.group, k.version, k.kind, k.subresource) for k in record.kinds
    )
    operations = dict.fromkeys(record.operations)
    return [
        (kind, operation)
        for kind in kinds or (ANY_KIND,)
        for operation in operations or (ANY_OPERATION,)
    ]


def _expand(
    keys: list[tuple[KindIR, str]], values: Sequence[tuple[int, str]]
) -> list[IndexEntryIR]:
    spend(len(keys) * len(values))
    return [
        IndexEntryIR(kind, operation, dimension, value)
        for dimension, value in values
        for kind, operation in keys
    ]
