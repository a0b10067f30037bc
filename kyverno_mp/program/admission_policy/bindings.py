"""Find the bindings that apply to a request, and their parameters.

Room: program. Takes: AdmissionPolicyIR, a Request, the given parameter objects.
Gives: (binding, parameters) pairs. Next: validate.py, mutate.py.
Source: docs/behaviour/cli 21; Kyverno pkg/admissionpolicy/{validate,mutate}.go.
"""

from collections.abc import Iterator, Sequence

from kyverno_mp.ir.admission_policy import AdmissionPolicyIR, BindingIR, ParamRefIR
from kyverno_mp.program.action import selector_matches
from kyverno_mp.program.admission_policy.match import matches
from kyverno_mp.program.matching.subject import metadata_of
from kyverno_mp.program.request import Request
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.selector import labels_of


def bindings_of(
    ir: AdmissionPolicyIR,
    request: Request,
    params: Sequence[Json],
    *,
    in_cluster: bool = False,
) -> Iterator[tuple[BindingIR | None, Json]]:
    """Yield the bindings that apply; None for a matching policy without bindings.

    ``in_cluster``: behave like the API server, where ``params`` are all existing
    objects.

    KYVERNO: without a cluster the matchConstraints of a policy with bindings are
    ignored.
    """
    if not ir.bindings:
        if matches(ir.constraints, request):
            yield None, None
        return
    if in_cluster and not matches(ir.constraints, request):
        return
    for binding in ir.bindings:
        if not matches(binding.constraints, request):
            continue
        if not in_cluster or binding.params is None:
            yield binding, _params(binding.params, params)
            continue
        within = _params_in_reach(ir, binding.params, request, params)
        parameter = _params(binding.params, within)
        if parameter is not None or not binding.params.may_lack:
            yield binding, parameter


def _params_in_reach(
    ir: AdmissionPolicyIR, ref: ParamRefIR, request: Request, params: Sequence[Json]
) -> list[Json]:
    """Return the params of this kind in the reference's or the object's namespace."""
    namespace = ref.namespace or request.namespace
    return [
        each
        for each in params
        if (each.get("apiVersion"), each.get("kind")) == ir.param_kind
        and metadata_of(each).get("namespace") in (None, "", namespace)
    ]


def _params(ref: ParamRefIR | None, params: Sequence[Json]) -> Json:
    """Return the first parameter with the name, or a list of selected parameters."""
    if ref is None:
        return None
    matching = [each for each in params if _is_meant(ref, each)]
    if not matching:
        return None
    return matching[0] if ref.selector is None else {"items": matching}


def _is_meant(ref: ParamRefIR, param: Json) -> bool:
    metadata = metadata_of(param)
    if ref.selector is not None:
        return selector_matches(ref.selector, labels_of(metadata.get("labels")))
    # KYVERNO: the namespace is used only if no name is given.
    if ref.name:
        return bool(metadata.get("name") == ref.name)
    return bool(ref.namespace) and bool(metadata.get("namespace") == ref.namespace)


def binding_properties(binding: BindingIR | None, name: str) -> dict[str, str]:
    """Return the report property with the binding's name."""
    return {} if binding is None else {name: binding.name}
