"""Declare the records that Kubernetes defines: metadata, selectors, conditions.

Room: policy. Takes: nothing. Gives: ObjectMeta, LabelSelector, MatchCondition.
Next: every kind of this room.
Source: k8s.io/apimachinery meta/v1, admissionregistration/v1.
"""

import msgspec

from kyverno_mp.policy.fields.record import Fields
from kyverno_mp.values.jsonvalue import Json


class ObjectMeta(Fields, frozen=True):
    """``metadata``; fields that we do not read are kept as raw JSON."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    self_link: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str = ""
    deletion_timestamp: str = ""
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    owner_references: list[Json] = msgspec.field(default_factory=list)
    finalizers: tuple[str, ...] = ()
    managed_fields: list[Json] = msgspec.field(default_factory=list)


class LabelSelectorRequirement(Fields, frozen=True, kw_only=True):
    """One ``matchExpressions`` entry."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


class LabelSelector(Fields, frozen=True):
    """A label selector; an empty selector matches everything."""

    match_labels: dict[str, str] = msgspec.field(default_factory=dict)
    match_expressions: tuple[LabelSelectorRequirement, ...] = ()


class NamedExpression(Fields, frozen=True, kw_only=True):
    """A named CEL expression: a match condition, a CEL precondition or a variable."""

    name: str
    expression: str
