"""List the kinds of kyverno.io.

Room: policy. Takes: the typed documents. Gives: ``KYVERNO_KINDS``. Next:
policy/crd/generate.py.
Source: docs/behaviour/controllers 1.1 to 1.5.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from kyverno_mp.policy.crd import status
from kyverno_mp.policy.crd.beta import BETA
from kyverno_mp.policy.crd.declared import AS_DECLARED, Variant, derive
from kyverno_mp.policy.crd.kind import AGE, Column, Kind, Version, age
from kyverno_mp.policy.crd.notation import Fields, Schema
from kyverno_mp.policy.crd.update_request import UPDATE_REQUEST, UPDATE_REQUEST_V1BETA1
from kyverno_mp.policy.documents.cleanup_policy import CleanupSpec
from kyverno_mp.policy.documents.cluster_policy import Spec
from kyverno_mp.policy.documents.exception import ExceptionSpec
from kyverno_mp.policy.documents.global_context_entry import GlobalContextSpec
from kyverno_mp.values.kubernetes.policy_kinds import (
    CLEANUP_POLICY,
    CLUSTER_POLICY,
    POLICY_EXCEPTION,
)

_READY: Final = '.status.conditions[?(@.type == "Ready")]'
_POLICY_COLUMNS: Final = (
    Column("ADMISSION", ".spec.admission", "boolean"),
    Column("BACKGROUND", ".spec.background", "boolean"),
    Column("READY", f"{_READY}.status"),
    AGE,
    Column("FAILURE POLICY", ".spec.failurePolicy", is_wide=True),
    *(
        Column(name, f".status.rulecount.{count}", "integer", is_wide=True)
        for name, count in (
            ("VALIDATE", "validate"),
            ("MUTATE", "mutate"),
            ("GENERATE", "generate"),
            ("VERIFY IMAGES", "verifyimages"),
        )
    ),
    Column("MESSAGE", f"{_READY}.message"),
)
_CLEANUP_COLUMNS: Final = (Column("Schedule", ".spec.schedule"), age("Age"))
_REQUEST: Final = (
    Column("RuleType", ".spec.requestType"),
    Column("ResourceKind", ".spec.resource.kind"),
    Column("ResourceName", ".spec.resource.name"),
    Column("ResourceNamespace", ".spec.resource.namespace"),
    Column("status", ".status.state"),
    age("Age"),
)
_OF_POLICY: Final = Column("Policy", ".spec.policy")
_GLOBAL_CONTEXT_COLUMNS: Final = (
    AGE,
    Column("REFRESH INTERVAL", ".spec.apiCall.refreshInterval"),
    Column("LAST REFRESH", ".status.lastRefreshTime", "date"),
)


def _typed(
    spec: type[msgspec.Struct],
    written: Schema | Callable[[], Schema] | None = None,
    variant: Variant = AS_DECLARED,
) -> Callable[[], Fields]:
    def fields() -> Fields:
        declared = {"spec*": derive(spec, variant)}
        if written is None:
            return declared
        # Derived after the spec, whose records it shares.
        return {**declared, "status": written() if callable(written) else written}

    return fields


def _two(fields: Callable[[], Fields]) -> tuple[Version, Version]:
    """Return the versions of a kind that both generations of policies need.

    None is deprecated, as in Kyverno since 1.19.1: they stay, and the API server would
    warn of them at each call.
    """
    return (Version("v2", fields, is_storage=True), Version("v2beta1", fields))


_POLICY: Final = (
    Version("v1", _typed(Spec, status.policy), is_storage=True),
    Version("v2beta1", _typed(Spec, status.policy, BETA)),
)
_CLEANUP: Final = _two(_typed(CleanupSpec, status.CLEANUP))
_GLOBAL_CONTEXT: Final = _typed(GlobalContextSpec, status.GLOBAL_CONTEXT)
_GLOBAL_CONTEXT_READY: Final = _typed(GlobalContextSpec, status.GLOBAL_CONTEXT_READY)

KYVERNO_KINDS: Final[tuple[Kind, ...]] = (
    Kind(
        group="kyverno.io",
        kind=CLUSTER_POLICY.cluster.kind,
        plural=CLUSTER_POLICY.cluster.plural,
        short_name=CLUSTER_POLICY.short,
        about="ClusterPolicy declares rules for resources in the whole cluster.",
        is_namespaced=False,
        versions=_POLICY,
        columns=_POLICY_COLUMNS,
    ),
    Kind(
        group="kyverno.io",
        kind=CLUSTER_POLICY.namespaced.kind,
        plural=CLUSTER_POLICY.namespaced.plural,
        short_name="pol",
        about="Policy declares rules for resources in its namespace.",
        is_namespaced=True,
        versions=_POLICY,
        columns=_POLICY_COLUMNS,
    ),
    Kind(
        group="kyverno.io",
        kind=POLICY_EXCEPTION.kind,
        plural=POLICY_EXCEPTION.plural,
        short_name="polex",
        about="PolicyException exempts resources from rules of policies.",
        is_namespaced=True,
        has_status=False,
        versions=_two(_typed(ExceptionSpec)),
    ),
    Kind(
        group="kyverno.io",
        kind=CLEANUP_POLICY.namespaced.kind,
        plural=CLEANUP_POLICY.namespaced.plural,
        short_name="cleanpol",
        about="CleanupPolicy deletes resources in its namespace on a schedule.",
        is_namespaced=True,
        versions=_CLEANUP,
        columns=_CLEANUP_COLUMNS,
    ),
    Kind(
        group="kyverno.io",
        kind=CLEANUP_POLICY.cluster.kind,
        plural=CLEANUP_POLICY.cluster.plural,
        short_name=CLEANUP_POLICY.short,
        about="ClusterCleanupPolicy deletes resources in the cluster on a schedule.",
        is_namespaced=False,
        versions=_CLEANUP,
        columns=_CLEANUP_COLUMNS,
    ),
    Kind(
        group="kyverno.io",
        kind="UpdateRequest",
        plural="updaterequests",
        short_name="ur",
        about="UpdateRequest is background work of a rule after an admission request.",
        is_namespaced=True,
        versions=(
            Version(
                "v1beta1",
                UPDATE_REQUEST_V1BETA1,
                is_served=False,
                is_deprecated=True,
                columns=(_OF_POLICY, Column("Rule", ".spec.rule"), *_REQUEST),
            ),
            Version("v2", UPDATE_REQUEST, is_storage=True),
        ),
        columns=(_OF_POLICY, *_REQUEST),
    ),
    Kind(
        group="kyverno.io",
        kind="GlobalContextEntry",
        plural="globalcontextentries",
        short_name="gctxentry",
        about="GlobalContextEntry defines data that rules share under one name.",
        is_namespaced=False,
        versions=(
            Version("v2", _GLOBAL_CONTEXT),
            Version("v2alpha1", _GLOBAL_CONTEXT_READY, is_deprecated=True),
            Version("v2beta1", _GLOBAL_CONTEXT_READY, is_storage=True),
        ),
        columns=_GLOBAL_CONTEXT_COLUMNS,
    ),
)
