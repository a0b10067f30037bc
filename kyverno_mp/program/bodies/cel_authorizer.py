"""Let CEL expressions query the cluster's authorizer for the user of the request.

Room: program. Takes: a Request, program/ports.Authority. Gives: the value of the CEL
variable ``authorizer``. Next: program/bodies/cel.py. May touch: the cluster only
through that port.
Source: docs/behaviour/engine 6.4; k8s apiserver/pkg/cel/library/authz.go; Kyverno
pkg/engine/internal/auth.go at v1.18.2.

Upstream always checks the request's kind, even if the expression names another one, and
omits the user's groups. Here the expression determines the check, as Kubernetes
documents it.
"""

from typing import Final

from kyverno_mp.errors import DeadlinePassed, DependencyError
from kyverno_mp.expr.cel.functions.authorization import Authorizer
from kyverno_mp.program.context.cel_scope import subject_namespace
from kyverno_mp.program.matching.subject import object_name
from kyverno_mp.program.ports import AccessQuery, Authority
from kyverno_mp.program.request import Request

_ACCOUNT: Final = "system:serviceaccount:"


def authorizer_of(
    request: Request, authority: Authority, deadline_ns: int
) -> Authorizer:
    """Return the authorizer; a failed check returns a decision with an error.

    Its checks raise DeadlinePassed at the request's deadline.
    """

    def ask(requested: dict[str, str]) -> tuple[bool, str, str]:
        attributes = dict(requested)
        account = attributes.pop("user", None)
        question = (
            _of_user(request, attributes)
            if account is None
            else AccessQuery(
                user=account, groups=_account_groups(account), attributes=attributes
            )
        )
        try:
            return *authority.may(question, deadline_ns), ""
        except DeadlinePassed:
            raise
        except DependencyError as error:
            return False, "", error.message

    return Authorizer(ask, _resource_of(request))


def _of_user(request: Request, attributes: dict[str, str]) -> AccessQuery:
    review = request.review_request or {}
    extra = (review.get("userInfo") or {}).get("extra") or {}
    return AccessQuery(
        user=request.username,
        groups=tuple(request.groups),
        extra=extra,
        attributes=attributes,
    )


def _account_groups(account: str) -> tuple[str, ...]:
    namespace = account.removeprefix(_ACCOUNT).partition(":")[0]
    return "system:serviceaccounts", f"system:serviceaccounts:{namespace}"


def _resource_of(request: Request) -> dict[str, str]:
    """Return ``requestResource``: the request's own resource."""
    resource = (request.review_request or {}).get("resource") or {}
    attributes = {
        "group": str(resource.get("group") or ""),
        "resource": str(resource.get("resource") or ""),
        "subresource": request.subresource,
        "namespace": subject_namespace(request),
        "name": object_name(request.object or request.old_object),
    }
    return {key: value for key, value in attributes.items() if value or key == "group"}
