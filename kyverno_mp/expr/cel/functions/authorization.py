"""Implement access checks by the cluster's authorizer.

Room: expr. Takes: Meter and values. Gives: OVERLOADS, Authorizer. Next:
expr/cel/catalogue.py.
May touch: the cluster only through the ``ask`` function of the Authorizer.
Source: k8s apiserver/pkg/cel/library/authz.go; docs/behaviour/engine 6.4.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from kyverno_mp.expr.cel.library import member
from kyverno_mp.expr.cel.types import Type, object_type
from kyverno_mp.expr.cel.values import CelFailed, Meter, Record, Value
from kyverno_mp.expr.effects import EFFECT_CLUSTER

Ask: TypeAlias = Callable[[dict[str, str]], tuple[bool, str, str]]
"""Takes the attributes of a check (path or group, resource, ..., verb); returns
(allowed, reason, error)."""

_CHECK_COST = 350_000
"""The cost that the API server charges for one access check."""
_PREFIX = "kubernetes.authorization."
AUTHORIZER = object_type(f"{_PREFIX}Authorizer")
RESOURCE_CHECK = object_type(f"{_PREFIX}ResourceCheck")
RECORDS: dict[str, dict[str, Type]] = {
    AUTHORIZER.name: {"requestResource": RESOURCE_CHECK}
}
"""K8S: ``authorizer.requestResource`` is a variable whose name contains a dot, not a
field."""


def nobody_to_ask(_attributes: dict[str, str]) -> tuple[bool, str, str]:
    """Reject every check, because the cluster or its authorizer is not accessible."""
    raise CelFailed("authorization checks need access to a cluster")


class AccessCheck(NamedTuple):
    """An access check under construction; ``type_name`` is its current type."""

    type_name: str
    ask: Ask
    attributes: dict[str, str]


class AccessDecision(NamedTuple):
    """The authorizer's decision; ``problem`` is "" if there was no error."""

    allowed: bool
    reason: str
    problem: str = ""

    @property
    def type_name(self) -> str:
        """The name of the type in CEL."""
        return f"{_PREFIX}Decision"


class Authorizer(Record):
    """The variable ``authorizer``, which checks the access of the request's user."""

    __slots__ = ("ask", "request_resource")
    type_name = AUTHORIZER.name

    def __init__(self, ask: Ask, request_resource: dict[str, str]) -> None:
        self.ask = ask
        self.request_resource = request_resource

    def field(self, name: str) -> Value:
        """Return ``requestResource``, the resource of the request."""
        if name != "requestResource":
            raise CelFailed(f"no such key: {name}")
        return AccessCheck(RESOURCE_CHECK.name, self.ask, self.request_resource)

    def has(self, name: str) -> bool:
        """Return whether the field exists."""
        return name == "requestResource"


def _opened(kind: str, key: str) -> Callable[..., AccessCheck]:
    def run(_meter: Meter, authorizer: Authorizer, value: str) -> AccessCheck:
        return AccessCheck(f"{_PREFIX}{kind}", authorizer.ask, {key: value})

    return run


def _service_account(
    _meter: Meter, authorizer: Authorizer, namespace: str, name: str
) -> Authorizer:
    def ask(attributes: dict[str, str]) -> tuple[bool, str, str]:
        user = f"system:serviceaccount:{namespace}:{name}"
        return authorizer.ask({"user": user, **attributes})

    return Authorizer(ask, authorizer.request_resource)


def _narrowed(key: str) -> Callable[..., AccessCheck]:
    def run(_meter: Meter, check: AccessCheck, value: str) -> AccessCheck:
        return AccessCheck(
            RESOURCE_CHECK.name, check.ask, {**check.attributes, key: value}
        )

    return run


def _decide(meter: Meter, check: AccessCheck, verb: str) -> AccessDecision:
    meter.charge(_CHECK_COST)
    return AccessDecision(*check.ask({**check.attributes, "verb": verb}))


OVERLOADS = (
    member(
        "path(Authorizer, string) -> PathCheck", _opened("PathCheck", "path"), cost=20
    ),
    member(
        "group(Authorizer, string) -> GroupCheck",
        _opened("GroupCheck", "group"),
        cost=20,
    ),
    member(
        "serviceAccount(Authorizer, string, string) -> Authorizer",
        _service_account,
        cost=30,
    ),
    member(
        "resource(GroupCheck, string) -> ResourceCheck", _narrowed("resource"), cost=20
    ),
    member(
        "subresource(ResourceCheck, string) -> ResourceCheck", _narrowed("subresource")
    ),
    member(
        "namespace(ResourceCheck, string) -> ResourceCheck",
        _narrowed("namespace"),
        cost=20,
    ),
    member("name(ResourceCheck, string) -> ResourceCheck", _narrowed("name"), cost=20),
    member(
        "fieldSelector(ResourceCheck, string) -> ResourceCheck",
        _narrowed("fieldSelector"),
        cost=20,
    ),
    member(
        "labelSelector(ResourceCheck, string) -> ResourceCheck",
        _narrowed("labelSelector"),
        cost=20,
    ),
    member("check(PathCheck, string) -> Decision", _decide, effects=EFFECT_CLUSTER),
    member("check(ResourceCheck, string) -> Decision", _decide, effects=EFFECT_CLUSTER),
    member("allowed(Decision) -> bool", lambda _m, d: d.allowed),
    member("reason(Decision) -> string", lambda _m, d: d.reason),
    member("errored(Decision) -> bool", lambda _m, d: bool(d.problem)),
    member("error(Decision) -> string", lambda _m, d: d.problem),
)
