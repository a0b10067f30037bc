"""Note reads of the API server that fail because it does not answer.

Room: reports. Takes: the cluster data of an evaluator. Gives: NotedReads. Next:
reports/scan/evaluator.py. May touch: what the ports can access.
Source: docs/reports.md (reports).

A context entry or an expression that cannot be read makes its row an error, as
upstream. If the API server was away, the error is temporary, and no change of an object
would cause a new evaluation.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from kyverno_mp.errors import Error, KubeUnavailable
from kyverno_mp.expr.cel.outside import ResourcePort
from kyverno_mp.kube.translate import is_failed_webhook
from kyverno_mp.program.ports import ApiCalls, ApiRequest, ClusterData, ConfigMaps
from kyverno_mp.values.jsonvalue import Json

T = TypeVar("T")


class NotedReads:
    """Whether the API server failed to answer a read since ``begin``."""

    def __init__(self) -> None:
        self.has_failed = False

    def begin(self) -> None:
        """Forget earlier reads."""
        self.has_failed = False

    def of(self, data: ClusterData) -> ClusterData:
        """Return cluster data whose reads of the API server are noted.

        Calls of services are not: a service may be down for days, while each object
        would be evaluated again every few minutes.
        """
        maps, calls, cel = data.config_maps, data.api_calls, data.cel
        resources, own_resources = cel.resources, cel.own_resources
        return replace(
            data,
            config_maps=None if maps is None else _ConfigMaps(maps, self),
            api_calls=None if calls is None else _ApiCalls(calls, self),
            cel=cel._replace(
                resources=None if resources is None else _Resources(resources, self),
                own_resources=None
                if own_resources is None
                else _Resources(own_resources, self),
            ),
        )

    def call(self, read: Callable[[], T]) -> T:
        """Call ``read``. Raises: its errors."""
        try:
            return read()
        except Error as error:
            cause = error.__cause__
            failure = cause if isinstance(cause, Error) else error
            if isinstance(failure, KubeUnavailable) and not is_failed_webhook(failure):
                self.has_failed = True
            raise


class _ConfigMaps:
    def __init__(self, port: ConfigMaps, noted: NotedReads) -> None:
        self._port = port
        self._noted = noted

    def config_map(self, namespace: str, name: str, deadline_ns: int) -> Json:
        read = self._port.config_map
        return self._noted.call(lambda: read(namespace, name, deadline_ns))


class _ApiCalls:
    def __init__(self, port: ApiCalls, noted: NotedReads) -> None:
        self._port = port
        self._noted = noted

    def call(self, request: ApiRequest, deadline_ns: int) -> Json:
        if not request.path:
            return self._port.call(request, deadline_ns)
        return self._noted.call(lambda: self._port.call(request, deadline_ns))


class _Resources:
    def __init__(self, port: ResourcePort, noted: NotedReads) -> None:
        self._port = port
        self._noted = noted

    def get(
        self, api_version: str, plural: str, key: tuple[str, str], deadline_ns: int
    ) -> Json | None:
        read = self._port.get
        return self._noted.call(lambda: read(api_version, plural, key, deadline_ns))

    def list(
        self,
        api_version: str,
        plural: str,
        namespace: str,
        labels: dict[str, str],
        deadline_ns: int,
    ) -> Json:
        collection = api_version, plural, namespace
        return self._noted.call(
            lambda: self._port.list(*collection, labels, deadline_ns)
        )

    def post(
        self,
        api_version: str,
        plural: str,
        namespace: str,
        body: Json,
        deadline_ns: int,
    ) -> Json:
        collection = api_version, plural, namespace
        return self._noted.call(lambda: self._port.post(*collection, body, deadline_ns))

    def plural(self, api_version: str, kind: str) -> str:
        return self._port.plural(api_version, kind)
