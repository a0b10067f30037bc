"""Mutate rules run, cascade and fail as in Kyverno."""

import copy
from datetime import UTC, datetime
from typing import Any

import pytest

from kyverno_mp.compiler.build import compile_policy
from kyverno_mp.policy.reading.decode import decode
from kyverno_mp.program.engine import Clock, Engine
from kyverno_mp.program.mutation import (
    Mutations,
    PolicyMutations,
    begin,
    link_mutations,
    mutate_policy,
    mutate_request,
)
from kyverno_mp.program.ports import ClusterData, ObjectQuery
from kyverno_mp.program.request import Request
from kyverno_mp.program.result import PolicyResponse

POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "web", "namespace": "shop"},
    "spec": {"containers": [{"name": "a", "image": "x"}, {"name": "b", "image": "y"}]},
}
LABELS = "metadata", "labels"


def _policy(*mutates: dict[str, Any], name: str = "p", **spec: Any) -> PolicyMutations:
    rules = []
    for number, mutate in enumerate(mutates):
        more = mutate.pop("rule", {})
        match = {"any": [{"resources": {"kinds": ["Pod"]}}]}
        rules.append({"name": f"r{number}", "match": match, "mutate": mutate, **more})
    raw = {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": {
            "name": name,
            "annotations": {"pod-policies.kyverno.io/autogen-controllers": "none"},
        },
        "spec": {"rules": rules, **spec},
    }
    document = decode(raw)
    compiled = compile_policy(document)  # type: ignore[arg-type]  # a ClusterPolicy
    return compiled.policy, link_mutations(compiled)


def _label(key: str, value: str) -> dict[str, Any]:
    return {"patchStrategicMerge": {"metadata": {"labels": {key: value}}}}


def _request(**changes: Any) -> Request:
    pod = changes.pop("object", POD)
    review = {"operation": "CREATE", "object": pod, "namespace": "shop"}
    return Request(
        kind="Pod",
        name="web",
        namespace="shop",
        object=pod,
        review_request=review,
        ints_are_numbers=True,
        **changes,
    )


def _engine(cluster_data: ClusterData | None = None) -> Engine:
    clock = Clock(now=lambda: datetime.now(UTC), monotonic_ns=lambda: 0)
    return Engine(cluster_data or ClusterData(), clock)


def _run(*policies: PolicyMutations, **changes: Any) -> Mutations:
    return mutate_request(policies, _engine().open(_request(**changes)))


def _results(done: Mutations) -> list[tuple[str, str]]:
    return [(r.status, r.message) for p in done.responses for r in p.results]


def test_patch_and_message() -> None:
    done = _run(_policy(_label("a", "1")))
    assert _results(done) == [("pass", "mutated Pod/web in namespace shop")]
    assert done.patch == [
        {"op": "add", "path": "/metadata/labels", "value": {"a": "1"}}
    ]


def test_rules_and_policies_see_earlier_changes() -> None:
    copied = "{{ request.object.metadata.labels.a }}"
    done = _run(
        _policy(_label("a", "1"), _label("b", copied)),
        _policy(_label("c", copied), name="q"),
    )
    labels = {"a": "1", "b": "1", "c": "1"}
    assert done.patch == [{"op": "add", "path": "/metadata/labels", "value": labels}]


@pytest.mark.parametrize("kind", ["", None])
def test_object_without_a_kind_cannot_be_decoded_again(kind: object) -> None:
    result = _results(_run(_policy({"patchStrategicMerge": {"kind": kind}})))
    assert [status for status, _ in result] == ["error"]
    text = "failed to unmarshal patched resource: Object 'Kind' is missing in '{"
    assert result[0][1].startswith(text)


@pytest.mark.parametrize(
    ("changed", "message"),
    [("name", "mutated Pod/ in namespace shop"), ("namespace", "mutated Pod/web")],
)
def test_non_string_name_is_not_in_the_message(changed: str, message: str) -> None:
    patch = f'[{{"op": "replace", "path": "/metadata/{changed}", "value": [1]}}]'
    done = _run(_policy({"patchesJson6902": patch}))
    assert _results(done) == [("pass", message)]


def test_unchanged_object_is_a_skip() -> None:
    merge = {"patchStrategicMerge": {"metadata": {"name": "web"}}}
    assert _results(_run(_policy(merge))) == [("skip", "no patches applied")]


def test_any_unresolved_variable_of_the_rule_is_an_error() -> None:
    mutate = _label("a", "{{ request.object.metadata.nothing }}")
    done = _run(_policy(mutate, _label("b", "1")))
    text = (
        "variable substitution failed: failed to resolve"
        " request.object.metadata.nothing at path"
        " /mutate/patchStrategicMerge/metadata/labels/a: JMESPath query failed:"
        ' Unknown key "nothing" in path'
    )
    # The object is empty after an error, so the next rule does not match.
    assert _results(done) == [("error", text)]
    assert done.refusal == (
        f"mutation policy p error: failed to apply policy p rules [r0: {text}]"
    )


def test_policy_that_may_fail_is_dropped_alone() -> None:
    bad = _policy(_label("a", "{{ nothing }}"), failurePolicy="Ignore")
    done = _run(bad, _policy(_label("b", "1"), name="q"))
    assert not done.refusal
    assert [one["value"] for one in done.patch] == [{"b": "1"}]


def test_json_patch_as_yaml_and_json() -> None:
    yaml = '- op: add\n  path: /metadata/labels/a\n  value: "{{ request.namespace }}"'
    json = '[{"op": "test", "path": "/kind", "value": "Job"}]'
    done = _run(_policy({"patchesJson6902": yaml}, {"patchesJson6902": json}))
    assert _results(done) == [
        ("pass", "mutated Pod/web in namespace shop"),
        ("error", "failed to patch resource: testing value /kind failed: test failed"),
    ]


@pytest.mark.parametrize(
    ("order", "wanted"),
    [({}, "0,1,"), ({"order": "Ascending"}, "0,1,"), ({"order": "Descending"}, "1,0,")],
)
def test_order_of_json_patches(order: dict[str, str], wanted: str) -> None:
    text = (
        "- op: add\n  path: /metadata/annotations\n  value:\n    seen: "
        "\"{{ request.object.metadata.annotations.seen || '' }}{{ elementIndex }},\""
    )
    entry = {"list": "request.object.spec.containers", "patchesJson6902": text, **order}
    done = _run(_policy({"foreach": [entry]}))
    # Within one list, variables refer to the object as it was when the list began.
    assert done.patch[0]["value"] == {"seen": wanted[2:]}


def test_strategic_patches_of_a_list_keep_its_order() -> None:
    element = {"name": "{{ element.name }}", "tty": True}
    entry = {
        "list": "request.object.spec.containers",
        "patchStrategicMerge": {"spec": {"containers": [element]}},
    }
    done = _run(_policy({"foreach": [entry]}))
    paths = [one["path"] for one in done.patch]
    assert paths == ["/spec/containers/0/tty", "/spec/containers/1/tty"]


def test_nested_lists_and_preconditions() -> None:
    inner = {
        "list": "['x', 'y']",
        "preconditions": {
            "all": [{"key": "{{ element1 }}", "operator": "Equals", "value": "y"}]
        },
        "patchesJson6902": (
            "- op: add\n  path: /metadata/labels/{{ element0.name }}{{ element1 }}\n"
            '  value: "{{ elementIndex0 }}{{ elementIndex1 }}"'
        ),
    }
    outer = {"list": "request.object.spec.containers", "foreach": [inner]}
    done = _run(_policy({"foreach": [outer]}))
    assert done.patch[0]["value"] == {"ay": "01", "by": "11"}


@pytest.mark.parametrize(
    ("query", "status", "text"),
    [
        ("`[]`", "skip", "0 elements processed"),
        (
            "request.object.nothing",
            "error",
            (
                "failed to evaluate list request.object.nothing: JMESPath query failed:"
                ' Unknown key "nothing" in path: JMESPath query failed: Unknown key'
                ' "nothing" in path'
            ),
        ),
    ],
)
def test_lists_without_effect(query: str, status: str, text: str) -> None:
    entry = {"list": query, "patchesJson6902": "- {op: remove, path: /spec}"}
    assert _results(_run(_policy({"foreach": [entry]}))) == [(status, text)]


def test_list_without_elements_changes_nothing() -> None:
    pod = {**POD, "spec": {"containers": [], "initContainers": [None]}}
    for name in ("containers", "initContainers"):
        entry = {
            "list": f"request.object.spec.{name}",
            "patchStrategicMerge": {"metadata": {"labels": {"a": "1"}}},
        }
        done = _run(_policy({"foreach": [entry]}), object=pod)
        assert _results(done) == [("skip", "0 elements processed")]
        assert done.patch == []


def test_foreach_variable_is_not_visible_to_the_next_rule() -> None:
    made = {"metadata": {"labels": {"a": "{{ element.name }}"}}}
    entry = {"list": "request.object.spec.containers", "patchStrategicMerge": made}
    done = _run(_policy({"foreach": [entry]}, {"patchStrategicMerge": made}))
    assert [status for status, _ in _results(done)] == ["pass", "error"]


def test_element_can_undo_another_elements_change() -> None:
    pod = copy.deepcopy(POD)
    # Strategic merges start with the last element.
    pod["metadata"]["labels"] = {"last": "a"}
    entry = {
        "list": "request.object.spec.containers",
        "patchStrategicMerge": {"metadata": {"labels": {"last": "{{ element.name }}"}}},
    }
    done = _run(_policy({"foreach": [entry]}), object=pod)
    assert _results(done) == [("skip", "0 elements processed")]


def test_error_is_that_of_the_first_failing_element() -> None:
    """The patch of the first element fails, and so does a variable of the second."""
    pod = copy.deepcopy(POD)
    pod["spec"]["containers"][0]["at"] = "/none"
    entry = {
        "list": "request.object.spec.containers",
        "patchesJson6902": "- {op: replace, path: '{{ element.at }}', value: 1}",
    }
    ((status, message),) = _results(_run(_policy({"foreach": [entry]}), object=pod))
    assert status == "error"
    assert "replace operation does not apply" in message


def test_apply_one_rule() -> None:
    done = _run(_policy(_label("a", "1"), _label("b", "1"), applyRules="One"))
    assert done.patch[0]["value"] == {"a": "1"}


def test_unknown_namespace_fails_policies_that_read_its_labels() -> None:
    asks = {
        "any": [
            {
                "resources": {
                    "kinds": ["Pod"],
                    "namespaceSelector": {"matchLabels": {"a": "b"}},
                }
            }
        ]
    }
    policy = _policy({**_label("a", "1"), "rule": {"match": asks}})
    done = _run(policy, namespace_known=False)
    assert done.refusal == 'mutation policy p error: namespace "shop" not found'


class _Objects:
    def __init__(self) -> None:
        self.asked: list[ObjectQuery] = []

    def objects(self, asked: ObjectQuery, _deadline_ns: int) -> list[Any]:
        self.asked.append(asked)
        return [
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": name, "labels": {"tier": name}},
            }
            for name in ("one", "two")
        ]


def _existing(cluster_data: ClusterData) -> PolicyResponse:
    mutate = {
        **_label("by", "{{ request.object.metadata.name }}-{{ target.metadata.name }}"),
        "targets": [
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "namespace": "{{ request.namespace }}",
                "selector": {"matchLabels": {"tier": "two"}},
            }
        ],
    }
    policy, rules = _policy(mutate)
    request = _request()
    context = _engine(cluster_data).open(request)
    response = mutate_policy(policy, rules, context, begin(context), existing=True)
    assert response.patched_object is POD
    return response


def test_targets_are_selected_and_patched() -> None:
    objects = _Objects()
    (found,) = _existing(ClusterData(objects=objects)).results
    assert objects.asked == [ObjectQuery("*", "v1", "Secret", "", "shop", "")]
    assert found.message == "mutated Secret/two"
    assert found.patched_target is not None
    assert found.patched_target["metadata"]["labels"] == {
        "tier": "two",
        "by": "web-two",
    }


def test_targets_need_a_client() -> None:
    (found,) = _existing(ClusterData()).results
    assert found.status == "error"
    assert found.message.startswith("failed to instantiate handler: ")


def test_rules_with_targets_have_no_result_at_admission() -> None:
    policy = _policy({**_label("a", "1"), "targets": [{"kind": "Secret"}]})
    assert _run(policy).responses == []
