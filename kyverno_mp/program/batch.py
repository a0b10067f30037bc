"""Run the rules of many policies on one request, and answer with shared responses.

Room: program. Takes: policies with their rules of one action. Gives: Batch, which gives
the PolicyResponses of a request. Next: program/plan.py.
May touch: the world only through the engine's doors.
Answer first, explain later: the fast programs decide; words are made only for what is
neither pass nor skip (design 3).
Source: spec/engine.md 0.4, 0.5, 6.9.

PERF: few outcomes recur for nearly all requests, so responses are made once for each
outcome and shared, refusals too where the place of a failure decides its words; equal
match blocks and preconditions about the operation alone are asked once a request. 17
policies cost 20 us less that way, and 40 us less where five of them refuse.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, cast

from kyverno_mp.errors import InputError
from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.limits import OUTCOME_MEMO_ENTRIES_MAX
from kyverno_mp.program import result
from kyverno_mp.program.context import RequestContext
from kyverno_mp.program.engine import Engine
from kyverno_mp.program.outcome import (
    EXPLAIN,
    FAILED,
    NONE,
    PASSED,
    SKIPPED,
    UNMATCHED,
)
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import PolicyResponse, RuleResult
from kyverno_mp.program.rule import LinkedRule, judged_object
from kyverno_mp.values.jsonvalue import Json

Chosen = Sequence[tuple[PolicyIR, Sequence[LinkedRule], str]]
"""(policy, its rules of one action, the action of their response)."""

_BETWEEN_LOOKS: Final = 4
"""Policies judged between two looks at the clock: static patterns look at none, and
one takes up to 50 ms for an object of 10 MB."""


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
        "said",
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
        self.said: list[str] = []
        """The texts of ``LinkedRule.located``, in the order of the codes FAILED."""
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

    __slots__ = ("_known", "_policies", "_portions", "_shared")

    def __init__(self, chosen: Chosen) -> None:
        layout = _Layout()
        self._policies = [layout.policy(*item) for item in chosen]
        self._shared = len(layout.shared)
        self._portions = [
            self._policies[start : start + _BETWEEN_LOOKS]
            for start in range(0, len(self._policies), _BETWEEN_LOOKS)
        ]
        self._known: dict[_Key, tuple[PolicyResponse | _Wordless, ...]] = {}

    def __bool__(self) -> bool:
        return bool(self._policies)

    def run(
        self, engine: Engine, request: Request, deadline_ns: int
    ) -> Sequence[PolicyResponse]:
        """Judge. Raises: DependencyError (deadline).

        A tuple is shared by all requests with that outcome, and so may be each response
        in a list: treat them as read-only.
        """
        context = engine.open(request, deadline_ns)
        run = _Run(engine, request, context, self._shared)
        for portion in self._portions:
            context.runtime.look_at_clock()
            for policy in portion:
                if policy.only_one:
                    _judge_until_one(policy, run)
                else:
                    _judge(policy, run)
        codes = bytes(run.codes)
        key = (codes, tuple(run.said))
        known = self._known.get(key)
        if known is None:
            known = self._remember(key)
        if EXPLAIN not in codes:
            # Then no policy waits for words.
            return cast("tuple[PolicyResponse, ...]", known)
        return [
            _explained(item, run) if isinstance(item, _Wordless) else item
            for item in known
        ]

    def _remember(self, key: "_Key") -> "tuple[PolicyResponse | _Wordless, ...]":
        found: list[PolicyResponse | _Wordless] = []
        said = iter(key[1])
        for policy in self._policies:
            codes = key[0][policy.start : policy.start + len(policy.steps)]
            if any(code != UNMATCHED for code in codes):
                found.append(_outcome(policy, codes, said))
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
            codes.append(UNMATCHED)
            continue
        if bare is None:
            codes.append(_code(rule, shared, run, first=first))
        elif target is None:
            codes.append(NONE)
        else:
            codes.append(PASSED if bare(target) else _failed(rule, run))
        first = False


def _judge_until_one(policy: _Policy, run: _Run) -> None:
    """Add a code for each rule; after the first that passes or fails, none is asked."""
    request, target = run.request, run.target
    first = True
    decided = False
    for matches, bare, shared, rule in policy.steps:
        code = UNMATCHED
        if not decided and matches(request):
            if bare is None:
                code = _code(rule, shared, run, first=first)
            elif target is None:
                code = NONE
            else:
                code = PASSED if bare(target) else _failed(rule, run)
            decided = code in (PASSED, FAILED)
            if code == EXPLAIN:
                scope = run.engine.scope(rule, run.context, first=first)
                found = rule.explain(request, scope)
                run.early[len(run.codes)] = found
                decided = any(r.status in (result.PASS, result.FAIL) for r in found)
            first = False
        run.codes.append(code)


def _failed(rule: LinkedRule, run: _Run) -> int:
    """Judge a rule whose bare test failed."""
    text = rule.located(run.request, run.target)
    if text is None:
        return EXPLAIN
    run.said.append(text)
    return FAILED


def _code(rule: LinkedRule, shared: int, run: _Run, *, first: bool) -> int:
    """Judge a rule that is no bare pattern."""
    if rule.plain is not None:
        return rule.plain(run.context)
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


_Key = tuple[bytes, tuple[str, ...]]
"""All codes of a run, and the texts of the bare patterns that failed."""


class _Untold(NamedTuple):
    """A rule that needs words, at the place of its code."""

    place: int
    rule: LinkedRule
    first: bool


class _Wordless(NamedTuple):
    """A policy of which rules need words."""

    policy: PolicyIR
    action: str
    passed: tuple[str, ...]
    skipped: tuple[str, ...]
    rules: tuple[_Untold | RuleResult, ...]


def _outcome(
    policy: _Policy, codes: Sequence[int], said: Iterator[str]
) -> PolicyResponse | _Wordless:
    """Return what the codes come to, whoever asks; takes its texts from ``said``."""
    names: dict[int, list[str]] = {PASSED: [], SKIPPED: []}
    rules: list[_Untold | RuleResult] = []
    first = True
    for place, (step, code) in enumerate(
        zip(policy.steps, codes, strict=True), policy.start
    ):
        if code in names:
            names[code].append(step.rule.ir.name)
        elif code == EXPLAIN:
            rules.append(_Untold(place, step.rule, first))
        elif code == FAILED:
            constant = step.rule.failure
            rules.append(step.rule.failed(next(said) if constant is None else constant))
        first = first and code == UNMATCHED
    passed, skipped = tuple(names[PASSED]), tuple(names[SKIPPED])
    results = [rule for rule in rules if isinstance(rule, RuleResult)]
    if len(results) < len(rules):
        return _Wordless(policy.policy, policy.action, passed, skipped, tuple(rules))
    return PolicyResponse(policy.policy, results, policy.action, passed, skipped)


def _explained(policy: _Wordless, run: _Run) -> PolicyResponse:
    """Return the response of a policy of which a rule needs words."""
    results: list[RuleResult] = []
    for untold in policy.rules:
        if isinstance(untold, RuleResult):
            results.append(untold)
            continue
        found = run.early.get(untold.place)
        if found is None:
            scope = run.engine.scope(untold.rule, run.context, first=untold.first)
            found = untold.rule.explain(run.request, scope)
        results += found
    return PolicyResponse(
        policy.policy, results, policy.action, policy.passed, policy.skipped
    )
