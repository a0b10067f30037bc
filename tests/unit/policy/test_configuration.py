"""Every key of the ConfigMaps: its effect, its rejected values and its replacement."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from kyverno_mp.limits import BUCKETS_MAX, CONTEXT_BYTES_HIGHEST, CONTEXT_BYTES_MAX
from kyverno_mp.policy.configuration import (
    KEYS,
    Configuration,
    decode_configuration,
)
from kyverno_mp.policy.metrics_configuration import (
    DEFAULT_BUCKETS,
    Exposure,
    MetricsConfiguration,
    decode_metrics_configuration,
)
from kyverno_mp.program.matching.filters import parse_resource_filters
from kyverno_mp.telemetry.families import GAUGED, RECORDED

BASE = Configuration(exclude_groups="system:nodes", resource_filters="[Event,*,*]")
LAST = Configuration(
    default_registry="last.example",
    default_registry_mutation=False,
    generate_success_events=True,
    namespace_selector={"matchLabels": {"last": "one"}},
    webhook_annotations={"last": "one"},
    webhook_labels={"last": "one"},
    match_conditions=({"name": "last", "expression": "true"},),
    update_request_threshold=7,
    context_bytes_max=7,
)
NOT_IN = '{"key":"k","operator":"NotIn","values":["kube-system"]}'

GOOD: list[tuple[str, str, dict[str, Any]]] = [
    ("resourceFilters", "[Pod,a,b]", {"resource_filters": "[Pod,a,b]"}),
    ("resourceFilters", "all [Pod]", {"resource_filters": "all [Pod]"}),
    ("resourceFilters", " \n", {"resource_filters": " \n"}),
    ("excludeGroups", "", {"exclude_groups": ""}),
    ("excludeGroups", "a,!b", {"exclude_groups": "a,!b"}),
    ("excludeUsernames", "u", {"exclude_usernames": "u"}),
    ("excludeRoles", "ns:r", {"exclude_roles": "ns:r"}),
    ("excludeClusterRoles", "c", {"exclude_cluster_roles": "c"}),
    ("defaultRegistry", "ghcr.io", {"default_registry": "ghcr.io"}),
    ("defaultRegistry", "r.example/team", {"default_registry": "r.example/team"}),
    ("enableDefaultRegistryMutation", "F", {"default_registry_mutation": False}),
    ("generateSuccessEvents", "true", {"generate_success_events": True}),
    (
        "successEventActions",
        " Resource Passed, ,None",
        {"success_event_actions": ("Resource Passed", "None")},
    ),
    ("webhooks", "{}", {}),
    ("webhooks", "null", {}),
    (
        "webhooks",
        f'{{"namespaceSelector":{{"matchExpressions":[{NOT_IN}]}},"other":1}}',
        {
            "namespace_selector": {
                "matchExpressions": [
                    {"key": "k", "operator": "NotIn", "values": ["kube-system"]}
                ]
            }
        },
    ),
    (
        "webhooks",
        '{"objectSelector":{"matchLabels":{"a":"b"},"matchExpressions":[]}}',
        {"object_selector": {"matchLabels": {"a": "b"}}},
    ),
    # GO: encoding/json reads names in any case; the last one in the text counts.
    (
        "webhooks",
        '{"NamespaceSelector":{"MATCHLABELS":{"Team":"a"}},"OBJECTSELECTOR":{}}',
        {
            "namespace_selector": {"matchLabels": {"Team": "a"}},
            "object_selector": {},
        },
    ),
    (
        "webhooks",
        '{"namespaceSelector":{"matchLabels":{"a":"b"}},"namespaceselector":{}}',
        {"namespace_selector": {}},
    ),
    (
        "matchConditions",
        '[{"Name":"n","EXPRESSION":"true"}]',
        {"match_conditions": ({"name": "n", "expression": "true"},)},
    ),
    ("webhooks", '{"namespaceSelector":{}}', {"namespace_selector": {}}),
    ("webhookAnnotations", '{"a/b":"x y"}', {"webhook_annotations": {"a/b": "x y"}}),
    ("webhookLabels", '{"a/b":"x"}', {"webhook_labels": {"a/b": "x"}}),
    (
        "matchConditions",
        '[{"name":"a","expression":"true"}]',
        {"match_conditions": ({"name": "a", "expression": "true"},)},
    ),
    ("updateRequestThreshold", "-5", {"update_request_threshold": -5}),
    ("maxContextSize", "100Mi", {"context_bytes_max": 100 * 1024 * 1024}),
    ("maxContextSize", "1500m", {"context_bytes_max": 2}),
    ("maxContextSize", "0", {"context_bytes_max": CONTEXT_BYTES_HIGHEST}),
    ("maxContextSize", "1000Ti", {"context_bytes_max": CONTEXT_BYTES_HIGHEST}),
]
BAD: list[tuple[str, str, str]] = [
    ("resourceFilters", "Pod,a,b", "expected [Kind,namespace,name]"),
    ("defaultRegistry", "localhost:5000", "not a valid DNS hostname"),
    ("defaultRegistry", "10.0.0.1", "not a valid DNS hostname"),
    ("defaultRegistry", "", "not a valid DNS hostname"),
    ("enableDefaultRegistryMutation", "yes", "'yes' is not true or false"),
    ("generateSuccessEvents", "TrUe", "'TrUe' is not true or false"),
    ("webhooks", "[{}]", "got `array`"),
    ("webhooks", "{", "truncated"),
    ("webhooks", '{"objectSelector":{"matchLabels":{"a b":"c"}}}', "not a label"),
    ("webhooks", '{"objectSelector":{"matchLabels":{"a*":"c"}}}', "not a label"),
    (
        "webhooks",
        '{"namespaceSelector":{"matchExpressions":[{"key":"k","operator":"In"}]}}',
        "values set can't be empty",
    ),
    ("webhookAnnotations", '{"a":1}', "Expected `str`"),
    ("webhookAnnotations", '{"a b":"c"}', "not a key"),
    ("webhookLabels", '{"a":"b c"}', "not a label's value"),
    ("matchConditions", "{}", "Expected `array"),
    ("matchConditions", '[{"name":"a"}]', "a: no expression"),
    ("matchConditions", '[{"name":"","expression":"true"}]', "qualified names"),
    (
        "matchConditions",
        '[{"name":"a","expression":"1"},{"name":"a","expression":"2"}]',
        "each once",
    ),
    ("matchConditions", '[{"name":"a","expression":"bad"}]', "a: refused"),
    ("updateRequestThreshold", "many", "not a whole number"),
    ("updateRequestThreshold", "9223372036854775808", "not a whole number"),
    ("maxContextSize", "much", "quantities must match"),
]


def refusal(expression: str) -> str:
    return "refused" if expression == "bad" else ""


@pytest.mark.parametrize(("key", "text", "changes"), GOOD)
def test_key_sets_its_field(key: str, text: str, changes: dict[str, Any]) -> None:
    found = decode_configuration({key: text}, BASE, LAST, refusal)
    assert found.problems == ()
    assert found.configuration == msgspec.structs.replace(BASE, **changes)


@pytest.mark.parametrize(("key", "text", "words"), BAD)
def test_invalid_value_keeps_the_last_valid_one(
    key: str, text: str, words: str
) -> None:
    found = decode_configuration({key: text}, BASE, LAST, refusal)
    assert len(found.problems) == 1
    assert found.problems[0].startswith(f"{key}: ")
    assert words in found.problems[0]
    again = decode_configuration({}, BASE, LAST, refusal)
    changed = {
        name
        for name in Configuration.__struct_fields__
        if getattr(found.configuration, name) != getattr(again.configuration, name)
    }
    assert changed
    for name in changed:
        assert getattr(found.configuration, name) == getattr(LAST, name)


def test_every_key_is_tested() -> None:
    assert {key for key, _, _ in GOOD} == set(KEYS)


def test_defaults_apply_without_the_config_map() -> None:
    """Upstream then keeps matchConditions and the threshold (controllers 14.40)."""
    found = decode_configuration({}, BASE, LAST)
    assert found.configuration == BASE
    assert Configuration().context_bytes_max == CONTEXT_BYTES_MAX
    assert Configuration().update_request_threshold == 1000


def test_misspelled_key_is_reported_and_has_no_effect() -> None:
    found = decode_configuration({"resourceFilter": "[Pod,*,*]"}, BASE, LAST)
    assert found.problems == ("resourceFilter: no such key",)
    assert found.configuration == BASE


METRICS_LAST = MetricsConfiguration(
    refresh_interval_s=9.0, include_namespaces=("last",), bucket_boundaries=(9.0,)
)
METRICS_GOOD: list[tuple[str, str, dict[str, Any]]] = [
    ("metricsRefreshInterval", "1h30m", {"refresh_interval_s": 5400.0}),
    ("metricsRefreshInterval", "0", {}),
    (
        "namespaces",
        '{"include":["a"],"exclude":["b"]}',
        {"include_namespaces": ("a",), "exclude_namespaces": ("b",)},
    ),
    ("namespaces", "null", {}),
    ("namespaces", '{"Include":["a"]}', {"include_namespaces": ("a",)}),
    (
        "metricsExposure",
        '{"Kyverno_X":{"DisabledLabelDimensions":["Http_url"]}}',
        {"exposure": {"Kyverno_X": Exposure(disabled_labels=("Http_url",))}},
    ),
    ("bucketBoundaries", "0.1, 1,2.5", {"bucket_boundaries": (0.1, 1.0, 2.5)}),
    ("bucketBoundaries", " ", {"bucket_boundaries": ()}),
    (
        "metricsExposure",
        (
            '{"kyverno_policy_results_total":{"enabled":false},'
            '"kyverno_http_requests":{"disabledLabelDimensions":["http_url"],'
            '"bucketBoundaries":[1]},"kyverno_x":{"enabled":null}}'
        ),
        {
            "exposure": {
                "kyverno_policy_results": Exposure(enabled=False),
                "kyverno_http_requests": Exposure(
                    disabled_labels=("http_url",), bucket_boundaries=(1.0,)
                ),
                "kyverno_x": Exposure(),
            }
        },
    ),
]
METRICS_BAD = [
    ("metricsRefreshInterval", "soon", 'invalid duration "soon"'),
    ("namespaces", "[]", "got `array`"),
    ("bucketBoundaries", "1,x", "invalid boundary value 'x'"),
    ("bucketBoundaries", "2,1", "must ascend"),
    ("bucketBoundaries", "1,inf", "must be finite"),
    ("bucketBoundaries", ",".join(map(str, range(BUCKETS_MAX + 1))), "more than"),
    ("metricsExposure", '{"a":{"enabled":"no"}}', "Expected `bool"),
    ("metricsExposure", '{"a":{"bucketBoundaries":[2,1]}}', "must ascend"),
]


@pytest.mark.parametrize(("key", "text", "changes"), METRICS_GOOD)
def test_metrics_key_sets_its_field(
    key: str, text: str, changes: dict[str, Any]
) -> None:
    found = decode_metrics_configuration({key: text}, METRICS_LAST)
    assert found.problems == ()
    default = MetricsConfiguration()
    assert found.configuration == msgspec.structs.replace(default, **changes)


@pytest.mark.parametrize(("key", "text", "words"), METRICS_BAD)
def test_invalid_metrics_value_keeps_the_last_valid_one(
    key: str, text: str, words: str
) -> None:
    found = decode_metrics_configuration({key: text}, METRICS_LAST)
    assert len(found.problems) == 1
    assert words in found.problems[0]
    if key != "metricsExposure":
        assert found.configuration != MetricsConfiguration()
    assert not found.configuration.exposure


@pytest.mark.parametrize(
    ("include", "exclude", "counted"),
    [
        ((), (), {"a", "b", "", "-"}),
        (("a",), (), {"a", "", "-"}),
        ((), ("a",), {"b", "", "-"}),
        (("a",), ("a",), {"", "-"}),
        (("b",), ("-",), {"b", "", "-"}),
    ],
)
def test_exclusion_of_a_namespace_wins(
    include: tuple[str, ...], exclude: tuple[str, ...], counted: set[str]
) -> None:
    found = MetricsConfiguration(include_namespaces=include, exclude_namespaces=exclude)
    assert {name for name in ("a", "b", "", "-") if found.counts(name)} == counted


def test_metric_has_its_own_buckets_or_the_default_ones() -> None:
    found = MetricsConfiguration(
        bucket_boundaries=(1.0,), exposure={"h": Exposure(bucket_boundaries=(2.0,))}
    )
    assert found.buckets_of("h") == (2.0,)
    assert found.buckets_of("other") == (1.0,)
    assert MetricsConfiguration().buckets_of("h") == DEFAULT_BUCKETS


def shipped(name: str) -> dict[str, str]:
    path = Path(__file__).parents[3] / "config" / f"{name}.yaml"
    document = yaml.safe_load(path.read_text())
    assert document["kind"] == "ConfigMap"
    data: dict[str, str] = document["data"]
    return data


def test_shipped_config_maps_are_valid() -> None:
    main = decode_configuration(shipped("kyverno"), Configuration(), LAST)
    assert main.problems == ()
    assert main.configuration.exclude_groups == "system:nodes"
    assert len(parse_resource_filters(main.configuration.resource_filters)) > 20
    shown = decode_metrics_configuration(shipped("kyverno-metrics"), METRICS_LAST)
    assert shown.problems == ()
    known = {family.name.removesuffix("_total") for family in (*RECORDED, *GAUGED)}
    known |= {family.counted_as.removesuffix("_total") for family in RECORDED}
    exposure = shown.configuration.exposure
    assert "kyverno_policy_results" in set(exposure) & known
