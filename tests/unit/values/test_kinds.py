"""Test kind selectors with the table of docs/behaviour/engine 1.3."""

import pytest

from kyverno_mp.values.kubernetes.kinds import parse_kind


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Pod", ("*", "*", "Pod", "")),
        ("*", ("*", "*", "*", "")),
        ("*/*", ("*", "*", "*", "*")),
        ("*/exec", ("*", "*", "*", "exec")),
        ("*/Pod", ("*", "*", "Pod", "")),
        ("v1/Pod", ("*", "v1", "Pod", "")),
        ("v1beta1/Pod", ("*", "v1beta1", "Pod", "")),
        ("v10/Pod", ("*", "*", "v10", "Pod")),
        ("v1alpha12/Pod", ("*", "*", "v1alpha12", "Pod")),
        ("Pod/exec", ("*", "*", "Pod", "exec")),
        ("Pod.status", ("*", "*", "Pod", "status")),
        ("v1/Pod.status", ("*", "v1", "Pod", "status")),
        ("v1/Pod/status", ("*", "v1", "Pod", "status")),
        ("*/Pod/status", ("*", "*", "Pod", "status")),
        ("apps/v1/Deployment", ("apps", "v1", "Deployment", "")),
        (
            "networking.k8s.io/v1/NetworkPolicy/status",
            ("networking.k8s.io", "v1", "NetworkPolicy", "status"),
        ),
        (
            "networking.k8s.io/v1/NetworkPolicy.status",
            ("networking.k8s.io", "v1", "NetworkPolicy", "status"),
        ),
        ("a/b/c/d/e", ("", "", "", "")),
        ("", ("*", "*", "", "")),
    ],
)
def test_parse_kind(text: str, expected: tuple[str, ...]) -> None:
    """A wrong split would match other kinds than Kyverno does."""
    assert expected == tuple(parse_kind(text))
