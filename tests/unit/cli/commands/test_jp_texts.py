"""Outputs of ``jp query`` in which Go's texts differ from Python's."""

from pathlib import Path

import pytest

from tests.unit.cli.conftest import Command


@pytest.fixture
def nothing(tmp_path: Path) -> Path:
    file = tmp_path / "in.yaml"
    file.write_text("a: 1")
    return file


@pytest.mark.parametrize("query", ["to_number('NaN')", "{a: [to_number('NaN')]}"])
def test_json_output_has_no_nan(command: Command, nothing: Path, query: str) -> None:
    done = command("jp", "query", "-i", nothing, query)
    assert done.code == 1
    assert done.out == f"# {query}\n"
    text = "Error: error marshalling result to JSON: json: unsupported value: NaN\n"
    assert done.err == text


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ("base64_decode('/w==')", r'"\ufffd"'),
        ("base64_decode('4oI=')", r'"\ufffd\ufffd"'),
        ("[base64_decode('77+9/w==')]", '["\ufffd\\ufffd"]'),
        ("base64_encode(base64_decode('/w=='))", '"/w=="'),
        ("parse_json(base64_decode('Iv8i'))", '"\ufffd"'),
        ("length(base64_decode('4oLihA=='))", "4"),
    ],
)
def test_bytes_that_are_not_utf_8(
    command: Command, nothing: Path, query: str, shown: str
) -> None:
    done = command("jp", "query", "-c", "-i", nothing, query)
    assert (done.code, done.out) == (0, f"# {query}\n{shown}\n")


def test_unquoted_bytes_are_written_unchanged(
    nothing: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    from kyverno_mp.cli.main import run

    query = "base64_decode('Yf9i')"
    assert run(["jp", "query", "-u", "-i", str(nothing), query]) == 0
    assert capfdbinary.readouterr().out == f"# {query}\n".encode() + b"a\xffb\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "unexpected end of JSON input"),
        ("-", "invalid character ' ' in numeric literal"),
        ("1.", "invalid character ' ' after decimal point in numeric literal"),
        ("1e+", "invalid character ' ' in exponent of numeric literal"),
        ("tr", "invalid character ' ' in literal true (expecting 'u')"),
        ('"\\u1', "invalid character ' ' in \\u hexadecimal character escape"),
        ('{"a"', "unexpected end of JSON input"),
        ("[1,]", "invalid character ']' looking for beginning of value"),
    ],
)
def test_parse_json_fails_like_gos_decoder(
    command: Command, nothing: Path, text: str, message: str
) -> None:
    done = command("jp", "query", "-i", nothing, f"parse_json('{text}')")
    assert done.code == 1
    assert done.err == f"Error: error evaluating JMESPath expression: {message}\n"


@pytest.mark.parametrize(("text", "name"), [(".nan", "NaN"), ("-.Inf", "-Inf")])
def test_parse_yaml_converts_to_json(
    command: Command, nothing: Path, text: str, name: str
) -> None:
    done = command("jp", "query", "-i", nothing, f"parse_yaml('a: {text}')")
    assert done.code == 1
    wanted = f"JMESPath expression: json: unsupported value: {name}\n"
    assert done.err == f"Error: error evaluating {wanted}"
