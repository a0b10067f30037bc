"""Run the rules of many policies on one request, and answer with shared responses.

Room: program. Takes: policies with their rules of one action. Gives: Batch, which gives
the PolicyResponses of a request. Next: program/plan.py.
May touch: the world only through the engine's doors.
Answer first, explain later: the fast programs decide; words are made only for what is
neither pass nor skip (design 3).
Source: spec/engine.md 0.4, 0.5, 6.9.

PERF: few outcomes recur for nearly all requests, so the responses that hold no words
are made once for each outcome and shared; equal match blocks and preconditions about
the operation alone are asked once a request. 17 policies cost 20 us less that way.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, cast

from kyverno_mp.errors import InputError
from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.limits import OUTCOME_MEMO_ENTRIES_MAX
from kyverno_mp.program import result
from kyverno_mp.program.context import RequestContext
from kyverno_mp.program.engine import Engine
from kyverno_mp.program.outcome import EXPLAIN, NONE, PASSED, SKIPPED
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import PolicyResponse, RuleResult
from kyverno_mp.program.rule import LinkedRule, judged_object
from kyverno_mp.values.jsonvalue import Json

Chosen = Sequence[tuple[PolicyIR, Sequence[LinkedRule], str]]
"""(policy, its rules of one action, the action of their response)."""

_UNMATCHED: Final = 4
"""Beside the codes of program/outcome: the rule had nothing to say."""


class _Step(NamedTuple):
    """One rule: its match test; its bare pattern test or None; its shared conditions.

    ``shared`` is the number of preconditions that it has in common with others, or -1.
    """

    matches: Callable[[Request], bool]
    bare: Callable[[Json], bool] | None
    shared: int
    rule: LinkedRule


class _Policy(NamedTuple):
    """One policy; ``start`` is the place of its first rule among all codes."""

    policy: PolicyIR
    action: str
    start: int
    steps: list[_Step]
    only_one: bool


class _Run:
    """What one run of a batch gathers."""

    __slots__ = (
        "codes",
        "context",
        "early",
        "engine",
        "matched",
        "matches",
        "request",
        "shared",
        "target",
    )

    def __init__(
        self, engine: Engine, request: Request, context: RequestContext, shared: int
    ) -> None:
        self.engine = engine
        self.request = request
        self.context = context
        self.target = judged_object(request)
        self.codes = bytearray()
        self.shared: list[bool | None] = [None] * shared
        self.early: dict[int, list[RuleResult]] = {}
        """Results that had to be known at once, by the place of the rule's code."""
        self.matches: Callable[[Request], bool] | None = None
        """The match test asked last, as many rules share one; ``matched``: it held."""
        self.matched = False


class Batch:
    """Policies with their rules of one action, laid out to be run.

    Not for requests with ``rule_variables``, whose rules may disagree on the operation.
    """

    __slots__ = ("_known", "_policies", "_shared")

    def __init__(self, chosen: Chosen) -> None:
        layout = _Layout()
        self._policies = [layout.policy(*item) for item in chosen]
        self._shared = len(layout.shared)
        self._known: dict[bytes, tuple[PolicyResponse | _Wordless, ...]] = {}

    def __bool__(self) -> bool:
        return bool(self._policies)

    def run(
        self, engine: Engine, request: Request, deadline_ns: int
    ) -> Sequence[PolicyResponse]:
        """Judge. Raises: DependencyError (deadline).

        A tuple is shared by all requests with that outcome, and so is each response
        without results: treat them as read-only.
        """
        context = engine.open(request, deadline_ns)
        run = _Run(engine, request, context, self._shared)
        for policy in self._policies:
            if policy.only_one:
                _judge_until_one(policy, run)
            else:
                _judge(policy, run)
        key = bytes(run.codes)
        known = self._known.get(key)
        if known is None:
            known = self._remember(key)
        if EXPLAIN not in key:
            # Then no policy waits for words.
            return cast("tuple[PolicyResponse, ...]", known)
        return [
            _explained(item, run) if isinstance(item, _Wordless) else item
            for item in known
        ]

    def _remember(self, key: bytes) -> "tuple[PolicyResponse | _Wordless, ...]":
        found: list[PolicyResponse | _Wordless] = []
        for policy in self._policies:
            codes = key[policy.start : policy.start + len(policy.steps)]
            if any(code != _UNMATCHED for code in codes):
                found.append(_outcome(policy, codes))
        if len(self._known) >= OUTCOME_MEMO_ENTRIES_MAX:
            self._known.clear()
        known = self._known[key] = tuple(found)
        return known


class _Layout:
    """Number what rules have in common."""

    def __init__(self) -> None:
        self.shared: dict[str, int] = {}
        self._matchers: dict[object, Callable[[Request], bool]] = {}
        self._start = 0

    def policy(
        self, policy: PolicyIR, rules: Iterable[LinkedRule], action: str
    ) -> _Policy:
        """Lay out the next policy."""
        steps = [self._step(rule) for rule in rules]
        start = self._start
        self._start += len(steps)
        return _Policy(policy, action, start, steps, policy.apply_rules == "One")

    def _step(self, rule: LinkedRule) -> _Step:
        match = (rule.ir.match, rule.ir.exclude, rule.policy.namespace)
        matches = self._matchers.setdefault(match, rule.matches)
        number = -1
        if rule.operation_only is not None:
            # Values may be lists, so the records are told apart by how they read.
            key = repr(rule.operation_only)
            number = self.shared.setdefault(key, len(self.shared))
        return _Step(matches, rule.bare, number, rule)


def _judge(policy: _Policy, run: _Run) -> None:
    """Add a code for each rule."""
    request, target, codes = run.request, run.target, run.codes
    first = True
    for matches, bare, shared, rule in policy.steps:
        if matches is not run.matches:
            run.matches, run.matched = matches, matches(request)
        if not run.matched:
            codes.append(_UNMATCHED)
            continue
        if bare is None:
            codes.append(_code(rule, shared, run, first=first))
        elif target is None:
            codes.append(NONE)
        else:
            codes.append(PASSED if bare(target) else EXPLAIN)
        first = False


def _judge_until_one(policy: _Policy, run: _Run) -> None:
    """Add a code for each rule; after the first that passes or fails, none is asked."""
    request, target = run.request, run.target
    first = True
    decided = False
    for matches, bare, shared, rule in policy.steps:
        code = _UNMATCHED
        if not decided and matches(request):
            if bare is None:
                code = _code(rule, shared, run, first=first)
            elif target is None:
                code = NONE
            else:
                code = PASSED if bare(target) else EXPLAIN
            decided = code == PASSED
            if code == EXPLAIN:
                scope = run.engine.scope(rule, run.context, first=first)
                found = rule.explain(request, scope)
                run.early[len(run.codes)] = found
                decided = any(r.status in (result.PASS, result.FAIL) for r in found)
            first = False
        run.codes.append(code)


def _code(rule: LinkedRule, shared: int, run: _Run, *, first: bool) -> int:
    """Judge a rule that reads the JSON context."""
    if shared < 0:
        scope = run.engine.scope(rule, run.context, first=first)
        return rule.fast(run.request, scope)
    holds = run.shared[shared]
    if holds is False:
        return SKIPPED
    scope = run.engine.scope(rule, run.context, first=first)
    if holds is None:
        try:
            holds = run.shared[shared] = rule.preconditions_hold(scope)
        except InputError:
            return EXPLAIN
        if not holds:
            return SKIPPED
    return rule.fast_within(run.request, scope, run.target)


class _Wordless(NamedTuple):
    """A policy of which rules need words: (place of the code, rule, is the first)."""

    policy: PolicyIR
    action: str
    passed: tuple[str, ...]
    skipped: tuple[str, ...]
    rules: tuple[tuple[int, LinkedRule, bool], ...]


def _outcome(policy: _Policy, codes: Sequence[int]) -> PolicyResponse | _Wordless:
    """Return what the codes come to, whoever asks."""
    names: dict[int, list[str]] = {PASSED: [], SKIPPED: []}
    rules: list[tuple[int, LinkedRule, bool]] = []
    first = True
    for place, (step, code) in enumerate(
        zip(policy.steps, codes, strict=True), policy.start
    ):
        if code in names:
            names[code].append(step.rule.ir.name)
        elif code == EXPLAIN:
            rules.append((place, step.rule, first))
        first = first and code == _UNMATCHED
    passed, skipped = tuple(names[PASSED]), tuple(names[SKIPPED])
    if rules:
        return _Wordless(policy.policy, policy.action, passed, skipped, tuple(rules))
    return PolicyResponse(
        policy.policy, action=policy.action, passed=passed, skipped=skipped
    )


def _explained(policy: _Wordless, run: _Run) -> PolicyResponse:
    """Return the response of a policy of which a rule needs words."""
    results: list[RuleResult] = []
    for place, rule, first in policy.rules:
        found = run.early.get(place)
        if found is None:
            scope = run.engine.scope(rule, run.context, first=first)
            found = rule.explain(run.request, scope)
        results += found
    return PolicyResponse(
        policy.policy, results, policy.action, policy.passed, policy.skipped
    )
