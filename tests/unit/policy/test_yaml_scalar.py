"""Plain scalars are converted as by Go's YAML 1.1 library and then JSON."""

import pytest

from kyverno_mp.errors import PolicyInvalid
from kyverno_mp.policy.reading.yaml_documents import parse_yaml
from kyverno_mp.policy.reading.yaml_scalar import key_text, resolve
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
    ("1e400", "1e400"),
    ("-1e400", "-1e400"),
    (".1e400", ".1e400"),
    ("1e-400", 0),
    ("9" * 350, "9" * 350),
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


def test_very_long_digits_are_text() -> None:
    """Otherwise int() of a long text would take seconds or fail."""
    assert resolve("1" * 5000) == "1" * 5000


# Each row is the value that the real program reads, or the error that it reports.
TAGGED: list[tuple[str, Json]] = [
    ("!!binary aGVsbG8=", "hello"),
    ("!<tag:yaml.org,2002:binary> aGVsbG8=", "hello"),
    ('!!binary "aGVs\\nbG8="', "hello"),
    ("!!binary /w==", "\ufffd"),
    ("!!binary 4oI=", "\ufffd\ufffd"),
    ("!!str 5", "5"),
    ("!!str 1e400", "1e400"),
    ("!!float 5", 5),
    ("!!float 5.5", 5.5),
    ('!!int "5"', 5),
    ("!!bool yes", True),
    ('!!null ""', None),
    ("!x 5", "5"),
]
REFUSED = [
    ('!!binary "!!"', "!!binary value contains invalid base64 data"),
    ('!!binary "aGVs bG8="', "!!binary value contains invalid base64 data"),
    ("!!float 1e400", "cannot decode !!str `1e400` as a !!float"),
    ("!!int abc", "cannot decode !!str `abc` as a !!int"),
    ("!!null x", "cannot decode !!str `x` as a !!null"),
    ("!!bool x", "cannot decode !!str `x` as a !!bool"),
    ("!!int 5.5", "cannot decode !!float `5.5` as a !!int"),
    ("!!int 5.0", "cannot decode !!float `5.0` as a !!int"),
]


@pytest.mark.parametrize(("text", "value"), TAGGED)
def test_tag_decides(text: str, value: Json) -> None:
    (document,) = parse_yaml(f"a: {text}", "f.yaml")
    assert document.raw == {"a": value}
    assert type(document.raw["a"]) is type(value)


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_mismatched_tag_is_rejected(text: str, message: str) -> None:
    with pytest.raises(PolicyInvalid) as caught:
        parse_yaml(f"a: {text}", "f.yaml")
    assert caught.value.message == message
