"""Keep the records of all policies in one key of the pool's ConfigMap.

Room: background. Takes: a Client, the name of the key. Gives: Record. Next:
background/generate/register.py, background/generating/register.py. May touch: the API
server through kube/apply.py.
Source: docs/background.md (what happens to a generated object).
"""

from collections.abc import Callable
from typing import Final, Generic, TypeVar

import msgspec

from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.resource import Resource
from kyverno_mp.kube.rest import Client
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

        Raises: DependencyError, LeaseLost.
        """
        known = self.read()
        if known.get(policy) == entry:
            return False
        changed = {name: one for name, one in known.items() if name != policy}
        if entry is not None:
            changed[policy] = entry
        try:
            self._write(changed)
        except BaseException:
            # It is unknown whether the write succeeded.
            self._known = None
            raise
        self._known = changed
        return True

    def _write(self, entries: dict[str, T]) -> None:
        text = msgspec.json.encode(entries, order="sorted").decode()

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
