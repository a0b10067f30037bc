"""Run the rules of many policies on one request, and return shared responses.

Room: program. Takes: policies with their rules of one action. Gives: Batch, which
creates a Judgement for each request, which returns the PolicyResponses. Next:
program/plan.py. May touch: the cluster data only through the engine's ports. Answer
first, explain later: the fast programs decide; messages are made only for results that
are neither pass nor skip.
Source: docs/behaviour/engine 0.4, 0.5, 6.9.

Failures are isolated: a rule that cannot be judged becomes an error of its policy, and
the verdicts of the others stand, including those reached before the deadline.

PERF: nearly all requests have one of a few outcomes, so responses are made once for
each outcome and shared; refusals too, if the message depends only on the place of the
failure. Equal match blocks and preconditions on the operation alone are evaluated once
a request. 17 policies cost 20 us less that way, and 40 us less when five of them
refuse.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, cast

from kyverno_mp.errors import (
    BudgetExceeded,
    DeadlinePassed,
    Error,
    InputError,
    Preempted,
)
from kyverno_mp.expr.effects import EFFECT_CLUSTER, EFFECT_REGISTRY
from kyverno_mp.expr.reads import Reads
from kyverno_mp.expr.scope import Pace
from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.limits import (
    OUTCOME_MEMO_ENTRIES_MAX,
    REVIEW_MESSAGES_CHARACTERS_MAX,
    SHORTENED_MESSAGE_CHARACTERS,
)
from kyverno_mp.program import result
from kyverno_mp.program.bodies.outcome import (
    EXPLAIN,
    FAILED,
    NONE,
    PASSED,
    SKIPPED,
    UNMATCHED,
)
from kyverno_mp.program.context.rule_context import RequestContext
from kyverno_mp.program.engine import Engine
from kyverno_mp.program.recall import Recall, RememberedVerdict, is_worth_it
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import PolicyResponse, RuleResult
from kyverno_mp.program.rule import LinkedRule, judged_object
from kyverno_mp.values.jsonvalue import Json

Chosen = Sequence[tuple[PolicyIR, Sequence[LinkedRule], str]]
"""(policy, its rules of one action, the action of their response)."""

_BETWEEN_LOOKS: Final = 4
"""Policies judged between two checks of the clock: static patterns never check it, and
one takes up to 50 ms for an object of 10 MB."""
_RULES_BETWEEN_LOOKS: Final = 8


class _Step(NamedTuple):
    """One rule: its match test; its bare pattern test or None; its shared conditions.

    ``light_to``: bytes of the largest review for which ``bare`` may be used.
    ``shared``: index of the preconditions that it shares with other rules, or -1.
    """

    matches: Callable[[Request], bool]
    bare: Callable[[Json], bool] | None
    light_to: int
    shared: int
    rule: LinkedRule


class _Policy(NamedTuple):
    """One policy.

    ``start``: index of its first rule among all codes; ``order``: its position in the
    policy order, which is the order of responses.
    """

    policy: PolicyIR
    action: str
    start: int
    steps: list[_Step]
    only_one: bool
    order: int


class Judgement:
    """The evaluation of one request by a batch, with its results so far.

    One thread runs it; other threads may read the results so far.
    """

    __slots__ = (
        "_batch",
        "characters_left",
        "codes",
        "context",
        "early",
        "engine",
        "left_out",
        "matched",
        "matches",
        "request",
        "said",
        "shared",
        "target",
    )

    def __init__(
        self, batch: "Batch", engine: Engine, request: Request, context: RequestContext
    ) -> None:
        self._batch = batch
        self.engine = engine
        self.request = request
        self.context = context
        self.target = judged_object(request)
        self.codes = bytearray()
        self.said: list[str] = []
        """The texts of ``LinkedRule.located``, in the order of the codes FAILED."""
        self.shared: list[bool | None] = [None] * batch.shared_count
        self.early: dict[int, list[RuleResult]] = {}
        """Results of the rules that need messages, by the index of the rule's code."""
        self.matches: Callable[[Request], bool] | None = None
        """The last match test, as many rules share one; ``matched``: its result."""
        self.matched = False
        self.left_out: list[tuple[PolicyIR, Exception]] = []
        """Reasons why rules could not be judged, with the policies of these rules."""
        self.characters_left = REVIEW_MESSAGES_CHARACTERS_MAX

    def run(self, *, pure_only: bool = False) -> None:
        """Judge by all policies, or only by those that make no external calls.

        Raises: Preempted; the request may then be judged again from the start.
        """
        batch = self._batch
        if batch.recall is None or pure_only:
            self._run(batch.portions(pure_only=pure_only))
            return
        key = batch.recall.key(self.request, self.target)
        known = None if key is None else self.engine.verdicts.find(key)
        if key is not None:
            batch.recall.count(known)
        if known is not None:
            # SAFETY: messages before codes, see so_far.
            self.said += known.said
            self.codes += known.codes
        elif not self._run(batch.recalled):
            return
        elif key is not None and not (self.early or self.left_out):
            verdict = RememberedVerdict(bytes(self.codes), tuple(self.said))
            self.engine.verdicts.keep(key, verdict)
        self._run(batch.others)

    def _run(self, portions: list[list[_Policy]]) -> bool:
        """Judge by these policies; False when time ran out, with no policy left."""
        look = self.context.runtime.look_at_clock
        for portion in portions:
            try:
                look()
            except DeadlinePassed as error:
                self._stop(error)
                return False
            except BudgetExceeded:
                # Reset by namespaced policies; a policy of the same namespace
                # sets it again.
                pass
            for policy in portion:
                if policy.only_one:
                    _judge_until_one(policy, self)
                else:
                    _judge(policy, self)
        return True

    def responses(self) -> Sequence[PolicyResponse]:
        """Return the responses of the policies, in policy order, after ``run``.

        A tuple is shared by all requests with that outcome, and each response in a list
        may be shared too: treat them as read-only.
        """
        codes = bytes(self.codes)
        if EXPLAIN not in codes:
            return self._batch.shared_responses(codes, tuple(self.said))
        known = self._batch.known(codes, tuple(self.said))
        return [
            _explained(item, self.early) if isinstance(item, _Wordless) else item
            for item in known
        ]

    def so_far(self, error: Exception) -> Sequence[PolicyResponse]:
        """Return the results so far while another thread still runs; never waits.

        Rules that were not judged have ``error`` as their result.
        """
        # SAFETY: copy first; the other thread only ever appends, the messages of a rule
        # before its code.
        other = Judgement(self._batch, self.engine, self.request, self.context)
        other.codes = bytearray(self.codes)
        other.said = list(self.said)[: other.codes.count(FAILED)]
        other.early = dict(self.early)
        other.left_out = list(self.left_out)
        other._stop(error)
        self.left_out = other.left_out
        return other.responses()

    def fail(self, rule: LinkedRule, error: Exception) -> int:
        """Record an error for a rule that could not be judged; return its code."""
        if isinstance(error, Preempted):
            raise error
        if not any(policy is rule.policy for policy, _ in self.left_out):
            self.left_out.append((rule.policy, error))
        self.early[len(self.codes)] = [
            RuleResult(
                rule=rule.ir.name,
                rule_type=result.VALIDATION,
                status=result.ERROR,
                message=_not_judged(error),
            )
        ]
        return EXPLAIN

    def _stop(self, error: Exception) -> None:
        """Record the error for every rule without a code, if the rule matches."""
        judged = len(self.codes)
        for policy in self._batch.policies:
            for place, step in enumerate(policy.steps, policy.start):
                if place < judged:
                    continue
                matched = step.matches(self.request)
                code = self.fail(step.rule, error) if matched else UNMATCHED
                self.codes.append(code)


class Batch:
    """Policies with their rules of one action, prepared for evaluation.

    Policies that need no external call come first, cluster policies before namespaced
    ones: their verdicts are reached before an external call can use up the time.

    Not for requests with ``rule_variables``, whose rules may disagree on the operation.
    """

    __slots__ = (
        "_known",
        "_portions",
        "_pure_portions",
        "others",
        "policies",
        "recall",
        "recalled",
        "shared_count",
    )

    def __init__(self, chosen: Chosen) -> None:
        layout = _Layout()
        order = sorted(range(len(chosen)), key=lambda at: _urgency(*chosen[at][:2]))
        self.policies = [layout.policy(*chosen[at], at) for at in order]
        """In the order of evaluation."""
        self.shared_count = len(layout.shared)
        pure = [p for p in self.policies if not _asks([step.rule for step in p.steps])]
        self._pure_portions = _portions(pure)
        self._portions = _portions(self.policies)
        self._known: dict[_Key, tuple[PolicyResponse | _Wordless, ...]] = {}
        count, self.recall = _recall(self.policies)
        """For the first policies, those in ``recalled``; ``others`` come after them."""
        self.recalled = _portions(self.policies[:count])
        self.others = _portions(self.policies[count:])

    def __bool__(self) -> bool:
        return bool(self.policies)

    def open(
        self,
        engine: Engine,
        request: Request,
        deadline_ns: int,
        pace: Pace | None = None,
    ) -> Judgement:
        """Start to judge a request."""
        return Judgement(self, engine, request, engine.open(request, deadline_ns, pace))

    def run(self, engine: Engine, request: Request) -> Sequence[PolicyResponse]:
        """Judge without a deadline. Raises the reason why a rule was not judged."""
        judgement = self.open(engine, request, 0)
        judgement.run()
        for _, error in judgement.left_out:
            raise error
        return judgement.responses()

    def portions(self, *, pure_only: bool) -> list[list[_Policy]]:
        """Return the policies in portions, with a check of the clock after each."""
        return self._pure_portions if pure_only else self._portions

    def shared_responses(
        self, codes: bytes, said: tuple[str, ...]
    ) -> tuple[PolicyResponse, ...]:
        """Return the responses of an outcome in which no rule needs a message."""
        return cast("tuple[PolicyResponse, ...]", self.known(codes, said))

    def known(
        self, codes: bytes, said: tuple[str, ...]
    ) -> "tuple[PolicyResponse | _Wordless, ...]":
        """Return the responses for the codes, from the cache if possible."""
        key = (codes, said)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= OUTCOME_MEMO_ENTRIES_MAX:
                self._known.clear()
            known = self._known[key] = self._outcomes(codes, said)
        return known

    def _outcomes(
        self, codes: bytes, said: tuple[str, ...]
    ) -> "tuple[PolicyResponse | _Wordless, ...]":
        found: list[tuple[int, PolicyResponse | _Wordless]] = []
        texts = iter(said)
        for policy in self.policies:
            own = codes[policy.start : policy.start + len(policy.steps)]
            if any(code != UNMATCHED for code in own):
                found.append((policy.order, _outcome(policy, own, texts)))
        found.sort(key=lambda item: item[0])
        return tuple([item for _, item in found])


def _asks(rules: Iterable[LinkedRule]) -> bool:
    """Return whether a rule may make an external call."""
    return any(rule.ir.effects & (EFFECT_CLUSTER | EFFECT_REGISTRY) for rule in rules)


def _urgency(policy: PolicyIR, rules: Iterable[LinkedRule]) -> tuple[bool, bool, bool]:
    return _asks(rules), bool(policy.namespace), _reads(rules) is None


def _reads(rules: Iterable[LinkedRule]) -> Reads | None:
    """Return the fields of the new object that rules read; None when unknown."""
    reads = Reads()
    for rule in rules:
        if rule.reads is None:
            return None
        reads.add(rule.reads)
    return reads


def _recall(policies: Iterable[_Policy]) -> tuple[int, Recall | None]:
    """Return how many of the first policies are cacheable, and their cache."""
    first: list[_Step] = []
    count = 0
    for policy in policies:
        rules = [step.rule for step in policy.steps]
        if _asks(rules) or _reads(rules) is None:
            break
        first += policy.steps
        count += 1
    rules = [step.rule for step in first]
    reads = _reads(rules)
    if reads is None or not rules or not is_worth_it(rules):
        return 0, None
    return count, Recall(reads, dict.fromkeys(step.matches for step in first))


def _portions(policies: list[_Policy]) -> list[list[_Policy]]:
    return [
        policies[start : start + _BETWEEN_LOOKS]
        for start in range(0, len(policies), _BETWEEN_LOOKS)
    ]


def _not_judged(error: Exception) -> str:
    """Return text for callers; the text of a defect may contain a value."""
    if isinstance(error, Error):
        return f"not judged ({error.code}): {error.message}"
    return "not judged (webhook.defect): internal error, see the log"


class _Layout:
    """Numbers the tests that rules share."""

    def __init__(self) -> None:
        self.shared: dict[str, int] = {}
        self._matchers: dict[object, Callable[[Request], bool]] = {}
        self._start = 0

    def policy(
        self, policy: PolicyIR, rules: Iterable[LinkedRule], action: str, order: int
    ) -> _Policy:
        """Add the next policy."""
        steps = [self._step(rule) for rule in rules]
        start = self._start
        self._start += len(steps)
        only_one = policy.apply_rules == "One"
        return _Policy(policy, action, start, steps, only_one, order)

    def _step(self, rule: LinkedRule) -> _Step:
        # SAFETY: the test includes the policy's matchConditions, so only rules without
        # any share it with other policies.
        owner = rule.policy.key if rule.policy.match_conditions else ""
        match = (rule.ir.match, rule.ir.exclude, rule.policy.namespace, owner)
        matches = self._matchers.setdefault(match, rule.matches)
        number = -1
        if rule.operation_only is not None:
            # Values may be lists, so records are compared by their repr.
            key = repr(rule.operation_only)
            number = self.shared.setdefault(key, len(self.shared))
        return _Step(matches, rule.bare, rule.light_to, number, rule)


def _judge(policy: _Policy, run: Judgement) -> None:
    """Append a code for each rule."""
    request, target, codes = run.request, run.target, run.codes
    first = True
    size, is_long = request.size, len(policy.steps) > _RULES_BETWEEN_LOOKS
    for matches, bare, light_to, shared, rule in policy.steps:
        try:
            if is_long and not len(codes) % _RULES_BETWEEN_LOOKS:
                run.context.runtime.look_at_clock()
            if matches is not run.matches:
                run.matches, run.matched = matches, matches(request)
            if not run.matched:
                codes.append(UNMATCHED)
                continue
            if bare is None or size > light_to:
                code = _code(rule, shared, run, first=first)
            elif target is None:
                code = NONE
            else:
                code = PASSED if bare(target) else _failed(rule, run)
            if code == EXPLAIN:
                _explain(rule, run, first=first)
        except Exception as error:  # noqa: BLE001 - failures are isolated per rule
            code = run.fail(rule, error)
        codes.append(code)
        first = False


def _judge_until_one(policy: _Policy, run: Judgement) -> None:
    """Append a code for each rule; stop at the first pass or fail."""
    request, target = run.request, run.target
    first = True
    decided = False
    for matches, bare, light_to, shared, rule in policy.steps:
        code = UNMATCHED
        try:
            if not decided and matches(request):
                if bare is None or request.size > light_to:
                    code = _code(rule, shared, run, first=first)
                elif target is None:
                    code = NONE
                else:
                    code = PASSED if bare(target) else _failed(rule, run)
                decided = code in (PASSED, FAILED)
                if code == EXPLAIN:
                    found = _explain(rule, run, first=first)
                    decided = any(r.status in (result.PASS, result.FAIL) for r in found)
                first = False
        except Exception as error:  # noqa: BLE001 - failures are isolated per rule
            code = run.fail(rule, error)
            # It might have been the rule that decides.
            decided = True
        run.codes.append(code)


def _explain(rule: LinkedRule, run: Judgement, *, first: bool) -> list[RuleResult]:
    """Make the messages of a rule, and store them at the index of its code.

    At once, not after all rules were judged: then the deadline may have passed.
    """
    scope = run.engine.scope(rule, run.context, first=first)
    found = run.early[len(run.codes)] = rule.explain(run.request, scope)
    for each in found:
        run.characters_left -= len(each.message)
        if run.characters_left < 0:
            each.message = _shortened(each.message)
    return found


def _shortened(text: str) -> str:
    """Return the start of a text that is too long to be read."""
    most = SHORTENED_MESSAGE_CHARACTERS
    return text if len(text) <= most else f"{text[:most]}... (shortened)"


def _failed(rule: LinkedRule, run: Judgement) -> int:
    """Judge a rule whose bare test failed."""
    text = rule.located(run.request, run.target)
    if text is None:
        return EXPLAIN
    run.said.append(text)
    return FAILED


def _code(rule: LinkedRule, shared: int, run: Judgement, *, first: bool) -> int:
    """Judge a rule that is not a bare pattern."""
    if rule.plain is not None:
        runtime = run.context.runtime
        if runtime.policy is not rule.policy:
            runtime.begin_policy(rule.policy, is_tenant=bool(rule.policy.namespace))
        else:
            runtime.begin_rule()
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


class _Wordless(NamedTuple):
    """A policy with rules that need messages: the numbers index their codes."""

    policy: PolicyIR
    action: str
    passed: tuple[str, ...]
    skipped: tuple[str, ...]
    rules: tuple[int | RuleResult, ...]


def _outcome(
    policy: _Policy, codes: Sequence[int], said: Iterator[str]
) -> PolicyResponse | _Wordless:
    """Return the responses for the codes; takes its texts from ``said``."""
    names: dict[int, list[str]] = {PASSED: [], SKIPPED: []}
    rules: list[int | RuleResult] = []
    for place, (step, code) in enumerate(
        zip(policy.steps, codes, strict=True), policy.start
    ):
        if code in names:
            names[code].append(step.rule.ir.name)
        elif code == EXPLAIN:
            rules.append(place)
        elif code == FAILED:
            constant = step.rule.failure
            rules.append(step.rule.failed(next(said) if constant is None else constant))
    passed, skipped = tuple(names[PASSED]), tuple(names[SKIPPED])
    results = [rule for rule in rules if isinstance(rule, RuleResult)]
    if len(results) < len(rules):
        return _Wordless(policy.policy, policy.action, passed, skipped, tuple(rules))
    return PolicyResponse(policy.policy, results, policy.action, passed, skipped)


def _explained(
    policy: _Wordless, early: Mapping[int, list[RuleResult]]
) -> PolicyResponse:
    """Return the response of a policy with a rule that needed a message."""
    results: list[RuleResult] = []
    for rule in policy.rules:
        if isinstance(rule, RuleResult):
            results.append(rule)
        else:
            results += early[rule]
    return PolicyResponse(
        policy.policy, results, policy.action, policy.passed, policy.skipped
    )
