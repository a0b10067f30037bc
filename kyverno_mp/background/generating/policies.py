"""Follow GeneratingPolicies and their exceptions, and link each version once.

Room: background. Takes: a Client. Gives: ``generators``, ReadyGenerating.
Next: background/generating/run.py, background/generating/events.py. May touch: the API
server through kube; informers' threads.
Source: docs/behaviour/cel 2.2, 10.2; Kyverno pkg/cel/policies/gpol/engine/fetch.go.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from kyverno_mp.background.policies import (
    PolicyMetadata,
    StoredPolicy,
    Version,
    affordable,
    kept_policy,
    typed,
)
from kyverno_mp.background.stored import LinkedPolicies
from kyverno_mp.compiler.cel_kinds.policies import (
    EXCEPTION_NAMES_OF_GENERATING,
    compile_generating_with,
)
from kyverno_mp.compiler.cel_kinds.review import review
from kyverno_mp.errors import KubeNotFound, KubeUnavailable, PolicyInvalid, Where
from kyverno_mp.expr.compile_budget import CompileBudget, bounded
from kyverno_mp.ir.cel_policies import GeneratingPolicyIR
from kyverno_mp.kube.apply import Objects, key_of
from kyverno_mp.kube.cache import Informer
from kyverno_mp.kube.policy_resources import CEL_EXCEPTIONS, resources_of
from kyverno_mp.kube.resource import Key, Resource
from kyverno_mp.kube.rest import Client
from kyverno_mp.kube.watch import WatchScope, list_all
from kyverno_mp.policy.cel_kinds.policies import GeneratingPolicy, decode_cel_policy
from kyverno_mp.policy.cel_kinds.validating_policy import (
    CelPolicyException,
    decode_cel_exception,
)
from kyverno_mp.policy.problems import DocumentInvalid
from kyverno_mp.pool.stored import (
    StoredPolicies,
    names_policy,
    namespace_of_exceptions,
)
from kyverno_mp.program.cel_policies.generate import LinkedGeneratingPolicy
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.policy_kinds import GENERATING_POLICY

CEL_GENERATORS: Final = resources_of(GENERATING_POLICY)
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
    """A compiled and linked policy."""

    stored: StoredPolicy
    linked: LinkedGeneratingPolicy
    version: Version

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

    def operation_of(self, operation: str) -> str:
        """Return the operation to evaluate: ``operation`` if the rules list it."""
        listed = self.operations
        return (
            operation
            if operation in listed or _ANY in listed
            else self.assumed_operation
        )


Generators = LinkedPolicies[ReadyGenerating]
"""The GeneratingPolicies of the cluster."""


def generators(client: Client, exceptions_in: str) -> Generators:
    """Follow GeneratingPolicies.

    ``exceptions_in``: the namespace whose exceptions apply, ``*`` = all, "" = none.
    """
    exceptions: Informer[bytes] | None = None
    if exceptions_in:
        exceptions = Informer(client, WatchScope(resource=CEL_EXCEPTIONS), bytes)

    def applies(stored: StoredPolicy, key: Key, raw: bytes) -> bool:
        only = namespace_of_exceptions(exceptions_in, stored.key[0])
        return only in ("", key[0]) and names_policy(
            msgspec.json.decode(raw), stored.kind, stored.key[1]
        )

    def find(resource: Resource, key: Key) -> Json | None:
        raw = Objects(client).find(resource, key)
        return _listed(client, resource, key) if raw is None else raw

    stored = StoredPolicies(client, CEL_GENERATORS, stored_policy, find)
    return LinkedPolicies(client, stored, exceptions, _ready, applies)


def _listed(client: Client, resource: Resource, key: Key) -> Json | None:
    """Read a policy from a list, which fails if the kind is not served.

    K8S: the API server answers 404 both for a missing object and for an unserved kind,
    e.g. while its CRD is replaced.
    """
    policies: list[Json] = []
    scope = WatchScope(
        resource=resource,
        namespace=key[0],
        field_selector=f"metadata.name={key[1]}",
    )
    try:
        list_all(
            client,
            scope,
            lambda raw: policies.append(msgspec.json.decode(raw)),
            restart=policies.clear,
        )
    except KubeNotFound as error:
        message = f"{resource.plural} are not served"
        raise KubeUnavailable("background.policy_kind", message) from error
    return next((policy for policy in policies if key_of(policy) == key), None)


def _ready(
    stored: StoredPolicy, exceptions: Iterable[bytes], version: Version
) -> ReadyGenerating:
    return ReadyGenerating(stored, _linked(stored, exceptions), version)


def _linked(
    stored: StoredPolicy, exceptions: Iterable[bytes]
) -> LinkedGeneratingPolicy:
    """Compile and link a policy; ignore exceptions that cannot be used.

    Raises: PolicyInvalid with the reason.
    """
    location = Where(policy=stored.name)
    resource = CEL_GENERATORS[bool(stored.key[0])]
    try:
        with bounded(CompileBudget()):
            policy = decode_cel_policy(typed(msgspec.json.decode(stored.raw), resource))
            assert isinstance(policy, GeneratingPolicy)
            _check(policy, location)
            # Which exceptions fit the budget depends on their order.
            documents = sorted(
                map(_exception, exceptions), key=lambda exception: exception.key
            )
            ir, _ = compile_generating_with(
                policy, documents, EXCEPTION_NAMES_OF_GENERATING
            )
    except DocumentInvalid as error:
        reason = "; ".join(map(str, error.problems))
        raise PolicyInvalid("background.policy", reason, location) from error
    return LinkedGeneratingPolicy(affordable(ir))


def _check(policy: GeneratingPolicy, location: Where) -> None:
    problems = list(review(policy))
    if problems:
        raise DocumentInvalid(problems, location)


def _exception(raw: bytes) -> CelPolicyException:
    return decode_cel_exception(typed(msgspec.json.decode(raw), CEL_EXCEPTIONS))
