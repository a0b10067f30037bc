"""Find ConfigMaps: first in the shared segment, then with a live call.

Room: egress. Takes: namespace and name. Gives: the object; satisfies
program/ports.ConfigMaps. Next: webhook/wire.py.
May touch: the API server through kube/rest.py.
Source: docs/behaviour/controllers 11.5 (resolver chain); docs/architecture.md 3.
"""

from contextlib import suppress
from typing import Final

from kyverno_mp.errors import DeadlinePassed, DependencyError, ExpressionFailed
from kyverno_mp.kube.resource import core
from kyverno_mp.kube.rest import Client
from kyverno_mp.program.ports import ConfigMaps
from kyverno_mp.values.jsonvalue import Json

_CONFIG_MAPS: Final = core("configmaps")


class LiveConfigMaps:
    """ConfigMaps of the cluster; ConfigMaps with the cache label need no call."""

    def __init__(self, shared: ConfigMaps | None, client: Client) -> None:
        """``shared`` None: every use calls the API server (enableConfigMapCaching)."""
        self._shared = shared
        self._client = client

    def config_map(self, namespace: str, name: str, deadline_ns: int) -> Json:
        """Return the object. Raises: ExpressionFailed, DeadlinePassed."""
        if self._shared is not None:
            # The ConfigMap has no cache label or does not exist: ask the API server.
            with suppress(ExpressionFailed):
                return self._shared.config_map(namespace, name, deadline_ns)
        try:
            path = _CONFIG_MAPS.object((namespace, name))
            return self._client.get(path, deadline_ns=deadline_ns)
        except DeadlinePassed:
            raise
        except DependencyError as error:
            is_absent = error.code == "kube.not_found"
            raise ExpressionFailed(
                "context.configmap_not_found",
                f'configmaps "{name}" not found' if is_absent else error.message,
            ) from error
