"""Define the input of checks, and format their problems as Kubernetes does.

Room: policy. Takes: a policy, its computed rules, facts of the cluster. Gives: Subject
and the constructors of Problem. Next: the other checks in this folder.
Source: docs/behaviour/engine 10 (FE form); k8s.io/apimachinery
field.Error.
"""

from collections.abc import Iterator
from typing import Protocol

import msgspec

from kyverno_mp.policy.documents.cluster_policy import AnyPolicy, Policy, Rule
from kyverno_mp.policy.problems import Problem
from kyverno_mp.values.jsonvalue import Json

Problems = Iterator[Problem]


class DocumentScope(Protocol):
    """The scope of a document, which limits its match block."""

    @property
    def is_namespaced(self) -> bool:
        """Return whether the document applies only to one namespace."""

    @property
    def cluster_kinds(self) -> frozenset[str] | None:
        """Return the cluster-scoped kinds; None without a cluster."""


class Subject(msgspec.Struct, frozen=True):
    """One policy under check.

    ``rules``: the computed rules if autogen has run, otherwise the rules as written; in
    both cases the original rules come first. ``cluster_kinds``: ``Kind`` and
    ``group/version/Kind`` of all cluster-scoped kinds; None without a cluster.
    ``knows_all_kinds``: all other kinds are namespaced.
    """

    policy: AnyPolicy
    rules: tuple[Rule, ...]
    cluster_kinds: frozenset[str] | None = None
    knows_all_kinds: bool = True

    @property
    def is_namespaced(self) -> bool:
        """Return whether the policy is a Policy, not a ClusterPolicy."""
        return isinstance(self.policy, Policy)


def plain(path: str, rule: str, message: str, code: str = "policy.invalid") -> Problem:
    """Return a problem whose whole upstream text is ``message``."""
    return Problem(code, path, rule, message, message)


def invalid(path: str, rule: str, value: Json, detail: str) -> Problem:
    """Return a problem in the form ``<path>: Invalid value: <value>: ...``."""
    message = f"{path}: Invalid value: {_json(value)}: {detail}"
    return Problem("policy.invalid", path, rule, detail, message)


def forbidden(path: str, rule: str, detail: str) -> Problem:
    """Return a problem for a field that must not be set."""
    return Problem(
        "policy.forbidden", path, rule, detail, f"{path}: Forbidden: {detail}"
    )


def required(path: str, rule: str, detail: str) -> Problem:
    """Return a problem for a field that must be set."""
    tail = f": {detail}" if detail else ""
    message = f"{path}: Required value{tail}"
    return Problem("policy.required", path, rule, detail or "Required value", message)


def _json(value: Json) -> str:
    """Encode a value like Go's json.Marshal, in the record's order."""
    if isinstance(value, msgspec.Struct):
        value = msgspec.json.decode(msgspec.json.encode(value))
    encoded = msgspec.json.encode(value).decode()
    for char in "<>&":
        encoded = encoded.replace(char, f"\\u{ord(char):04x}")
    return encoded
