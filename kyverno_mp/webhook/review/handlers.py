"""Define the kinds of webhooks that review resources, one row each.

Room: webhook. Takes: the planners of the snapshot in force. Gives: Handlers, by the
first segment of their paths. Next: service chooses one for each review.

The kinds in CEL have the paths of their rows in the table of kinds; a new type of
results needs a module with its Handler in this package, and a row here.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from kyverno_mp.program.image_policies.plan import DigestPlanner
from kyverno_mp.program.plans.mutation_plan import MutationPlan
from kyverno_mp.values.kubernetes.policy_kinds import REVIEWED_CEL_KINDS, PolicyKind
from kyverno_mp.webhook.ports import Plan, Plans
from kyverno_mp.webhook.review.cel_generating import CelGeneratingHandler
from kyverno_mp.webhook.review.cel_mutating import CelMutatingHandler
from kyverno_mp.webhook.review.cel_validating import (
    CelPlans,
    CelValidatingHandler,
    DigestHandler,
)
from kyverno_mp.webhook.review.mutating import MutatingHandler
from kyverno_mp.webhook.review.review import Handler
from kyverno_mp.webhook.review.validating import ValidatingHandler
from kyverno_mp.webhook.route import MUTATE, VALIDATE, webhooks_of

Handlers = Mapping[str, Handler[Any]]
CelPlanners: TypeAlias = Mapping[PolicyKind, Callable[[], Any]]
"""Functions for the planner of each kind in CEL; it is None before the first snapshot.
"""


class _InCel(NamedTuple):
    """The webhooks of a kind in CEL, for cluster policies and for namespaced ones."""

    webhooks: tuple[str, str]
    kind: PolicyKind
    handler: Callable[[Plans[Any]], Handler[Any]]
    planner_of: Callable[[Any], Any] | None = None
    """What plans instead of the kind's planner."""


_OF_TYPE: Final[Mapping[str, Callable[[Plans[Any]], Handler[Any]]]] = {
    "validate": CelValidatingHandler,
    "mutate": CelMutatingHandler,
    "generate": CelGeneratingHandler,
    "verifyImages": CelValidatingHandler,
}
"""The handler of the kinds with this type of results."""


def _rows() -> Iterator[_InCel]:
    for kind in REVIEWED_CEL_KINDS:
        first, *second = filter(None, (kind.validating, kind.mutating))
        yield _InCel(webhooks_of(first), kind, _OF_TYPE[kind.rule_type])
        for review in second:
            # A kind that validates has a second webhook to replace tags by digests.
            yield _InCel(webhooks_of(review), kind, DigestHandler, DigestPlanner)


_IN_CEL: Final = tuple(_rows())
_NO_PLANNERS: Final[CelPlanners] = {}


class _NoPlans:
    """The plan of a webhook without policies, which allows every request."""

    def plan(self, *_request: object) -> None:
        """Select no policy."""


def handlers_of(
    validate: Plans[Plan],
    mutate: Plans[MutationPlan] | None = None,
    cel: CelPlanners = _NO_PLANNERS,
) -> Handlers:
    """Return the handler of each webhook by the name in its path.

    ``cel``: functions for the planners of the kinds in CEL; a kind that is missing has
    no policies.
    """
    handlers: dict[str, Handler[Any]] = {
        VALIDATE: ValidatingHandler(validate),
        MUTATE: MutatingHandler(mutate or _NoPlans()),
    }
    for webhooks, kind, handler, planner_of in _IN_CEL:
        for webhook, is_namespaced in zip(webhooks, (False, True), strict=True):
            plans: Plans[Any] = _NoPlans()
            if kind in cel:
                current = cel[kind]
                if planner_of is not None:
                    current = partial(_of_newest, current, planner_of)
                plans = CelPlans(current, is_namespaced=is_namespaced)
            handlers[webhook] = handler(plans)
    return handlers


def _of_newest(current: Callable[[], Any], planner_of: Callable[[Any], Any]) -> Any:
    planner = current()
    return None if planner is None else planner_of(planner)
