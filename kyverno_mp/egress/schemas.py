"""Read the schemas of kinds from the API server: for reviews of policies, for merges.

Room: egress. Takes: a Client. Gives: LiveSchemas, which satisfies
policy/ports.SchemaSource. Next: webhook/live.py, egress/types.py.
May touch: the API server through kube/rest.py, the clock.
Source: docs/behaviour/engine 10.7; Kubernetes apiserver
pkg/cel/openapi/resolver/discovery.go (requested again for each review); kube-openapi
handler3 (the hash in a document's address).

A document's address changes with its content. Each review therefore reads the list of
addresses and fetches a document only if its address is new, so a changed CRD takes
effect at once. Schemas are used for warnings only, so after any failure here a review
runs without them.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from kyverno_mp.errors import DependencyError, RequestInvalid
from kyverno_mp.kube.rest import Call, Client
from kyverno_mp.limits import (
    OPENAPI_BYTES_MAX,
    OPENAPI_KEPT_BYTES_MAX,
    OPENAPI_WAIT_S_MAX,
)
from kyverno_mp.policy.ports import KnownSchemas
from kyverno_mp.values.kubernetes.openapi import (
    Schemas,
    path_of,
    read_index,
    read_schemas,
)

_log = logging.getLogger(__name__)
_INDEX: Final = "/openapi/v3"
_PAUSE_S: Final = 10.0
"""Time without calls to the API server after a failure, in seconds."""
FAILED: Final = "webhook.openapi_failed"
"""The error code under which failures are counted."""


class LiveSchemas:
    """The schemas that this worker read, bounded in size; thread-safe."""

    def __init__(
        self, client: Client, on_failure: Callable[[str], None] = lambda _code: None
    ) -> None:
        """``on_failure`` gets FAILED each time the API server returns no schemas."""
        self._client = client
        self._on_failure = on_failure
        self._lock = threading.Lock()
        self._cache: dict[str, tuple[int, Schemas]] = {}
        """Address -> size of the text, schemas; least recently used first."""
        self._quiet_until_s = 0.0

    def schemas(self, group_versions: Iterable[tuple[str, str]]) -> KnownSchemas:
        """Return the schemas read within OPENAPI_WAIT_S_MAX; fewer on failure."""
        if time.monotonic() < self._quiet_until_s:
            return {}
        schemas: dict[tuple[str, str], Schemas] = {}
        deadline_ns = time.monotonic_ns() + int(OPENAPI_WAIT_S_MAX * 1e9)
        try:
            index = read_index(self._asked(_INDEX, deadline_ns))
            for group, version in group_versions:
                address = index.get(path_of(group, version))
                if address:
                    schemas[group, version] = self._read(address, deadline_ns)
        except (DependencyError, RequestInvalid) as error:
            self._quiet_until_s = time.monotonic() + _PAUSE_S
            _log.warning("cannot type-check CEL, no schemas: %s", error.message)
            self._on_failure(FAILED)
        return schemas

    def document(self, group: str, version: str, deadline_ns: int) -> Schemas | None:
        """Return the schemas of a group version, None if it is not served.

        Raises: DependencyError, RequestInvalid.
        """
        index = read_index(self._asked(_INDEX, deadline_ns))
        address = index.get(path_of(group, version))
        return self._read(address, deadline_ns) if address else None

    def _read(self, address: str, deadline_ns: int) -> Schemas:
        with self._lock:
            cached = self._cache.pop(address, None)
            if cached is not None:
                self._cache[address] = cached
                return cached[1]
        body = self._asked(address, deadline_ns)
        schemas = read_schemas(body)
        with self._lock:
            self._cache[address] = (len(body), schemas)
            while (
                sum(size for size, _ in self._cache.values()) > OPENAPI_KEPT_BYTES_MAX
            ):
                del self._cache[next(iter(self._cache))]
        return schemas

    def _asked(self, address: str, deadline_ns: int) -> bytes:
        path, _, query = address.partition("?")
        name, _, value = query.partition("=")
        return self._client.call(
            Call(
                method="GET",
                path=path,
                query=((name, value),) if query else (),
                bytes_max=OPENAPI_BYTES_MAX,
            ),
            deadline_ns,
        )
