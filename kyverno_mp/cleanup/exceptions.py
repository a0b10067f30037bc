"""Follow the PolicyExceptions that name DeletingPolicies.

Room: cleanup. Takes: a Client, the operator's settings for exceptions. Gives:
Exceptions. Next: cleanup/start.py. May touch: the API server through kube/cache.py.
Source: docs/behaviour/cel 10.3; docs/behaviour/controllers 14 (27: upstream's clean-up
controller never enables them); docs/differences.md.

While the exceptions are uncertain, no run begins: before they are listed, while their
watch is interrupted, or while their kind is defined but not served. If their
CustomResourceDefinition is not installed, there are no exceptions.
"""

import hashlib
import threading
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from kyverno_mp.cleanup.policy import StoredPolicy
from kyverno_mp.errors import DependencyError, KubeUnavailable
from kyverno_mp.kube.cache import Informer
from kyverno_mp.kube.definitions import check_undefined
from kyverno_mp.kube.policy_resources import CEL_EXCEPTIONS
from kyverno_mp.kube.rest import Client
from kyverno_mp.kube.watch import WatchScope
from kyverno_mp.policy.cel_kinds.validating_policy import (
    CelPolicyException,
    decode_cel_exception,
)
from kyverno_mp.pool.stored import names_policy, namespace_of_exceptions
from kyverno_mp.settings.settings import Settings

_NOT_LISTED: Final = "not listed yet"
_IDLE_FIELDS: Final = ("managedFields", "resourceVersion", "selfLink")


class Exceptions:
    """The exceptions of the cluster; threads may share it."""

    def __init__(self, client: Client, settings: Settings) -> None:
        self._namespace = settings.exceptions_in
        """The namespace whose exceptions apply: "" = none, "*" = all."""
        self._client = client
        self.informer = Informer(client, WatchScope(resource=CEL_EXCEPTIONS), _text)
        self.informer.on_change(self._forget)
        self._lock = threading.Lock()
        self._changes = 0
        self._absent_at = 0
        """The number of watch failures at which the kind was found to be undefined."""
        self._found: dict[tuple[str, str, str], tuple[bytes, list[bytes]]] = {}

    @property
    def informers(self) -> Sequence[Informer[bytes]]:
        """The informers to run; empty if exceptions are disabled."""
        return (self.informer,) if self._namespace else ()

    def on_change(self, act: Callable[[], None]) -> None:
        """Call ``act`` when exceptions may have changed."""
        self.informer.on_notified(act)

    def digest(self, stored: StoredPolicy) -> bytes:
        """Return a digest of the exceptions that name a policy.

        Raises: KubeUnavailable if the exceptions are unknown. Cost: after a change, one
        pass over all exceptions.
        """
        return self._of(stored)[0]

    def naming(self, stored: StoredPolicy) -> list[CelPolicyException]:
        """Return the exceptions that name a policy.

        Raises: KubeUnavailable; DocumentInvalid, if one cannot be read.
        """
        return [
            decode_cel_exception(msgspec.json.decode(raw))
            for raw in self._of(stored)[1]
        ]

    def _of(self, stored: StoredPolicy) -> tuple[bytes, list[bytes]]:
        if not self._namespace:
            return b"", []
        self._check_known()
        key = (stored.kind, stored.namespace, stored.name)
        with self._lock:
            entry, changes = self._found.get(key), self._changes
        if entry is None:
            entry = self._read(stored)
            with self._lock:
                if changes == self._changes:
                    self._found[key] = entry
        return entry

    def _check_known(self) -> None:
        informer = self.informer
        failures, reason = informer.failures, informer.last_error or _NOT_LISTED
        if informer.synced and not failures:
            return
        if informer.is_absent:
            if failures == self._absent_at:
                return
            try:
                check_undefined(self._client, CEL_EXCEPTIONS)
            except DependencyError as error:
                reason = error.message
            else:
                self._absent_at = failures
                return
        message = f"PolicyExceptions are not known: {reason}"
        raise KubeUnavailable("cleanup.exceptions", message)

    def _read(self, stored: StoredPolicy) -> tuple[bytes, list[bytes]]:
        only = namespace_of_exceptions(self._namespace, stored.namespace)
        documents = [
            raw
            for (namespace, _), raw in sorted(self.informer.snapshot().items())
            if only in ("", namespace)
            and names_policy(msgspec.json.decode(raw), stored.kind, stored.name)
        ]
        digest = hashlib.blake2b(b"\0".join(documents), digest_size=16).digest()
        return (digest if documents else b""), documents

    def _forget(self, _key: object) -> None:
        with self._lock:
            self._changes += 1
            self._found = {}


def _text(raw: msgspec.Raw) -> bytes:
    """Keep the parts of an exception that affect the decision."""
    document = msgspec.json.decode(raw)
    document.pop("status", None)
    for name in _IDLE_FIELDS:
        document["metadata"].pop(name, None)
    # K8S: the items of a list may lack these fields.
    document.update(kind=CEL_EXCEPTIONS.kind, apiVersion=CEL_EXCEPTIONS.api_version)
    return msgspec.json.encode(document)
