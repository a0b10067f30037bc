"""The operator's configuration, from ConfigMaps to a worker."""

import json
from functools import partial
from pathlib import Path

import pytest

from kyverno_mp.admission.decode import decode
from kyverno_mp.errors import SnapshotUnusable
from kyverno_mp.leader.configuration import (
    FixedConfiguration,
    decode_texts,
    last_published,
)
from kyverno_mp.policy.configuration import Configuration
from kyverno_mp.policy.metrics_configuration import Exposure, MetricsConfiguration
from kyverno_mp.program.request import Request
from kyverno_mp.settings.base import base_of
from kyverno_mp.settings.settings import Settings
from kyverno_mp.snapshot.configured import (
    SETTINGS,
    Configured,
    configured_of,
    values_of,
)
from kyverno_mp.snapshot.control import ControlPage
from kyverno_mp.snapshot.data import DataSegment, encode_data
from kyverno_mp.snapshot.follow import Follower
from kyverno_mp.snapshot.publish import Publisher, segment_file
from kyverno_mp.webhook.configured import Compiled, CurrentConfiguration

NAMES = ("kyverno", "kyverno-metrics")
FULL = Configured(
    Configuration(
        resource_filters="[Pod,*,*]",
        success_event_actions=("None",),
        namespace_selector={"matchLabels": {"a": "b"}},
        match_conditions=({"name": "a", "expression": "true"},),
        context_bytes_max=5,
        default_registry="ghcr.io",
    ),
    MetricsConfiguration(
        include_namespaces=("a",),
        exposure={"h": Exposure(enabled=False, bucket_boundaries=(1.0,))},
    ),
)


def request(kind: str = "Pod", **more: object) -> Request:
    raw = {
        "uid": "u",
        "kind": {"group": "", "version": "v1", "kind": kind},
        "resource": {"group": "", "version": "v1", "resource": "x"},
        "operation": "CREATE",
        "userInfo": {"username": "me", "groups": ["system:nodes"]},
        "object": {"metadata": {"name": "x"}},
        **more,
    }
    return decode(json.dumps({"request": raw}).encode())


def publish(publisher: Publisher, configured: Configured) -> None:
    values = values_of(configured)
    publisher.publish(
        SETTINGS,
        lambda generation, salt: encode_data(
            SETTINGS, values, generation=generation, salt=salt
        ),
    )


def test_worker_uses_the_newest_generation(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path)
    refused: list[str] = []
    follower: Follower[Compiled] = Follower(
        tmp_path,
        ControlPage.open(tmp_path),
        SETTINGS,
        lambda segment, _: Compiled(configured_of(DataSegment(segment))),
        on_refused=lambda error: refused.append(error.code),
    )
    base = Configured(base_of(Settings()))
    current = CurrentConfiguration(follower.current, base)
    with pytest.raises(SnapshotUnusable):
        current.excludes(
            request()
        )  # The operator may want system:nodes to be evaluated.
    publish(publisher, FULL)
    assert current.compiled().configured == FULL
    assert current.excludes(request("Secret")) is False
    assert current.excludes(request()) is True
    assert current.rule_settings().context_bytes_max == 5
    assert current.rule_settings().images.default_registry == "ghcr.io"
    compiled = current.compiled()
    assert current.compiled() is compiled, "compiled once a generation"
    publish(publisher, Configured(Configuration(exclude_usernames="me")))
    assert current.excludes(request("Secret")) is True
    values = {"kyverno": b'{"context_bytes_max":"x"}', "metrics": b"{}"}
    build = partial(encode_data, SETTINGS, values)
    publisher.publish(SETTINGS, lambda g, s: build(generation=g, salt=s))
    assert current.excludes(request("Secret")) is True, "the last usable one stays"
    assert refused == ["snapshot.record"]


def test_new_leader_keeps_the_last_valid_values(tmp_path: Path) -> None:
    assert last_published(tmp_path) is None
    publish(Publisher(tmp_path), FULL)
    last = last_published(tmp_path)
    assert last == FULL
    bad = {"webhooks": "[]", "maxContextSize": "x"}
    metrics = {"namespaces": "[]"}
    found, problems = decode_texts(bad, metrics, Configuration(), last, NAMES)
    assert [text.split(": ")[:2] for text in problems] == [
        ["ConfigMap kyverno", "webhooks"],
        ["ConfigMap kyverno", "maxContextSize"],
        ["ConfigMap kyverno-metrics", "namespaces"],
    ]
    assert found.configuration.namespace_selector == {"matchLabels": {"a": "b"}}
    assert found.configuration.context_bytes_max == 5
    assert found.configuration.default_registry == "docker.io"
    assert found.metrics.include_namespaces == ("a",)
    assert decode_texts({}, {}, Configuration(), last, NAMES) == (Configured(), ())
    (tmp_path / segment_file(SETTINGS)).write_bytes(b"corrupt")
    assert last_published(tmp_path) is None


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("request.userInfo.username != 'me'", ""),
        ("object.metadata.name == oldObject.metadata.name", ""),
        ("!authorizer.group('').resource('pods').check('get').allowed()", ""),
        ("variables.x == 1", "undefined field 'x'"),
        ("nobody.knows", "undeclared reference to 'nobody'"),
        ("1 + 1", "must evaluate to bool"),
        ("(", "compilation failed"),
    ],
)
def test_match_conditions_must_compile(expression: str, words: str) -> None:
    """Otherwise, the API server would reject each of our webhook configurations."""
    conditions = json.dumps([{"name": "c", "expression": expression}])
    data = {"matchConditions": conditions}
    base = Configuration()
    found, problems = decode_texts(data, {}, base, Configured(), NAMES)
    assert bool(problems) == bool(words)
    assert words in "".join(problems)
    assert len(found.configuration.match_conditions) == (0 if words else 1)


def test_settings_apply_without_a_cluster() -> None:
    fixed = FixedConfiguration(Settings(resource_filters="[Pod,*,*]"))
    assert fixed.poll() is False
    assert fixed.current.configuration.resource_filters == "[Pod,*,*]"
    assert fixed.current.configuration.exclude_groups == "system:nodes"
    assert set(fixed.values()) == {"kyverno", "metrics"}
