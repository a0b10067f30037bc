"""Policies read from a segment equal the compiled ones."""

import pytest

from kyverno_mp.compiler.index import encode_policy
from kyverno_mp.compiler.rules.match import build_match
from kyverno_mp.errors import PolicyInvalid, SnapshotUnusable
from kyverno_mp.ir.index import pack_parts
from kyverno_mp.ir.rules import CompiledPolicy, PolicyIR, RuleIR, ValidateIR
from kyverno_mp.snapshot.encode import encode_segment
from kyverno_mp.snapshot.policies import (
    POLICIES,
    PoliciesWriter,
    PolicySegment,
)
from kyverno_mp.snapshot.read import Segment
from tests.blocks import match_of

SALT = bytes(16)


def a_policy(name: str, message: str = "no") -> CompiledPolicy:
    match = build_match(match_of({"any": [{"resources": {"kinds": ["Pod"]}}]}))
    rule = RuleIR("r", "validate", match, validate=ValidateIR(raw_message=message))
    return CompiledPolicy(PolicyIR("Policy", name, "ns"), (rule,))


def test_policies_survive_a_round_trip() -> None:
    """The workers run exactly the policies that the leader compiled."""
    policies = [a_policy("b"), a_policy("a", "grüße")]
    encoded = [encode_policy(policy) for policy in policies]
    content = PoliciesWriter().encode(encoded, generation=3, salt=SALT)
    segment = PolicySegment(Segment.from_bytes(content, POLICIES))
    assert (segment.generation, segment.policy_count, segment.rule_count) == (3, 2, 2)
    for position, policy in enumerate(policies):
        assert segment.policy(position) == policy.policy
        assert segment.rule(position, 0) == policy.rules[0]
    with pytest.raises(SnapshotUnusable):
        segment.policy(2)
    # The rules are referred to by the index: what it names and is missing is an error.
    assert segment.rule(0, 1).unsupported


def test_cached_parts_change_nothing() -> None:
    """Each version is the same as if it were the first."""
    first = [encode_policy(a_policy(name)) for name in "abc"]
    edited = [first[0], encode_policy(a_policy("b", "new")), first[2]]
    writer = PoliciesWriter()
    other = bytes(range(16))
    policy_sets = [(first, SALT), (edited, SALT), (first[1:], SALT), (first, other)]
    for generation, (policy_set, salt) in enumerate(policy_sets, start=1):
        content = writer.encode(policy_set, generation=generation, salt=salt)
        assert content == PoliciesWriter().encode(
            policy_set, generation=generation, salt=salt
        )


def test_names_include_rejected_policies() -> None:
    """A worker distinguishes a rejected policy from an unknown one."""
    encoded = [encode_policy(a_policy("a"))]
    content = PoliciesWriter().encode(
        encoded, generation=1, salt=SALT, names=["ns/a", "refused"]
    )
    segment = PolicySegment(Segment.from_bytes(content, POLICIES))
    assert [segment.knows(key) for key in ("ns/a", "refused", "a")] == [1, 1, 0]
    content = PoliciesWriter().encode(encoded, generation=1, salt=SALT)
    assert PolicySegment(Segment.from_bytes(content, POLICIES)).knows("ns/a")


def test_empty_policy_set() -> None:
    """A cluster without policies also has a snapshot."""
    content = PoliciesWriter().encode([], generation=1, salt=SALT)
    segment = PolicySegment(Segment.from_bytes(content, POLICIES))
    assert (segment.policy_count, segment.rule_count) == (0, 0)
    assert list(segment.selectors("Pod")) == []


def test_unreadable_records_are_rejected() -> None:
    """A valid file with an invalid record must not crash a worker."""
    counts = (1).to_bytes(8, "little") * 2
    damaged = [b"", b"\xc1", b"\x93", b"\x01", b"\x91" * 5000]
    for record in [*damaged, *(pack_parts([part]) for part in damaged)]:
        content = encode_segment(
            POLICIES, {b"c": counts, b"p0": record}, generation=1, salt=SALT
        )
        segment = PolicySegment(Segment.from_bytes(content, POLICIES))
        with pytest.raises(SnapshotUnusable):
            segment.policy(0)
    empty = encode_segment(POLICIES, {}, generation=1, salt=SALT)
    segment_of_nothing = Segment.from_bytes(empty, POLICIES)
    with pytest.raises(SnapshotUnusable):
        PolicySegment(segment_of_nothing)


def test_unstorable_policy_is_invalid() -> None:
    """Its author is informed; the other policies stay in force."""
    with pytest.raises(PolicyInvalid):
        encode_policy(a_policy("p", "\ud800"))
