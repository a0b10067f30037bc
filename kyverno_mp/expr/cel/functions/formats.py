"""Implement named string formats.

Room: expr. Takes: Meter and values. Gives: OVERLOADS. Next: expr/cel/catalogue.py.
Source: k8s apiserver/pkg/cel/library/format.go and apimachinery; docs/behaviour/cel 11.
"""

import base64
import binascii
import re
from collections.abc import Callable
from datetime import date
from typing import Final, NamedTuple

import re2

from kyverno_mp.expr.cel.functions.times import parse_timestamp
from kyverno_mp.expr.cel.functions.urls import uri_problem
from kyverno_mp.expr.cel.library import function, member
from kyverno_mp.expr.cel.values import (
    NO_VALUE,
    CelFailed,
    Meter,
    Optional,
    text_bytes,
)

_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_LABEL_TEXT: Final = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or"
    " '-', and must start and end with an alphanumeric character"
)
_SUBDOMAIN: Final = rf"{_LABEL}(\.{_LABEL})*"
_SUBDOMAIN_TEXT: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters,"
    " '-' or '.', and must start and end with an alphanumeric character"
)
_LABEL_1035: Final = "[a-z]([-a-z0-9]*[a-z0-9])?"
_LABEL_1035_TEXT: Final = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start"
    " with an alphabetic character, and end with an alphanumeric character"
)
_QUALIFIED: Final = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_QUALIFIED_TEXT: Final = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end"
    " with an alphanumeric character"
)
_VALUE_TEXT: Final = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-',"
    " '_' or '.', and must start and end with an alphanumeric character"
)
_UUID: Final = re.compile(
    "(?i)[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}"
)
_DATE: Final = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
_LABEL_MAX: Final = 63
_SUBDOMAIN_MAX: Final = 253
_EMPTY: Final = "must be non-empty"
_NO_DOTS: Final = "must not contain dots"
_DOTTED: Final = re2.compile(_SUBDOMAIN)


class Format(NamedTuple):
    """A named format with a validator that returns the problems of a string."""

    name: str
    problems: Callable[[str], list[str]]

    @property
    def type_name(self) -> str:
        """The name of the type in CEL."""
        return "kubernetes.NamedFormat"


def _too_long(limit: int, unit: str = "bytes") -> str:
    return f"must be no more than {limit} {unit}"


def _mismatch(description: str, expression: str, *examples: str) -> str:
    listed = " or ".join(f"'{example}'" for example in examples)
    listed = listed.replace("' or '", "',  or '") if len(examples) > 1 else listed
    return f"{description} (e.g. {listed}, regex used for validation is '{expression}')"


def _named(
    expression: str,
    description: str,
    limit: int,
    examples: tuple[str, ...],
    *,
    prefix: bool,
    unit: str = "characters",
) -> Callable[[str], list[str]]:
    # SAFETY: RE2, because the text may be long.
    compiled = re2.compile(expression)

    def problems(value: str) -> list[str]:
        if prefix and value.endswith("-"):
            value = f"{value[:-1]}a" if len(value) > 1 else "a"
        faults = []
        if len(value.encode()) > limit:
            faults.append(_too_long(limit, unit))
        if not compiled.fullmatch(value):
            is_dotted = expression == _LABEL and _DOTTED.fullmatch(value)
            mismatch = _mismatch(description, expression, *examples)
            faults.append(_NO_DOTS if is_dotted else mismatch)
        return faults

    return problems


def _qualified_name(value: str) -> list[str]:
    faults = []
    parts = value.split("/")
    name = parts[-1]
    if len(parts) == 2:  # noqa: PLR2004 - prefix and name
        if not parts[0]:
            faults.append(f"prefix part {_EMPTY}")
        else:
            faults += [f"prefix part {problem}" for problem in _PREFIXES(parts[0])]
    elif len(parts) != 1:
        description = "a valid label key " + _QUALIFIED_TEXT
        mismatch = _mismatch(description, _QUALIFIED, "MyName", "my.name", "123-abc")
        tail = (
            "with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        )
        return [f"{mismatch} {tail}"]
    if not name:
        faults.append(f"name part {_EMPTY}")
    elif len(name) > _LABEL_MAX:
        faults.append(f"name part {_too_long(_LABEL_MAX)}")
    if not re.fullmatch(_QUALIFIED, name[: _LABEL_MAX + 1], re.ASCII):
        mismatch = _mismatch(
            _QUALIFIED_TEXT, _QUALIFIED, "MyName", "my.name", "123-abc"
        )
        faults.append(f"name part {mismatch}")
    return faults


def _label_value(value: str) -> list[str]:
    faults = []
    if len(value) > _LABEL_MAX:
        faults.append(_too_long(_LABEL_MAX))
    if not re.fullmatch(f"({_QUALIFIED})?", value[: _LABEL_MAX + 1], re.ASCII):
        faults.append(
            _mismatch(_VALUE_TEXT, f"({_QUALIFIED})?", "MyValue", "my_value", "12345")
        )
    return faults


def _uri(value: str) -> list[str]:
    problem = uri_problem(value)
    return [problem] if problem else []


def _uuid(value: str) -> list[str]:
    return [] if _UUID.fullmatch(value) else ["does not match the UUID format"]


def _byte(value: str) -> list[str]:
    if not value:
        return ["invalid base64"]
    try:
        base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return ["invalid base64"]
    return []


def _date(value: str) -> list[str]:
    match = _DATE.fullmatch(value)
    try:
        if match is not None:
            date(int(match[1]) or 4, int(match[2]), int(match[3]))
            return []
    except ValueError:
        pass
    return ["invalid date"]


def _datetime(value: str) -> list[str]:
    try:
        parse_timestamp(value.upper())
    except CelFailed:
        return ["invalid datetime"]
    return []


_SUBDOMAINS: Final = _named(
    _SUBDOMAIN, _SUBDOMAIN_TEXT, _SUBDOMAIN_MAX, ("example.com",), prefix=False
)
_PREFIXES: Final = _named(
    _SUBDOMAIN,
    _SUBDOMAIN_TEXT,
    _SUBDOMAIN_MAX,
    ("example.com",),
    prefix=False,
    unit="bytes",
)
_LABELS: Final = ("my-name", "123-abc")
_LABELS_1035: Final = ("my-name", "abc-123")
_FORMATS: Final[dict[str, Callable[[str], list[str]]]] = {
    "dns1123Label": _named(_LABEL, _LABEL_TEXT, _LABEL_MAX, _LABELS, prefix=False),
    "dns1123LabelPrefix": _named(_LABEL, _LABEL_TEXT, _LABEL_MAX, _LABELS, prefix=True),
    "dns1123Subdomain": _SUBDOMAINS,
    "dns1123SubdomainPrefix": _named(
        _SUBDOMAIN, _SUBDOMAIN_TEXT, _SUBDOMAIN_MAX, ("example.com",), prefix=True
    ),
    "dns1035Label": _named(
        _LABEL_1035, _LABEL_1035_TEXT, _LABEL_MAX, _LABELS_1035, prefix=False
    ),
    "dns1035LabelPrefix": _named(
        _LABEL_1035, _LABEL_1035_TEXT, _LABEL_MAX, _LABELS_1035, prefix=True
    ),
    "qualifiedName": _qualified_name,
    "labelValue": _label_value,
    "uri": _uri,
    "uuid": _uuid,
    "byte": _byte,
    "date": _date,
    "datetime": _datetime,
}
_KNOWN: Final = {name: Format(name, check) for name, check in _FORMATS.items()}


def _find(_meter: Meter, name: str) -> Optional:
    named_format = _KNOWN.get(name)
    return NO_VALUE if named_format is None else Optional(named_format)


def _validate(meter: Meter, named_format: Format, string: str) -> Optional:
    meter.charge(2 * len(string))
    meter.hold(text_bytes(2 * len(string), string))
    problems = named_format.problems(string)
    return Optional(problems) if problems else NO_VALUE


OVERLOADS = (
    function("format.named(string) -> optional_type(Format)", _find),
    member(
        "validate(Format, string) -> optional_type(list(string))", _validate, cost=800
    ),
    *(
        function(
            f"format.{name}() -> Format",
            lambda _m, named_format=named_format: named_format,
        )
        for name, named_format in _KNOWN.items()
    ),
)
