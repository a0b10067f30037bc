"""Keep the records of all policies in one key of the pool's ConfigMap.

Room: background. Takes: a Client, the name of the key. Gives: Record. Next:
background/generate/register.py, background/generating/register.py. May touch: the API
server through kube/apply.py.
Source: docs/background.md (what happens to a generated object).
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final, Generic, TypeVar

import msgspec

from kyverno_mp.background.policies import tenant_of
from kyverno_mp.errors import KubeRefused
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.resource import Resource
from kyverno_mp.kube.rest import Client
from kyverno_mp.limits import BACKGROUND_RECORD_BYTES_MAX
from kyverno_mp.values.jsonvalue import Json

NAME: Final = "kyverno-mp-background"
_CONFIG_MAPS: Final = Resource(
    group="", version="v1", plural="configmaps", kind="ConfigMap"
)
T = TypeVar("T")


class Record(Generic[T]):
    """The records, read once per term; guarded by the owner's lock."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        guard: Callable[[], None],
        key: str,
        decoder: msgspec.json.Decoder[dict[str, T]],
    ) -> None:
        self._objects = Objects(client, guard)
        self._place = (namespace, NAME)
        self._key = key
        self._decoder = decoder
        self._known: dict[str, T] | None = None

    def read(self) -> dict[str, T]:
        """Return the records by policy. Raises: DependencyError."""
        if self._known is None:
            found = self._objects.find(_CONFIG_MAPS, self._place)
            text = ((found or {}).get("data") or {}).get(self._key, "{}")
            try:
                self._known = self._decoder.decode(text)
            except msgspec.DecodeError:
                # A record that was damaged by hand must not cause deletions.
                self._known = {}
        return self._known

    def replace(self, policy: str, entry: T | None) -> bool:
        """Replace a policy's record; a no-op if the record does not change.

        Raises: KubeRefused if the records of the policy's tenant take too much space;
        DependencyError, LeaseLost.
        """
        known = self.read()
        if known.get(policy) == entry:
            return False
        changed = {name: one for name, one in known.items() if name != policy}
        if entry is not None:
            changed[policy] = entry
        text = _encoded(changed)
        if len(text) > BACKGROUND_RECORD_BYTES_MAX:
            _check_share(policy, known, changed)
        try:
            self._write(text)
        except BaseException:
            # It is unknown whether the write succeeded.
            self._known = None
            raise
        self._known = changed
        return True

    def _write(self, text: str) -> None:
        def edit(raw: Json) -> Json:
            return {**raw, "data": {**(raw.get("data") or {}), self._key: text}}

        if self._objects.change(_CONFIG_MAPS, self._place, edit) is None:
            namespace, name = self._place
            raw: Json = {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": name, "namespace": namespace},
                "data": {self._key: text},
            }
            self._objects.create(_CONFIG_MAPS, raw)


def _encoded(entries: object) -> str:
    return msgspec.json.encode(entries, order="sorted").decode()


def _check_share(
    policy: str, before: Mapping[str, object], after: Mapping[str, object]
) -> None:
    """Raise KubeRefused if a tenant with more than the average records even more.

    SAFETY: a ConfigMap has at most 1 MiB. If one tenant could fill it, no other policy
    could be recorded, and their rules would generate nothing.
    """
    if len(_encoded(after.get(policy))) <= len(_encoded(before.get(policy))):
        return
    sizes: Counter[str] = Counter()
    for name, entry in after.items():
        sizes[tenant_of(name)] += len(name) + len(_encoded(entry))
    if sizes[tenant_of(policy)] * len(sizes) >= sizes.total():
        raise KubeRefused(
            "background.record_full",
            f"the ConfigMap {NAME} has no room for the rules of policy {policy}",
        )
