"""Plain scalars mean what Go's YAML 1.1 library and then JSON make of them."""

import pytest

from kyverno_mp.policy.yaml_scalar import key_text, resolve
from kyverno_mp.values.jsonvalue import Json

SCALARS: list[tuple[str, Json]] = [
    ("", None),
    ("~", None),
    ("null", None),
    ("yes", True),
    ("on", True),
    ("y", True),
    ("NO", False),
    ("off", False),
    ("yEs", "yEs"),
    ("12", 12),
    ("-12", -12),
    ("+12", 12),
    ("1_000", 1000),
    ("0x1F", 31),
    ("0b101", 5),
    ("0o17", 15),
    ("017", 15),
    ("08", 8),
    ("1e3", 1000),
    ("1.0", 1),
    ("1.5", 1.5),
    (".5", 0.5),
    ("1.", 1),
    ("1.2.3", "1.2.3"),
    ("1:30", "1:30"),
    ("2024-01-31", "2024-01-31"),
    ("100m", "100m"),
    ("-", "-"),
    ("...", "..."),
    ("9223372036854775807", 9223372036854775807),
    ("9223372036854775808", 9223372036854775808.0),
]


@pytest.mark.parametrize(("text", "value"), SCALARS)
def test_resolve(text: str, value: Json) -> None:
    result = resolve(text)
    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("a", "a"),
        (True, "true"),
        (False, "false"),
        (80, "80"),
        (1.1, "1.1"),
        (None, None),
    ],
)
def test_key_text(key: Json, text: str | None) -> None:
    assert key_text(key) == text


def test_endless_digits_are_text() -> None:
    """Otherwise int() of a long text would take seconds or fail."""
    assert resolve("1" * 5000) == "1" * 5000
