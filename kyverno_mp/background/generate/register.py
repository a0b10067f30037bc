"""Record the rules whose objects must be deleted with the rule or its policy.

Room: background. Takes: the rules of a policy. Gives: Register, kept in a ConfigMap.
Next: background/generate/policy_events.py. May touch: the API server through record.py.
Source: docs/behaviour/controllers 5.5 (delete rule/policy); docs/background.md.

Labels do not show whether an object is synchronised or may be orphaned, and a policy
that was deleted while no replica held the lease can no longer be read. So a rule is
recorded before its first object is written (``add``).
"""

import threading
from collections.abc import Callable
from typing import Final

import msgspec

from kyverno_mp.background.record import Record
from kyverno_mp.kube.rest import Client

_KEY: Final = "rules.json"

RuleKinds = dict[str, list[tuple[str, str]] | None]
"""Name of a rule -> (apiVersion, kind) of its objects; None = any kind."""
_DECODER: Final = msgspec.json.Decoder(dict[str, RuleKinds])


class Register:
    """The record; threads may share it."""

    def __init__(
        self, client: Client, namespace: str, guard: Callable[[], None]
    ) -> None:
        self._record = Record(client, namespace, guard, _KEY, _DECODER)
        self._lock = threading.Lock()

    def policies(self) -> list[str]:
        """Return the recorded policies. Raises: DependencyError."""
        with self._lock:
            return sorted(self._record.read())

    def of(self, policy: str) -> RuleKinds:
        """Return the record of a policy. Raises: DependencyError."""
        with self._lock:
            return dict(self._record.read().get(policy) or {})

    def record(self, policy: str, rules: RuleKinds) -> None:
        """Replace a policy's record; a no-op if the record does not change.

        Raises: DependencyError, LeaseLost.
        """
        with self._lock:
            self._record.replace(policy, rules or None)

    def add(self, policy: str, rule: str, kinds: list[tuple[str, str]] | None) -> bool:
        """Record a rule before its first object is written; return whether it is new.

        A request may be processed before the watch delivers its policy.

        Raises: DependencyError, LeaseLost.
        """
        with self._lock:
            known = self._record.read().get(policy) or {}
            if rule in known:
                return False
            self._record.replace(policy, {**known, rule: kinds})
            return True
