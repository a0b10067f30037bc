"""Record which rules' objects must be deleted with the rule or its policy.

Room: background. Takes: the rules of a policy. Gives: Register, kept in a ConfigMap.
Next: generate/policy_events.py. May touch: the API server through kube/apply.py.
Source: docs/behaviour/controllers 5.5 (delete rule/policy); docs/background.md.

Labels do not say whether an object is synchronised or may be orphaned. A policy that
was deleted while nobody held the lease can no longer be asked, so what it asked for is
recorded before: no object is written whose rule is not in the record (``add``).
"""

import threading
from collections.abc import Callable
from typing import Final

import msgspec

from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.resource import Resource
from kyverno_mp.kube.rest import Client
from kyverno_mp.values.jsonvalue import Json

NAME: Final = "kyverno-mp-background"
_CONFIG_MAPS: Final = Resource(
    group="", version="v1", plural="configmaps", kind="ConfigMap"
)
_KEY: Final = "rules.json"

RuleKinds = dict[str, list[tuple[str, str]] | None]
"""Name of a rule -> (apiVersion, kind) of its objects, None = any kind."""
_Rules = dict[str, RuleKinds]
_DECODER: Final = msgspec.json.Decoder(_Rules)


class Register:
    """The record, read once per term; threads may share it."""

    def __init__(
        self, client: Client, namespace: str, guard: Callable[[], None]
    ) -> None:
        self._objects = Objects(client, guard)
        self._key = (namespace, NAME)
        self._lock = threading.Lock()
        self._rules: _Rules | None = None

    def policies(self) -> list[str]:
        """Return the recorded policies. Raises: DependencyError."""
        with self._lock:
            return sorted(self._read())

    def of(self, policy: str) -> RuleKinds:
        """Return what is recorded for a policy. Raises: DependencyError."""
        with self._lock:
            return dict(self._read().get(policy) or {})

    def record(self, policy: str, rules: RuleKinds) -> None:
        """Replace a policy's record; no call when it stays the same.

        Raises: DependencyError, LeaseLost.
        """
        with self._lock:
            self._replace(policy, rules)

    def add(self, policy: str, rule: str, kinds: list[tuple[str, str]] | None) -> bool:
        """Record a rule before its first object; return whether it was not there.

        A request may be processed before the watch brought its policy.

        Raises: DependencyError, LeaseLost.
        """
        with self._lock:
            known = self._read().get(policy) or {}
            if rule in known:
                return False
            self._replace(policy, {**known, rule: kinds})
            return True

    def _replace(self, policy: str, rules: RuleKinds) -> None:
        known = self._read()
        if (known.get(policy) or {}) == rules:
            return
        changed = {name: one for name, one in known.items() if name != policy}
        if rules:
            changed[policy] = rules
        try:
            self._write(changed)
        except BaseException:
            # Whether it was written is not known.
            self._rules = None
            raise
        self._rules = changed

    def _read(self) -> _Rules:
        if self._rules is None:
            found = self._objects.find(_CONFIG_MAPS, self._key)
            text = ((found or {}).get("data") or {}).get(_KEY, "{}")
            self._rules = _decoded(text)
        return self._rules

    def _write(self, rules: _Rules) -> None:
        text = msgspec.json.encode(rules, order="sorted").decode()
        found = self._objects.find(_CONFIG_MAPS, self._key)
        if found is None:
            namespace, name = self._key
            raw: Json = {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": name, "namespace": namespace},
                "data": {_KEY: text},
            }
            self._objects.create(_CONFIG_MAPS, raw)
        else:
            # Another key is that of GeneratingPolicies.
            data = {**(found.get("data") or {}), _KEY: text}
            self._objects.replace(_CONFIG_MAPS, {**found, "data": data})


def _decoded(text: str) -> _Rules:
    """Read the record. One that was damaged by hand deletes nothing."""
    try:
        return _DECODER.decode(text)
    except msgspec.DecodeError:
        return {}
