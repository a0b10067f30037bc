"""List the kinds of policies: the one table from which all rooms derive their lists.

Room: values. Takes: nothing. Gives: POLICY_KINDS and its rows, POLICY_EXCEPTIONS.
Next: kube/policy_resources.py (their resources), policy/cel_kinds/served.py (their
documents), compiler/cel_kinds/kinds.py (their compilation),
snapshot/cel_segments.py (their records).
Source: docs/behaviour/cel 1, 9; docs/behaviour/controllers 1.1, 1.6, 3.1.

A row has what is plain data. What a kind does stands where it is done, keyed by the
row: documents in policy, bodies in compiler and program, handlers in webhook.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

KYVERNO_GROUP: Final = "kyverno.io"
CEL_GROUP: Final = "policies.kyverno.io"


class StoredKind(NamedTuple):
    """A kind as the API server stores it."""

    kind: str
    plural: str
    group: str
    version: str
    """The version to read and write: every release that has the kind serves it."""
    versions: tuple[str, ...]
    """All versions of documents, oldest first for kinds in CEL."""
    namespaced: bool

    @property
    def api_versions(self) -> tuple[str, ...]:
        """The values of ``apiVersion``."""
        return tuple(f"{self.group}/{version}" for version in self.versions)


class ReviewPath(NamedTuple):
    """The registered webhook of a kind: its name, and the paths of both twins."""

    webhook: str
    path: str
    namespaced_path: str

    @property
    def namespaced_webhook(self) -> str:
        """The name of the webhook of the namespaced twin."""
        return f"n{self.webhook}"


FUNCTIONS: Final = frozenset({"certificates", "users"})
"""The parts of Kyverno's CEL functions that most kinds have."""


@dataclass(frozen=True, slots=True)
class PolicyKind:
    """A kind of policies for the whole cluster, and its twin for one namespace."""

    cluster: StoredKind
    namespaced: StoredKind
    short: str
    """The short name in ``kubectl``; the twin's of a kind in CEL begins with ``n``."""
    rule_type: str = ""
    """The type of its results, "" if each rule has its own."""
    segment: str = ""
    """The segment of the snapshot, at most 16 bytes; "" if no review evaluates it."""
    source: str = "kyverno"
    """``source`` of its rows in reports."""
    validating: ReviewPath | None = None
    mutating: ReviewPath | None = None
    judges_payloads: bool = False
    """Whether it has the evaluation mode JSON."""
    native: str = ""
    """The API server's own kind of policies that can replace it."""
    functions: frozenset[str] = FUNCTIONS
    """The parts of Kyverno's CEL functions that not all kinds have
    (expr/cel/catalogue.py)."""

    @property
    def name(self) -> str:
        """The kind without ``Namespaced``."""
        return self.cluster.kind

    @property
    def stored(self) -> tuple[StoredKind, StoredKind]:
        """Both twins."""
        return self.cluster, self.namespaced

    @property
    def names(self) -> tuple[str, str]:
        """The kinds of both twins."""
        return self.cluster.kind, self.namespaced.kind

    @property
    def is_in_cel(self) -> bool:
        """Whether it belongs to ``policies.kyverno.io``."""
        return self.cluster.group == CEL_GROUP


_CEL_READ: Final = "v1beta1"
_CEL_VERSIONS: Final = ("v1alpha1", "v1beta1", "v1")


def _stored(
    kind: str,
    plural: str,
    version: str,
    *,
    namespaced: bool,
) -> StoredKind:
    """Return a kind of kyverno.io."""
    versions = (version, "v2beta1")
    return StoredKind(kind, plural, KYVERNO_GROUP, version, versions, namespaced)


def _twins(name: str) -> tuple[StoredKind, StoredKind]:
    """Return a kind in CEL and its namespaced twin, which is a version younger."""
    plural = f"{name.lower().removesuffix('policy')}policies"
    versions = _CEL_VERSIONS
    return (
        StoredKind(name, plural, CEL_GROUP, _CEL_READ, versions, namespaced=False),
        StoredKind(
            f"Namespaced{name}",
            f"namespaced{plural}",
            CEL_GROUP,
            _CEL_READ,
            versions[1:],
            namespaced=True,
        ),
    )


CLUSTER_POLICY: Final = PolicyKind(
    _stored("ClusterPolicy", "clusterpolicies", "v1", namespaced=False),
    _stored("Policy", "policies", "v1", namespaced=True),
    short="cpol",
    segment="policies",
    native="ValidatingAdmissionPolicy",
)
CLEANUP_POLICY: Final = PolicyKind(
    _stored("ClusterCleanupPolicy", "clustercleanuppolicies", "v2", namespaced=False),
    _stored("CleanupPolicy", "cleanuppolicies", "v2", namespaced=True),
    short="ccleanpol",
)
VALIDATING_POLICY: Final = PolicyKind(
    *_twins("ValidatingPolicy"),
    short="vpol",
    rule_type="validate",
    segment="celpolicies",
    source="KyvernoValidatingPolicy",
    validating=ReviewPath("vpol.validate.kyverno.svc", "/vpol", "/nvpol-keys"),
    judges_payloads=True,
    native="ValidatingAdmissionPolicy",
)
MUTATING_POLICY: Final = PolicyKind(
    *_twins("MutatingPolicy"),
    short="mpol",
    rule_type="mutate",
    segment="mutatingpolicies",
    source="KyvernoMutatingPolicy",
    # KYVERNO: the name of this mutating webhook contains ``validate``, too.
    mutating=ReviewPath("mpol.validate.kyverno.svc", "/mpol", "/nmpol-keys"),
    native="MutatingAdmissionPolicy",
    functions=FUNCTIONS | {"generators", "patches"},
)
IMAGE_VALIDATING_POLICY: Final = PolicyKind(
    *_twins("ImageValidatingPolicy"),
    short="ivpol",
    rule_type="verifyImages",
    segment="imagevalidating",
    source="KyvernoImageValidatingPolicy",
    validating=ReviewPath(
        "ivpol.validate.kyverno.svc", "/ivpol/validate", "/nivpol-keys"
    ),
    mutating=ReviewPath(
        "ivpol.mutate.kyverno.svc", "/ivpol/mutate", "/nivpol-mutate-keys"
    ),
    judges_payloads=True,
    functions=frozenset({"users", "verification"}),
)
GENERATING_POLICY: Final = PolicyKind(
    *_twins("GeneratingPolicy"),
    short="gpol",
    rule_type="generate",
    segment="generating",
    source="KyvernoGeneratingPolicy",
    validating=ReviewPath("gpol.validate.kyverno.svc", "/gpol", "/ngpol-keys"),
    functions=frozenset({"certificates", "generators"}),
)
DELETING_POLICY: Final = PolicyKind(
    *_twins("DeletingPolicy"), short="dpol", functions=frozenset({"certificates"})
)

IN_CEL: Final = {CLEANUP_POLICY.name: DELETING_POLICY}
"""The row in CEL whose policies can do all that those of a row do."""

POLICY_KINDS: Final = (
    CLUSTER_POLICY,
    CLEANUP_POLICY,
    VALIDATING_POLICY,
    MUTATING_POLICY,
    IMAGE_VALIDATING_POLICY,
    GENERATING_POLICY,
    DELETING_POLICY,
)
"""The order is that of upstream's webhook rules for these kinds."""
ROW_OF: Final[Mapping[str, PolicyKind]] = {
    name: row for row in POLICY_KINDS for name in row.names
}
"""The row of each kind."""
CEL_POLICY_KINDS: Final = tuple(row for row in POLICY_KINDS if row.is_in_cel)
REVIEWED_CEL_KINDS: Final = tuple(row for row in CEL_POLICY_KINDS if row.segment)
"""Those that reviews evaluate; a pool reads the others itself."""
OF_TYPE: Final[Mapping[str, PolicyKind]] = {
    row.rule_type: row for row in reversed(REVIEWED_CEL_KINDS)
}
"""The first kind in CEL for results of each type, in which rules can be rewritten."""
OF_PAYLOADS: Final = tuple(row for row in CEL_POLICY_KINDS if row.judges_payloads)
"""Those that judge JSON payloads, in one of their modes."""
CEL_SEGMENTS: Final = tuple(row.segment for row in REVIEWED_CEL_KINDS)
SEGMENT_OF: Final[Mapping[str, str]] = {
    name: row.segment for row in REVIEWED_CEL_KINDS for name in row.names
}
"""The segment of each kind in CEL."""
WITH_RULES: Final = CLUSTER_POLICY
"""The kind of policies of rules, which have a type of results each."""
OF_AUTHORIZERS: Final = VALIDATING_POLICY
"""The kind of policies that authorize requests of proxies, in some of its modes."""
KIND_OF: Final[Mapping[str, PolicyKind]] = {
    row.segment: row for row in POLICY_KINDS if row.segment
}
"""The kind of each segment."""
API_VERSIONS: Final[Mapping[str, tuple[str, ...]]] = {
    stored.kind: stored.api_versions for row in POLICY_KINDS for stored in row.stored
}
"""The values of ``apiVersion`` of each kind."""
POLICY_EXCEPTION: Final = _stored(
    "PolicyException", "policyexceptions", "v2", namespaced=True
)
CEL_POLICY_EXCEPTION: Final = StoredKind(
    "PolicyException",
    "policyexceptions",
    CEL_GROUP,
    _CEL_READ,
    _CEL_VERSIONS,
    namespaced=True,
)


def rule_type_of(kind: str) -> str:
    """Return the type of the results of a kind's policies, "" if it has none."""
    row = ROW_OF.get(kind)
    return "" if row is None else row.rule_type
