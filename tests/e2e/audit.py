"""Count the calls to an API server by user, verb and resource.

Takes: the audit log that a control plane writes. Gives: AuditLog, Asked. Calls of the
control plane's own programs are not in it. May touch: the log file, by reading it.
Source: Kubernetes audit.k8s.io/v1 Event.
"""

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

POLICY: Final = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "rules": [
        {"level": "None", "userGroups": ["system:serviceaccounts:kube-system"]},
        {
            "level": "None",
            "users": ["system:apiserver", "system:kube-controller-manager"],
        },
        {"level": "Metadata"},
    ],
}
WRITES: Final = frozenset({"create", "update", "patch", "delete", "deletecollection"})
_FLUSHED_S: Final = 0.3
"""K8S: the log backend writes at once; the response may still be slightly earlier."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One call that the API server answered."""

    user: str
    verb: str
    resource: str
    """The resource with its subresource, for example ``pods/status``."""
    namespace: str
    name: str
    code: int
    agent: str
    uid: str
    """Of the object that was named as a precondition or answered, if it was logged."""
    group: str = ""
    """The API group of the resource."""
    why: str = ""
    """The API server's reason for its decision about the permission."""
    annotations: Mapping[str, str] = field(default_factory=dict, compare=False)
    """What the API server and webhooks say about the call."""

    @property
    def done(self) -> bool:
        """Whether the call succeeded."""
        return 200 <= self.code < 300  # the class of successful answers


class AuditLog:
    """The calls since the last ``mark``."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    def mark(self) -> None:
        """Forget all calls until now."""
        time.sleep(_FLUSHED_S)
        self._at = self._path.stat().st_size if self._path.exists() else 0

    def asked(self, user: str = "", *, writes: bool = False) -> list[Asked]:
        """Return the calls of a user (the end of its name), or of all."""
        time.sleep(_FLUSHED_S)
        return [
            one
            for one in self._read()
            if one.user.endswith(user) and (not writes or one.verb in WRITES)
        ]

    def verbs(self, user: str = "") -> Counter[tuple[str, str]]:
        """Count calls by verb and resource."""
        return Counter((one.verb, one.resource) for one in self.asked(user))

    def _read(self) -> Iterator[Asked]:
        with self._path.open("rb") as log:
            log.seek(self._at)
            for line in log:
                if line.endswith(b"\n"):
                    yield _asked_of(json.loads(line))


def _asked_of(event: dict[str, Any]) -> Asked:
    about = event.get("objectRef") or {}
    parts = (about.get("resource", ""), about.get("subresource", ""))
    annotations = event.get("annotations") or {}
    return Asked(
        user=event["user"]["username"],
        verb=event["verb"],
        resource="/".join(part for part in parts if part),
        namespace=about.get("namespace", ""),
        name=about.get("name", ""),
        code=(event.get("responseStatus") or {}).get("code", 0),
        agent=event.get("userAgent", ""),
        uid=about.get("uid", ""),
        group=about.get("apiGroup", ""),
        why=annotations.get("authorization.k8s.io/reason", ""),
        annotations=annotations,
    )
