"""Mark the UpdateRequests that are left at the end of a pod for another program.

Room: leader. Takes: the API server. Gives: the state ``Pending`` on UpdateRequests that
have none. Next: Kyverno's background controller, if a roll-back follows.
May touch: the API server through kube/.
Source: docs/behaviour/controllers 5.1; Kyverno pkg/background/
update_request_controller.go (syncUpdateRequest).

KYVERNO: a request without a state is never processed; upstream writes the state in a
second call after each creation. Our pool needs none, and a new version of a request
makes it due again, so the state is written only when a pod ends. A request for a
MutatingPolicy without its review gets none, because it would end upstream's program
(pkg/background/mpol/processor.go).
"""

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec

from kyverno_mp.errors import DependencyError, KubeConflict, KubeNotFound
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.rest import Client
from kyverno_mp.kube.watch import WatchScope, list_pages
from kyverno_mp.limits import TRIGGER_WRITERS
from kyverno_mp.queues.update_requests import CEL_MUTATE, UPDATE_REQUESTS
from kyverno_mp.values.jsonvalue import Json

_log = logging.getLogger(__name__)
_PENDING: Final[Json] = {"status": {"state": "Pending"}}


class _Metadata(msgspec.Struct, rename="camel"):
    name: str
    namespace: str = ""
    deletion_timestamp: str = ""


class _Status(msgspec.Struct):
    state: str = ""


class _Spec(msgspec.Struct, rename="camel"):
    request_type: str = ""
    context: dict[str, Json] | None = None


class _Request(msgspec.Struct):
    metadata: _Metadata
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)

    @property
    def is_left(self) -> bool:
        """Whether another program can process it, and would not."""
        if self.status.state or self.metadata.deletion_timestamp:
            return False
        return self.spec.request_type != CEL_MUTATE or bool(self.spec.context)


_REQUEST: Final = msgspec.json.Decoder(_Request)


def mark_pending(client: Client, namespace: str) -> int:
    """Write the state of all requests without one; return their number.

    A failure is logged, because a pod must end.
    """
    scope = WatchScope(resource=UPDATE_REQUESTS, namespace=namespace)
    objects = Objects(client)

    def mark(raw: msgspec.Raw) -> bool:
        request = _REQUEST.decode(raw)
        if not request.is_left:
            return False
        key = request.metadata.namespace, request.metadata.name
        try:
            objects.merge(UPDATE_REQUESTS, key, _PENDING, "status")
        except (KubeNotFound, KubeConflict):
            return False  # processed meanwhile
        return True

    count = 0
    try:
        with ThreadPoolExecutor(TRIGGER_WRITERS, "trigger-marker") as pool:
            for page in list_pages(client, scope):
                count += sum(pool.map(mark, page.items))
    except DependencyError as error:
        _log.warning("UpdateRequests are left without a state: %s", error)
    return count
