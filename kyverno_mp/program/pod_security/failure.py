"""Describe the violation of a control: reason, detail, and one error per field.

Room: program.pod_security. Gives: Failure and FieldError, created by baseline and
restricted, filtered by exclude, printed by evaluate.
Source: Kubernetes apimachinery field.Error; Kyverno pkg/pss (FormatChecksPrint).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

FORBIDDEN: Final = "Forbidden"
REQUIRED: Final = "Required value"

BadValue = str | bool | int | tuple[str, ...]


class FieldError(NamedTuple):
    """A field with a forbidden value ("" = unknown), or a missing required field."""

    kind: str
    field: str
    bad: BadValue = ""

    def text(self) -> str:
        """Return the error as Kyverno prints it in a rule's message."""
        if self.kind != FORBIDDEN or self.bad == "":
            return f"{self.field}: {self.kind}"
        forbidden = _value_text(self.bad)
        return f"{self.field} is forbidden, forbidden values found: {forbidden}"

    def bad_values(self) -> tuple[str, ...]:
        """Return the values that an exclude's ``values`` must cover."""
        if isinstance(self.bad, tuple):
            return self.bad
        return () if self.bad == "" else (_value_text(self.bad),)


@dataclass(slots=True)
class Failure:
    """A violated control, e.g. ``Failure("hostPort", 'container "c" uses ..', ..)``.

    Applied excludes remove ``errors``. ``check`` is the id of the check, set by
    standard.
    """

    reason: str
    detail: str
    errors: list[FieldError]
    check: str = ""

    def text(self) -> str:
        """Return this control's part of the rule's message."""
        errors = ", ".join(error.text() for error in self.errors)
        return f"(Forbidden reason: {self.reason}, field error list: [{errors}])"


def forbidden(field: str, bad: BadValue) -> FieldError:
    """Return the error of a field with a forbidden value."""
    return FieldError(FORBIDDEN, field, bad)


def required(field: str) -> FieldError:
    """Return the error of a field that must be set."""
    return FieldError(REQUIRED, field)


def plural(singular: str, many: str, count: int) -> str:
    """Return the singular or plural word for ``count``."""
    return singular if count == 1 else many


def quoted(items: Iterable[str]) -> str:
    """Return the items in double quotes, joined by commas."""
    return ", ".join(f'"{item}"' for item in items)


def containers(names: Sequence[str]) -> str:
    """Return ``container "a"`` or ``containers "a", "b"``."""
    return f"{plural('container', 'containers', len(names))} {quoted(names)}"


def _value_text(bad: BadValue) -> str:
    if bad is True:
        return "true"
    if bad is False:
        return "false"
    return f"[{' '.join(bad)}]" if isinstance(bad, tuple) else str(bad)
