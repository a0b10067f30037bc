"""Choose the index keys of a CEL policy, and encode it once for publication.

Room: compiler. Takes: the IR of a policy in CEL. Gives: EncodedPolicy. Next:
snapshot/cel_segments.py.
Source: docs/architecture.md 1 (promise 2); docs/behaviour/cel 3.

A policy is looked up by the group, resource, subresource and operation of its
matchConstraints, a namespaced policy by its namespace as well. A look-up may return
policies that do not match, but never misses one that does.
"""

from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

import msgspec

from kyverno_mp.compiler.linked_size import exception_sizes
from kyverno_mp.errors import PolicyInvalid, Where
from kyverno_mp.expr.compile_budget import spend
from kyverno_mp.ir.admission_policy import ConstraintsIR, ResourceRuleIR
from kyverno_mp.ir.authorization import AuthorizationPolicyIR
from kyverno_mp.ir.cel_policies import GeneratingPolicyIR, MutatingPolicyIR
from kyverno_mp.ir.image_policies import ImageValidatingPolicyIR
from kyverno_mp.ir.index import (
    ANY_KIND,
    ANY_OPERATION,
    BY_NAMESPACE,
    BY_NOTHING,
    EncodedPolicy,
    IndexEntryIR,
    pack_parts,
)
from kyverno_mp.ir.match import KindIR
from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.ir.validating_policy import ValidatingPolicyIR
from kyverno_mp.limits import INDEX_KEYS_PER_FILTER_MAX

CelPolicyIR: TypeAlias = (
    ValidatingPolicyIR
    | MutatingPolicyIR
    | GeneratingPolicyIR
    | ImageValidatingPolicyIR
    | AuthorizationPolicyIR
)
_ANY: Final = "*"


def encode_cel_policy(compiled: CelPolicyIR) -> EncodedPolicy:
    """Encode one policy with its keys. Raises: PolicyInvalid if it cannot be stored."""
    policy = compiled.policy
    try:
        content = pack_parts([msgspec.msgpack.encode(compiled)])
    except (OverflowError, UnicodeEncodeError, RecursionError) as error:
        location = Where(policy=policy.key)
        raise PolicyInvalid("compiler.encode", str(error), location) from error
    constraints = _constraints_of(compiled) if policy.admission else ()
    entries = tuple(_entries(policy, constraints))
    sizes = exception_sizes(compiled.exceptions)
    return EncodedPolicy(policy.key, content, (entries,), is_cel=True, exceptions=sizes)


def _constraints_of(compiled: CelPolicyIR) -> Sequence[ConstraintsIR | None]:
    """Return the constraints of all copies of a policy, for its keys.

    A policy in evaluation mode JSON has none: its payloads are not cluster objects. Nor
    has an authorizer's, which evaluates all of its policies for each request. One that
    synchronises is looked up for every operation on its trigger.
    """
    if isinstance(compiled, AuthorizationPolicyIR):
        return []
    if not isinstance(compiled, GeneratingPolicyIR):
        is_json = not isinstance(compiled, MutatingPolicyIR) and compiled.is_json
        return [] if is_json else [body.constraints for body in compiled.bodies]
    constraints = compiled.constraints
    if compiled.synchronizes and constraints is not None:
        rules = tuple(
            msgspec.structs.replace(rule, operations=(_ANY,))
            for rule in constraints.rules
        )
        constraints = msgspec.structs.replace(constraints, rules=rules)
    return [constraints]


def _entries(
    policy: PolicyIR, constraints: Sequence[ConstraintsIR | None]
) -> Iterator[IndexEntryIR]:
    """Yield the keys; no keys if no request can match."""
    namespace = policy.namespace
    dimension = BY_NAMESPACE if namespace else BY_NOTHING
    keys = dict.fromkeys(
        key
        for constraint in constraints
        if constraint is not None
        for key in _keys(constraint)
    )
    for kind, operation in keys:
        yield IndexEntryIR(kind, operation, dimension, namespace)


def _keys(constraints: ConstraintsIR) -> Iterator[tuple[KindIR, str]]:
    """Yield (resource, operation) for each rule; without rules everything matches."""
    if not constraints.rules:
        yield ANY_KIND, ANY_OPERATION
    for rule in constraints.rules:
        yield from _rule_keys(rule)


def _rule_keys(rule: ResourceRuleIR) -> Iterator[tuple[KindIR, str]]:
    groups, operations = _unlike(rule.groups), _unlike(rule.operations)
    count = len(groups) * len(rule.resources) * len(operations)
    if count > INDEX_KEYS_PER_FILTER_MAX:
        yield ANY_KIND, ANY_OPERATION
        return
    spend(count)
    for group in groups:
        for entry in rule.resources:
            resource, _, subresource = entry.partition("/")
            kind = KindIR(group, _ANY, resource, subresource)
            for operation in operations:
                yield kind, ANY_OPERATION if operation == _ANY else operation


def _unlike(values: tuple[str, ...]) -> tuple[str, ...]:
    """Return the values without duplicates, or only ``*`` if it is one of them."""
    return (_ANY,) if _ANY in values else tuple(dict.fromkeys(values))
