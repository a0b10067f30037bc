"""Define the decoded admission request, which matching and rules read.

Room: program. Takes: built by admission.decode, cli and background. Gives: Request,
read by program.matching, program.context and all handlers; never changed afterwards.
Source: Kubernetes AdmissionRequest v1; docs/behaviour/engine 1.3, 1.7, 3.4.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from operator import attrgetter
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from kyverno_mp.values.effort import Charge, uncharged
from kyverno_mp.values.jsonvalue import Json

EMPTY_OBJECT: Final[dict[str, Json]] = {}
"""A read-only object without labels, so ``NotIn`` and ``DoesNotExist`` select it.

KYVERNO: the CLI passes it as ``oldObject`` to the engines of policies.kyverno.io
(docs/behaviour/cel 3). In a cluster, the API server evaluates the selector first,
without this quirk.
"""


UNREAD_LABELS: Final[Mapping[str, str]] = MappingProxyType({})
"""The labels of a namespace if nothing lists namespaces."""


def unread_labels(namespace: str) -> str:
    """Return why a selector of namespaces cannot be evaluated."""
    return (
        f'the labels of namespace "{namespace}" are unknown: without a cluster, the'
        " service reads Namespaces from --resources (KYVERNO_MP_RESOURCES_DIR)"
    )


class VerifiedImages(Protocol):
    """What verifyImages rules have verified (program/images/record.py)."""

    problem: str
    """Why nothing is known, or ""."""

    def verified(self, key: tuple[str, str], reference: str, /) -> str:
        """Return ``pass`` or ``skip`` if the rule ``key`` has verified it, or ""."""


Observer = Callable[[object], None]
"""Called with a policy."""


@dataclass(slots=True, kw_only=True)
class Request:
    """The operation, the user and the object of a request.

    ``object`` is the new object ({} if absent, e.g. on DELETE), ``old_object`` the old
    object ({} if absent). ``group``/``version``/``kind``/``subresource`` are the values
    that policies match (the AdmissionRequest's ``kind``, not ``requestKind``).
    ``review_request`` is the decoded AdmissionRequest, which becomes ``request`` in the
    JSON context; it is None in the CLI and in background scans, where the context
    contains only object/oldObject, namespace, operation and the given user info.
    ``ints_are_numbers``: see expr.scope.Runtime. ``namespace_labels``: labels of the
    request's namespace, {} if unknown. ``variables``: CLI only; trees merged into the
    JSON context next to ``request``, e.g. ``{"dictionary": {"data": {"env": "dev"}}}``;
    ``rule_variables``: variables by rule name, merged when the rule's context is loaded
    (docs/behaviour/cli 7b). ``size``: bytes of the review, 0 if no client waits for the
    response; code may visit whole objects without charging only if they are small.
    ``charge``: charges the steps of matching; set when the context is created.
    """

    operation: str = "CREATE"
    group: str = ""
    version: str = "v1"
    kind: str = ""
    subresource: str = ""
    name: str = ""
    namespace: str = ""
    object: dict[str, Json] = field(default_factory=dict)
    old_object: dict[str, Json] = field(default_factory=dict)
    username: str = ""
    groups: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    cluster_roles: tuple[str, ...] = ()
    has_user_info: bool = False
    """False in background scans, where match filters drop user criteria (engine
    1.6)."""
    dry_run: bool = False
    uid: str = ""
    namespace_labels: dict[str, str] = field(default_factory=dict)
    namespace_known: bool = True
    """False if the list of namespaces lacks this one; then no PolicyException matches
    (docs/behaviour/engine 8.7)."""
    labels_known: bool = True
    """False if nothing lists namespaces, so that a selector of namespaces cannot be
    evaluated."""
    review_request: dict[str, Json] | None = None
    ints_are_numbers: bool = False
    variables: dict[str, Json] = field(default_factory=dict)
    size: int = 0
    charge: Charge = uncharged
    rule_variables: dict[str, dict[str, Json]] = field(default_factory=dict)
    verified_images: "VerifiedImages | None" = None
    """CLI only: what verifyImages rules of this run have verified."""
    observer: "Observer | None" = None
    """Called with each policy whose evaluation begins, for traces."""


_NAMES: Final = tuple(each.name for each in fields(Request))
_values = attrgetter(*_NAMES)


class RequestKind(NamedTuple):
    """The request's data that constraints without names and selectors depend on."""

    group: str
    version: str
    resource: str
    subresource: str
    operation: str
    is_namespaced: bool


def copy_of(request: Request) -> Request:
    """Return a shallow copy. PERF: ``dataclasses.replace`` takes twice as long."""
    copied = object.__new__(Request)
    for name, value in zip(_NAMES, _values(request), strict=True):
        setattr(copied, name, value)
    return copied
