"""Decide whether a rule applies to a request (fast); explain why not (slow).

Room: program. Takes: the match and exclude records of a rule or of a PolicyException.
Gives: Matcher. Next: program/matching/candidates, program/rule_gate.
Source: docs/behaviour/engine 1 (all), 8.7; Kyverno
pkg/engine/utils/{match,exceptions}.go.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from kyverno_mp.ir.match import FilterIR, MatchIR
from kyverno_mp.program.matching.filter import (
    FilterProgram,
    link_filter,
)
from kyverno_mp.program.matching.subject import resource_namespace
from kyverno_mp.program.request import Request
from kyverno_mp.values.jsonvalue import Json

RequestTest: TypeAlias = Callable[[Request], bool]
_FilterTest: TypeAlias = Callable[[Request, dict[str, Json]], bool]

_EXCLUDED_BY_ONE = "resource excluded since one of the criteria excluded it"
_EXCLUDED_BY_ALL = "resource excluded since the combination of all criteria exclude it"


class Matcher(NamedTuple):
    """A linked match block with its exclude block.

    ``matches`` is the fast program; ``explain`` returns "" if the request matches,
    otherwise upstream's debug message.
    """

    matches: RequestTest
    explain: Callable[[Request], str]


def link_match(
    match: MatchIR,
    exclude: MatchIR | None,
    *,
    rule: str = "",
    policy_namespace: str = "",
    for_exception: bool = False,
) -> Matcher:
    """Link the blocks of one rule, or of one exception (which has no ``exclude``).

    ``rule`` is the name in explanations; ``policy_namespace`` is a namespaced Policy's
    namespace ("default" if it has none) and "" for a ClusterPolicy.
    """
    included = [link_filter(f, for_exception=for_exception) for f in match.filters]
    unwanted = [
        link_filter(f, for_exception=False, keeps_user_info=True)
        for f in (exclude.filters if exclude is not None else ())
        if f != FilterIR()
    ]
    unwanted_all = exclude is not None and exclude.mode == "all"
    if unwanted_all and exclude is not None and len(unwanted) < len(exclude.filters):
        unwanted = []  # An empty filter excludes nothing, so "all" cannot be met.
    blocks = _Blocks(
        rule,
        policy_namespace,
        frozenset(match.only_kinds),
        frozenset(match.never_kinds),
        match.mode == "all",
        included,
        unwanted_all,
        unwanted,
    )
    return Matcher(_link_fast(blocks, for_exception=for_exception), blocks.explain)


def reads_namespace_labels(match: MatchIR, exclude: MatchIR | None) -> bool:
    """Return whether any of the blocks has a namespaceSelector."""
    return any(
        each.namespace_selector is not None
        for block in (match, exclude)
        if block is not None
        for each in block.filters
    )


class _Blocks(NamedTuple):
    rule: str
    policy_namespace: str
    only_kinds: frozenset[str]
    never_kinds: frozenset[str]
    wanted_all: bool
    wanted: list[FilterProgram]
    unwanted_all: bool
    unwanted: list[FilterProgram]

    def has_kind(self, request: Request) -> bool:
        """Return whether the rule exists for the kind of a request (engine 2.1)."""
        if self.only_kinds and request.kind not in self.only_kinds:
            return False
        return request.kind not in self.never_kinds

    def explain(self, request: Request) -> str:
        """Return upstream's message if the request does not match, otherwise ""."""
        resource = request.object or request.old_object
        if not resource:
            return "resource is empty"
        if self.policy_namespace and not _in_namespace(request, self.policy_namespace):
            return "policy and resource namespaces mismatch"
        if not self.has_kind(request):
            return f"rule {self.rule} does not exist for kind {request.kind}"
        reasons = self._match_reasons(request, resource)
        if not reasons:
            reasons = self._exclude_reasons(request, resource)
        if not reasons:
            return ""
        lines = "".join(
            f"\n {i}. {reason}" for i, reason in enumerate(reasons, start=1)
        )
        return f"rule {self.rule} not matched:{lines}"

    def _match_reasons(self, request: Request, resource: dict[str, Json]) -> list[str]:
        if self.wanted_all:
            return [r for f in self.wanted for r in f.reasons(request, resource)]
        if any(not f.reasons(request, resource) for f in self.wanted):
            return []
        return ["no resource matched"]

    def _exclude_reasons(
        self, request: Request, resource: dict[str, Json]
    ) -> list[str]:
        hits = [f for f in self.unwanted if not f.reasons(request, resource)]
        if not self.unwanted_all:
            return [_EXCLUDED_BY_ONE for _ in hits]
        if self.unwanted and len(hits) == len(self.unwanted):
            return [_EXCLUDED_BY_ALL]
        return []


def _in_namespace(request: Request, namespace: str) -> bool:
    # KYVERNO: the new and the old object must be in the policy's namespace (1.9);
    # objects without a namespace never are.
    return all(
        resource_namespace(request, resource) == namespace
        for resource in (request.object, request.old_object)
        if resource
    )


def _link_fast(blocks: _Blocks, *, for_exception: bool) -> RequestTest:
    test = _link_kinds(blocks, _link_user_variants(blocks, for_exception=for_exception))
    namespace = blocks.policy_namespace
    if not namespace:
        return test
    return lambda request: _in_namespace(request, namespace) and test(request)


def _link_kinds(blocks: _Blocks, test: RequestTest) -> RequestTest:
    if not blocks.only_kinds and not blocks.never_kinds:
        return test
    return lambda request: blocks.has_kind(request) and test(request)


def _link_user_variants(blocks: _Blocks, *, for_exception: bool) -> RequestTest:
    # KYVERNO: for requests without user info, match filters drop their user criteria,
    # but exclude filters and exceptions keep them (1.6, 8.7); both variants are linked
    # in advance.
    excluded = _combine([f.test for f in blocks.unwanted], every=blocks.unwanted_all)
    matched = _combine([f.test for f in blocks.wanted], every=blocks.wanted_all)
    test = _link_variant(matched, excluded)
    if for_exception or all(f.anonymous_test is f.test for f in blocks.wanted):
        return test
    unknown = _combine(
        [f.anonymous_test for f in blocks.wanted], every=blocks.wanted_all
    )
    anonymous = _link_variant(unknown, excluded)
    return lambda request: (
        test(request) if request.has_user_info else anonymous(request)
    )


def _link_variant(
    included: _FilterTest | None, unwanted: _FilterTest | None
) -> RequestTest:
    if included is None:
        return lambda _: False
    if unwanted is None:

        def matches(request: Request) -> bool:
            # KYVERNO: the old object is tried only if the new one is absent (1.7).
            resource = request.object or request.old_object
            return bool(resource) and included(request, resource)

        return matches

    def matches_unless_excluded(request: Request) -> bool:
        resource = request.object or request.old_object
        return (
            bool(resource)
            and included(request, resource)
            and not unwanted(request, resource)
        )

    return matches_unless_excluded


def _combine(tests: list[_FilterTest], *, every: bool) -> _FilterTest | None:
    """Return one test for all filters; None: without filters, nothing matches."""
    if not tests:
        return None
    if len(tests) == 1:
        return tests[0]
    if every:
        return lambda request, resource: all(t(request, resource) for t in tests)

    def some(request: Request, resource: dict[str, Json]) -> bool:
        for test in tests:  # noqa: SIM110 - a generator costs more than the tests
            if test(request, resource):
                return True
        return False

    return some
