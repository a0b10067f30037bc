"""Change the object of one admission request by mutate and verifyImages rules.

Room: program. Takes: the policies that program/plans/planner.py selected. Gives:
MutationPlan, run by the webhook. Next: program/mutation.py,
program/images/verification.py.
May touch: registries through program/ports.py.
Source: docs/behaviour/controllers 2.5, 2.6; docs/behaviour/images 2.1.
"""

from collections.abc import Sequence
from functools import partial
from typing import TypeAlias

from kyverno_mp.errors import (
    BudgetExceeded,
    DeadlinePassed,
    DependencyError,
    InputError,
    Preempted,
    RegistryUnavailable,
)
from kyverno_mp.expr.effects import EFFECT_CLUSTER, EFFECT_REGISTRY
from kyverno_mp.expr.scope import Pace
from kyverno_mp.ir.rules import PolicyIR, RuleIR
from kyverno_mp.program.context.rule_context import RequestContext
from kyverno_mp.program.engine import Engine
from kyverno_mp.program.images.earlier import recorded_before
from kyverno_mp.program.images.record import without_record
from kyverno_mp.program.images.rule import ImageState, LinkedImageRule
from kyverno_mp.program.images.verification import (
    ImagePolicy,
    UnreadImages,
    leave_out,
    verify_request,
)
from kyverno_mp.program.matching.candidates import RuleSource
from kyverno_mp.program.matching.rule_ref import PolicyCandidates
from kyverno_mp.program.mutate.rule import LinkedMutation
from kyverno_mp.program.mutation import (
    Mutations,
    PolicyMutations,
    Resource,
    answer_patch,
    is_standard,
    mutate_request,
)
from kyverno_mp.program.plans.planner import SLOW, Picked, PlannerOf
from kyverno_mp.program.ports import ReviewedImages
from kyverno_mp.program.recall.mutations import (
    MutationCache,
    MutationKey,
    MutationRecall,
    recall_of,
)
from kyverno_mp.program.recall.namespace_reads import reads_namespace
from kyverno_mp.program.request import Request, copy_of
from kyverno_mp.program.unlinked_change import unlinked_change

Changing: TypeAlias = LinkedMutation | LinkedImageRule | None
"""A rule that the mutating webhook can run; None for any other rule."""


def link_mutation(policy: PolicyIR, rule: RuleIR) -> Changing:
    """Link one rule; rule sources call it when a rule is first needed.

    SAFETY: a rule that cannot be linked becomes a separate error, as in ``link_rule``.
    """
    try:
        if rule.verify_images is not None and not rule.unsupported:
            return LinkedImageRule(policy, rule)
        # Of image rules that cannot be evaluated, only the error is needed; that of a
        # rule of unknown type, in both webhooks.
        types = ("mutate", "verifyImages", "") if rule.unsupported else ("mutate",)
        return LinkedMutation(policy, rule) if rule.rule_type in types else None
    except Exception as error:  # noqa: BLE001 - the exit for internal errors
        return unlinked_change(policy, rule, error)


_NO_REGISTRY = RegistryUnavailable("registry.none", "registries are not read here")
_TOO_LATE: DependencyError = DeadlinePassed(
    "images.deadline", "the image was not verified in time"
)


class _Prepared:
    """The data shared by all requests with these candidates."""

    __slots__ = (
        "_is_recall_linked",
        "_recall",
        "asking",
        "cache",
        "calls",
        "earlier",
        "fails",
        "images",
        "policies",
        "reads_namespace",
        "reads_registry",
    )

    def __init__(
        self,
        policies: list[PolicyMutations],
        images: list[ImagePolicy],
        cache: MutationCache,
        earlier: list[ImagePolicy],
    ) -> None:
        self.policies = policies
        self.images = images
        self.cache = cache
        self.earlier = earlier
        """Policies on other paths that may already have recorded outcomes."""
        everything: list[tuple[PolicyIR, Sequence[LinkedMutation | LinkedImageRule]]]
        everything = [*self.policies, *self.images]
        self.fails = any(p.failure_policy == "Fail" for p, _ in everything)
        effects = 0
        for _, listed in everything:
            for rule in listed:
                effects |= rule.ir.effects
        self.calls = bool(effects & SLOW)
        self.reads_registry = bool(effects & EFFECT_REGISTRY)
        self.asking = frozenset(
            number
            for number, (_, rules) in enumerate(self.policies)
            if any(rule.ir.effects & SLOW for rule in rules)
        )
        """Indexes of the policies that may make external calls."""
        self.reads_namespace = any(
            reads_namespace(policy, rule.ir)
            for policy, listed in (*everything, *earlier)
            for rule in listed
        )
        self._recall: MutationRecall | None = None
        self._is_recall_linked = bool(images) or not policies

    def recall(self, request: Request) -> MutationRecall | None:
        """Return the recall of the rules; it is linked with the first object."""
        if not self._is_recall_linked:
            self._recall = recall_of(self.policies, request.object)
            self._is_recall_linked = True
        return self._recall


class MutationPlan:
    """The policies that may mutate one request, selected but not yet run."""

    __slots__ = (
        "_begun",
        "_engine",
        "_prepared",
        "_request",
        "fails",
        "needs_io",
        "reads_namespace",
        "reads_registry",
    )

    def __init__(self, engine: Engine, request: Request, prepared: _Prepared) -> None:
        self._engine = engine
        self._request = request
        self._prepared = prepared
        self._begun: Mutations | None = None
        self.fails = prepared.fails
        self.needs_io = prepared.calls
        self.reads_namespace = prepared.reads_namespace
        self.reads_registry = prepared.reads_registry

    def run(self, deadline_ns: int, pace: Pace | None = None) -> Mutations:
        """Apply the policies in order.

        If a policy with failurePolicy Ignore raises, its changes are dropped, and the
        other policies are applied. Raises: the error of a policy with failurePolicy
        Fail, DeadlinePassed, Preempted.
        """
        context = self._engine.open(self._request, deadline_ns, pace)
        prepared = self._prepared
        recall = prepared.recall(self._request)
        key = None if recall is None else recall.key(self._request)
        if recall is not None and key is not None:
            cached = prepared.cache.find(key)
            recall.count(cached)
            if cached is not None:
                return cached.outcome(self._request)
        done = self._begun = Mutations([], [])
        if prepared.policies or not prepared.images:
            mutate_request(prepared.policies, context, done)
        if recall is not None and key is not None:
            self._remember(recall, key, done)
        if prepared.images and not done.refusal:
            begin = self._engine.cluster_data.reviewed_images
            images = begin() if begin is not None else UnreadImages(_NO_REGISTRY)
            self._verify(prepared.images, images, done, context)
        return done

    def _remember(
        self, recall: MutationRecall, key: MutationKey, done: Mutations
    ) -> None:
        """Cache the outcome of a request whose key has occurred before."""
        cache = self._prepared.cache
        if cache.is_met(key):
            cache.keep(key, recall.learned(key, self._request, done))

    def _verify(
        self,
        policies: list[ImagePolicy],
        images: ReviewedImages,
        done: Mutations,
        context: RequestContext,
        skipped: Sequence[ImagePolicy] = (),
    ) -> None:
        """Verify the images of the changed object; put the whole patch into ``done``.

        ``skipped``: skipped policies. Raises: the errors of ``verify_request``;
        BudgetExceeded if the patch is too large.
        """
        resource = self._request.object if done.reached is None else done.reached[1]
        within = self._changed_context(context, resource)
        before = recorded_before(self._prepared.earlier, within)
        state = ImageState(images, resource, record=before)
        done.verified = verify_request(policies, within, state, done.left_out)
        try:
            leave_out(skipped, within, state)
        except InputError as error:
            # SAFETY: the images that these policies select are unknown, so the review
            # fails.
            raise DeadlinePassed("images.deadline", error.message) from error
        # SAFETY: entries not written by a rule are from the user, and prove nothing.
        state.annotate()
        if state.resource is not resource:
            done.patch = answer_patch(context, state.resource)

    def _changed_context(
        self, context: RequestContext, resource: Resource
    ) -> RequestContext:
        """Return a context whose request has the changed object."""
        if resource is context.request.object:
            return context
        request = copy_of(self._request)
        request.object = resource
        if request.review_request is not None:
            request.review_request = {**request.review_request, "object": resource}
        return RequestContext(request, context.cluster_data, context.runtime)

    def run_rest(self, deadline_ns: int, pace: Pace | None = None) -> Mutations:
        """Apply the policies after the one reached by ``run``, without external calls.

        Called if ``run`` raised an error, was late or never started; its earlier
        results are kept, and other policies are applied while time is left. Another
        thread may still be in ``run``. If any policy has failurePolicy Fail, nothing is
        applied. No registry is read, so only unchanged images that the rule has
        verified before count as verified.
        """
        done = Mutations([], [])
        if self.fails:
            return done
        context = self._engine.open(self._request, deadline_ns, pace)
        next_one, begun = 0, self._begun
        resource = self._request.object
        if begun is not None and begun.reached is not None:
            at, resource, count = begun.reached
            next_one = at + 1
            done.responses += begun.responses[:count]
            done.left_out += begun.left_out
        prepared = self._prepared
        policies = [
            each
            for number, each in enumerate(prepared.policies)
            if number >= next_one and number not in prepared.asking
        ]
        done.reached = -1, resource, len(done.responses)
        try:
            mutate_request(policies, context, done)
            if prepared.images:
                self._verify_rest(done, context)
        except (DeadlinePassed, Preempted):
            del done.responses[done.reached[2] :]
            resource = done.reached[1]
            if prepared.images:
                # SAFETY: an annotation sent by the user proves nothing.
                resource = without_record(resource)
            try:
                done.patch = answer_patch(context, resource, late=True)
            except BudgetExceeded:
                done.responses.clear()
        return done

    def _verify_rest(self, done: Mutations, context: RequestContext) -> None:
        rest: list[ImagePolicy] = []
        skipped: list[ImagePolicy] = []
        for policy, rules in self._prepared.images:
            asks = any(rule.ir.effects & EFFECT_CLUSTER for rule in rules)
            (skipped if asks else rest).append((policy, rules))
        self._verify(rest, UnreadImages(_TOO_LATE), done, context, skipped)


class MutationPlanner(PlannerOf[Changing, _Prepared, MutationPlan]):
    """Creates plans for the rules that mutate admitted objects."""

    __slots__ = ()

    def __init__(self, engine: Engine, source: RuleSource[Changing]) -> None:
        super().__init__(
            engine, source, partial(_prepare, MutationCache()), MutationPlan
        )


def _prepare(
    cache: MutationCache,
    picked: Picked[Changing],
    elsewhere: Sequence[PolicyCandidates[Changing]],
) -> _Prepared | None:
    policies: list[PolicyMutations] = []
    images: list[ImagePolicy] = []
    for policy, linked in picked:
        rules = [rule for rule in linked if isinstance(rule, LinkedMutation)]
        if is_standard(rules):
            policies.append((policy, rules))
        verifying = [rule for rule in linked if isinstance(rule, LinkedImageRule)]
        if verifying:
            images.append((policy, verifying))
    if not (policies or images):
        return None
    return _Prepared(policies, images, cache, _earlier(images, elsewhere))


def _earlier(
    images: list[ImagePolicy], elsewhere: Sequence[PolicyCandidates[Changing]]
) -> list[ImagePolicy]:
    """Return the policies of paths that the API server calls before this one.

    It calls webhooks in the order of their names, which start with the failurePolicy:
    first Fail, then Ignore. The order of fine-grained webhooks is not known.
    """
    earlier: list[ImagePolicy] = []
    for candidate in elsewhere if images else ():
        if candidate.policy.failure_policy > images[0][0].failure_policy:
            continue
        rules = [
            linked
            for ref in candidate.rules
            if isinstance(linked := ref.linked, LinkedImageRule)
        ]
        if rules:
            earlier.append((candidate.policy, rules))
    return earlier
