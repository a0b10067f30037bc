"""The cached patch for one object is the patch that an equal object would get.

A failure means: an object gets a patch that was created for another one.
"""

import copy
import itertools
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

from kyverno_mp.admission.decode import decode
from kyverno_mp.errors import InputError
from kyverno_mp.expr import reads
from kyverno_mp.expr.reads import Reads, Strangers
from kyverno_mp.expr.template.link import link_template
from kyverno_mp.limits import (
    RECALL_KEY_BYTES_MAX,
    RECALL_MUTATION_STEPS_MAX,
    RECALL_MUTATIONS_MAX,
    RECALL_PATCH_BYTES_MAX,
    RECALL_READS_STEPS_MAX,
    RECALL_REVIEW_BYTES_MAX,
)
from kyverno_mp.program.engine import Clock, Engine
from kyverno_mp.program.matching.candidates import SegmentSource
from kyverno_mp.program.mutation import Mutations
from kyverno_mp.program.plans.mutation_plan import (
    Changing,
    MutationPlanner,
    link_mutation,
)
from kyverno_mp.program.ports import ClusterData
from kyverno_mp.program.recall import mutations as mutation_recall
from kyverno_mp.program.recall.mutations import CachedMutation, MutationCache
from kyverno_mp.values.patches.json_patch import apply_patch
from perf.language import merging, merging_each, patching, patching_each, policy
from perf.reviews import REVIEWS
from tests.fuzz import test_foreach_mutation_fuzz as loops
from tests.fuzz import test_merge_link_fuzz as merges
from tests.fuzz.bench import pod, review, segment_of

BOTH = frozenset({"Fail", "Ignore"})
Document = dict[str, Any]


@contextmanager
def everything_cached() -> Iterator[None]:
    """Cache even single rules, and look up every object."""
    with (
        patch.object(mutation_recall, "_WORTH_LEAST", 0),
        patch.object(mutation_recall, "_TRIES", 1 << 30),
    ):
        yield


class _Counting(MutationCache):
    __slots__ = ("hits",)

    def __init__(self) -> None:
        super().__init__()
        self.hits = 0

    def find(self, key: Any) -> CachedMutation | None:
        found = super().find(key)
        self.hits += found is not None
        return found


class Asked:
    """A planner, and the number of its cached plans."""

    def __init__(self, policies: list[Document]) -> None:
        text = "\n---\n".join(map(json.dumps, policies))
        source: SegmentSource[Changing] = SegmentSource(segment_of(text), link_mutation)
        clock = Clock(now=lambda: datetime.now(UTC), monotonic_ns=time.monotonic_ns)
        self._cache = _Counting()
        with patch(
            "kyverno_mp.program.plans.mutation_plan.MutationCache", lambda: self._cache
        ):
            self._planner = MutationPlanner(Engine(ClusterData(), clock), source)

    @property
    def hits(self) -> int:
        return self._cache.hits

    def mutations(self, body: bytes) -> Mutations | None:
        plan = self._planner.plan(decode(body), BOTH, "")
        return None if plan is None else plan.run(time.monotonic_ns() + 10**11)

    def said(self, document: Document) -> Any:
        """Return the results, and the object after the patch."""
        done = self.mutations(json.dumps(document).encode())
        if done is None:
            return None
        after = apply_patch(document["request"]["object"], done.patch)
        rows = [(p.policy.key, p.action, p.results) for p in done.responses]
        # Compared as text, which distinguishes 1, 1.0 and true.
        return rows, json.dumps(after), done.refusal, len(done.left_out)


def check(policies: list[Document], reviews: list[Document]) -> int:
    """Mutate with and without the cache; return the number of cached plans."""
    alone, together = Asked(policies), Asked(policies)
    with patch.object(mutation_recall, "_WORTH_LEAST", 1 << 30):
        wanted = [alone.said(each) for each in reviews]
    with everything_cached():
        for each, found in zip(reviews, wanted, strict=True):
            assert together.said(each) == found
    assert not alone.hits
    return together.hits


def cluster_policy(*bodies: Document, name: str = "p", **spec: Any) -> Document:
    """Return a policy with one rule for each body."""
    kinds = {"resources": {"kinds": ["Pod"]}}
    rules = [
        {"name": f"r{number}", "match": {"any": [copy.deepcopy(kinds)]}, "mutate": body}
        for number, body in enumerate(bodies)
    ]
    metadata = {
        "name": name,
        "annotations": {"pod-policies.kyverno.io/autogen-controllers": "none"},
    }
    return {
        "apiVersion": "kyverno.io/v1",
        "kind": "ClusterPolicy",
        "metadata": metadata,
        "spec": {"background": False, **spec, "rules": rules},
    }


_HELD = {
    "{{ one }}": "{{ request.object.metadata.name }}",
    "x{{ one }}": "x{{ request.userInfo.username }}",
    "{{ two }}": "{{ request.object.spec.host }}",
}


def _filled(value: Any) -> Any:
    """Replace the variables of the other test with those of an object."""
    if isinstance(value, dict):
        return {key: _filled(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item) for item in value]
    return _HELD.get(value, value) if isinstance(value, str) else value


_ADDED = st.lists(
    st.fixed_dictionaries(
        {
            "op": st.just("add"),
            "path": st.sampled_from(
                [
                    "/metadata/labels/a",
                    "/spec/containers/0/env/-",
                    "/spec/containers/1/env/0",
                    "/spec/containers/-",
                    "/spec/volumes/-",
                    "/spec/inner/k",
                    "/spec/inner",
                    "/spec/containers/0",
                    "/spec/1/2",
                ]
            ),
            "value": st.sampled_from(["a", 1, {"name": "a"}, {"k": "a"}]),
        }
    ),
    min_size=1,
    max_size=3,
)
_MERGED = merges._anchored(
    {"metadata": merges._anchored({"labels": merges._P_INNER}), "spec": merges._P_SPEC}
).map(lambda found: {"patchStrategicMerge": _filled(found)})
_VALUE = st.sampled_from(
    [
        *("a", "x1", 1, True, "{{ request.object.metadata.name }}"),
        *("{{ request.userInfo.username }}", "x-{{ request.object.spec.host }}"),
    ]
)
_KEYS = st.sampled_from(["k", "l", "+(k)", "+(u)", "w"])
_FIELDS = st.dictionaries(_KEYS, _VALUE, min_size=1, max_size=2)
_NAMED = st.lists(
    st.fixed_dictionaries({"name": merges._NAMES, "value": _VALUE}),
    min_size=1,
    max_size=2,
    unique_by=lambda item: item["name"],
)
_WHICH = st.one_of(
    st.fixed_dictionaries({"name": merges._NAMES}),
    st.fixed_dictionaries(
        {"(name)": st.sampled_from(["*", "a", "!b"])},
        optional={"(image)": st.sampled_from(["x*", "a"])},
    ),
)
_USUAL_CONTAINER = st.tuples(
    _WHICH, merges._map({"image": _VALUE, "env": _NAMED, "inner": _FIELDS})
).map(lambda parts: {**parts[0], **parts[1], "+(u)": "made"})
_USUAL = merges._map(
    {
        "metadata": merges._map({"labels": _FIELDS, "annotations": _FIELDS}),
        "spec": merges._map(
            {
                "containers": st.lists(_USUAL_CONTAINER, min_size=1, max_size=1),
                "volumes": _NAMED,
                "inner": _FIELDS,
                "host": _VALUE,
                "(host)": st.sampled_from(["a", "*", "!b"]),
            }
        ),
    }
)
_EACH = st.fixed_dictionaries(
    {
        "list": st.just("request.object.spec.containers"),
        "patchStrategicMerge": st.fixed_dictionaries(
            {"name": st.just("{{ element.name }}")},
            optional={
                "image": st.sampled_from(["y", "{{ element.image }}-y"]),
                "env": _NAMED,
            },
        ).map(lambda one: {"spec": {"containers": [one]}}),
    }
)
_USUAL_BODY = st.one_of(
    _USUAL.map(lambda found: {"patchStrategicMerge": found}),
    st.lists(_EACH, min_size=1, max_size=2).map(lambda found: {"foreach": found}),
)
_BODY = st.one_of(
    *[_USUAL_BODY] * 6,
    loops._BODY,
    _MERGED,
    _ADDED.map(lambda found: {"patchesJson6902": json.dumps(found)}),
)
_POLICIES = st.lists(st.lists(_BODY, min_size=1, max_size=2), min_size=1, max_size=3)
_USUAL_PODS = st.fixed_dictionaries(
    {
        "apiVersion": st.just("v1"),
        "kind": st.just("Pod"),
        "metadata": st.fixed_dictionaries(
            {"name": merges._NAMES}, optional={"labels": st.just({"k": "a"})}
        ),
        "spec": st.fixed_dictionaries(
            {"containers": merges._REGULAR},
            optional={
                "volumes": _NAMED,
                "inner": merges._INNER,
                "host": st.sampled_from(["a", "b"]),
            },
        ),
    }
)
_PODS = st.one_of(*[_USUAL_PODS] * 4, loops._PODS, merges._PODS)
_UNREAD = st.sampled_from(["u", "v", 1, True, {}, {"k": "u"}, [], ["u"], None])


def _places(value: Any) -> list[Any]:
    """Return all maps and lists in a value."""
    if isinstance(value, dict):
        return [value, *(p for item in value.values() for p in _places(item))]
    if isinstance(value, list):
        return [value, *(p for item in value for p in _places(item))]
    return []


def _changed(draw: st.DrawFn, target: Document) -> Document:
    """Return a copy with a change that rules may or may not read."""
    made = copy.deepcopy(target)
    for _ in range(draw(st.integers(0, 2))):
        place = draw(st.sampled_from(_places(made)))
        if isinstance(place, list):
            draw(st.sampled_from([list.reverse, list.clear, _doubled]))(place)
        elif draw(st.booleans()) and place is not made:
            place[draw(st.sampled_from(["u", "w"]))] = copy.deepcopy(draw(_UNREAD))
        else:
            keys = [key for key in place if key not in ("kind", "apiVersion")]
            if keys:
                place[draw(st.sampled_from(keys))] = copy.deepcopy(draw(_UNREAD))
    if draw(st.booleans()):
        made["metadata"] = {"labels": {"a": "x"}, "name": draw(merges._NAMES)}
    return made


def _doubled(place: list[Any]) -> None:
    place.extend(copy.deepcopy(place[:1]))


@st.composite
def _families(draw: st.DrawFn) -> list[Document]:
    """Draw objects, most of which are equal except for small differences."""
    base = draw(_PODS)
    # Only repeated objects are cached; then almost equal objects follow.
    found = [base, base]
    for _ in range(draw(st.integers(2, 6))):
        other = draw(st.sampled_from(found))
        found += [_changed(draw, other)] * draw(st.integers(1, 2))
    return [
        review(one, userInfo={"username": draw(st.sampled_from(["x", "y"]))})
        for one in found
    ]


def _is_accepted(document: Document) -> bool:
    try:
        segment_of(json.dumps(document))
    except InputError:
        return False
    return True


@settings(max_examples=200, suppress_health_check=list(HealthCheck))
@given(_POLICIES, _families())
def test_cached_patch_equals_a_computed_one(
    bodies: list[list[Document]], family: list[Document]
) -> None:
    policies = [
        cluster_policy(*each, name=f"p{number}") for number, each in enumerate(bodies)
    ]
    policies = [each for each in policies if _is_accepted(each)]
    assume(policies)
    event(f"cached: {min(check(policies, [*family, *family[:1]]), 3)}")


def _named(pod_name: str, volume: str, **container: Any) -> Document:
    """Return the review of a Pod as a ReplicaSet creates it."""
    made = pod(volumes=[{"name": volume, "emptyDir": {}}])
    made["metadata"]["name"] = pod_name
    mounts = [{"name": volume, "mountPath": "/x"}]
    made["spec"]["containers"][0] |= {"volumeMounts": mounts, **container}
    return review(made, name=pod_name)


def _siblings(count: int, **container: Any) -> list[Document]:
    return [_named(f"x{n}", f"token-{n}", **container) for n in range(count)]


@pytest.mark.parametrize("rule", [merging, merging_each, patching, patching_each])
def test_pods_of_one_replica_set_are_patched_once(rule: Any) -> None:
    """Otherwise the law above would hold because nothing is ever cached."""
    policies = [policy(number, rule(number)) for number in range(10)]
    body = json.dumps(REVIEWS["allowed"][0])
    reviews = [json.loads(body.replace("abcde", f"abcd{n}")) for n in range(6)]
    assert check(policies, reviews) == 4


_SCRATCH = {"spec": {"volumes": [{"name": "scratch", "emptyDir": {}}]}}


def test_volume_is_added_next_to_any_existing_volumes() -> None:
    added = cluster_policy({"patchStrategicMerge": _SCRATCH})
    assert check([added], _siblings(5)) == 3
    twice = _siblings(5)
    for each in twice:
        each["request"]["object"]["spec"]["volumes"] *= 2
    assert check([added], [*_siblings(2), *twice]) == 0
    named = [*_siblings(2), *[_named("x", "scratch")] * 2]
    assert check([added], named) == 0


def _labelled(key: str, value: str) -> Document:
    return {"patchStrategicMerge": {"metadata": {"labels": {key: value}}}}


READ = {
    "a value at a path": (
        cluster_policy(_labelled("a", "{{ request.object.metadata.name }}")),
        [_named("x", "v"), _named("y", "v")],
    ),
    "the user": (
        cluster_policy(_labelled("a", "{{ request.userInfo.username }}")),
        [
            review(pod(), userInfo={"username": "a"}),
            review(pod(), userInfo={"username": "b"}),
        ],
    ),
    "a part of a condition": (
        cluster_policy(
            {"patchStrategicMerge": {"spec": {"(host)": {"a": "1"}, "other": "x"}}}
        ),
        [review(pod(host={"a": "1"})), review(pod(host={"a": "2"}))],
    ),
    "whether there is a value": (
        cluster_policy({"patchStrategicMerge": {"spec": {"+(host)": "x"}}}),
        [review(pod()), review(pod(host="y"))],
    ),
    "which element is named": (
        cluster_policy(
            {"patchStrategicMerge": {"spec": {"containers": [{"name": "c", "a": 1}]}}}
        ),
        [_named("x", "v"), _named("x", "v", name="d")],
    ),
    "which element a value names": (
        cluster_policy(
            {
                "patchStrategicMerge": {
                    "spec": {
                        "volumes": [{"name": "{{ request.object.spec.host }}", "a": 1}]
                    }
                }
            }
        ),
        [review(pod(host="h", volumes=[{"name": name}])) for name in ("h", "v")],
    ),
    "the length of a list": (
        cluster_policy(
            {
                "patchesJson6902": json.dumps(
                    [{"op": "add", "path": "/spec/containers/0/l/-", "value": 1}]
                )
            }
        ),
        [_named("x", "v", l=[1]), _named("x", "v", l=[1, 2])],
    ),
    "a list that is replaced": (
        cluster_policy(
            {"patchStrategicMerge": {"spec": {"tolerations": [{"key": "k"}]}}}
        ),
        [review(pod(tolerations=[{"key": "k", **more}])) for more in ({}, {"u": 1})],
    ),
    "the length of a list of the spec": (
        cluster_policy(
            {
                "patchesJson6902": json.dumps(
                    [{"op": "add", "path": "/spec/l/-", "value": 1}]
                )
            }
        ),
        [review(pod(l=["u"])), review(pod(l=["u", "v"]))],
    ),
    "a list that an operation replaces": (
        cluster_policy(
            {
                "patchesJson6902": json.dumps(
                    [{"op": "add", "path": "/spec/l", "value": ["a"]}]
                )
            }
        ),
        [review(pod(l=[item])) for item in ("a", "b")],
    ),
    "a text that becomes a variable": (
        cluster_policy(_labelled("a", "{{{ request.object.spec.host }}")),
        [review(pod(host="{{ request.object.metadata.name }}")), _named("y", "v")],
    ),
    "who is moved": (
        cluster_policy(
            {"patchStrategicMerge": {"spec": {"containers": [{"name": "d", "a": 1}]}}}
        ),
        [
            review(pod(containers=[{"name": "c", **more}, {"name": "d", **more}]))
            for more in ({}, {"u": 1}, {"u": 2})
        ],
    ),
}


@pytest.mark.parametrize("what", READ)
def test_objects_that_differ_in_read_parts_are_never_equal(what: str) -> None:
    """Objects that differ only in this part each get their own patch."""
    document, found = READ[what]
    for one, other in itertools.permutations(found, 2):
        check([document], [one, one, one, other, other, one])


def _selected(**resources: Any) -> Document:
    document = cluster_policy(_labelled("b", "made"), name="q")
    match = document["spec"]["rules"][0]["match"]["any"][0]
    match["resources"] |= resources
    return document


def test_rule_that_matches_after_an_earlier_mutation() -> None:
    """The rule matches only after the mutation, so the user is not part of the key."""
    chosen = _selected(selector={"matchLabels": {"a": "x"}})
    match = chosen["spec"]["rules"][0]["match"]["any"][0]
    match["subjects"] = [{"kind": "User", "name": "alice"}]
    # The index uses the namespace, and so does not distinguish the users.
    match["resources"]["namespaces"] = ["default"]
    first = cluster_policy(_labelled("a", "x"))
    bob, alice = (review(pod(), userInfo={"username": n}) for n in ("bob", "alice"))
    assert check([first, chosen], [bob, bob, bob, alice, alice, alice]) == 0
    other = copy.deepcopy(chosen)
    other["spec"]["rules"][0]["mutate"] = {"patchStrategicMerge": {"spec": {"u": 1}}}
    assert check([other], [alice] * 4) == 2
    noted = _selected(annotations={"a": "x"})
    assert check([first, noted], _siblings(4)) == 2


def test_policy_that_applies_only_one_rule() -> None:
    one = cluster_policy(_labelled("a", "x"), _labelled("b", "y"), applyRules="One")
    assert check([one], _siblings(4)) == 2


def test_failures_and_other_operations_are_never_cached() -> None:
    broken = cluster_policy(_labelled("a", "{{ request.object.none }}"))
    assert check([broken], _siblings(4)) == 0
    kept = cluster_policy(_labelled("a", "x"))
    updates = _siblings(4)
    for each in updates:
        each["request"] |= {"operation": "UPDATE", "oldObject": pod()}
    assert check([kept], updates) == 0
    large = _siblings(4, image="x" * RECALL_KEY_BYTES_MAX)
    read = {"list": "request.object.spec.containers", **_labelled("a", "x")}
    read = _filled({**read, **_labelled("a", "{{ element.image }}")})
    assert check([cluster_policy({"foreach": [read]})], large) == 0
    assert check([kept], _siblings(4, image="x" * RECALL_REVIEW_BYTES_MAX)) == 0


def test_large_patches_and_much_work_are_not_cached() -> None:
    assert check([cluster_policy(_labelled("a", "x" * 2000))], _siblings(4)) == 2
    long = cluster_policy(_labelled("a", "x" * RECALL_PATCH_BYTES_MAX))
    assert check([long], _siblings(4)) == 0
    kept = [cluster_policy(_labelled("a", "x")), cluster_policy(merging_each(1))]
    with patch.object(mutation_recall, "RECALL_MUTATION_STEPS_MAX", 1):
        assert check(kept, _siblings(4)) == 0
    assert RECALL_MUTATION_STEPS_MAX > 1


def _nested(depth: int) -> Document:
    value: Document = {}
    for _ in range(depth):
        value = {"a": value}
    return value


def test_unencodable_object_is_patched_each_time() -> None:
    """The JSON library rejects 255 levels, and reviews may have twice as many."""
    deep = [review(pod(unread=_nested(300)))] * 4
    assert check([cluster_policy(_labelled("a", "x"))], deep) == 0


@pytest.mark.parametrize("error", [RecursionError, KeyError("k"), InputError("a", "b")])
def test_cache_failures_change_no_answer(error: Any) -> None:
    with patch.object(mutation_recall, "diff", side_effect=error) as learned:
        assert check([cluster_policy(_labelled("a", "x"))], _siblings(4)) == 0
    assert learned.called


def test_reads_are_computed_without_linking_again() -> None:
    """Otherwise each kind of object would link all variables in the event loop."""
    labels = {f"l{n}": "{{ request.object.metadata.name }}" for n in range(5)}
    document = cluster_policy({"patchStrategicMerge": {"metadata": {"labels": labels}}})
    match = document["spec"]["rules"][0]["match"]["any"][0]
    match["resources"]["kinds"] = ["Pod", "ConfigMap", "Secret"]
    with (
        everything_cached(),
        patch(
            "kyverno_mp.expr.template.leaves.link_template", wraps=link_template
        ) as linked,
    ):
        asked = Asked([document])
        for kind in match["resources"]["kinds"]:
            for _ in range(3):
                asked.said(review({**pod(), "kind": kind}))
    assert asked.hits == 3
    assert linked.call_count == len(labels)


def _conditional(count: int) -> Document:
    """Return a merge of keys for containers that no Pod has."""
    found = {"(name)": "none", **{f"k{number}": "x" for number in range(count)}}
    return {"patchStrategicMerge": {"spec": {"containers": [found]}}}


def _in_yaml(length: int) -> Document:
    text = "- op: add\n  path: /spec/a\n  value: x\n"
    return {"patchesJson6902": f"{text}#{'-' * length}\n"}


def _of_variables(count: int) -> Document:
    variable = "{{ request.object.metadata.name }}"
    return {
        "foreach": [
            {
                "list": "request.object.spec.containers",
                "patchStrategicMerge": {
                    "spec": {
                        "containers": [
                            {
                                "(name)": "none",
                                **{f"k{n}": variable for n in range(count)},
                            }
                        ]
                    }
                },
            }
        ]
    }


@pytest.mark.parametrize("body", [_conditional, _in_yaml, _of_variables])
def test_plans_with_large_patches_are_not_cached(body: Any) -> None:
    """The analysis of their reads stops before it takes longer than a slice."""
    same = [_named("x", "v")] * 4
    assert check([cluster_policy(body(20))], same) == 2
    large = [cluster_policy(body(RECALL_READS_STEPS_MAX // 2))]
    with patch.object(Reads, "field", autospec=True, side_effect=Reads.field) as field:
        assert check(large, same) == 0
    assert field.call_count < 10


def test_many_small_patches_count_like_a_large_one() -> None:
    rules = [_labelled("a", str(number)) for number in range(10)]
    assert check([cluster_policy(*rules)], _siblings(4)) == 2
    with patch.object(mutation_recall, "RECALL_READS_STEPS_MAX", 300):
        assert check([cluster_policy(*rules[:5])], _siblings(4)) == 2
        assert check([cluster_policy(*rules)], _siblings(4)) == 0


def test_long_paths_are_not_cached() -> None:
    path = "request.object.spec" + ".a" * 100
    each = {"list": path, **_labelled("a", "{{ element" + ".a" * 100 + " }}")}
    bodies = {"foreach": [each]}, _labelled("a", "x")
    assert check([cluster_policy(*bodies)], _siblings(4)) == 0


def test_long_list_runs_again_despite_cached_short_one() -> None:
    """Otherwise each element would be compiled separately."""
    counts = []
    for length in (2, 50):
        found = [{"name": f"c{n}", "image": "i"} for n in range(length)]
        same = [review(pod(containers=found))] * 3
        with patch.object(reads, "cutter", wraps=reads.cutter) as compiled:
            assert check([cluster_policy(_conditional(3))], same) == 1
        counts.append(compiled.call_count)
    assert counts[0] == counts[1]


def test_the_cache_is_bounded() -> None:
    cache = MutationCache()
    for number in range(3 * RECALL_MUTATIONS_MAX):
        key: Any = (None, b"%d" % number, (), ())
        assert not cache.is_met(key)
        cache.keep(key, CachedMutation((), []))
        assert len(cache._known) <= RECALL_MUTATIONS_MAX
        assert len(cache._met) <= RECALL_MUTATIONS_MAX


def test_nonrecurring_objects_are_rarely_looked_up() -> None:
    """Computing a key takes as long as a small patch."""
    policies = [policy(number, merging_each(number)) for number in range(10)]
    asked = Asked(policies)
    reviews = [_named("x", "v", image=f"i:{n}") for n in range(200)]
    for number, each in enumerate(reviews):
        each["request"]["object"]["spec"]["containers"][0]["name"] = f"c{number}"
        asked.mutations(json.dumps(each).encode())
    assert asked.hits == 0
    assert len(asked._cache._met) < 50


def test_generated_probe_values_are_unique() -> None:
    assert Strangers()._next() != ""
    strangers = Strangers()
    assert strangers._next() != strangers._next()
