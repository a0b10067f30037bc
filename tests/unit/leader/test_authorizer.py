"""The policies of an authorizer: from folders and a cluster, each for itself.

A failure means: requests that a policy denies are allowed, because of another policy,
of where a file is, or of when it was read. Expected: docs/behaviour/cel 15.6, whose
traps upstream's server has.
"""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from kyverno_mp.leader.authorizer import ManySources, folders_of
from kyverno_mp.leader.cluster import authorizer_policies
from kyverno_mp.leader.documents.in_cel import Modes
from kyverno_mp.leader.folder import Changes, Folder
from kyverno_mp.leader.policy_set import PolicySet
from kyverno_mp.leader.policy_store import PolicyStore
from kyverno_mp.program.authorization import Authorizer
from kyverno_mp.settings.settings import Settings
from kyverno_mp.snapshot.cel_segments import AuthorizationSegment
from kyverno_mp.snapshot.policies import PoliciesWriter
from kyverno_mp.snapshot.read import Segment
from kyverno_mp.values.kubernetes.policy_kinds import VALIDATING_POLICY
from tests.unit.kube.fake_api import running
from tests.unit.program.authorizing import check, document
from tests.waiting import wait_for

ANSWER = {
    "HTTP": 'http.Denied("no").Response()',
    "Envoy": "envoy.Denied(403).Response()",
}
PATH = {
    "HTTP": "object.attributes.path",
    "Envoy": "object.attributes.request.http.path",
}
MODES = ("HTTP", "Envoy")


def denying(mode: str, path: str, name: str) -> bytes:
    text = f"{PATH[mode]} == '{path}' ? {ANSWER[mode]} : null"
    raw = document(mode, name, validations=[{"expression": text}])
    return msgspec.json.encode(raw)


def broken(mode: str, name: str) -> bytes:
    raw = document(mode, name, validations=[{"expression": "object.gone"}])
    return msgspec.json.encode(raw)


def store(mode: str) -> PolicyStore:
    return PolicyStore(lambda _namespace: True, modes=Modes(mode))


def served(policy_set: PolicySet, mode: str, folder: Path) -> Authorizer:
    """Return the policies as a worker reads them from the snapshot."""
    segment = VALIDATING_POLICY.segment
    content = PoliciesWriter().encode(
        policy_set.cel.get(segment, ()), generation=1, salt=bytes(16), segment=segment
    )
    path = folder / "segment"
    path.write_bytes(content)
    path.chmod(0o600)
    records = AuthorizationSegment(Segment.attach(path, segment)).records()
    return Authorizer(records, mode)


def denies(authorizer: Authorizer, mode: str, path: str) -> bool:
    data: Any = {"attributes": {"path": path}}
    if mode == "Envoy":
        data = {"attributes": {"request": {"http": {"path": path}}}}
    found = authorizer.decide(check(mode, data))
    return found is not None and not found.is_allowed


@pytest.mark.parametrize("mode", MODES)
class TestPolicies:
    def test_one_that_does_not_compile_takes_no_other_away(
        self, mode: str, tmp_path: Path
    ) -> None:
        """Upstream: it empties the source, and everything is allowed."""
        files = {
            "a": denying(mode, "/x", "a"),
            "b": broken(mode, "b"),
            "c": denying(mode, "/y", "c"),
            "d": b"kind: [",
        }
        found = store(mode).update(Changes(files, ()))
        authorizer = served(found, mode, tmp_path)
        assert denies(authorizer, mode, "/x")
        assert denies(authorizer, mode, "/y")
        assert denies(authorizer, mode, "/z"), "what b would say is not known"
        assert {one.name: one.ready for one in found.policies} == {
            "a": True,
            "b": False,
            "c": True,
        }
        assert len(found.unread) == 1

    def test_one_that_never_compiled_denies_as_its_failure_policy_says(
        self, mode: str, tmp_path: Path
    ) -> None:
        """Left out, it would allow what its author denies."""
        policies = store(mode)
        for text in (broken(mode, "a"), broken(mode, "a").replace(b"gone", b"lost")):
            found = policies.update(Changes({"a": text}, ()))
            assert denies(served(found, mode, tmp_path), mode, "/x")
            (status,) = found.policies
            assert (status.ready, status.in_force) == (False, "")
        raw = msgspec.json.decode(broken(mode, "a"))
        raw["spec"]["failurePolicy"] = "Ignore"
        found = policies.update(Changes({"a": msgspec.json.encode(raw)}, ()))
        assert not denies(served(found, mode, tmp_path), mode, "/x")
        found = policies.update(Changes({"a": denying(mode, "/x", "a")}, ()))
        assert denies(served(found, mode, tmp_path), mode, "/x")
        assert not denies(served(found, mode, tmp_path), mode, "/y")

    def test_the_last_version_that_compiled_stays_in_force(
        self, mode: str, tmp_path: Path
    ) -> None:
        policies = store(mode)
        policies.update(Changes({"a": denying(mode, "/x", "a")}, ()))
        found = policies.update(Changes({"a": broken(mode, "a")}, ()))
        assert denies(served(found, mode, tmp_path), mode, "/x")
        (status,) = found.policies
        assert not status.ready
        assert status.in_force

    def test_policies_of_others_are_left_to_them(
        self, mode: str, tmp_path: Path
    ) -> None:
        other = MODES[mode == "HTTP"]
        admission = document("Kubernetes", "k", validations=[{"expression": "true"}])
        files = {
            "a": denying(mode, "/x", "a"),
            "b": denying(other, "/y", "b"),
            "c": msgspec.json.encode(admission),
            "d": b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\n",
        }
        found = store(mode).update(Changes(files, ()))
        assert [one.name for one in found.policies] == ["a"]
        assert not found.problems
        assert denies(served(found, mode, tmp_path), mode, "/x")

    def test_exceptions_exempt(self, mode: str, tmp_path: Path) -> None:
        def exception(condition: str) -> bytes:
            return msgspec.json.encode(
                {
                    "apiVersion": "policies.kyverno.io/v1",
                    "kind": "PolicyException",
                    "metadata": {"name": "e", "namespace": "n"},
                    "spec": {
                        "policyRefs": [{"name": "a", "kind": "ValidatingPolicy"}],
                        "evaluationMode": mode,
                        "matchConditions": [{"name": "c", "expression": condition}],
                    },
                }
            )

        files = {"a": denying(mode, "/x", "a"), "e": exception("true")}
        policies = store(mode)
        found = policies.update(Changes(files, ()))
        assert not denies(served(found, mode, tmp_path), mode, "/x")
        # One that does not compile exempts nothing, and breaks nothing.
        found = policies.update(Changes({"e": exception("object.gone")}, ()))
        assert denies(served(found, mode, tmp_path), mode, "/x")
        (status,) = found.policies
        assert status.ready
        assert "PolicyException" in status.message

    def test_too_many_exceptions_cost_themselves(
        self, mode: str, tmp_path: Path
    ) -> None:
        """The policy's memory is limited; the leader and the policy survive."""
        tests = [f"{PATH[mode]} == '/{number}'" for number in range(60)]
        raw: Any = {
            "apiVersion": "policies.kyverno.io/v1",
            "kind": "PolicyException",
            "spec": {
                "policyRefs": [{"name": "a", "kind": "ValidatingPolicy"}],
                "evaluationMode": mode,
                "matchConditions": [{"name": "c", "expression": " || ".join(tests)}],
            },
        }
        files = {"a": denying(mode, "/x", "a")}
        for number in range(400):
            metadata = {"name": f"e{number}", "namespace": "n"}
            files[f"e{number}"] = msgspec.json.encode({**raw, "metadata": metadata})
        found = store(mode).update(Changes(files, ()))
        assert found.policies[0].large_exceptions
        assert denies(served(found, mode, tmp_path), mode, "/x")

    def test_files_in_subfolders_count(self, mode: str, tmp_path: Path) -> None:
        """Upstream: they are lost, and everything is allowed."""
        deep = tmp_path / "policies" / "team" / "app"
        deep.mkdir(parents=True)
        (deep / "a.json").write_bytes(denying(mode, "/x", "a"))
        changes = Folder(tmp_path / "policies").poll(0)
        found = store(mode).update(changes)
        assert denies(served(found, mode, tmp_path), mode, "/x")

    def test_the_order_does_not_depend_on_files(
        self, mode: str, tmp_path: Path
    ) -> None:
        """Upstream: the order of a Go map, so that replicas may differ."""
        allow = ANSWER[mode].replace("Denied(403)", "Allowed()")
        allow = allow.replace('Denied("no")', "Allowed()")
        first = document(mode, "a", validations=[{"expression": allow}])
        later, earlier = denying(mode, "/x", "b"), msgspec.json.encode(first)
        for files in ({"1": later, "2": earlier}, {"1": earlier, "2": later}):
            found = store(mode).update(Changes(files, ()))
            assert not denies(served(found, mode, tmp_path), mode, "/x")


def test_all_folders_are_polled(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.json").write_bytes(denying("HTTP", "/", name))
    settings = Settings(authz_sources=f"{tmp_path}/one, {tmp_path}/two")
    sources = ManySources(folders_of(settings))
    assert len(sources.poll(0).changed) == 2
    (tmp_path / "two" / "a.json").unlink()
    assert sources.poll(0, force=True).removed == (f"{tmp_path}/two/a.json",)


VPOL = "/apis/policies.kyverno.io/v1beta1/validatingpolicies"


def test_policies_of_a_cluster_are_live(tmp_path: Path) -> None:
    """Only the kinds that an authorizer may read are read."""
    with running() as api:
        raw = msgspec.json.decode(denying("HTTP", "/x", "a"))
        api.put(
            f"{VPOL}/a",
            spec=raw["spec"],
            kind=raw["kind"],
            apiVersion=raw["apiVersion"],
        )
        source = authorizer_policies(api.client())
        informers = source.cel_informers
        for informer in informers:
            informer.start()
        try:
            wait_for(lambda: all(one.synced for one in informers))
            assert source.is_complete
            assert not source.informers
            policies = store("HTTP")
            found = policies.update(ManySources([source]).poll(0))
            assert denies(served(found, "HTTP", tmp_path), "HTTP", "/x")
            api.remove(f"{VPOL}/a")
            wait_for(lambda: not len(informers[0]))
            found = policies.update(ManySources([source]).poll(0))
            assert not denies(served(found, "HTTP", tmp_path), "HTTP", "/x")
        finally:
            for informer in informers:
                informer.stop()
        paths = (target.partition("?")[0] for _, target, _ in api.requests)
        asked = {path.rpartition("/")[2] for path in paths}
        assert asked <= {"validatingpolicies", "policyexceptions"}


def test_of_two_policies_with_one_name_the_cluster_s_applies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the folder is named by a relative path."""
    (tmp_path / "z").mkdir()
    (tmp_path / "z" / "a.json").write_bytes(denying("HTTP", "/folder", "a"))
    monkeypatch.chdir(tmp_path)
    changes = ManySources(folders_of(Settings(authz_sources="z"))).poll(0)
    stored = denying("HTTP", "/cluster", "a")
    both = Changes({**changes.changed, "kube://policies.kyverno.io/a": stored}, ())
    found = store("HTTP").update(both)
    authorizer = served(found, "HTTP", tmp_path)
    assert denies(authorizer, "HTTP", "/cluster")
    assert not denies(authorizer, "HTTP", "/folder")
    assert "overrides" in found.problems[0]
