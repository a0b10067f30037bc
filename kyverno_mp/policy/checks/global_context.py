"""Check a GlobalContextEntry.

Room: policy. Takes: GlobalContextEntry. Gives: problems. Next: policy/check.py.
Source: docs/behaviour/controllers 1.5; Kyverno
api/kyverno/v2/global_context_entry_types.go.
"""

from typing import Final

from kyverno_mp.errors import ExpressionInvalid
from kyverno_mp.expr.jmespath.parse import parse
from kyverno_mp.policy.checks.rules.subject import (
    Problems,
    forbidden,
    invalid,
    required,
)
from kyverno_mp.policy.documents.global_context_entry import (
    OPENED_TO,
    ExternalAPICall,
    GlobalContextEntry,
    KubernetesResource,
    Projection,
    opened_problem,
)
from kyverno_mp.values.go.duration import parse_duration

_ONE_SOURCE: Final = (
    "A global context entry should either have KubernetesResource or APICall"
)


def check_global_context(document: GlobalContextEntry) -> Problems:
    """Check that the entry has one complete source, and check the projections."""
    spec = document.spec
    resource, call = spec.kubernetes_resource, spec.api_call
    if (resource is None) == (call is None):
        yield forbidden("spec.kubernetesResource", "", _ONE_SOURCE)
    if resource is not None:
        yield from _check_resource(resource)
    if call is not None:
        yield from _check_call(call)
    for index, projection in enumerate(spec.projections):
        path = f"spec.projections[{index}]"
        yield from _check_projection(projection, path, document.metadata.name)
    detail = opened_problem(document.metadata.annotations)
    if detail:
        value = document.metadata.annotations[OPENED_TO]
        yield invalid(f"metadata.annotations[{OPENED_TO}]", "", value, detail)


def _check_resource(resource: KubernetesResource) -> Problems:
    if not resource.group and resource.version != "v1":
        yield required("spec.resource.group", "", "A Resource entry requires a group")
    if not resource.version:
        detail = "A Resource entry requires a version"
        yield required("spec.resource.version", "", detail)
    if not resource.resource:
        detail = "A Resource entry requires a resource"
        yield required("spec.resource.resource", "", detail)


def _check_call(call: ExternalAPICall) -> Problems:
    interval = parse_duration(call.refresh_interval)
    if interval is None:
        detail = f'time: invalid duration "{call.refresh_interval}"'
        yield invalid("spec.apiCall.refreshInterval", "", call.refresh_interval, detail)
    elif interval == 0:
        detail = "A Resource entry requires a refresh interval greater than 0 seconds"
        yield required("spec.apiCall.refreshIntervalSeconds", "", detail)
    if (call.service is None) == (not call.url_path):
        detail = "An External API call should either have Service or URLPath"
        yield forbidden("spec.apiCall.service", "", detail)
    if call.data and call.method != "POST":
        detail = "An External API call with data should have method as POST"
        yield forbidden("spec.apiCall.method", "", detail)


def _check_projection(projection: Projection, path: str, name: str) -> Problems:
    if not projection.name:
        yield required(f"{path}.name", "", "A projection entry requires a name")
    if projection.name == name:
        detail = (
            "A projection entry requires a name different from the global context "
            "entry name"
        )
        yield required(f"{path}.name", "", detail)
    if not projection.jmes_path:
        detail = "A projection entry requires a JMESPath"
        yield required(f"{path}.jmesPath", "", detail)
    try:
        parse(projection.jmes_path)
    except ExpressionInvalid as error:
        yield invalid(f"{path}.jmesPath", "", projection.jmes_path, error.message)
