"""List the kinds of reports.

Room: policy. Takes: their declarations. Gives: ``REPORT_KINDS``. Next:
policy/crd/generate.py.
Source: docs/behaviour/controllers 1.1, 1.6.
"""

from typing import Final

from kyverno_mp.policy.crd.kind import Column, Kind, Version, age
from kyverno_mp.policy.crd.reports import EPHEMERAL_REPORT, OPEN_REPORT, POLICY_REPORT

_AUDIT: Final = r"audit\.kyverno\.io"
_EPHEMERAL_GROUP: Final = "reports.kyverno.io"


def _counts(under: str) -> tuple[Column, ...]:
    names = ("Pass", "Fail", "Warn", "Error", "Skip")
    return tuple(
        Column(name, f"{under}.summary.{name.lower()}", "integer") for name in names
    )


def _label(column: str, name: str, *, kept_in: str = "labels") -> Column:
    return Column(column, f".metadata.{kept_in}['{_AUDIT}/{name}']")


_SCOPE: Final = (Column("Kind", ".scope.kind"), Column("Name", ".scope.name"))
_POLICY_COLUMNS: Final = (*_SCOPE, *_counts(""), age("Age"))
_OPEN_COLUMNS: Final = (
    *(column._replace(is_wide=True) for column in _SCOPE),
    *_counts(""),
    age("Age"),
)
_UID: Final = _label("Uid", r"resource\.uid")
_HASH: Final = _label("Hash", r"resource\.hash")._replace(is_wide=True)
_EPHEMERAL_COLUMNS: Final = (
    _label("Source", "source"),
    _label("Group", r"resource\.group"),
    _label("Kind", r"resource\.kind"),
    _label("Owner", r"resource\.name", kept_in="annotations"),
    *_counts(".spec"),
    age("Age"),
)


def _pair(
    group: str,
    version: Version,
    names: tuple[str, str],
    columns: tuple[Column, ...],
) -> tuple[Kind, Kind]:
    """Return the namespaced kind and the cluster-scoped kind."""
    name, short = names
    of_namespace = Kind(
        group=group,
        kind=name,
        plural=f"{name.lower()}s",
        short_name=short,
        about=f"{name} contains the results of policies in its namespace.",
        is_namespaced=True,
        is_in_category=group == _EPHEMERAL_GROUP,
        has_status=False,
        versions=(version,),
        columns=columns,
    )
    of_cluster = of_namespace._replace(
        kind=f"Cluster{name}",
        plural=f"cluster{name.lower()}s",
        short_name=f"c{short}",
        about=f"Cluster{name} contains the results of policies in the cluster.",
        is_namespaced=False,
    )
    return of_namespace, of_cluster


_EPHEMERAL, _CLUSTER_EPHEMERAL = _pair(
    _EPHEMERAL_GROUP,
    Version("v1", EPHEMERAL_REPORT, is_storage=True),
    ("EphemeralReport", "ephr"),
    (*_EPHEMERAL_COLUMNS, _UID._replace(is_wide=True), _HASH),
)

REPORT_KINDS: Final[tuple[Kind, ...]] = (
    _EPHEMERAL,
    # KYVERNO: the cluster kind shows the uid without -o wide (1.1).
    _CLUSTER_EPHEMERAL._replace(columns=(*_EPHEMERAL_COLUMNS, _UID, _HASH)),
    *_pair(
        "wgpolicyk8s.io",
        Version("v1alpha2", POLICY_REPORT, is_storage=True),
        ("PolicyReport", "polr"),
        _POLICY_COLUMNS,
    ),
    *_pair(
        "openreports.io",
        Version("v1alpha1", OPEN_REPORT, is_storage=True),
        ("Report", "reps"),
        _OPEN_COLUMNS,
    ),
)
