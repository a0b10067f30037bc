"""The kinds of webhooks that review resources: one row each.

Room: webhook. Takes: the planners of the snapshot in force. Gives: Handlers, by the
first segment of their paths. Next: service chooses one for each review.
May touch: nothing.

Another kind of webhook needs a module with its Handler next to this one, a row here,
and its name in route.py.
"""

from collections.abc import Mapping
from typing import Any

from kyverno_mp.program.mutation_plan import MutationPlan
from kyverno_mp.webhook.ports import Plan, Plans
from kyverno_mp.webhook.review.mutating import MutatingHandler
from kyverno_mp.webhook.review.review import Handler
from kyverno_mp.webhook.review.validating import ValidatingHandler
from kyverno_mp.webhook.route import MUTATE, VALIDATE

Handlers = Mapping[str, Handler[Any]]


class _NoPlans:
    """The webhook has no policies: every request is allowed."""

    def plan(self, *_request: object) -> None:
        """Select no policy."""


def handlers_of(
    validate: Plans[Plan], mutate: Plans[MutationPlan] | None = None
) -> Handlers:
    """Return the handler of each webhook by the name in its path."""
    return {
        VALIDATE: ValidatingHandler(validate),
        MUTATE: MutatingHandler(mutate or _NoPlans()),
    }
