"""Read MutatingPolicies and their exceptions live, and link them.

Room: background. Takes: a Client, the key of a policy. Gives: LiveMutators,
ReadyMutating. Next: background/mutate/mutating.py. May touch: the API server
through kube/apply.py and kube/watch.py.
Source: docs/behaviour/cel 10.1; docs/background.md (MutatingPolicies).

A policy is read live for each UpdateRequest, because admission may have seen a newer
version than a watch here. Each version is linked once.
"""

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from kyverno_mp.background.policies import affordable, typed
from kyverno_mp.compiler.cel_kinds.mutating_policy import (
    compile_mutating_with_exceptions,
)
from kyverno_mp.compiler.cel_kinds.validating_policy import EXCEPTION_NAMES
from kyverno_mp.errors import KubeNotFound, PolicyInvalid, Where
from kyverno_mp.expr.compile_budget import CompileBudget, bounded
from kyverno_mp.ir.cel_policies import MutatingPolicyIR
from kyverno_mp.kube.definitions import check_undefined, find_defined
from kyverno_mp.kube.policy_resources import CEL_EXCEPTIONS, resources_of
from kyverno_mp.kube.rest import Client
from kyverno_mp.kube.watch import WatchScope, list_all
from kyverno_mp.limits import LINKED_RULES_MAX
from kyverno_mp.policy.cel_kinds.policies import MutatingPolicy
from kyverno_mp.policy.cel_kinds.served import decode_served, is_served
from kyverno_mp.policy.cel_kinds.validating_policy import (
    CelPolicyException,
    decode_cel_exception,
)
from kyverno_mp.pool.stored import names_policy, namespace_of_exceptions
from kyverno_mp.program.cel_policies.mutate import LinkedMutatingPolicy
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.policy_kinds import MUTATING_POLICY

CEL_MUTATORS: Final = resources_of(MUTATING_POLICY)
_Version = tuple[str, str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class ReadyMutating:
    """A compiled and linked policy."""

    linked: LinkedMutatingPolicy
    uid: str

    @property
    def ir(self) -> MutatingPolicyIR:
        """The compiled record."""
        return self.linked.ir


class LiveMutators:
    """The policies of the cluster; threads may share it."""

    def __init__(self, client: Client, exceptions_in: str) -> None:
        """``exceptions_in``: the namespace whose exceptions apply, ``*`` = all."""
        self._client = client
        self._exceptions_in = exceptions_in
        self._lock = threading.Lock()
        self._known: dict[str, tuple[_Version, ReadyMutating]] = {}

    def ready(self, key: str) -> ReadyMutating | None:
        """Return a policy by ``name`` or ``namespace/name``; None if it is gone.

        Raises: PolicyInvalid, DependencyError.
        """
        namespace, _, name = key.rpartition("/")
        resource = CEL_MUTATORS[bool(namespace)]
        raw = find_defined(self._client, resource, (namespace, name))
        if raw is None:
            return None
        exceptions = list(self._exceptions(resource.kind, namespace, name))
        metadata = raw["metadata"]
        version = (
            str(metadata.get("uid") or ""),
            str(metadata.get("generation") or ""),
            tuple(sorted(stamp for stamp, _ in exceptions)),
        )
        with self._lock:
            cached = self._known.get(key)
        if cached is not None and cached[0] == version:
            return cached[1]
        named = [exception for _, exception in exceptions]
        ready = ReadyMutating(_linked(typed(raw, resource), named), version[0])
        with self._lock:
            if len(self._known) >= LINKED_RULES_MAX:
                self._known.clear()
            self._known[key] = version, ready
        return ready

    def _exceptions(
        self, kind: str, namespace: str, name: str
    ) -> Iterator[tuple[str, CelPolicyException]]:
        """Yield the exceptions that name the policy, each with its version."""
        if not self._exceptions_in:
            return
        searched = namespace_of_exceptions(self._exceptions_in, namespace)
        listed: list[Json] = []
        scope = WatchScope(resource=CEL_EXCEPTIONS, namespace=searched)
        try:
            list_all(
                self._client,
                scope,
                lambda raw: listed.append(msgspec.json.decode(raw)),
                restart=listed.clear,
            )
        except KubeNotFound:
            check_undefined(self._client, CEL_EXCEPTIONS)
            return
        for raw in listed:
            if not names_policy(raw, kind, name):
                continue
            try:
                exception = decode_cel_exception(typed(raw, CEL_EXCEPTIONS))
            except PolicyInvalid:
                # As in the webhook, an invalid exception is ignored.
                continue
            version = raw["metadata"].get("resourceVersion") or ""
            yield f"{exception.key}@{version}", exception


def _linked(raw: Json, exceptions: list[CelPolicyException]) -> LinkedMutatingPolicy:
    """Compile and link a policy. Raises: PolicyInvalid."""
    document = decode_served(raw) if is_served(raw) else None
    if not isinstance(document, MutatingPolicy):
        location = Where(policy=str((raw.get("metadata") or {}).get("name")))
        raise PolicyInvalid("background.policy", "the document is no policy", location)
    with bounded(CompileBudget()):
        # Which exceptions fit the budget depends on their order.
        compiled, _ = compile_mutating_with_exceptions(
            document,
            sorted(exceptions, key=lambda exception: exception.key),
            EXCEPTION_NAMES,
        )
    return LinkedMutatingPolicy(affordable(compiled))
