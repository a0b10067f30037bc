"""Read and intersect the selectors of policies in CEL, for their webhooks.

Room: controllers. Takes: policies, selectors of the configuration. Gives: selectors.
Next: cel.
Source: docs/behaviour/controllers 3.5; admissionregistration/v1 (label selectors).
"""

from kyverno_mp.compiler.rules.match import build_selector
from kyverno_mp.policy.cel_kinds.served import AnyServedPolicy
from kyverno_mp.policy.fields.meta import LabelSelector
from kyverno_mp.values.jsonvalue import Json


def selectors_of(policy: AnyServedPolicy) -> tuple[Json, Json]:
    """Return the selectors of namespaces and of objects."""
    given = policy.spec.match_constraints
    if given is None:
        return {}, {}
    return _registrable(given.namespace_selector), _registrable(given.object_selector)


def _registrable(selector: LabelSelector | None) -> Json:
    """Return a policy's selector, an empty one if the API server would reject it."""
    compiled = build_selector(selector)
    if selector is None or compiled is None or compiled.error:
        return {}
    return selector.raw()


def merged(first: Json, second: Json) -> Json:
    """Return the intersection. KYVERNO: the second of two values for a label wins."""
    if not first:
        return second
    labels = {**(first.get("matchLabels") or {}), **(second.get("matchLabels") or {})}
    terms = [
        *(first.get("matchExpressions") or ()),
        *(second.get("matchExpressions") or ()),
    ]
    found: Json = {}
    if labels:
        found["matchLabels"] = labels
    if terms:
        found["matchExpressions"] = terms
    return found
