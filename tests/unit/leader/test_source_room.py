"""The documents that tenants store take a bounded part of the leader's memory.

A failure means: tenants together end the leader of every pod; a policy without room
allows what it denies, or says that it is ready; or an administrator's policy waits.
"""

import gc
import itertools
import json
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kyverno_mp.ir.index import EncodedPolicy
from kyverno_mp.kube.cache import Informer
from kyverno_mp.leader.cluster import LivePolicies
from kyverno_mp.leader.documents.source_room import SourceRoom
from kyverno_mp.leader.documents.tenant_room import TenantRoom
from kyverno_mp.leader.folder import Changes
from kyverno_mp.leader.outline import outline_of, size_outlined
from kyverno_mp.leader.policy_set import PolicySet
from kyverno_mp.leader.policy_store import PolicyStore
from kyverno_mp.leader.stored_document import FROM_CLUSTER, Key
from kyverno_mp.limits import OUTLINE_BYTES_MAX
from kyverno_mp.snapshot.policies import POLICIES
from tests.unit.kube.fake_api import FakeApi, running
from tests.waiting import wait_for

KIB = 1024
CODE = "leader.sources_share"
GROUP = "/apis/kyverno.io/v1"
_POD = {"any": [{"resources": {"kinds": ["Pod"]}}]}
_CONSTRAINTS = {
    "resourceRules": [
        {
            "apiGroups": [""],
            "apiVersions": ["v1"],
            "resources": ["pods"],
            "operations": ["CREATE"],
        }
    ]
}
_AUTOGEN = {"pod-policies.kyverno.io/autogen-controllers": "none"}


def spec_of_policy(size: int, **rule: Any) -> dict[str, Any]:
    rule = rule or {"validate": {"message": "m" * size, "deny": {}}}
    return {
        "validationFailureAction": "Enforce",
        "rules": [{"name": "r", "match": _POD, **rule}],
    }


def policy(name: str, namespace: str, spec: Any, kind: str = "Policy") -> Any:
    group = "kyverno.io/v1" if kind == "Policy" else "policies.kyverno.io/v1beta1"
    return {
        "apiVersion": group,
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace, "annotations": _AUTOGEN},
        "spec": spec,
    }


def stored(store: PolicyStore, documents: dict[str, bytes]) -> PolicySet:
    named = {f"{FROM_CLUSTER}{name}": text for name, text in documents.items()}
    return store.update(Changes(named, ()))


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("Policy", spec_of_policy(KIB)),
        (
            "Policy",
            spec_of_policy(
                0,
                mutate={"patchStrategicMerge": {"metadata": {"labels": {"a": "b"}}}},
            ),
        ),
        (
            "NamespacedValidatingPolicy",
            {
                "matchConstraints": _CONSTRAINTS,
                "validations": [{"expression": "true", "message": "m" * KIB}],
            },
        ),
        (
            "NamespacedMutatingPolicy",
            {
                "matchConstraints": _CONSTRAINTS,
                "mutations": [
                    {
                        "patchType": "ApplyConfiguration",
                        "applyConfiguration": {"expression": "Object{}"},
                    }
                ],
            },
        ),
        (
            "NamespacedImageValidatingPolicy",
            {
                "matchConstraints": _CONSTRAINTS,
                "matchImageReferences": [{"glob": "ghcr.io/*"}],
                "attestors": [
                    {
                        "name": "a",
                        "cosign": {"key": {"data": "k" * KIB}},
                    }
                ],
                "validations": [{"expression": "true"}],
            },
        ),
    ],
)
def test_outline_fails_where_its_policy_matches(kind: str, spec: Any) -> None:
    whole = policy("p", "team", spec, kind)
    outline = outline_of(whole, 5000)
    assert size_outlined(json.loads(outline)) == 5000
    found = stored(PolicyStore(lambda _: True), {"p": outline})
    (status,) = found.policies
    assert (status.ready, status.code) == (False, CODE)
    assert "4 KiB" in status.message
    assert found.unread
    (stub,) = (*found.encoded, *_in_cel(found))
    ready = stored(PolicyStore(lambda _: True), {"p": json.dumps(whole).encode()})
    assert [one.ready for one in ready.policies] == [True]
    (own,) = (*ready.encoded, *_in_cel(ready))
    assert stub.entries == own.entries


def _in_cel(found: PolicySet) -> Iterator[EncodedPolicy]:
    for policies in found.cel.values():
        yield from policies


@pytest.mark.parametrize("long", ["overrides", "annotation"])
def test_long_fields_lift_no_denial(long: str) -> None:
    whole = policy("p", "team", spec_of_policy(KIB))
    if long == "overrides":
        override = {"action": "Audit", "namespaces": ["n" * 60] * 100}
        whole["spec"]["validationFailureActionOverrides"] = [override]
    else:
        (name,) = _AUTOGEN
        whole["metadata"]["annotations"] = {name: ",".join(["Deployment"] * 1_000)}
    outline = outline_of(whole, 100 * KIB)
    assert len(outline) <= OUTLINE_BYTES_MAX
    (stub,) = stored(PolicyStore(lambda _: True), {"p": outline}).encoded
    assert stub.entries


@pytest.mark.parametrize("number", [10, 1_000])
def test_outline_has_a_bound(number: int) -> None:
    """Matches that are too large are replaced by their kinds, and those by all kinds.

    A failure means: a policy that matches very much denies nothing.
    """
    kinds = [f"Kind{index}" for index in range(number)]
    names = [f"name-{index}" for index in range(5_000)]
    match = {"any": [{"resources": {"kinds": kinds, "names": names}}]}
    spec = {
        "rules": [
            {"name": "r", "match": match, "validate": {"message": "m", "deny": {}}}
        ]
    }
    outline = outline_of(policy("p", "team", spec), 100 * KIB)
    assert len(outline) <= OUTLINE_BYTES_MAX
    rules = json.loads(outline)["spec"]["rules"]
    seen = [one["match"]["any"][0]["resources"]["kinds"] for one in rules]
    assert seen == [kinds if number == 10 else ["*"]]
    found = stored(PolicyStore(lambda _: True), {"p": outline})
    assert [status.code for status in found.policies] == [CODE]
    (stub,) = found.encoded
    assert stub.entries


def test_constraints_without_room_match_everything() -> None:
    groups = [f"group-{index}.example.com" for index in range(1_000)]
    rule = {
        "apiGroups": groups,
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["pods"],
    }
    spec = {
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": "true"}],
    }
    kind = "NamespacedValidatingPolicy"
    outline = outline_of(policy("p", "team", spec, kind), 100 * KIB)
    assert len(outline) <= OUTLINE_BYTES_MAX
    found = stored(PolicyStore(lambda _: True), {"p": outline})
    (stub,) = _in_cel(found)
    ((entry, *_),) = (stub.entries,)
    assert "*" in str(entry)


def test_users_cannot_write_outlines(tmp_path: Any) -> None:
    """The mark in a file, or in an object of the cluster, means nothing."""
    whole = {**policy("p", "team", spec_of_policy(1)), "outlineOf": 9}
    found = PolicyStore(lambda _: True).update(
        Changes({str(tmp_path / "x.yaml"): json.dumps(whole).encode()}, ())
    )
    (status,) = found.policies
    assert status.code == "policy.unknown_field"


_SIZES = st.lists(
    st.tuples(
        st.sampled_from(["", "a", "b", "c"]), st.integers(0, 9), st.integers(1, 60)
    ),
    max_size=40,
)


@given(_SIZES, st.integers(10, 200))
def test_what_is_kept_fits_at_every_moment(
    changes: list[tuple[str, int, int]], total: int
) -> None:
    """And in the end each namespace has its documents up to its share."""
    room, kept = SourceRoom(total), set[Key]()
    sizes: dict[Key, int] = {}

    def take(key: Key) -> None:
        kept.discard(key)
        if room.takes(key, sizes[key]):
            kept.add(key)

    def size(keys: set[Key], *, of_tenants: bool = True) -> int:
        return sum(sizes[key] for key in keys if bool(key[1]) == of_tenants)

    most = total
    for namespace, name, weight in changes:
        key = ("policies", namespace, str(name))
        if weight == 60 and key in sizes:
            room.forget(key)
            del sizes[key]
            kept.discard(key)
        else:
            sizes[key] = weight
            take(key)
        administrators = size(set(sizes), of_tenants=False)
        most = max(total // 2, total - administrators)
        assert key not in kept or not namespace or size(kept) <= most
    for _ in range(3):
        drop, read = room.balance()
        kept -= drop
        for key in read:
            take(key)
    assert size(kept) <= most
    tenants = {key for key in sizes if key[1]}
    if size(tenants) <= most:
        assert kept >= tenants
    equal = most // max(1, len({key[1] for key in tenants}))
    for namespace in {key[1] for key in tenants}:
        own = {key for key in tenants if key[1] == namespace}
        assert size(own) > equal or own <= kept


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with running() as server:
        yield server


def test_documents_without_room_return_when_there_is_room(api: FakeApi) -> None:
    """Four namespaces take it all; a fifth gets its part, and what is freed is used."""
    head = {"apiVersion": "kyverno.io/v1", "kind": "Policy"}
    big = {**head, "spec": spec_of_policy(20 * KIB)}
    small = {**head, "spec": spec_of_policy(4 * KIB)}
    for team in range(4):
        for number in range(3):
            api.put(f"{GROUP}/namespaces/bad{team}/policies/p{number}", **big)
    minutes = itertools.count(0.0, 60.0)
    source = LivePolicies(
        api.client(), room=SourceRoom(130 * KIB), monotonic_s=minutes.__next__
    )
    store = PolicyStore(lambda _: True)
    started = [one for one in source.informers if one.scope.resource.plural]
    for informer in started:
        informer.start()
    try:
        wait_for(lambda: all(informer.synced for informer in started))

        def poll() -> dict[tuple[str, str], bool]:
            found = store.update(source.poll(0))
            return {(one.namespace, one.name): one.ready for one in found.policies}

        def shares(most: int) -> bool:
            ready = poll()
            counts = [
                sum(ready.get((f"bad{team}", f"p{n}"), False) for n in range(3))
                for team in range(4)
            ]
            return len(ready) >= 12 and counts == [most] * 4

        wait_for(lambda: shares(1))
        assert _largest(started) <= 130 * KIB + 12 * OUTLINE_BYTES_MAX
        api.put(f"{GROUP}/namespaces/good/policies/mine", **small)
        api.put(f"{GROUP}/clusterpolicies/admin", **{**big, "kind": "ClusterPolicy"})
        wait_for(lambda: poll().get(("good", "mine")) and poll().get(("", "admin")))
        for team in range(3):
            for number in range(3):
                api.remove(f"{GROUP}/namespaces/bad{team}/policies/p{number}")
        wait_for(lambda: all(poll().values()))
    finally:
        for informer in started:
            informer.stop()


def _largest(informers: list[Informer[bytes]]) -> int:
    return sum(len(text) for one in informers for text in one.snapshot().values())


def test_memory_of_many_documents_is_bounded(api: FakeApi) -> None:
    """Ten times as many policies as there is room for take no more memory."""
    total = 1024 * KIB

    def used(count: int) -> int:
        room, store = SourceRoom(total), PolicyStore(lambda _: True)
        gc.collect()
        tracemalloc.start()
        try:
            documents: dict[str, bytes] = {}
            for number in range(count):
                whole = policy(f"p{number}", f"n{number % 4}", spec_of_policy(50 * KIB))
                text = json.dumps(whole).encode()
                key = ("policies", whole["metadata"]["namespace"], f"p{number}")
                kept = room.takes(key, len(text))
                text = text if kept else outline_of(whole, len(text))
                documents[f"policies/{number}"] = text
            found = stored(store, documents)
            assert POLICIES not in found.cel
            del whole, text
            gc.collect()
            return tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()

    few, many = used(20), used(400)
    outlines = 380 * (OUTLINE_BYTES_MAX + 20 * KIB)
    assert few > total / 2
    assert many < few + outlines
    assert many < 8 * total + outlines


def test_rejected_versions_keep_no_documents() -> None:
    """A tenant replaces large policies by small rejected ones, again and again."""
    store = PolicyStore(lambda _: True, room=TenantRoom(200 * KIB, 1 << 40, 0))
    for number in range(30):
        whole = policy(f"p{number}", "team", spec_of_policy(50 * KIB))
        stored(store, {f"policies/{number}": json.dumps(whole).encode()})
        broken = policy(f"p{number}", "team", {"rules": [{"name": "r"}]})
        found = stored(store, {f"policies/{number}": json.dumps(broken).encode()})
    assert sum(map(len, found.packed.values())) <= 200 * KIB
    assert not any(one.ready for one in found.policies)
    assert len(found.encoded) == 30
