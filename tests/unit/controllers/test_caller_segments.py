"""The secret segment in the paths of stored webhook configurations.

A failure means: a call of the API server lacks its proof, or another service learns it.
"""

from typing import Any

import msgspec
import pytest

from kyverno_mp.controllers.webhook_config.callers import (
    segments_in,
    segments_of,
    with_caller,
)
from kyverno_mp.controllers.webhook_config.options import WebhookOptions
from kyverno_mp.leader.control.options import static_configurations

Json = Any
SEGMENT, OTHER_SEGMENT = "caller-" + "1" * 40, "caller-" + "2" * 40


def service_hook(path: str, service: str = "kyverno-svc") -> Json:
    called = {"namespace": "kyverno", "name": service, "path": path, "port": 443}
    return {"name": "a", "clientConfig": {"service": called, "caBundle": "old"}}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("/validate/fail", f"/{SEGMENT}/validate/fail"),
        (f"/{OTHER_SEGMENT}/vpol/a/b", f"/{SEGMENT}/vpol/a/b"),
        (f"/{SEGMENT}/validate", f"/{SEGMENT}/validate"),
        ("/caller-x/validate", f"/{SEGMENT}/caller-x/validate"),
    ],
)
def test_segment_of_a_users_own_webhook_is_replaced(before: str, after: str) -> None:
    desired = service_hook(f"/{SEGMENT}/validate/ignore")["clientConfig"]
    found = with_caller(service_hook(before)["clientConfig"], desired)
    assert found["service"]["path"] == after
    assert found["caBundle"] == desired["caBundle"]


@pytest.mark.parametrize(
    "client",
    [
        service_hook("/validate", "other")["clientConfig"],
        {"url": "https://example.com/validate", "caBundle": "theirs"},
    ],
)
def test_webhook_of_another_service_does_not_get_the_segment(client: Json) -> None:
    desired = service_hook(f"/{SEGMENT}/validate")["clientConfig"]
    assert with_caller(client, desired) == client


def test_segment_in_a_url() -> None:
    desired = {"url": f"https://h:9443/{SEGMENT}/validate", "caBundle": "new"}
    found = with_caller({"url": "https://h:9443/mutate/fail"}, desired)
    assert found["url"] == f"https://h:9443/{SEGMENT}/mutate/fail"
    other = {"url": "https://h:9999/mutate/fail"}
    assert with_caller(other, desired) == other


def test_segments_of_stored_configurations_are_found() -> None:
    hooks = [
        service_hook(f"/{SEGMENT}/validate/fail"),
        service_hook("/mutate"),
        service_hook(f"/{OTHER_SEGMENT}/validate", "other"),
    ]
    raw = msgspec.Raw(msgspec.json.encode({"webhooks": hooks}))
    options = WebhookOptions(ca_bundle=b"")
    assert segments_of([segments_in(options, raw)]) == {SEGMENT, ""}
    none = msgspec.Raw(msgspec.json.encode({"webhooks": None}))
    assert segments_of([segments_in(options, none)]) == frozenset()


def test_every_path_begins_with_the_segment() -> None:
    """Of all configurations, so that no webhook is called without proof."""
    options = WebhookOptions(ca_bundle=b"", caller=SEGMENT)
    made = static_configurations(options)
    assert made
    for raw in made:
        for hook in raw["webhooks"]:
            assert hook["clientConfig"]["service"]["path"].startswith(f"/{SEGMENT}/")
