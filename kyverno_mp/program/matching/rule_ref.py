"""Decode and link the rules that may apply to a request, step by step on demand.

Room: program. Takes: records by position. Gives: RuleRef and PolicyCandidates.
Next: program/engine.
Source: docs/architecture.md 3 (answer first, link on demand).
"""

from collections.abc import Callable
from typing import Generic, NamedTuple, Protocol, TypeVar

from kyverno_mp.ir.index import PolicyHeadIR, RuleHeadIR, gate_namespace
from kyverno_mp.ir.rules import PolicyIR, RuleIR
from kyverno_mp.program.matching.match import Matcher, link_match
from kyverno_mp.program.request import Request

T = TypeVar("T")


class Ahead(NamedTuple):
    """Something to link before a review needs it."""

    size: int
    """The size of its record."""
    link: Callable[[], object]


class RuleRecords(Protocol):
    """Records of policies and rules by position, decoded at each call."""

    def policy(self, position: int) -> PolicyIR:
        """Return the policy at ``position`` in policy order."""

    def policy_head(self, position: int) -> PolicyHeadIR:
        """Return the leading fields of the policy."""

    def rule(self, position: int, number: int) -> RuleIR:
        """Return the rule ``number`` of the policy at ``position``."""

    def rule_head(self, position: int, number: int) -> RuleHeadIR:
        """Return the leading fields of the rule, which matching needs."""

    def rule_bytes(self, position: int, number: int) -> int:
        """Return the size of the rule's record."""


class PolicyCandidates(Generic[T]):
    """The rules of one policy that may apply, in rule order."""

    __slots__ = ("_policies", "_position", "rules")

    def __init__(
        self,
        policies: Callable[[int], PolicyIR],
        position: int,
        rules: "tuple[RuleRef[T], ...]",
    ) -> None:
        self._policies = policies
        self._position = position
        self.rules = rules

    @property
    def policy(self) -> PolicyIR:
        """The policy's record, decoded once and shared by its rules."""
        return self._policies(self._position)


class RuleRef(Generic[T]):
    """One rule that may apply.

    ``matches`` evaluates match and exclude; ``linked`` is the result of the link
    function for the whole rule, computed at first use. Both are kept as long as the
    segment.

    Nothing here refers back to the source, so there are no reference cycles. The rules
    of a replaced snapshot can be millions of objects; reference counting frees them at
    once, while the garbage collector would block the event loop as it visits them
    (tests/unit/program/test_released.py).
    """

    __slots__ = (
        "_link",
        "_linked",
        "_matcher",
        "_policies",
        "_records",
        "number",
        "position",
    )

    def __init__(
        self,
        records: RuleRecords,
        policies: Callable[[int], PolicyIR],
        link: Callable[[PolicyIR, RuleIR], T],
        position: int,
        number: int,
    ) -> None:
        self._records = records
        self._policies = policies
        self._link = link
        self._linked: tuple[T] | None = None
        self._matcher: Matcher | None = None
        self.position = position
        self.number = number

    def moved(
        self,
        records: RuleRecords,
        policies: Callable[[int], PolicyIR],
        position: int,
    ) -> "RuleRef[T]":
        """Return this linked rule at its position in another generation.

        ``policies`` must return the same policy there.
        """
        moved = RuleRef(records, policies, self._link, position, self.number)
        moved._linked, moved._matcher = self._linked, self._matcher
        return moved

    @property
    def matcher(self) -> Matcher:
        """The linked match and exclude blocks."""
        if self._matcher is None:
            head = self._records.rule_head(self.position, self.number)
            policy = self._records.policy_head(self.position)
            self._matcher = link_match(
                head.match,
                head.exclude,
                rule=head.name,
                policy_namespace=gate_namespace(policy),
            )
        return self._matcher

    @property
    def policy(self) -> PolicyIR:
        """The policy's record, shared by its rules."""
        return self._policies(self.position)

    @property
    def is_linked(self) -> bool:
        """Whether the rule is linked."""
        return self._linked is not None

    @property
    def unlinked_bytes(self) -> int:
        """Size of the record that is still to be linked; 0 once it is linked."""
        if self._linked is not None:
            return 0
        return self._records.rule_bytes(self.position, self.number)

    @property
    def linked(self) -> T:
        """The linked rule."""
        if self._linked is None:
            rule = self._records.rule(self.position, self.number)
            self._linked = (self._link(self.policy, rule),)
        return self._linked[0]

    def matches(self, request: Request) -> bool:
        """Evaluate match and exclude, without the rest of the rule."""
        return self.matcher.matches(request)
