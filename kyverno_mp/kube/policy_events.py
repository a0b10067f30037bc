"""Build Events with Kyverno's messages about one policy and one object.

Room: kube. Takes: the outcome of rules. Gives: PolicyMessages, whose methods return
EventInfos. Next: controllers/admission_events.py (reviews), reports/scan/events.py
(scans).
Source: docs/behaviour/controllers 9.1 (messages, objects, reasons, actions); Kyverno
pkg/event/events.go.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from kyverno_mp.kube.events import EventInfo, Reference

BLOCKED: Final = "Resource Blocked"
PASSED: Final = "Resource Passed"
MUTATED: Final = "Resource Mutated"
VIOLATION: Final = "PolicyViolation"
APPLIED: Final = "PolicyApplied"
SKIPPED: Final = "PolicySkipped"
POLICY_VERSION: Final = "kyverno.io/v1"
CEL_POLICY_VERSION: Final = "policies.kyverno.io/v1beta1"
_EXCEPTION_VERSION: Final = "kyverno.io/v2"
UidOf = Callable[[str], str]
"""Returns the uid of the PolicyException with key ``ns/name``, "" if none exists."""


def no_uid(_key: str) -> str:
    """Return "": the uids of PolicyExceptions are not known."""
    return ""


@dataclass(frozen=True, slots=True)
class PolicyMessages:
    """The Events of one policy and one object.

    ``blocked``: the request was denied. ``at_ns``, ``seed``: as in EventInfo.
    """

    policy: Reference
    about: Reference
    controller: str
    blocked: bool = False
    at_ns: int = 0
    seed: str = ""

    def violation_on_policy(self, rule: str, status: str, message: str) -> EventInfo:
        """Return the violation's Event on the policy. ``rule`` can be ""."""
        named = f": [{rule}] {status}" if rule else f": {status}"
        note = self._object_name() + named + (" (blocked)" if self.blocked else "")
        return self._info(
            self.policy,
            self.about,
            VIOLATION,
            BLOCKED if self.blocked else PASSED,
            f"{note}; {message}" if message else note,
            rule,
        )

    def violation_on_object(self, rule: str, status: str, message: str) -> EventInfo:
        """Return the violation's Event on the object."""
        name = self.policy.name
        note = f"policy {name}/{rule} {status}"
        if message:
            note += f": {message}"
        # The Event does not refer to the policy, so the topic includes its name.
        topic = f"{self.policy.namespace}/{name}/{rule}"
        return self._info(self.about, None, VIOLATION, PASSED, note, topic)

    def applied(self, *, mutates: bool) -> EventInfo:
        """Return the Event of a success. ``mutates``: all rules are mutate rules."""
        name = self._object_name()
        if mutates:
            note, action = f"{name} is successfully mutated", MUTATED
        else:
            note, action = f"{name}: pass", PASSED
        return self._info(self.policy, self.about, APPLIED, action, note, "")

    def skipped(
        self, rule: str, exceptions: tuple[str, ...], uid_of: UidOf = no_uid
    ) -> Iterator[EventInfo]:
        """Yield the Events of a skip. ``exceptions``: their keys, ``ns/name``."""
        about, policy = self.about, self.policy
        identity = (about.kind, about.namespace, about.name)
        key = "/".join(part for part in identity if part)
        path = "/".join(p for p in (policy.namespace, policy.name, rule) if p)
        # CEL policies have exceptions with their own group version.
        is_cel = policy.api_version == CEL_POLICY_VERSION
        version = CEL_POLICY_VERSION if is_cel else _EXCEPTION_VERSION
        for exception in exceptions:
            namespace, _, name = exception.rpartition("/")
            uid = uid_of(exception)
            yield self._info(
                Reference(version, "PolicyException", name, namespace, uid),
                about,
                SKIPPED,
                PASSED,
                f"resource {key} was skipped from policy rule {path}",
                path,
            )
        keys = ", ".join(exceptions)
        yield self._info(
            policy,
            about,
            SKIPPED,
            PASSED,
            f"resource {key} was skipped from rule {rule} due to policy"
            f" exceptions {keys}",
            rule,
        )

    def _object_name(self) -> str:
        about = self.about
        prefix = f"{about.namespace}/" if about.namespace else ""
        return f"{about.kind} {prefix}{about.name}"

    def _info(
        self,
        on: Reference,
        related: Reference | None,
        reason: str,
        action: str,
        note: str,
        topic: str,
    ) -> EventInfo:
        return EventInfo(
            regarding=on,
            related=related,
            reason=reason,
            action=action,
            note=note,
            controller=self.controller,
            topic=topic,
            at_ns=self.at_ns,
            seed=self.seed,
        )
