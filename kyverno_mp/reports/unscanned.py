"""List the CEL policies that are reported but not scanned.

Room: reports. Takes: segments of policies. Gives: the keys of their rows, which stay
as long as the policies are in force. Next: plan.py.
Source: docs/behaviour/controllers 6.3, 6.5.
"""

from collections.abc import Iterable, Iterator

from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.program.reporting import DISABLED
from kyverno_mp.reports.fingerprints import key_of_names
from kyverno_mp.results.entries import merge_key_of
from kyverno_mp.snapshot.cel_segments import GeneratingSegment, ImageSegment
from kyverno_mp.values.kubernetes.policy_kinds import (
    GENERATING_POLICY,
    IMAGE_VALIDATING_POLICY,
)


def unscanned_keys(
    generating: GeneratingSegment | None, images: ImageSegment | None
) -> Iterator[tuple[str, set[bytes] | None]]:
    """Yield each source with the keys of its rows, or None if they are unknown."""
    keys = None
    if generating is not None:
        count = generating.policy_count
        keys = _keys(generating.record(at).policy for at in range(count))
    yield GENERATING_POLICY.source, keys
    keys = None
    if images is not None:
        count = images.policy_count
        keys = _keys(images.record(at).policy for at in range(count))
    yield IMAGE_VALIDATING_POLICY.source, keys


def _keys(policies: Iterable[PolicyIR]) -> set[bytes]:
    return {
        key_of_names(merge_key_of(policy, ""))
        for policy in policies
        if not is_disabled(policy)
    }


def is_disabled(policy: PolicyIR) -> bool:
    """Return whether the policy is excluded from reports."""
    return any(name == DISABLED for name, _ in policy.labels)
