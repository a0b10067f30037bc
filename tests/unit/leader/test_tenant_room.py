"""All namespaces share the room of a pod fairly, and administrators come first.

A failure means: tenants together fill the memory or the folder of every pod; or one
namespace's policies are errors because of what others store.
"""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kyverno_mp.compiler.linked_size import linked_bytes
from kyverno_mp.leader.documents.linked_memory import published_bytes
from kyverno_mp.leader.documents.tenant_room import TenantRoom, fair_share
from kyverno_mp.leader.folder import Changes
from kyverno_mp.leader.policy_set import PolicySet
from kyverno_mp.leader.policy_store import PolicyStore
from kyverno_mp.snapshot.room import FolderRoom

KIB = 1024
MIB = 1024 * KIB
CODE = "leader.policies_share"


def policy(name: str, namespace: str = "", size: int = KIB) -> dict[str, Any]:
    autogen = {"pod-policies.kyverno.io/autogen-controllers": "none"}
    metadata = {"name": name, "annotations": autogen}
    if namespace:
        metadata["namespace"] = namespace
    rule = {
        "name": "r",
        "match": {"any": [{"resources": {"kinds": ["Pod"]}}]},
        "validate": {"message": "m" * size, "deny": {}},
    }
    return {
        "apiVersion": "kyverno.io/v1",
        "kind": "Policy" if namespace else "ClusterPolicy",
        "metadata": metadata,
        "spec": {"validationFailureAction": "Enforce", "rules": [rule]},
    }


def stored(room: TenantRoom | None, *documents: dict[str, Any]) -> PolicySet:
    text = "\n---\n".join(map(json.dumps, documents))
    store = PolicyStore(lambda _: True, has_background=True, room=room)
    return store.update(Changes({"x": text.encode()}, ()))


def room(published: int = 1 << 40, linked: int = 1 << 40) -> TenantRoom:
    return TenantRoom(published, linked, 0)


def refused(found: PolicySet) -> list[str]:
    return [f"{one.namespace}/{one.name}" for one in found.policies if not one.ready]


def test_attackers_share_and_others_lose_nothing() -> None:
    """Four namespaces store a hundred times what fits; a fifth has one policy."""
    attack = [
        policy(f"p{number}", f"bad{team}", 100 * KIB)
        for team in range(4)
        for number in range(10)
    ]
    mine = [policy("mine", "good", 20 * KIB), policy("admin", size=200 * KIB)]
    found = stored(room(published=2 * MIB), *attack, *mine)
    lost = refused(found)
    assert "good/mine" not in lost
    assert "/admin" not in lost
    kept = {f"bad{team}": 10 for team in range(4)}
    for name in lost:
        kept[name.partition("/")[0]] -= 1
    # Each has the same part, which is neither nothing nor everything.
    (same,) = set(kept.values())
    assert 0 < same < 10
    codes = {one.code for one in found.policies if not one.ready}
    assert codes == {CODE}
    assert "errors where they match" in next(
        one.message for one in found.policies if not one.ready
    )
    # Stubs are small, and have a bound of their own.
    assert sum(map(published_bytes, found.encoded)) <= 2 * MIB * 5 // 4


def test_memory_is_shared_as_well_as_the_folder() -> None:
    whole = stored(None, policy("a", "one", 40 * KIB), policy("b", "two", 40 * KIB))
    size = linked_bytes(whole.encoded[0])
    assert refused(stored(room(linked=2 * size), *_pair())) == []
    assert refused(stored(room(linked=2 * size - 2), *_pair())) == ["one/a", "two/b"]
    small = stored(room(linked=size + size // 2), *_pair(), policy("c", "three"))
    assert refused(small) == ["one/a", "two/b"]


def _pair() -> list[dict[str, Any]]:
    return [policy("a", "one", 40 * KIB), policy("b", "two", 40 * KIB)]


def test_policy_without_a_share_denies() -> None:
    """Its stub still matches, so nothing that it denies is allowed."""
    found = stored(room(published=64 * KIB), policy("p", "team", 100 * KIB))
    assert refused(found) == ["team/p"]
    (stub,) = found.encoded
    assert published_bytes(stub) < 4 * KIB
    assert (
        stub.entries == stored(None, policy("p", "team", 100 * KIB)).encoded[0].entries
    )


def test_administrators_come_first_but_tenants_keep_a_part() -> None:
    assert room(published=800).of_tenants(0) == 800
    assert room(published=800).of_tenants(300) == 500
    assert room(published=800).of_tenants(10_000) == 100


@given(
    st.lists(st.integers(0, 1000), min_size=1, max_size=12),
    st.integers(0, 5000),
)
def test_share_is_fair(demands: list[int], total: int) -> None:
    """All together fit, nobody below an equal part loses, and nothing is left over."""
    share = fair_share(demands, total)
    taken = [min(one, share) for one in demands]
    assert sum(taken) <= total
    equal = total // len(demands)
    pairs = list(zip(demands, taken, strict=True))
    assert all(one == got for one, got in pairs if one <= equal)
    if any(got < one for one, got in pairs):
        assert total - sum(taken) < len(demands)


@given(
    st.lists(st.integers(0, 1000), min_size=1, max_size=8),
    st.integers(0, 1000),
    st.integers(0, 4000),
)
def test_a_greedier_neighbour_takes_nothing_below_an_equal_part(
    demands: list[int], more: int, total: int
) -> None:
    before = fair_share(demands, total)
    after = fair_share([demands[0] + more, *demands[1:]], total)
    equal = total // len(demands)
    for demand in demands[1:]:
        assert min(demand, after) >= min(demand, before, equal)


def test_manifests_leave_room_for_three_publications() -> None:
    """The pod of ``deploy/`` has a folder of 128 MiB and 768 MiB of memory."""
    found = TenantRoom.of(FolderRoom(128 * MIB, 128 * MIB), 768 * MIB, 2)
    assert 3 * found.published + 2 * found.kept <= 112 * MIB
    assert found.linked * 2 <= 192 * MIB
    # 10,000 policies take about 30 MiB.
    assert found.published >= 32 * MIB
    small = TenantRoom.of(FolderRoom(1 << 40, 1 << 40), 256 * MIB, 1)
    assert 3 * small.published + 2 * small.kept <= 64 * MIB
