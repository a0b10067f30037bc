"""Define the kinds of webhooks that review resources, one row each.

Room: webhook. Takes: the planners of the snapshot in force. Gives: Handlers, by the
first segment of their paths. Next: service chooses one for each review.
May touch: nothing.

A new kind of webhook needs a module with its Handler in this package, a row here, and
its name in webhook/route.py.
"""

from collections.abc import Callable, Mapping
from typing import Any

from kyverno_mp.program.cel_policies.generating_plan import GeneratingPlanner
from kyverno_mp.program.cel_policies.plan import MutatingPlanner
from kyverno_mp.program.image_policies.plan import DigestPlanner, ImagePlanner
from kyverno_mp.program.plans.mutation_plan import MutationPlan
from kyverno_mp.program.validating_policy.plan import CelPlanner
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
from kyverno_mp.webhook.route import (
    GPOL,
    IVPOL,
    IVPOL_MUTATE,
    MPOL,
    MUTATE,
    NGPOL,
    NIVPOL,
    NIVPOL_MUTATE,
    NMPOL,
    NVPOL,
    VALIDATE,
    VPOL,
)

Handlers = Mapping[str, Handler[Any]]


class _NoPlans:
    """The plan of a webhook without policies, which allows every request."""

    def plan(self, *_request: object) -> None:
        """Select no policy."""


def handlers_of(
    validate: Plans[Plan],
    mutate: Plans[MutationPlan] | None = None,
    cel: Callable[[], CelPlanner | None] | None = None,
    cel_mutate: Callable[[], MutatingPlanner | None] | None = None,
    cel_generate: Callable[[], GeneratingPlanner | None] | None = None,
    cel_images: Callable[[], ImagePlanner | None] | None = None,
) -> Handlers:
    """Return the handler of each webhook by the name in its path.

    ``cel`` returns the planner of ValidatingPolicies, ``cel_mutate`` of
    MutatingPolicies, ``cel_generate`` of GeneratingPolicies, and ``cel_images`` of
    ImageValidatingPolicies. None means that there are no such policies.
    """

    def digests() -> DigestPlanner | None:
        planner = cel_images() if cel_images else None
        return DigestPlanner(planner) if planner is not None else None

    return {
        VALIDATE: ValidatingHandler(validate),
        MUTATE: MutatingHandler(mutate or _NoPlans()),
        VPOL: CelValidatingHandler(
            _NoPlans() if cel is None else CelPlans(cel, is_namespaced=False)
        ),
        NVPOL: CelValidatingHandler(
            _NoPlans() if cel is None else CelPlans(cel, is_namespaced=True)
        ),
        MPOL: CelMutatingHandler(
            CelPlans(cel_mutate, is_namespaced=False) if cel_mutate else _NoPlans()
        ),
        NMPOL: CelMutatingHandler(
            CelPlans(cel_mutate, is_namespaced=True) if cel_mutate else _NoPlans()
        ),
        GPOL: CelGeneratingHandler(
            CelPlans(cel_generate, is_namespaced=False) if cel_generate else _NoPlans()
        ),
        NGPOL: CelGeneratingHandler(
            CelPlans(cel_generate, is_namespaced=True) if cel_generate else _NoPlans()
        ),
        IVPOL: CelValidatingHandler(
            CelPlans(cel_images, is_namespaced=False) if cel_images else _NoPlans()
        ),
        NIVPOL: CelValidatingHandler(
            CelPlans(cel_images, is_namespaced=True) if cel_images else _NoPlans()
        ),
        IVPOL_MUTATE: DigestHandler(
            CelPlans(digests, is_namespaced=False) if cel_images else _NoPlans()
        ),
        NIVPOL_MUTATE: DigestHandler(
            CelPlans(digests, is_namespaced=True) if cel_images else _NoPlans()
        ),
    }
