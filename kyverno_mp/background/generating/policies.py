"""Follow GeneratingPolicies and their exceptions, and link each version once.

Room: background. Takes: a Client. Gives: GeneratingPolicies, ReadyGenerating.
Next: background/generating/run.py, background/generating/events.py. May touch: the API
server through kube; informers' threads.
Source: docs/behaviour/cel 2.2, 10.2; Kyverno pkg/cel/policies/gpol/engine/fetch.go.
"""

import threading
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from kyverno_mp.background.policies import (
    PolicyMetadata,
    StoredPolicy,
    kept_policy,
    policy_key,
    policy_name,
)
from kyverno_mp.background.stored import check_listed
from kyverno_mp.compiler.cel_kinds.policies import (
    EXCEPTION_NAMES_OF_GENERATING,
    compile_generating_with,
)
from kyverno_mp.compiler.cel_kinds.review import review
from kyverno_mp.compiler.linked_size import exceptions_over_budget
from kyverno_mp.errors import KubeNotFound, KubeUnavailable, PolicyInvalid, Where
from kyverno_mp.expr.compile_budget import CompileBudget, bounded
from kyverno_mp.ir.cel_policies import GeneratingPolicyIR
from kyverno_mp.kube.apply import Objects, key_of
from kyverno_mp.kube.cache import Informer, Project
from kyverno_mp.kube.policy_resources import CEL_EXCEPTIONS, resources_of
from kyverno_mp.kube.resource import Key, Resource
from kyverno_mp.kube.rest import Client
from kyverno_mp.kube.watch import WatchScope, list_all
from kyverno_mp.policy.cel_kinds.policies import GeneratingPolicy, decode_cel_policy
from kyverno_mp.policy.cel_kinds.validating_policy import (
    CelPolicyException,
    decode_validating_policy,
)
from kyverno_mp.policy.problems import DocumentInvalid
from kyverno_mp.program.cel_policies.generate import LinkedGeneratingPolicy
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.policy_kinds import GENERATING_POLICY

GENERATING_POLICIES, NAMESPACED_GENERATING_POLICIES = resources_of(GENERATING_POLICY)
_DELETE: Final = "DELETE"
_CREATE: Final = "CREATE"
_UPDATE: Final = "UPDATE"
_ANY: Final = "*"


class _Head(msgspec.Struct):
    metadata: PolicyMetadata


_HEAD: Final = msgspec.json.Decoder(_Head)


def stored_policy(resource: Resource, raw: bytes | msgspec.Raw) -> StoredPolicy | None:
    """Read a policy; None while it is being deleted. Raises: msgspec.DecodeError."""
    return kept_policy(resource, _HEAD.decode(raw).metadata, raw)


class ReadyGenerating(msgspec.Struct, frozen=True):
    """A compiled and linked policy.

    ``version``: uid and generation of the policy, and its PolicyExceptions with their
    versions.
    """

    stored: StoredPolicy
    linked: LinkedGeneratingPolicy
    version: tuple[str, int, tuple[str, ...]]

    @property
    def ir(self) -> GeneratingPolicyIR:
        """The compiled record."""
        return self.linked.ir

    @property
    def name(self) -> str:
        """``name`` or ``namespace/name``, as in UpdateRequests."""
        return self.stored.name

    def is_older_than(self, trigger: Json) -> bool:
        """Return whether the object is newer than the policy and its CREATE matches."""
        created = str(trigger["metadata"].get("creationTimestamp") or "")
        # K8S: creation times are in UTC, in whole seconds.
        is_listed = self.assumed_operation == _CREATE
        return (
            is_listed
            and created > _HEAD.decode(self.stored.raw).metadata.creation_timestamp > ""
        )

    @property
    def reads_secrets(self) -> bool:
        """Whether an expression may read Secrets, so that errors may quote them."""
        return b"secrets" in self.stored.raw

    @property
    def deletes_with_policy(self) -> bool:
        """Whether its generated objects are deleted with it."""
        return self.ir.synchronizes and not self.ir.orphans_downstream

    @property
    def operations(self) -> frozenset[str]:
        """The operations that its rules list."""
        constraints = self.ir.constraints
        rules = () if constraints is None else constraints.rules
        return frozenset(operation for rule in rules for operation in rule.operations)

    @property
    def deletes_on_delete(self) -> bool:
        """Whether a rule lists DELETE by name, so that deletions generate objects."""
        return _DELETE in self.operations

    @property
    def assumed_operation(self) -> str:
        """The operation for an existing trigger: one that the rules list."""
        listed = self.operations
        if _UPDATE in listed and not listed & {_CREATE, _ANY}:
            return _UPDATE
        return _CREATE

    def operation_of(self, asked: str) -> str:
        """Return the operation to evaluate: ``asked`` if the rules list it."""
        listed = self.operations
        return asked if asked in listed or _ANY in listed else self.assumed_operation


class GeneratingPolicies:
    """The policies of the cluster; threads may share it."""

    def __init__(self, client: Client, exceptions_in: str) -> None:
        """``exceptions_in``: the namespace whose exceptions apply, ``*`` = all."""
        self._client = client
        self._objects = Objects(client)
        self._exceptions_in = exceptions_in
        self.policies = [
            Informer(client, WatchScope(resource=one), _projection(one))
            for one in (GENERATING_POLICIES, NAMESPACED_GENERATING_POLICIES)
        ]
        self._exceptions = Informer(client, WatchScope(resource=CEL_EXCEPTIONS), bytes)
        self._lock = threading.Lock()
        self._kept: dict[Key, ReadyGenerating] = {}

    @property
    def informers(self) -> Iterator[Informer[StoredPolicy] | Informer[bytes]]:
        """All informers."""
        yield from self.policies
        yield from self.exceptions

    @property
    def exceptions(self) -> tuple[Informer[bytes], ...]:
        """The informer of the exceptions; empty if exceptions are disabled."""
        return (self._exceptions,) if self._exceptions_in else ()

    @property
    def synced(self) -> bool:
        """Whether all policies were listed at least once."""
        return all(one.synced for one in self.policies)

    def get(self, name: str) -> StoredPolicy | None:
        """Return a policy by ``name`` or ``namespace/name``; None if unknown."""
        key = policy_key(name)
        return self._of(key).get(key)

    def names(self) -> list[str]:
        """Return the names of all policies, ``name`` or ``namespace/name``."""
        return [policy_name(key) for one in self.policies for key in one.snapshot()]

    def live(self, name: str) -> StoredPolicy | None:
        """Read a policy from the API server; return None if it does not exist.

        Raises: KubeUnavailable while its kind is not served; DependencyError.
        """
        key = policy_key(name)
        resource = self._of(key).scope.resource
        raw = self._objects.find(resource, key)
        if raw is None:
            raw = self._listed(resource, key)
        if raw is None:
            return None
        return stored_policy(resource, msgspec.json.encode(raw))

    def _listed(self, resource: Resource, key: Key) -> Json | None:
        """Read a policy from a list, which fails if the kind is not served.

        K8S: the API server answers 404 both for a missing object and for an unserved
        kind, e.g. while its CRD is replaced.
        """
        found: list[Json] = []
        scope = WatchScope(
            resource=resource,
            namespace=key[0],
            field_selector=f"metadata.name={key[1]}",
        )
        try:
            list_all(
                self._client,
                scope,
                lambda raw: found.append(msgspec.json.decode(raw)),
                restart=found.clear,
            )
        except KubeNotFound as error:
            message = f"{resource.plural} are not served"
            raise KubeUnavailable("background.policy_kind", message) from error
        return next((one for one in found if key_of(one) == key), None)

    def newest(self, name: str) -> ReadyGenerating | None:
        """Return a policy; read it live if it is unknown or its watch is interrupted.

        Raises: PolicyInvalid, DependencyError.
        """
        informer = self._of(policy_key(name))
        stored = None if informer.failures else self.get(name)
        if stored is None:
            stored = self.live(name)
        return None if stored is None else self.ready(stored)

    def changed(self, policy: ReadyGenerating) -> ReadyGenerating | None:
        """Return the stored version of a policy, or None if it has not changed.

        Raises: PolicyInvalid, DependencyError.
        """
        live = self.live(policy.name)
        if live is None or live.uid != policy.stored.uid:
            return None
        ready = self.ready(live)
        return None if ready.version == policy.version else ready

    def ready(self, stored: StoredPolicy) -> ReadyGenerating:
        """Return the linked policy.

        Raises: PolicyInvalid, KubeUnavailable until the exceptions are known.
        """
        exceptions = self._naming(stored)
        version = (stored.uid, stored.metadata_generation, tuple(sorted(exceptions)))
        with self._lock:
            known = self._kept.get(stored.key)
        if known is not None and known.version == version:
            return known
        made = ReadyGenerating(stored, _linked(stored, exceptions), version)
        with self._lock:
            self._kept[stored.key] = made
        return made

    def forget(self, key: Key) -> None:
        """Drop the linked form of a deleted policy."""
        with self._lock:
            self._kept.pop(key, None)

    def _of(self, key: Key) -> Informer[StoredPolicy]:
        return self.policies[1 if key[0] else 0]

    def _naming(self, stored: StoredPolicy) -> dict[str, bytes]:
        """Return the exceptions that name a policy, by name and version.

        Exceptions to a namespaced policy must be in its own namespace or in the one
        that the operator has chosen, so that other tenants cannot disable it. Raises:
        the errors of ``check_listed``.
        """
        if not self._exceptions_in:
            return {}
        check_listed(self._client, self._exceptions)
        found: dict[str, bytes] = {}
        for key, raw in self._exceptions.snapshot().items():
            if self._exceptions_in not in ("*", key[0]):
                continue
            own = stored.key[0]
            is_limited = bool(own) and self._exceptions_in in ("*", own)
            if is_limited and key[0] != own:
                continue
            if _names(raw, stored):
                stamp = f"{'/'.join(key)}@{self._exceptions.version_of(key)}"
                found[stamp] = raw
        return found


def _projection(resource: Resource) -> Project[StoredPolicy]:
    return lambda raw: stored_policy(resource, raw)


def _names(raw: bytes, stored: StoredPolicy) -> bool:
    document: Json = msgspec.json.decode(raw)
    name = stored.key[1]
    return any(
        (policy_ref.get("name"), policy_ref.get("kind")) == (name, stored.kind)
        for policy_ref in (document.get("spec") or {}).get("policyRefs") or ()
    )


def _linked(
    stored: StoredPolicy, exceptions: Mapping[str, bytes]
) -> LinkedGeneratingPolicy:
    """Compile and link a policy; ignore exceptions that cannot be used.

    Raises: PolicyInvalid with the reason.
    """
    where = Where(policy=stored.name)
    raw = _typed(stored.raw, stored.kind)
    try:
        with bounded(CompileBudget()):
            policy = decode_cel_policy(raw)
            assert isinstance(policy, GeneratingPolicy)
            _check(policy, where)
            # Which exceptions fit the budget depends on their order.
            given = sorted(
                map(_exception, exceptions.values()), key=lambda one: one.key
            )
            ir, _ = compile_generating_with(
                policy, given, EXCEPTION_NAMES_OF_GENERATING
            )
    except DocumentInvalid as error:
        text = "; ".join(map(str, error.problems))
        raise PolicyInvalid("background.policy", text, where) from error
    dropped = exceptions_over_budget(ir.exceptions, stored.name)
    kept = tuple(
        exception for exception in ir.exceptions if exception.key not in dropped
    )
    return LinkedGeneratingPolicy(msgspec.structs.replace(ir, exceptions=kept))


def _check(policy: GeneratingPolicy, where: Where) -> None:
    problems = list(review(policy))
    if problems:
        raise DocumentInvalid(problems, where)


def _exception(raw: bytes) -> CelPolicyException:
    found = decode_validating_policy(_typed(raw, CEL_EXCEPTIONS.kind))
    assert isinstance(found, CelPolicyException)
    return found


def _typed(raw: bytes, kind: str) -> dict[str, Json]:
    """Add kind and apiVersion. K8S: the items of a list may lack them."""
    document: dict[str, Json] = msgspec.json.decode(raw)
    document.update(kind=kind, apiVersion=GENERATING_POLICIES.api_version)
    document.pop("status", None)
    return document
