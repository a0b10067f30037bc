"""Follow the API server's own admission policies that are reported.

Room: reports. Takes: a Client, the settings, the served resources. Gives:
AdmissionPolicies, whose ``rules`` become part of the plan. Next:
reports/scan/coordinator.py uses the rules, reports/policies/admission_rules.py
evaluates the documents. May touch: the API server through kube; informers' threads; the
log.
Source: Kyverno pkg/controllers/report/{resource,background}/controller.go;
docs/reports.md.

KYVERNO: only policies with the label reports.kyverno.io/enabled: "true" are reported.
"""

import hashlib
import itertools
import logging
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from kyverno_mp.kube.cache import Informer
from kyverno_mp.kube.events import Reference
from kyverno_mp.kube.resource import Resource
from kyverno_mp.kube.rest import Client
from kyverno_mp.kube.watch import WatchScope
from kyverno_mp.limits import REPORTS_POLICIES_BYTES_MAX
from kyverno_mp.program.reporting import DISABLED
from kyverno_mp.reports.fingerprints import key_of_names
from kyverno_mp.reports.named import Named
from kyverno_mp.reports.plan import ScannedRule
from kyverno_mp.settings.settings import Settings
from kyverno_mp.values.jsonvalue import Json

_log = logging.getLogger(__name__)
GROUP: Final = "admissionregistration.k8s.io"
VALIDATING: Final = "ValidatingAdmissionPolicy"
MUTATING: Final = "MutatingAdmissionPolicy"
_ENABLED: Final = ("reports.kyverno.io/enabled", "true")
_ANNOTATIONS: Final = "policies.kyverno.io/"
_PLURALS: Final = {
    VALIDATING: "validatingadmissionpolicies",
    MUTATING: "mutatingadmissionpolicies",
}
_VERSIONS: Final = {VALIDATING: ("v1",), MUTATING: ("v1beta1", "v1alpha1")}
"""The supported versions, newest first."""
_DIGEST_BYTES: Final = 16
_ENCODER: Final = msgspec.json.Encoder(order="deterministic")
Served = Callable[[str, str], Resource | None]
"""Returns the resource of an apiVersion and kind, or None if it is not served."""


class _Metadata(msgspec.Struct):
    name: str = ""
    uid: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _Constraint(msgspec.Struct, rename="camel"):
    api_groups: tuple[str, ...] = ()
    api_versions: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()


class _Constraints(msgspec.Struct, rename="camel"):
    resource_rules: tuple[_Constraint, ...] = ()


class _Spec(msgspec.Struct, rename="camel"):
    policy_name: str = ""
    match_constraints: _Constraints | None = None


class _Raw(msgspec.Struct):
    metadata: _Metadata
    spec: msgspec.Raw


class _Document(msgspec.Struct, frozen=True):
    """Data kept about a policy or binding; ``raw``: the parts that affect results."""

    name: str
    policy: str
    named: tuple[Named, ...]
    raw: bytes
    reference: Reference


_RAW: Final = msgspec.json.Decoder(_Raw)
_SPEC: Final = msgspec.json.Decoder(_Spec)


_Keeps = Callable[[Mapping[str, str]], bool]


def _is_reported(labels: Mapping[str, str]) -> bool:
    return labels.get(_ENABLED[0]) == _ENABLED[1]


def _is_not_disabled(labels: Mapping[str, str]) -> bool:
    return DISABLED not in labels


def _always(_labels: Mapping[str, str]) -> bool:
    return True


class _Kind:
    """The policies and bindings of one kind."""

    def __init__(
        self,
        client: Client,
        kind: str,
        policies: Resource,
        bindings: Resource,
        changed: Callable[[], None],
    ) -> None:
        self.kind = kind
        self.version = policies.version
        api_version = policies.api_version
        # KYVERNO: bindings of mutating policies cannot be excluded.
        keeps = _is_not_disabled if kind == VALIDATING else _always
        self.policies = Informer(
            client,
            WatchScope(resource=policies, label_selector="=".join(_ENABLED)),
            lambda raw: _document(raw, api_version, kind, _is_reported),
        )
        self.bindings = Informer(
            client,
            WatchScope(resource=bindings),
            lambda raw: _document(raw, api_version, f"{kind}Binding", keeps),
        )
        for informer in self.informers:
            informer.on_change(lambda _key: changed())

    @property
    def informers(self) -> tuple[Informer[_Document], Informer[_Document]]:
        """The informers of policies and bindings."""
        return self.policies, self.bindings

    @property
    def is_known(self) -> bool:
        """Whether policies and bindings were listed or are not served."""
        return all(informer.synced or informer.is_absent for informer in self.informers)

    @property
    def is_refused(self) -> bool:
        """Whether the API server rejects the lists, perhaps permanently."""
        return any(informer.is_refused for informer in self.informers)

    def rules(self) -> list[ScannedRule]:
        """Return the policies to evaluate, with their bindings."""
        if not all(informer.synced for informer in self.informers):
            return []
        bindings = sorted(
            self.bindings.snapshot().values(), key=lambda binding: binding.name
        )
        policies = sorted(
            self.policies.snapshot().values(), key=lambda policy: policy.name
        )
        return [
            _rule(self.kind, policy, [b for b in bindings if b.policy == policy.name])
            for policy in policies
        ]


class AdmissionPolicies:
    """The policies in force; used by one thread, changed by the informers' threads."""

    def __init__(self, client: Client, settings: Settings) -> None:
        self._client = client
        self._kinds: dict[str, _Kind] = {}
        self._wanted = _wanted(settings)
        self._changes = 0
        self._numbers = itertools.count(1)
        self._read: tuple[int, frozenset[str]] | None = None
        self._rules: tuple[ScannedRule, ...] = ()
        self.left_out = 0
        """Number of policies that are not reported, because there are too many."""

    def follow(self, served: Served) -> None:
        """Start to watch the kinds that the API server serves now."""
        for kind in self._wanted:
            served_resources = _served(kind, served)
            followed = self._kinds.get(kind)
            if followed is not None and (
                served_resources is None
                or served_resources[0].version != followed.version
            ):
                _stop(self._kinds.pop(kind))
                self._changed()
                followed = None
            if followed is None and served_resources is not None:
                followed_kind = _Kind(
                    self._client, kind, *served_resources, self._changed
                )
                self._kinds[kind] = followed_kind
                for informer in followed_kind.informers:
                    informer.start()

    def stop(self) -> None:
        """Stop all watches."""
        for kind in self._kinds.values():
            _stop(kind)

    @property
    def informers(self) -> list[Informer[_Document]]:
        """The informers of all kinds."""
        return [
            informer for kind in self._kinds.values() for informer in kind.informers
        ]

    @property
    def unknown(self) -> frozenset[str]:
        """The kinds whose policies ``rules`` lacks; rows in reports may be theirs."""
        kinds = self._kinds.values()
        return frozenset(kind.kind for kind in kinds if not kind.is_known)

    @property
    def is_awaited(self) -> bool:
        """Whether another kind will probably be known soon."""
        return any(
            not kind.is_known and not kind.is_refused for kind in self._kinds.values()
        )

    @property
    def has_changed(self) -> bool:
        """Whether ``rules`` may return a new result."""
        return self._read != (self._changes, self.unknown)

    def rules(self) -> tuple[ScannedRule, ...]:
        """Return the policies as rules of the plan."""
        # Read first, so that a later change is noticed next time. An informer without
        # objects reports no change, but makes its kind known.
        now = (self._changes, self.unknown)
        if self._read == now:
            return self._rules
        self._read = now
        free_bytes = REPORTS_POLICIES_BYTES_MAX
        rules: list[ScannedRule] = []
        scanned_rules = [rule for kind in self._kinds.values() for rule in kind.rules()]
        for scanned in scanned_rules:
            free_bytes -= len(scanned.document)
            if free_bytes < 0:
                break
            rules.append(scanned)
        self.left_out = len(scanned_rules) - len(rules)
        self._rules = tuple(rules)
        return self._rules

    def _changed(self) -> None:
        # An increment of an attribute could restore an older number.
        self._changes = next(self._numbers)


def _stop(kind: _Kind) -> None:
    for informer in kind.informers:
        informer.stop()


def _wanted(settings: Settings) -> list[str]:
    if not settings.reports_scan:
        return []
    query = {
        VALIDATING: settings.reports_validating_admission_policies,
        MUTATING: settings.reports_mutating_admission_policies,
    }
    return [kind for kind, is_on in query.items() if is_on]


def _served(kind: str, served: Served) -> tuple[Resource, Resource] | None:
    for version in _VERSIONS[kind]:
        policies = served(f"{GROUP}/{version}", kind)
        bindings = served(f"{GROUP}/{version}", f"{kind}Binding")
        if policies is not None and bindings is not None:
            return policies, bindings
    return None


def _document(
    raw: msgspec.Raw | bytes, api_version: str, kind: str, keeps: _Keeps
) -> _Document | None:
    """Keep the parts that affect results. ``keeps``: filters by labels."""
    decoded = _RAW.decode(raw)
    metadata = decoded.metadata
    if not keeps(metadata.labels or {}):
        return None
    annotations = {
        key: value
        for key, value in (metadata.annotations or {}).items()
        if key.startswith(_ANNOTATIONS)
    }
    document: Json = {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {"name": metadata.name, "annotations": annotations},
        "spec": msgspec.json.decode(decoded.spec),
    }
    spec = _SPEC.decode(decoded.spec)
    constraints = spec.match_constraints or _Constraints()
    named = tuple(
        Named(group, version, resource)
        for rule in constraints.resource_rules
        for group in rule.api_groups
        for version in rule.api_versions
        for resource in rule.resources
    )
    reference = Reference(api_version, kind, metadata.name, uid=metadata.uid)
    content = _ENCODER.encode(document)
    return _Document(metadata.name, spec.policy_name, named, content, reference)


def _rule(kind: str, policy: _Document, bindings: list[_Document]) -> ScannedRule:
    document = (
        b"[" + b",".join((policy.raw, *(binding.raw for binding in bindings))) + b"]"
    )
    digest = hashlib.blake2b(document, digest_size=_DIGEST_BYTES).digest()
    return ScannedRule(
        namespace="",
        kinds=(),
        digest=digest,
        # ``namespaceObject`` is available in every expression.
        reads_labels=True,
        reads_data=False,
        named=policy.named,
        document=document,
        key=key_of_names((kind, policy.name)),
        policy=policy.reference,
    )
