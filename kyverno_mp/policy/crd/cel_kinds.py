"""List the kinds of policies.kyverno.io.

Room: policy. Takes: their declarations. Gives: ``CEL_KINDS``. Next:
policy/crd/generate.py.
Source: docs/behaviour/controllers 1.1, 1.7.
"""

from collections.abc import Iterator
from typing import Final

from kyverno_mp.policy.crd.cel_policies import (
    CEL_POLICY_EXCEPTION,
    DELETING_POLICY,
    GENERATING_POLICY,
    MUTATING_POLICY,
    VALIDATING_POLICY,
)
from kyverno_mp.policy.crd.image_policy import IMAGE_VALIDATING_POLICY
from kyverno_mp.policy.crd.kind import AGE, Column, Kind, Version
from kyverno_mp.policy.crd.notation import Fields
from kyverno_mp.values.kubernetes import policy_kinds as kinds
from kyverno_mp.values.kubernetes.policy_kinds import PolicyKind, StoredKind

_WITH_READY: Final = (AGE, Column("READY", ".status.conditionStatus.ready"))
_MODE: Final = (".spec.evaluation.mode",)


def _versions(stored: StoredKind, fields: Fields) -> tuple[Version, ...]:
    return tuple(
        Version(
            name,
            fields,
            is_storage=name == stored.version,
            is_deprecated="alpha" in name,
        )
        for name in sorted(stored.versions)
    )


def _pair(
    row: PolicyKind,
    about: str,
    fields: Fields,
    *,
    columns: tuple[Column, ...] = _WITH_READY,
    selectable: tuple[str, ...] = (),
) -> Iterator[Kind]:
    """Yield the cluster-scoped kind and its namespaced counterpart."""
    for stored in row.stored:
        scope = "its namespace" if stored.namespaced else "the cluster"
        yield Kind(
            group=stored.group,
            kind=stored.kind,
            plural=stored.plural,
            short_name=f"n{row.short}" if stored.namespaced else row.short,
            about=f"{stored.kind} {about} {scope} with CEL.",
            is_namespaced=stored.namespaced,
            versions=_versions(stored, fields),
            columns=columns,
            selectable_fields=selectable,
        )


CEL_KINDS: Final[tuple[Kind, ...]] = (
    *_pair(
        kinds.VALIDATING_POLICY,
        "checks resources in",
        VALIDATING_POLICY,
        selectable=_MODE,
    ),
    *_pair(
        kinds.MUTATING_POLICY,
        "changes resources in",
        MUTATING_POLICY,
        selectable=_MODE,
    ),
    *_pair(
        kinds.GENERATING_POLICY,
        "creates resources on changes in",
        GENERATING_POLICY,
        columns=(AGE,),
    ),
    *_pair(kinds.DELETING_POLICY, "deletes resources in", DELETING_POLICY),
    *_pair(
        kinds.IMAGE_VALIDATING_POLICY,
        "verifies images of resources in",
        IMAGE_VALIDATING_POLICY,
    ),
    Kind(
        group=kinds.CEL_GROUP,
        kind=kinds.CEL_POLICY_EXCEPTION.kind,
        plural=kinds.CEL_POLICY_EXCEPTION.plural,
        about="PolicyException exempts requests from CEL policies.",
        is_namespaced=True,
        is_in_category=False,
        has_status=False,
        versions=_versions(kinds.CEL_POLICY_EXCEPTION, CEL_POLICY_EXCEPTION),
    ),
)
