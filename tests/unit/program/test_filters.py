"""The ConfigMap's filters exempt the same requests as Kyverno (engine 1.8)."""

from typing import Any

import pytest

from kyverno_mp.program.matching.filters import (
    ResourceFilters,
    UserExclusions,
    parse_resource_filters,
)
from kyverno_mp.program.request import Request


def a_request(**facts: Any) -> Request:
    given = {"kind": "Pod", "namespace": "shop", "name": "web"}
    request = Request(**{**given, **facts})
    metadata = {"name": request.name, "namespace": request.namespace}
    request.object = {"kind": request.kind, "metadata": metadata}
    return request


@pytest.mark.parametrize(
    ("text", "facts", "expected"),
    [
        ("[*,kube-system,*]", {"namespace": "kube-system"}, True),
        ("[*,kube-system,*]", {}, False),
        ("x [Event,*,*] y", {"kind": "Event"}, True),
        ("[Pod,shop,w*]", {}, True),
        ("[Pod, shop,w*]", {}, False),
        ("[Pod,shop]", {}, False),
        ("[Pod]", {"namespace": "", "name": ""}, True),
        ("[Pod,*,*]", {"subresource": "exec"}, False),
        ("[Pod,*,*]", {"subresource": "ephemeralcontainers"}, False),
        ("[Pod/*,*,*]", {"subresource": "exec"}, True),
        ("[*/*,shop,*]", {"subresource": "exec"}, True),
        ("[Pod,shop,*,more]", {}, False),
        ("[*,sh*,x]", {"kind": "Namespace", "namespace": "", "name": "shop"}, True),
        ("[Pod,*,*][Node,*,*]", {"kind": "Node"}, True),
        ("", {}, False),
    ],
)
def test_resource_filters(text: str, facts: dict[str, Any], *, expected: bool) -> None:
    """An object that is filtered by mistake would bypass every policy."""
    filters = ResourceFilters(parse_resource_filters(text))
    assert expected is filters.skips_request(a_request(**facts))
    assert expected is filters.skips_policies(a_request(**facts))


def test_filters_also_apply_to_the_old_object() -> None:
    """A DELETE request has only an old object."""
    filters = ResourceFilters(parse_resource_filters("[Pod,shop,web]"))
    request = a_request()
    request.object, request.old_object = {}, request.object
    assert filters.skips_policies(request)


def test_user_exclusions() -> None:
    """An inclusion overrides every exclusion."""
    exclusions = UserExclusions(groups="system:nodes, dev-*", usernames="!dev-anna")
    assert exclusions.excludes(a_request(groups=("system:nodes",)))
    assert exclusions.excludes(a_request(groups=("dev-1",), username="dev-bert"))
    assert not exclusions.excludes(a_request(groups=("dev-1",), username="dev-anna"))
    assert not exclusions.excludes(a_request(groups=("ops",)))
    assert not UserExclusions(groups=" , ! ").excludes(a_request(groups=("a",)))
    roles = UserExclusions(roles="ns:*", cluster_roles="admin")
    assert roles.excludes(a_request(roles=("ns:r",)))
    assert roles.excludes(a_request(cluster_roles=("admin",)))
