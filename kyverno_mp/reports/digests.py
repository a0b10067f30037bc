"""Compute digests of rules, which change if the results of a rule may change.

Room: reports. Takes: the IR of a policy. Gives: digest_of_rule, digest_of_policy. Next:
reports/plan.py.
Source: docs/pools.md 4.
"""

import hashlib
from typing import Final, TypeAlias

import msgspec

from kyverno_mp.ir.cel_policies import MutatingPolicyIR
from kyverno_mp.ir.image_policies import ImageValidatingPolicyIR
from kyverno_mp.ir.rules import PolicyIR, RuleIR
from kyverno_mp.ir.validating_policy import ValidatingPolicyIR
from kyverno_mp.snapshot.undecoded import CODE

DIGEST_BYTES: Final = 16
AnyCelIR: TypeAlias = ValidatingPolicyIR | MutatingPolicyIR | ImageValidatingPolicyIR


def digest_of_rule(policy: PolicyIR, rule: RuleIR) -> bytes:
    """Return a digest that edits without an effect on results do not change."""
    content = (
        *(policy.kind, policy.key, policy.apply_rules, policy.background),
        *(policy.admission, policy.scored, policy.category, policy.severity),
        rule,
    )
    data = msgspec.msgpack.encode(content)
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


def digest_of_policy(ir: AnyCelIR) -> bytes:
    """Return the digest of a CEL policy."""
    policy = ir.policy
    content = (
        *(policy.kind, policy.key, policy.background, policy.admission),
        *(policy.scored, policy.category, policy.severity, policy.failure_policy),
        *(ir.bodies, ir.exceptions),
        *(() if policy.is_decoded else (CODE,)),
    )
    data = msgspec.msgpack.encode(content)
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()
