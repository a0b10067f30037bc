"""Read the object that stores how far the gradual enforcement of policies has come.

Room: controllers. Takes: a ConfigMap. Gives: Stored: the states, and what each replica
has counted. Next: controllers/rollouts.py and leader/denials.py write it.
May touch: the log. Source: docs/gradual-enforcement.md.

    data:
      ClusterPolicy_require-team: '{"plan": "5f0c..", "phase": "Progressing", "step": 1,
        "since_s": 1700000000}'
      denials.<replica>: '{"ClusterPolicy_require-team": {"run": "5f0c..", ..}}'

The state is not in the policy, because tools that apply manifests would revert it.
"""

import logging
from typing import Final

import msgspec

from kyverno_mp.kube.cache import Informer
from kyverno_mp.kube.resource import Key, core
from kyverno_mp.kube.watch import WatchScope
from kyverno_mp.snapshot.denials import CountedByPolicy, decode_counted
from kyverno_mp.snapshot.rollouts import RolloutState
from kyverno_mp.values.jsonvalue import Json

_log = logging.getLogger(__name__)
CONFIG_MAPS: Final = core("configmaps")
NAME: Final = "kyverno-mp-rollouts"
_COUNTS: Final = "denials."


class Stored(msgspec.Struct, frozen=True):
    """The content of the ConfigMap; ``version`` is its resource version."""

    version: str = ""
    states: dict[str, RolloutState] = {}
    counted: dict[str, CountedByPolicy] = {}
    """What each replica has counted (leader/denials.py)."""
    invalid: tuple[str, ...] = ()
    """The keys whose values cannot be read."""


class _ConfigMap(msgspec.Struct):
    metadata: dict[str, object]
    data: dict[str, str] | None = None


_CONFIG_MAP: Final = msgspec.json.Decoder(_ConfigMap)
_STATE: Final = msgspec.json.Decoder(RolloutState)


def scope_of(namespace: str) -> WatchScope:
    """Return the scope to watch; ``stored_in`` is its projection."""
    selector = f"metadata.name={NAME}"
    return WatchScope(
        resource=CONFIG_MAPS, namespace=namespace, field_selector=selector
    )


def stored_in(raw: msgspec.Raw) -> Stored:
    """Read the ConfigMap; a value that is invalid counts as absent."""
    content = _CONFIG_MAP.decode(raw)
    states, counted, invalid = {}, {}, []
    for name, value in (content.data or {}).items():
        try:
            if name.startswith(_COUNTS):
                counted[name.removeprefix(_COUNTS)] = decode_counted(value)
            else:
                states[name] = _STATE.decode(value)
        except (msgspec.DecodeError, UnicodeEncodeError):
            _log.warning("rollouts: the value of %s is invalid", name)
            invalid.append(name)
    version = str(content.metadata.get("resourceVersion") or "")
    return Stored(version, states, counted, tuple(invalid))


def stored_of(informer: Informer[Stored], key: Key) -> Stored | None:
    """Return the content of the ConfigMap, None while it is unknown.

    Without the permission to read it, every rollout is at its first step.
    """
    if not (informer.synced or informer.is_refused):
        return None
    return informer.get(key) or Stored()


def counts_key(replica: str) -> str:
    """Return the key of what a replica has counted; keys of states have no dots."""
    return f"{_COUNTS}{replica}"


def state_map(key: Key) -> Json:
    """Return the ConfigMap without states."""
    namespace, name = key
    metadata = {"namespace": namespace, "name": name}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
