"""Find the types of custom kinds, for apply configurations of MutatingPolicies.

Room: egress. Takes: LiveSchemas, apiVersion and kind. Gives: LiveTypes, the port
``types`` of CelPorts. Next: program/cel_policies/mutate.py.
May touch: the API server through egress/schemas.py, the clock.
Source: Kyverno pkg/cel/policies/mpol/compiler/type_converter.go (the types of the
API server's OpenAPI documents).

A changed CustomResourceDefinition takes effect after a few seconds.
"""

import threading
import time
from typing import Final

from kyverno_mp.egress.schemas import LiveSchemas
from kyverno_mp.limits import TYPES_KEPT_MAX
from kyverno_mp.values.kubernetes.openapi import Schemas as Models
from kyverno_mp.values.typed.custom import types_of
from kyverno_mp.values.typed.schema import Schemas

_FRESH_S: Final = 5.0
_Kind = tuple[str, str]


class LiveTypes:
    """The types that this process read, bounded in number; thread-safe."""

    def __init__(self, schemas: LiveSchemas) -> None:
        self._documents = schemas
        self._lock = threading.Lock()
        self._known: dict[_Kind, tuple[float, Models | None, Schemas | None]] = {}

    def types(self, api_version: str, kind: str, deadline_ns: int) -> Schemas | None:
        """Return the types of a kind and of built-in kinds; None if it is not served.

        Raises: DependencyError, RequestInvalid.
        """
        key = (api_version, kind)
        now_s = time.monotonic()
        with self._lock:
            cached = self._known.get(key)
        if cached is not None and now_s - cached[0] < _FRESH_S:
            return cached[2]
        group, _, version = api_version.rpartition("/")
        models = self._documents.document(group, version, deadline_ns)
        if models is None:
            types = None
        elif cached is not None and cached[1] is models:
            types = cached[2]
        else:
            types = types_of(models, api_version, kind)
        with self._lock:
            self._known.pop(key, None)
            while len(self._known) >= TYPES_KEPT_MAX:
                del self._known[next(iter(self._known))]
            self._known[key] = now_s, models, types
        return types
