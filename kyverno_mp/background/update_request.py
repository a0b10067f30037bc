"""Read stored UpdateRequests: which rules have to run for which trigger.

Room: background. Takes: an UpdateRequest as the API server stores it. Gives:
StoredRequest, Trigger, Task. Next: background/requests.py.
Source: docs/behaviour/controllers 1.4, 5.1, 5.2; docs/pools.md 3.
"""

from collections.abc import Iterator
from typing import Final, TypeAlias

import msgspec
from msgspec.structs import replace

from kyverno_mp.kube.resource import Key
from kyverno_mp.limits import GENERATED_OBJECTS_MAX
from kyverno_mp.queues.update_requests import (
    CHANGED,
    LOST_SINCE,
    SEEN_VERSION,
    UNCHECKED,
    UNPROVED,
)
from kyverno_mp.values.jsonvalue import Json

Place: TypeAlias = tuple[str, str, str]
"""Kind, namespace and name of a generated object."""
SOURCE: Final = "source"
GENERATE: Final = "generate"
MUTATE: Final = "mutate"
CEL_GENERATE: Final = "cel-generate"
"""The type of requests for GeneratingPolicies, and of their Tasks."""
CEL_MUTATE: Final = "cel-mutate"
PENDING: Final = "Pending"
FAILED: Final = "Failed"
COMPLETED: Final = "Completed"
_WAITS: Final = frozenset({"", PENDING, FAILED})
"""A request without a state was created but not marked yet."""


class Trigger(msgspec.Struct, frozen=True, rename="camel"):
    """The object that a rule matched."""

    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""

    @property
    def key(self) -> str:
        """Key of the trigger, by its uid if known; tasks of one key run in order."""
        who = self.uid or f"{self.namespace}/{self.name}"
        return f"{self.api_version}/{self.kind}/{who}"

    @property
    def is_nameless(self) -> bool:
        """Whether the trigger lacks a name and uid; its request carries the object."""
        return bool(self.kind) and not (self.name or self.uid)

    @property
    def shown(self) -> str:
        """The trigger's name for messages."""
        return f"{self.kind}/{self.namespace}/{self.name or self.uid}"


class Changed(msgspec.Struct, frozen=True, rename="camel"):
    """A clone source or generated object that a reviewed request changes.

    ``version``: resourceVersion before the request.
    """

    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    role: str = ""
    operation: str = ""
    version: str = ""

    @property
    def identity(self) -> Trigger:
        """Return the object's identity."""
        return Trigger(self.api_version, self.kind, self.namespace, self.name, self.uid)


_CHANGED: Final = msgspec.json.Decoder(Changed)


class User(msgspec.Struct, frozen=True):
    """The user who made the reviewed request."""

    username: str = ""
    groups: tuple[str, ...] | None = None


class UserInfo(msgspec.Struct, frozen=True, rename="camel"):
    """The user, with Roles and ClusterRoles."""

    roles: tuple[str, ...] | None = None
    cluster_roles: tuple[str, ...] | None = None
    user_info: User = User()


class _Admission(msgspec.Struct, rename="camel"):
    admission_request: dict[str, Json] | None = None
    operation: str = ""


class _Context(msgspec.Struct, rename="camel"):
    user_info: UserInfo = UserInfo()
    admission_request_info: _Admission = msgspec.field(default_factory=_Admission)


class _RuleContext(msgspec.Struct, rename="camel"):
    rule: str = ""
    delete_downstream: bool = False
    trigger: Trigger = Trigger()


class _Spec(msgspec.Struct, rename="camel"):
    request_type: str = GENERATE
    policy: str = ""
    rule: str = ""
    delete_downstream: bool = False
    resource: Trigger = Trigger()
    rule_context: list[_RuleContext] | None = None
    context: _Context = msgspec.field(default_factory=_Context)


class _Status(msgspec.Struct, rename="camel"):
    state: str = ""
    message: str = ""
    retry_count: int = 0
    generated_resources: tuple[Trigger, ...] | None = None


class _Metadata(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: str = ""
    annotations: dict[str, str] | None = None


class StoredRequest(msgspec.Struct):
    """One UpdateRequest."""

    metadata: _Metadata
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)

    @property
    def key(self) -> Key:
        """The namespace and name."""
        return self.metadata.namespace, self.metadata.name

    @property
    def waits(self) -> bool:
        """Whether the request is pending; as upstream, other states are ignored."""
        return self.status.state in _WAITS and not self.metadata.deletion_timestamp

    @property
    def is_ours(self) -> bool:
        """Whether this pool processes requests of this type."""
        return self.spec.request_type in (GENERATE, MUTATE, CEL_MUTATE, CEL_GENERATE)

    @property
    def queue_key(self) -> str:
        """The trigger's key; for several triggers, that of the first one."""
        contexts = self.spec.rule_context
        trigger = contexts[0].trigger if contexts else self.spec.resource
        if trigger.is_nameless:
            return f"{trigger.key}{self.metadata.name}"
        return trigger.key

    @property
    def changed(self) -> Changed | None:
        """Return the changed object, or None if the request is for a trigger."""
        annotation = (self.metadata.annotations or {}).get(CHANGED)
        try:
            return None if annotation is None else _CHANGED.decode(annotation)
        except msgspec.DecodeError:
            return None

    @property
    def lost_since_ns(self) -> int:
        """Return when triggers of the policy began to be lost; 0 = none were lost."""
        annotation = (self.metadata.annotations or {}).get(LOST_SINCE, "")
        return int(annotation) if annotation.isdecimal() else 0

    @property
    def is_unproved(self) -> bool:
        """Whether the reviews that may have triggered the policy had no proof."""
        return UNPROVED in (self.metadata.annotations or {})

    def tasks(self) -> Iterator["Task"]:
        """Yield the tasks of the request, in order."""
        spec = self.spec
        if spec.request_type in (MUTATE, CEL_MUTATE):
            kind = spec.request_type
            yield Task(kind, spec.policy, spec.rule, spec.resource, request=self)
            return
        if spec.request_type == CEL_GENERATE:
            yield from self._cel_tasks()
            return
        if not spec.rule_context and spec.rule:
            yield Task(
                *(GENERATE, spec.policy, spec.rule, spec.resource),
                deletes=spec.delete_downstream,
                request=self,
            )
        for context in spec.rule_context or ():
            yield Task(
                *(GENERATE, spec.policy, context.rule, context.trigger),
                deletes=context.delete_downstream,
                request=self,
            )

    def _cel_tasks(self) -> Iterator["Task"]:
        policy = self.spec.policy
        for context in self.spec.rule_context or ():
            yield Task(
                *(CEL_GENERATE, policy, policy.rpartition("/")[2], context.trigger),
                deletes=context.delete_downstream,
                request=self,
            )


class Task(msgspec.Struct, frozen=True):
    """One rule to run for one trigger. ``request`` None: caused by a policy event."""

    type: str
    policy: str
    rule: str
    trigger: Trigger
    deletes: bool = False
    """The trigger or a clone's source seems to be gone, or the trigger no longer
    matches."""
    request: StoredRequest | None = None
    is_late: bool = False
    """The task has waited long enough, so the trigger is used in its current state."""
    synchronizes: bool = False
    """Run the task only if the rule has ``synchronize``."""
    is_whole: bool = False
    """Write and delete all objects of the trigger as needed, even if it is gone."""
    gone_sources: frozenset[str] = frozenset()
    """The uids of clone sources that were deleted."""
    claims: frozenset[Place] | None = None
    """Objects whose labels name the trigger, if only labels identify it."""

    @property
    def deletes_clones(self) -> bool:
        """Whether to delete clones whose sources are not found."""
        return self.is_whole or bool(self.gone_sources)

    @property
    def operation(self) -> str:
        """Return the operation of the reviewed request, "" if there is none."""
        if self.request is None:
            return ""
        info = self.request.spec.context.admission_request_info
        admission = info.admission_request or {}
        return info.operation or str(admission.get("operation") or "")

    @property
    def admission(self) -> dict[str, Json]:
        """Return the stored AdmissionRequest, {} if there is none."""
        if self.request is None:
            return {}
        return self.request.spec.context.admission_request_info.admission_request or {}

    @property
    def user(self) -> UserInfo | None:
        """Return the user who made the request, or None."""
        if self.request is None:
            return None
        user_info = self.request.spec.context.user_info
        return user_info if user_info.user_info.username else None

    @property
    def is_unchecked(self) -> bool:
        """Whether the policy's conditions may not have been checked for the trigger."""
        if self.request is None:
            return True
        annotations = self.request.metadata.annotations or {}
        return UNCHECKED in annotations or LOST_SINCE in annotations

    @property
    def seen_version(self) -> str:
        """Return the trigger's version before the request, "" if unknown."""
        if self.request is None or self.is_late:
            return ""
        return (self.request.metadata.annotations or {}).get(SEEN_VERSION, "")


def joined(before: Task, later: Task) -> Task:
    """Return one task for two events of a GeneratingPolicy for the same trigger."""
    claims = later.claims
    if claims is not None:
        claims = None if before.claims is None else claims | before.claims
    if claims is not None and len(claims) > GENERATED_OBJECTS_MAX:
        claims = later.claims
    return replace(
        later,
        synchronizes=before.synchronizes and later.synchronizes,
        is_whole=before.is_whole or later.is_whole,
        gone_sources=before.gone_sources | later.gone_sources,
        claims=claims,
    )


_REQUEST: Final = msgspec.json.Decoder(StoredRequest)


def read_request(raw: bytes | msgspec.Raw) -> StoredRequest:
    """Read an UpdateRequest. Raises: msgspec.DecodeError."""
    return _REQUEST.decode(raw)


def number_of(version: str) -> int:
    """Return the version as a number. K8S: versions of one resource increase."""
    return int(version) if version.isdigit() else 0
