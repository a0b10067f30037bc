"""Find the exceptions in force that name a policy.

Room: controllers. Takes: PolicyExceptions of both groups as JSON. Gives: a policy's
exceptions. Next: controllers/admission_policies/plans.py. May touch: nothing outside
its arguments, the log.
Source: docs/behaviour/controllers 13; docs/behaviour/engine 8.7; docs/behaviour/v1.19 3
(expiresAt).

SAFETY: upstream accepts exceptions from every namespace, for every kind of policy with
the name, and with expressions that do not compile. Here the same exceptions apply as in
the webhook.
"""

import logging
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Final

import msgspec

from kyverno_mp.compiler.cel_kinds.validating_policy import (
    EXCEPTION_NAMES,
    Builder,
    compile_exception,
)
from kyverno_mp.controllers.admission_policies.generated import Source
from kyverno_mp.errors import Error
from kyverno_mp.expr.compile_budget import CompileBudget, bounded, for_exception
from kyverno_mp.policy.cel_kinds.validating_policy import (
    CelPolicyException,
    decode_cel_exception,
    is_cel_exception,
)
from kyverno_mp.policy.check import read
from kyverno_mp.policy.documents.cluster_policy import AnyPolicy
from kyverno_mp.policy.documents.exception import PolicyException
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.policy_kinds import WITH_RULES
from kyverno_mp.values.wildcard import matches

_log = logging.getLogger(__name__)
AnyException = PolicyException | CelPolicyException
Allows = Callable[[str], bool]
"""Returns whether exceptions in a namespace are allowed."""
_NEVER_S: Final = float("inf")


class KnownExceptions:
    """The exceptions of the last read; each text is decoded once."""

    def __init__(self, allows: Allows) -> None:
        self._allows = allows
        self._decoded: dict[bytes, AnyException | None] = {}
        self._by_policy: dict[tuple[str, str], list[AnyException]] = {}

    def read(self, documents: Iterable[bytes]) -> None:
        """Replace the exceptions with the decoded documents."""
        known, self._decoded = self._decoded, {}
        for text in sorted(documents):
            found = known[text] if text in known else _decoded(text)
            self._decoded[text] = found
        self._by_policy = {}
        for one in self._decoded.values():
            if one is not None and self._allows(one.metadata.namespace):
                for key in _policies_of(one):
                    self._by_policy.setdefault(key, []).append(one)

    def of(self, policy: Source, now: datetime) -> tuple[AnyException, ...]:
        """Return the exceptions that name the policy, sorted by name."""
        given = self._by_policy.get((policy.kind, policy.metadata.name))
        if given is None:
            return ()
        now_s = now.timestamp()
        found = (one for one in given if _names(one, policy) and now_s < _ends_s(one))
        return tuple(sorted(found, key=lambda one: one.key))


def _policies_of(exception: AnyException) -> set[tuple[str, str]]:
    if isinstance(exception, CelPolicyException):
        return {
            (policy_ref.kind, policy_ref.name)
            for policy_ref in exception.spec.policy_refs
        }
    return {(WITH_RULES.name, one.policy_name) for one in exception.spec.exceptions}


def _names(exception: AnyException, policy: Source) -> bool:
    """Return whether an exception that names the policy also names one of its rules."""
    if isinstance(exception, CelPolicyException) or not isinstance(policy, AnyPolicy):
        return True
    rules = [rule.name for rule in policy.spec.rules]
    return any(
        one.policy_name == policy.metadata.name
        and any(matches(name, rule) for name in one.rule_names for rule in rules)
        for one in exception.spec.exceptions
    )


def _ends_s(exception: AnyException) -> float:
    expires_at_ns = exception.expires_at_ns
    return _NEVER_S if expires_at_ns is None else expires_at_ns / 1e9


def _decoded(text: bytes) -> AnyException | None:
    try:
        # SECURITY: the webhook's limits of one exception; its author is not trusted.
        with bounded(CompileBudget()), for_exception():
            return _usable(msgspec.json.decode(text))
    except Error as error:
        _log.warning("PolicyException is ignored: %s", error.message)
        return None


def _usable(raw: Json) -> AnyException | None:
    """Decode an exception; None if it does not compile. Raises: InputError."""
    if not is_cel_exception(raw):
        document = read(raw)[0]
        return document if isinstance(document, PolicyException) else None
    exception = decode_cel_exception(raw)
    builder = Builder(exception.metadata.namespace, EXCEPTION_NAMES)
    compile_exception(exception, builder)
    return None if builder.problems else exception
