"""Require that no field of an attestor is empty after substitution.

Room: program.images. Takes: a verifyImages entry as written, and after substitution.
Gives: nothing, or raises. Next: program/images/rule.
Source: docs/differences (images).
"""

from typing import Final

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.values.jsonvalue import Json

_DEMANDS: Final = ("attestors", "annotations", "roots")
_OPTIONAL: Final = frozenset({"repository", "url"})
"""Locations of signatures and logs, which do not restrict the signer."""


def require_filled(written: Json, rendered: Json) -> None:
    """Require that each field with a value is still filled after substitution.

    SAFETY: upstream treats an empty field as absent, so an attestor with an empty key
    accepts a keyless signature by any identity. Raises: ExpressionFailed.
    """
    if type(written) is not dict or type(rendered) is not dict:
        return
    for name in _DEMANDS:
        _check(written.get(name), rendered.get(name), name)
    written_attestations, rendered_attestations = (
        written.get("attestations"),
        rendered.get("attestations"),
    )
    if type(written_attestations) is list and type(rendered_attestations) is list:
        for number, (was, now) in enumerate(
            zip(written_attestations, rendered_attestations, strict=False)
        ):
            if type(was) is dict and type(now) is dict:
                path = f"attestations[{number}].attestors"
                _check(was.get("attestors"), now.get("attestors"), path)


def _check(written: Json, rendered: Json, path: str) -> None:
    if type(written) is str and written:
        if _has_gap(rendered):
            message = f"{path} is empty after the substitution of variables"
            raise ExpressionFailed("image.attestor", message)
    elif type(written) is dict and type(rendered) is dict:
        for key, value in written.items():
            if key in rendered and key not in _OPTIONAL:
                _check(value, rendered[key], f"{path}.{key}")
    elif type(written) is list and type(rendered) is list:
        for number, (was, now) in enumerate(zip(written, rendered, strict=False)):
            _check(was, now, f"{path}[{number}]")


def _has_gap(rendered: Json) -> bool:
    """Return whether a value or any part of it is empty."""
    if type(rendered) is dict:
        return not rendered or any(map(_has_gap, rendered.values()))
    if type(rendered) is list:
        return not rendered or any(map(_has_gap, rendered))
    return rendered is None or (type(rendered) is str and not rendered.strip())
