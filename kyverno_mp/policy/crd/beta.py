"""Define the differences of v2beta1 of ClusterPolicy and Policy.

Room: policy. Takes: nothing. Gives: BETA, a variant of the typed documents. Next:
policy/crd/typed_kinds.py.
Source: docs/behaviour/controllers 1.2 (v2beta1 differences); docs/behaviour/engine 4.
"""

from typing import Final

from kyverno_mp.policy.crd.declared import Variant
from kyverno_mp.policy.documents.cluster_policy import Rule
from kyverno_mp.policy.fields.conditions import AnyAllConditionsV2
from kyverno_mp.policy.fields.record import Fields
from kyverno_mp.policy.fields.validation import Validation
from kyverno_mp.policy.reading.decode import REMOVED_IN_BETA


class DenyV2(Fields, frozen=True):
    """``deny`` of a rule: only any/all, without the legacy list."""

    conditions: AnyAllConditionsV2 | None = None


BETA: Final = Variant(
    removed={**REMOVED_IN_BETA, Rule: frozenset({"reportProperties"})},
    stated={
        (Rule, "preconditions"): AnyAllConditionsV2,
        (Validation, "deny"): DenyV2,
    },
)
