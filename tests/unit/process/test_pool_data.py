"""A pool reads the data that its leader published, and waits until it is complete.

A failure means: an object could be deleted because a namespace's labels were unknown.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kyverno_mp.errors import SnapshotUnusable
from kyverno_mp.policy.configuration import Configuration
from kyverno_mp.process.roles.pool_data import PoolData, follow_successes
from kyverno_mp.program.request import Request
from kyverno_mp.settings.settings import Settings
from kyverno_mp.snapshot.configured import SETTINGS, Configured, values_of
from kyverno_mp.snapshot.data import encode_data, encode_value
from kyverno_mp.snapshot.publish import Publisher
from tests.unit.kube.fake_api import FakeApi, running

ACCOUNT = "kyverno-cleanup-controller"
USER = f"system:serviceaccount:kyverno:{ACCOUNT}"


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with running() as server:
        yield server


class Leader:
    """A publisher that behaves like a leader."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700)
        self.publisher = Publisher(folder)

    def publish(self, name: str, values: Mapping[str, bytes]) -> None:
        self.publisher.publish(name, partial(_encoded, name, values))

    def data(self, name: str, **values: Any) -> None:
        encoded = {key: encode_value(value) for key, value in values.items()}
        self.publish(name, encoded)

    def configure(self, resource_filters: str = "", **choices: Any) -> None:
        configuration = Configuration(resource_filters=resource_filters, **choices)
        self.publish(SETTINGS, values_of(Configured(configuration)))


def _encoded(
    name: str, values: Mapping[str, bytes], generation: int, salt: bytes
) -> bytearray:
    return encode_data(name, values, generation=generation, salt=salt)


def config_map(namespace: str, name: str) -> Request:
    metadata = {"name": name, "namespace": namespace}
    return Request(
        kind="ConfigMap",
        version="v1",
        name=name,
        namespace=namespace,
        object={"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata},
    )


@pytest.fixture
def leader(tmp_path: Path) -> Leader:
    return Leader(tmp_path / "snapshot")


@pytest.fixture
def data(leader: Leader, api: FakeApi, tmp_path: Path) -> PoolData:
    assert leader is not None
    return PoolData(Settings(), tmp_path / "snapshot", api.client(), ACCOUNT)


def test_data_is_complete_after_all_publications(
    leader: Leader, data: PoolData
) -> None:
    leader.configure("")
    for name in ("namespaces", "configmaps", "roles", "globalcontext"):
        assert not data.is_whole(), f"{name} is missing"
        leader.data(name)
    assert not data.is_whole()
    leader.data("apicalls")
    assert data.is_whole()


def test_nothing_is_evaluated_before_the_filters_are_known(data: PoolData) -> None:
    with pytest.raises(SnapshotUnusable):
        data.is_excluded(config_map("a", "b"))


def test_filters_exempt_objects_and_can_change(leader: Leader, data: PoolData) -> None:
    leader.configure("[ConfigMap,kept,*]")
    assert data.is_excluded(config_map("kept", "b"))
    assert not data.is_excluded(config_map("a", "b"))
    leader.configure("[ConfigMap,a,*]")
    assert data.is_excluded(config_map("a", "b"))


def test_success_event_settings_are_read_at_run_time(
    leader: Leader, tmp_path: Path
) -> None:
    """By default no successes are reported, and none before the setting is read."""
    successes = follow_successes(tmp_path / "snapshot")
    assert successes() is None
    leader.configure(generate_success_events=True)
    assert successes() == frozenset()
    actions = ("Resource Generated",)
    leader.configure(generate_success_events=True, success_event_actions=actions)
    assert successes() == frozenset({"Resource Generated"})
    leader.configure()
    assert successes() is None


def test_namespace_labels_are_the_latest_published(
    leader: Leader, data: PoolData
) -> None:
    labels = data.cluster_data.namespaces
    assert labels is not None
    leader.publish("namespaces", {"": b"true", "a": b'{"team":"x"}'})
    assert labels.labels("a") == {"team": "x"}
    assert labels.labels("absent") is None
    leader.publish("namespaces", {"": b"true", "a": b'{"team":"y"}'})
    assert labels.labels("a") == {"team": "y"}


def test_namespaces_with_a_role_of_the_account_are_known(
    leader: Leader, data: PoolData
) -> None:
    """The subject can be a user, a ServiceAccount or a group of all ServiceAccounts."""
    assert data.bound_namespaces() == ()
    bound = {
        f"s:{USER}": [["one", "Role", "r"], ["", "ClusterRole", "everywhere"]],
        f"n:{USER}": [["two", "Role", "r"]],
        "n:system:serviceaccounts:kyverno": [["three", "ClusterRole", "c"]],
        "n:system:serviceaccounts:other": [["never", "Role", "r"]],
        "s:system:serviceaccount:kyverno:another": [["never", "Role", "r"]],
    }
    leader.publish("roles", {key: encode_value(value) for key, value in bound.items()})
    assert set(data.bound_namespaces()) == {"one", "two", "three"}
