"""A foreach in one pass equals a foreach element by element, even on errors.

A failure means: a rule changes an object differently, or has another message, if its
elements are patched together or without the scope of a rule.
"""

import json
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any
from unittest.mock import patch

from hypothesis import event, given, settings
from hypothesis import strategies as st

from kyverno_mp.compiler.build import compile_policy
from kyverno_mp.ir.rules import CompiledPolicy
from kyverno_mp.policy.reading.decode import decode
from kyverno_mp.program import mutation
from kyverno_mp.program.engine import Clock, Engine
from kyverno_mp.program.mutate.patch import LinkedPatch
from kyverno_mp.program.mutation import link_mutations, mutate_request
from kyverno_mp.program.ports import ClusterData
from kyverno_mp.program.request import Request

_NAMES = st.sampled_from(["a", "b", "c"])
_PLAIN = st.sampled_from(
    [
        "x",
        "y",
        "{{ element.name }}",
        "{{ element.name }}",
        "{{ element.image }}:{{ elementIndex }}",
        "{{ request.namespace }}",
    ]
)
_ODD = st.sampled_from(
    [
        "{{ element.value }}",
        "{{ elementIndex }}",
        "{{ element0.name }}-{{ elementIndex0 }}",
        "{{ request.namespace }}",
        "{{ request.object.metadata.name }}",
        "{{ request.userInfo.username }}/{{ element.name }}",
        "{{ serviceAccountName }}",
        "{{ element }}",
        "{{ element1.name }}",
        "{{ elementIndex.name }}",
        "{{ element.name || 'none' }}",
        "{{ request.object.spec.containers[0].name }}",
        "{{ request.object.metadata }}",
        "{{ request.none }}",
        "{{ images }}",
    ]
)
_TEXTS = st.integers(0, 9).flatmap(lambda number: _PLAIN if number else _ODD)
_ENV = st.lists(
    st.fixed_dictionaries({"name": _TEXTS}, optional={"value": _TEXTS}), max_size=2
)
_CONTAINER = st.fixed_dictionaries(
    {"name": _TEXTS | _NAMES},
    optional={"image": _TEXTS, "env": _ENV, "(image)": st.just("x*")},
)
_CONTAINERS = st.lists(_CONTAINER, min_size=1, max_size=2)
_LABELS = st.dictionaries(_NAMES, _TEXTS, min_size=1, max_size=2)
_ADDED = st.dictionaries(st.sampled_from(["a", "+(b)"]), _TEXTS, min_size=1)
_MERGES = st.one_of(
    st.fixed_dictionaries(
        {"spec": st.fixed_dictionaries({"containers": _CONTAINERS})},
        optional={"metadata": st.fixed_dictionaries({"labels": _LABELS})},
    ),
    st.fixed_dictionaries(
        {"metadata": st.fixed_dictionaries({"labels": _LABELS, "annotations": _ADDED})},
        optional={"kind": st.sampled_from(["Pod", "", "{{ element.name }}"])},
    ),
    st.fixed_dictionaries(
        {
            "spec": st.fixed_dictionaries(
                {"host": _TEXTS},
                optional={
                    "gone": st.none(),
                    "tolerations": st.just([{"key": "k"}]),
                    "containers": _CONTAINERS,
                },
            )
        }
    ),
)
_PATHS = st.sampled_from(
    [
        "/spec/containers/{{ elementIndex }}/env/-",
        "/spec/containers/{{ elementIndex }}/env/0",
        "/spec/containers/{{ elementIndex }}/image",
        "/spec/containers/{{ elementIndex }}/env/-",
        "/spec/containers/{{ elementIndex }}/image",
        "/spec/containers/0",
        "/metadata/labels/{{ element.name }}",
        "/metadata/labels/b",
        "/metadata/none/{{ elementIndex }}",
        "/kind",
        "",
    ]
)
_OPERATIONS = st.lists(
    st.fixed_dictionaries(
        {
            "op": st.sampled_from([*["add"] * 9, "remove", "replace", "test"]),
            "path": _PATHS,
            "value": st.one_of(_TEXTS, st.just({"name": "n"}), st.just(1), st.none()),
        }
    ),
    min_size=1,
    max_size=2,
)
_LISTS = st.sampled_from(
    [
        "request.object.spec.containers",
        "request.object.spec.containers",
        "request.object.spec.containers",
        "request.object.spec.containers",
        "request.object.spec.containers",
        "request.object.spec.containers",
        "request.object.spec.containers",
        "request.object.spec.containers[]",
        "request.object.spec.none",
        "request.object.metadata.labels",
        "request.object.spec.containers[].name",
    ]
)
_BODIES = st.one_of(
    *[st.fixed_dictionaries({"patchStrategicMerge": _MERGES})] * 3,
    *[st.fixed_dictionaries({"patchesJson6902": _OPERATIONS.map(json.dumps)})] * 3,
    st.fixed_dictionaries({"patchesJson6902": st.sampled_from(["", "{", "- op: x"])}),
)


@st.composite
def _entries(draw: st.DrawFn) -> dict[str, Any]:
    entry = {"list": draw(_LISTS), **draw(_BODIES)}
    if draw(st.integers(0, 4)) == 0:
        wanted = draw(_NAMES)
        condition = {"key": "{{ element.name }}", "operator": "Equals", "value": wanted}
        entry["preconditions"] = {"all": [condition]}
    if draw(st.integers(0, 4)) == 0:
        entry["order"] = "Descending"
    return entry


_FOREACH = st.lists(_entries(), min_size=1, max_size=2)
_BODY = st.integers(0, 4).flatmap(
    lambda number: st.fixed_dictionaries({"foreach": _FOREACH}) if number else _BODIES
)
_PODS = st.fixed_dictionaries(
    {
        "apiVersion": st.just("v1"),
        "kind": st.just("Pod"),
        "metadata": st.fixed_dictionaries(
            {"name": st.just("web")},
            optional={"labels": st.dictionaries(_NAMES, _NAMES, max_size=2)},
        ),
        "spec": st.fixed_dictionaries(
            {
                "containers": st.lists(
                    st.fixed_dictionaries(
                        {"name": _NAMES, "image": st.sampled_from(["x", "y"])},
                        optional={
                            "env": st.lists(
                                st.fixed_dictionaries(
                                    {"name": _NAMES, "value": st.sampled_from(["1", 2])}
                                ),
                                max_size=2,
                            ),
                            "value": st.sampled_from(["v", 3, None, "{{ x }}"]),
                        },
                    )
                    | st.none(),
                    min_size=1,
                    max_size=3,
                )
            }
        ),
    }
)


def _compiled(bodies: list[Any]) -> CompiledPolicy:
    rules = [
        {
            "name": f"r{number}",
            "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
            "mutate": body,
        }
        for number, body in enumerate(bodies)
    ]
    raw = {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {
            "name": "p",
            "annotations": {"pod-policies.kyverno.io/autogen-controllers": "none"},
        },
        "spec": {"rules": rules, "background": False},
    }
    return compile_policy(decode(raw))  # type: ignore[arg-type]  # a ClusterPolicy


def _said(compiled: CompiledPolicy, pod: dict[str, Any]) -> str:
    review = {
        "operation": "CREATE",
        "object": pod,
        "namespace": "shop",
        "userInfo": {"username": "system:serviceaccount:shop:web"},
    }
    request = Request(
        kind="Pod",
        name="web",
        namespace="shop",
        object=pod,
        username="system:serviceaccount:shop:web",
        review_request=review,
        ints_are_numbers=True,
    )
    clock = Clock(now=lambda: datetime.now(UTC), monotonic_ns=lambda: 0)
    context = Engine(ClusterData(), clock).open(request)
    done = mutate_request([(compiled.policy, link_mutations(compiled))], context)
    found = [(r.rule, r.status, r.message) for p in done.responses for r in p.results]
    return json.dumps([found, done.patch, done.refusal, len(done.left_out)])


@settings(max_examples=500)
@given(st.lists(_BODY, min_size=1, max_size=2), _PODS)
def test_combined_run_equals_one_by_one(bodies: list[Any], pod: dict[str, Any]) -> None:
    compiled, before = _compiled(bodies), json.dumps(pod)
    found = _said(compiled, pod)
    with ExitStack() as slow:
        slow.enter_context(patch.object(mutation, "_frame", lambda _context: None))
        in_scope = _said(compiled, pod)
        slow.enter_context(
            patch.object(LinkedPatch, "_changed_by", lambda *_arguments: None)
        )
        one_by_one = _said(compiled, pod)
    event("patched" if '"op"' in found else "not patched")
    event("error" if '"error"' in found else "fine")
    assert found == in_scope
    assert in_scope == one_by_one
    assert json.dumps(pod) == before
