"""List the kinds of policies.kyverno.io.

Room: policy. Takes: their declarations. Gives: ``CEL_KINDS``. Next:
policy/crd/generate.py.
May touch: nothing outside its arguments.
Source: docs/behaviour/controllers 1.1, 1.7.
"""

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

_GROUP: Final = "policies.kyverno.io"
_WITH_READY: Final = (AGE, Column("READY", ".status.conditionStatus.ready"))
_MODE: Final = (".spec.evaluation.mode",)


def _versions(fields: Fields) -> tuple[Version, ...]:
    return (
        Version("v1", fields),
        Version("v1alpha1", fields, is_deprecated=True),
        Version("v1beta1", fields, is_storage=True),
    )


def _pair(
    name: str,
    short: str,
    about: str,
    fields: Fields,
    *,
    columns: tuple[Column, ...] = _WITH_READY,
    selectable: tuple[str, ...] = (),
) -> tuple[Kind, Kind]:
    """Return the cluster-scoped kind and its namespaced counterpart."""
    plural = f"{name.lower().removesuffix('policy')}policies"
    versions = _versions(fields)
    of_cluster = Kind(
        group=_GROUP,
        kind=name,
        plural=plural,
        short_name=short,
        about=f"{name} {about} the cluster with CEL.",
        is_namespaced=False,
        versions=versions,
        columns=columns,
        selectable_fields=selectable,
    )
    of_namespace = Kind(
        group=_GROUP,
        kind=f"Namespaced{name}",
        plural=f"namespaced{plural}",
        short_name=f"n{short}",
        about=f"Namespaced{name} {about} its namespace with CEL.",
        is_namespaced=True,
        versions=tuple(one for one in versions if not one.is_deprecated),
        columns=columns,
        selectable_fields=selectable,
    )
    return of_cluster, of_namespace


CEL_KINDS: Final[tuple[Kind, ...]] = (
    *_pair(
        "ValidatingPolicy",
        "vpol",
        "checks resources in",
        VALIDATING_POLICY,
        selectable=_MODE,
    ),
    *_pair(
        "MutatingPolicy",
        "mpol",
        "changes resources in",
        MUTATING_POLICY,
        selectable=_MODE,
    ),
    *_pair(
        "GeneratingPolicy",
        "gpol",
        "creates resources on changes in",
        GENERATING_POLICY,
        columns=(AGE,),
    ),
    *_pair("DeletingPolicy", "dpol", "deletes resources in", DELETING_POLICY),
    *_pair(
        "ImageValidatingPolicy",
        "ivpol",
        "verifies images of resources in",
        IMAGE_VALIDATING_POLICY,
    ),
    Kind(
        group=_GROUP,
        kind="PolicyException",
        plural="policyexceptions",
        about="PolicyException exempts requests from CEL policies.",
        is_namespaced=True,
        is_in_category=False,
        has_status=False,
        versions=_versions(CEL_POLICY_EXCEPTION),
    ),
)
