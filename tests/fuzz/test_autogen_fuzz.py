"""A policy compiled for all kinds judges each kind like rules written for that kind.

A failure means: an autogen rule for controllers is applied to Pods (or the reverse), so
objects are denied or allowed by a rule that Kyverno does not have for them.
"""

from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st

from kyverno_mp.compiler.autogen.rules import POD_CONTROLLERS, expand_for_kind
from kyverno_mp.compiler.build import compile_policy
from kyverno_mp.compiler.rules.match import build_exclude, build_match
from kyverno_mp.policy.documents.cluster_policy import (
    AUTOGEN_ANNOTATION,
    AnyPolicy,
    ClusterPolicy,
)
from kyverno_mp.policy.reading.decode import decode
from kyverno_mp.program.matching.match import link_match
from kyverno_mp.program.request import Request

_GROUPS = {
    "Pod": ("", "v1"),
    "ReplicationController": ("", "v1"),
    "Service": ("", "v1"),
}
_BATCH = {"Job", "CronJob"}
_JUDGED = [*sorted(POD_CONTROLLERS), "Pod", "PodTemplate", "Service"]
_KINDS = st.sampled_from(
    [
        ["Pod"],
        ["Pod"],
        ["P*"],
        ["*"],
        ["*/*"],
        ["v1/Pod"],
        ["Deployment", "CronJob"],
        ["apps/v1/Deployment"],
        ["batch/v1/CronJob"],
        ["*Job", "Service"],
        [],
    ]
)
_FILTERS = st.builds(
    lambda kinds, namespaces: {"resources": {"kinds": kinds, "namespaces": namespaces}},
    _KINDS,
    st.sampled_from([["default"], ["other"], []]),
)
_BLOCKS = st.one_of(
    st.builds(
        lambda mode, filters: {mode: filters},
        st.sampled_from(["any", "any", "all"]),
        st.lists(_FILTERS, min_size=1, max_size=3),
    ),
    _FILTERS,
)
_RULES = st.lists(
    st.builds(
        lambda name, match, exclude: {
            "name": name,
            "match": match,
            "exclude": exclude,
            "validate": {"message": "m", "deny": {}},
        },
        st.sampled_from(["r", "s", "autogen-own", "cronjob-x"]),
        _BLOCKS,
        st.one_of(st.just({}), st.just({}), _BLOCKS),
    ),
    min_size=1,
    max_size=3,
)
_ANNOTATIONS = st.one_of(
    st.none(),
    st.none(),
    st.sampled_from(
        ["none", "", "all", "Deployment", "Job,CronJob", "CronJob", "Job, CronJob"]
    ),
)


def _policy(rules: list[dict[str, Any]], annotation: str | None) -> AnyPolicy:
    annotations = {} if annotation is None else {AUTOGEN_ANNOTATION: annotation}
    document = decode(
        {
            "apiVersion": "kyverno.io/v1",
            "kind": "ClusterPolicy",
            "metadata": {"name": "p", "annotations": annotations},
            "spec": {"rules": rules},
        }
    )
    assert isinstance(document, ClusterPolicy)
    return document


def _request(kind: str) -> Request:
    group, version = _GROUPS.get(kind, ("batch" if kind in _BATCH else "apps", "v1"))
    return Request(
        operation="CREATE",
        group=group,
        version=version,
        kind=kind,
        name="a",
        namespace="default",
        object={
            "apiVersion": f"{group}/{version}".lstrip("/"),
            "kind": kind,
            "metadata": {"name": "a", "namespace": "default"},
        },
    )


@settings(max_examples=300)
@given(_RULES, _ANNOTATIONS)
def test_each_kind_has_its_generated_rules(
    rules: list[dict[str, Any]], annotation: str | None
) -> None:
    document = _policy(rules, annotation)
    compiled = compile_policy(document).rules
    for kind in _JUDGED:
        request = _request(kind)
        judged = [
            rule.name
            for rule in compiled
            if link_match(rule.match, rule.exclude).matches(request)
        ]
        wanted = [
            rule.name
            for rule in expand_for_kind(document, kind)
            if link_match(build_match(rule.match), build_exclude(rule.exclude)).matches(
                request
            )
        ]
        event(f"generated rules: {sum(name.startswith('autogen-') for name in wanted)}")
        assert judged == wanted, kind


def test_filter_with_pods_and_other_kinds_does_not_match_controllers() -> None:
    """Upstream creates ``autogen-r`` for controllers; `P*` stays in its filters."""
    filters = [{"resources": {"kinds": kinds}} for kinds in (["Pod"], ["P*"])]
    rule = {"name": "r", "match": {"any": filters}, "validate": {"deny": {}}}
    found = {
        kind: [
            each.name
            for each in compile_policy(_policy([rule], None)).rules
            if link_match(each.match, each.exclude).matches(_request(kind))
        ]
        for kind in ("Pod", "Deployment", "CronJob")
    }
    assert found == {
        "Pod": ["r"],
        "Deployment": ["autogen-r"],
        "CronJob": ["autogen-cronjob-r"],
    }
