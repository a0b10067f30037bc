"""Encode a stub for a policy that is too large to link: it fails where it matches.

Room: compiler. Takes: the EncodedPolicy of the policy. Gives: the stub's EncodedPolicy
with the same keys; one for all further policies of a namespace; is_missed, for policies
without a stub; without_exceptions, which drops only PolicyExceptions.
Next: leader/documents/linked_memory.py.

SAFETY: without its rules, the policy would allow requests that it denies. So the stub's
rules still match, and fail according to its failurePolicy. Preconditions, conditions
and exceptions are removed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from kyverno_mp.compiler.cel_kinds.index import encode_cel_policy
from kyverno_mp.compiler.index import encode_policy
from kyverno_mp.compiler.linked_size import linked_bytes
from kyverno_mp.expr.cel.nodes import Call, Const, Expression, MapLit
from kyverno_mp.expr.effects import EFFECT_PURE
from kyverno_mp.ir.admission_policy import ConstraintsIR, MutationIR
from kyverno_mp.ir.authorization import AuthorizationPolicyIR
from kyverno_mp.ir.cel import CelValidationIR
from kyverno_mp.ir.cel_policies import (
    GeneratingPolicyIR,
    MutatingBodyIR,
    MutatingPolicyIR,
)
from kyverno_mp.ir.image_policies import (
    ImageBodyIR,
    ImageReferenceIR,
    ImageValidatingPolicyIR,
)
from kyverno_mp.ir.index import ANY_KIND, EncodedPolicy, count_of, pack_parts, part_of
from kyverno_mp.ir.match import FilterIR, MatchIR
from kyverno_mp.ir.rules import ActionIR, CompiledPolicy, PolicyIR, RuleIR
from kyverno_mp.ir.validating_policy import ValidatingBodyIR, ValidatingPolicyIR
from kyverno_mp.limits import UNLINKED_POLICY_BYTES_MAX
from kyverno_mp.values.kubernetes.policy_kinds import rule_type_of

_WHAT: Final = "a rule over the memory limit of its namespace's policies"
_EVERYTHING: Final = MatchIR(filters=(FilterIR(kinds=(ANY_KIND,)),))
_NO_ACTION: Final = ActionIR()
_ENFORCE: Final = ActionIR("Enforce")
_ANYTHING: Final = ConstraintsIR()
"""No rules: matches every resource."""
_NO_IMAGE: Final = (ImageReferenceIR(glob="none"),)


def _failing_with(key: str) -> Expression:
    """Return an expression whose error names the missing key ``key``."""
    return Expression("", Call("_[_]", None, (MapLit(()), Const("string", key))))


_FAILING: Final = _failing_with(f"{_WHAT} is not evaluated")

_POLICY: Final = msgspec.msgpack.Decoder(PolicyIR)
_RULE: Final = msgspec.msgpack.Decoder(RuleIR)
_VALIDATING: Final = msgspec.msgpack.Decoder(ValidatingPolicyIR)
_AUTHORIZING: Final = msgspec.msgpack.Decoder(AuthorizationPolicyIR)
_MUTATING: Final = msgspec.msgpack.Decoder(MutatingPolicyIR)
_GENERATING: Final = msgspec.msgpack.Decoder(GeneratingPolicyIR)
_IMAGES: Final = msgspec.msgpack.Decoder(ImageValidatingPolicyIR)


def unlinked(encoded: EncodedPolicy, kind: str) -> EncodedPolicy | None:
    """Return the stub to publish instead; None if no review evaluates the policy.

    ``kind``: the document's kind.
    """
    content = memoryview(encoded.content)
    in_cel = _OF_TYPE.get(rule_type_of(kind))
    if in_cel is not None:
        return in_cel(part_of(content, 0))
    if encoded.is_cel:
        return None
    policy, rules = _failing_rules(encoded)
    if not rules:
        return None
    policy = msgspec.structs.replace(policy, match_conditions=())
    stub = encode_policy(CompiledPolicy(policy, tuple(rules)))
    if linked_bytes(stub) <= UNLINKED_POLICY_BYTES_MAX:
        return stub
    for is_wide in (False, True):
        stub = _merged(policy, rules, is_wide=is_wide)
        if linked_bytes(stub) <= UNLINKED_POLICY_BYTES_MAX:
            break
    return stub


def unlinked_namespace(encoded: EncodedPolicy) -> EncodedPolicy | None:
    """Return a policy that fails for every object of its namespace.

    Published once, in place of all policies for which a namespace has no more memory,
    because each stub needs some. None if the policy denies nothing when it fails, or
    if it is a policy in CEL, see ``is_missed``.
    """
    if encoded.is_cel:
        return None
    policy, rules = _failing_rules(encoded)
    if policy.failure_policy != "Fail" or not _can_deny(policy, rules):
        return None
    # SAFETY: it also replaces policies of the other type, and those whose settings
    # restrict less than this one's.
    rules = [
        msgspec.structs.replace(
            rules[0],
            rule_type=rule_type,
            action=_NO_ACTION,
            skip_background_requests=False,
        )
        for rule_type in ("mutate", "validate")
    ]
    policy = msgspec.structs.replace(
        policy,
        action=_ENFORCE,
        apply_rules="All",
        fine_grained=False,
        match_conditions=(),
    )
    return _merged(policy, rules, is_wide=True)


def is_missed(encoded: EncodedPolicy, kind: str) -> bool:
    """Return whether reviews must fail if they ask for this policy and it has no stub.

    So it is for policies with a path of their own, which no other policy's stub
    answers: a worker answers it with an HTTP error, so the API server applies the
    failurePolicy. False if no review evaluates the policy or it denies nothing.
    """
    rule_type = rule_type_of(kind)
    if rule_type == "mutate":
        content = part_of(memoryview(encoded.content), 0)
        mutating = _MUTATING.decode(content)
        return not mutating.mutates_existing
    if rule_type in _OF_TYPE:
        return True
    if encoded.is_cel:
        return False
    policy, rules = _failing_rules(encoded)
    return policy.fine_grained and _can_deny(policy, rules)


def without_exceptions(
    encoded: EncodedPolicy, kind: str, dropped: frozenset[str]
) -> EncodedPolicy:
    """Return the policy without some of its PolicyExceptions.

    ``kind``: of the document. ``dropped``: the keys of the exceptions.
    """
    content = memoryview(encoded.content)
    decoder = _DECODER_OF_TYPE.get(rule_type_of(kind), _RULE)
    if decoder is _VALIDATING and not encoded.entries[0]:
        decoder = _decoder_of(content)
    first = 1 if decoder is _RULE else 0
    parts = [bytes(part_of(content, number)) for number in range(count_of(content))]
    for number in range(first, len(parts)):
        record: Any = decoder.decode(parts[number])
        remaining = tuple(
            exception for exception in record.exceptions if exception.key not in dropped
        )
        if len(remaining) < len(record.exceptions):
            record = msgspec.structs.replace(record, exceptions=remaining)
            parts[number] = msgspec.msgpack.encode(record)
    return msgspec.structs.replace(
        encoded,
        content=pack_parts(parts),
        exceptions=tuple(
            exception for exception in encoded.exceptions if exception[0] not in dropped
        ),
    )


def failing_on_payloads(policy: PolicyIR, message: str) -> EncodedPolicy:
    """Return a policy in evaluation mode JSON that is an error of every payload."""
    failing = (CelValidationIR(_failing_with(message)),)
    if rule_type_of(policy.kind) == "verifyImages":
        images = ImageBodyIR("", None, (), _NO_IMAGE, (), (), (), (), failing)
        return encode_cel_policy(
            ImageValidatingPolicyIR(
                policy, (images,), is_json=True, effects=EFFECT_PURE
            )
        )
    body = ValidatingBodyIR("", None, (), (), failing)
    return encode_cel_policy(ValidatingPolicyIR(policy, (body,), is_json=True))


def _decoder_of(content: memoryview) -> "msgspec.msgpack.Decoder[Any]":
    """Return the decoder of a policy without keys: an authorizer's has a mode."""
    fields = msgspec.msgpack.decode(part_of(content, 0))
    return _AUTHORIZING if isinstance(fields[1], str) else _VALIDATING


def _failing_rules(encoded: EncodedPolicy) -> tuple[PolicyIR, list[RuleIR]]:
    """Return the policy's record, and rules that fail where its rules match."""
    content = memoryview(encoded.content)
    rules = [
        failing
        for number in range(1, count_of(content))
        for failing in _failing(_RULE.decode(part_of(content, number)))
    ]
    return _POLICY.decode(part_of(content, 0)), rules


def _can_deny(policy: PolicyIR, rules: Sequence[RuleIR]) -> bool:
    """Return whether the policy might deny a request if these rules fail."""
    return policy.admission and any(
        rule.rule_type == "mutate"
        or _can_enforce(policy.action)
        or _can_enforce(rule.action)
        for rule in rules
    )


def _can_enforce(action: ActionIR) -> bool:
    return "Enforce" in (
        action.action,
        *(override.action for override in action.overrides),
    )


def _merged(
    policy: PolicyIR, rules: Sequence[RuleIR], *, is_wide: bool
) -> EncodedPolicy:
    """Encode one rule per type, which matches at least what its rules match."""
    first: dict[str, RuleIR] = {}
    filters: dict[str, dict[FilterIR, None]] = {}
    for rule in rules:
        first.setdefault(rule.rule_type, rule)
        filters.setdefault(rule.rule_type, {}).update(dict.fromkeys(rule.match.filters))
    action = rules[0].action
    if any(rule.action != action for rule in rules):
        # SAFETY: the merged rule denies if one of the rules would.
        can_enforce = any(_can_enforce(rule.action) for rule in rules)
        action = _ENFORCE if can_enforce else _NO_ACTION
    skips = all(rule.skip_background_requests for rule in rules)
    failing = tuple(
        msgspec.structs.replace(
            rule,
            match=_EVERYTHING if is_wide else MatchIR("any", tuple(filters[rule_type])),
            exclude=None,
            action=action,
            skip_background_requests=skips,
        )
        for rule_type, rule in first.items()
    )
    short = msgspec.structs.replace(
        policy,
        rule_actions=tuple((r.name, r.rule_type, r.action) for r in failing),
        review_rules=(),
        labels=(),
    )
    return encode_policy(CompiledPolicy(short, failing))


def _failing(rule: RuleIR) -> Iterator[RuleIR]:
    """Yield failing rules that replace a rule; none if no review waits for the rule."""
    mutate = rule.mutate
    if rule.rule_type == "generate" or (
        mutate is not None and mutate.targets is not None
    ):
        return
    types = [rule.rule_type]
    if rule.verify_images is not None:
        # The index keys depend on the block, which the stub lacks, so both stages get a
        # rule.
        types = ["mutate", "validate"]
    for rule_type in types:
        yield RuleIR(
            name=rule.name,
            rule_type=rule_type,
            match=rule.match,
            exclude=rule.exclude,
            action=rule.action,
            effects=EFFECT_PURE,
            unsupported=_WHAT,
            skip_background_requests=rule.skip_background_requests,
        )


def _validating(content: memoryview) -> EncodedPolicy:
    policy_ir = _VALIDATING.decode(content)
    failing = (CelValidationIR(_FAILING),)

    def body(validating_body: ValidatingBodyIR) -> ValidatingBodyIR:
        return ValidatingBodyIR(
            validating_body.copy, validating_body.constraints, (), (), failing
        )

    return _bounded(policy_ir, body)


def _mutating(content: memoryview) -> EncodedPolicy | None:
    policy_ir = _MUTATING.decode(content)
    if policy_ir.mutates_existing:
        return None
    policy_ir = msgspec.structs.replace(policy_ir, targets=None)
    failing = (MutationIR(_FAILING),)

    def body(mutating_body: MutatingBodyIR) -> MutatingBodyIR:
        return MutatingBodyIR(
            mutating_body.copy, mutating_body.constraints, (), (), failing
        )

    return _bounded(policy_ir, body)


def _images(content: memoryview) -> EncodedPolicy:
    policy_ir = _IMAGES.decode(content)
    failing = (CelValidationIR(_FAILING),)

    def body(image_body: ImageBodyIR) -> ImageBodyIR:
        # No image matches this pattern, so no image is read from a registry.
        return ImageBodyIR(
            image_body.copy,
            image_body.constraints,
            (),
            _NO_IMAGE,
            (),
            (),
            (),
            (),
            failing,
        )

    return _bounded(policy_ir, body)


_OF_TYPE: Final[Mapping[str, Callable[[memoryview], EncodedPolicy | None]]] = {
    "validate": _validating,
    "mutate": _mutating,
    "verifyImages": _images,
}
_DECODER_OF_TYPE: Final[Mapping[str, msgspec.msgpack.Decoder[Any]]] = {
    "validate": _VALIDATING,
    "mutate": _MUTATING,
    "verifyImages": _IMAGES,
    "generate": _GENERATING,
}


def _bounded(policy_ir: Any, body: Callable[[Any], Any]) -> EncodedPolicy:
    """Encode a policy with failing bodies, or one catch-all body if they are large."""
    bodies = tuple(map(body, policy_ir.bodies))
    replaced = msgspec.structs.replace(
        policy_ir, bodies=bodies, exceptions=(), effects=EFFECT_PURE
    )
    encoded = encode_cel_policy(replaced)
    if linked_bytes(encoded) <= UNLINKED_POLICY_BYTES_MAX:
        return encoded
    anything = msgspec.structs.replace(bodies[0], copy="", constraints=_ANYTHING)
    return encode_cel_policy(msgspec.structs.replace(replaced, bodies=(anything,)))
