"""Ask the API server what a user is allowed to do, for CEL's ``authorizer``.

Room: egress. Takes: AccessQuery. Gives: LiveAuthority, which satisfies
program/ports.Authority. Next: webhook/live.py.
May touch: the API server through kube/rest.py.
Source: Kubernetes API, authorization.k8s.io/v1 SubjectAccessReview.
"""

from typing import Final

import msgspec

from kyverno_mp.kube.rest import Call, Client
from kyverno_mp.program.ports import AccessQuery
from kyverno_mp.values.jsonvalue import Json

_PATH: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_SELECTORS: Final = ("fieldSelector", "labelSelector")


class LiveAuthority:
    """The cluster's authorizer; thread-safe."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def may(self, access_query: AccessQuery, deadline_ns: int) -> tuple[bool, str]:
        """Return (allowed, reason). Raises: DependencyError."""
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": spec_of(access_query),
        }
        call = Call(
            method="POST",
            path=_PATH,
            body=msgspec.json.encode(review),
            # K8S: the API server stores no SubjectAccessReview, so a retry is safe.
            repeatable=True,
        )
        answer: Json = self._client.send(call, deadline_ns)
        status = answer.get("status") or {}
        return status.get("allowed") is True, str(status.get("reason") or "")


def spec_of(access_query: AccessQuery) -> Json:
    """Return the SubjectAccessReview's spec, for a resource or a non-resource path."""
    fields = dict(access_query.attributes)
    spec: Json = {"user": access_query.user, "groups": list(access_query.groups)}
    if access_query.extra:
        spec["extra"] = dict(access_query.extra)
    if "path" in fields:
        spec["nonResourceAttributes"] = fields
        return spec
    attributes: Json = {k: v for k, v in fields.items() if k not in _SELECTORS}
    for name in _SELECTORS:
        if fields.get(name):
            # K8S: the API server parses the raw selector.
            attributes[name] = {"rawSelector": fields[name]}
    spec["resourceAttributes"] = attributes
    return spec
