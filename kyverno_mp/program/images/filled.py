"""Require that no demand of an attestor is empty after substitution.

Room: program.images. Takes: a verifyImages entry as written, and after substitution.
Gives: nothing, or raises. Next: program/images/rule.
May touch: nothing outside its arguments.
Source: docs/differences (images).
"""

from typing import Final

from kyverno_mp.errors import ExpressionFailed
from kyverno_mp.values.jsonvalue import Json

_DEMANDS: Final = ("attestors", "annotations", "roots")
_OPTIONAL: Final = frozenset({"repository", "url"})
"""Where signatures and logs are found; that demands nothing of the signer."""


def require_filled(written: Json, rendered: Json) -> None:
    """Require that each demand that was written still demands something.

    SAFETY: upstream takes an empty field for an absent one, so that an attestor whose
    key is empty accepts the keyless signature of anyone. Raises: ExpressionFailed.
    """
    if type(written) is not dict or type(rendered) is not dict:
        return
    for name in _DEMANDS:
        _check(written.get(name), rendered.get(name), name)
    given, found = written.get("attestations"), rendered.get("attestations")
    if type(given) is list and type(found) is list:
        for number, (one, now) in enumerate(zip(given, found, strict=False)):
            if type(one) is dict and type(now) is dict:
                path = f"attestations[{number}].attestors"
                _check(one.get("attestors"), now.get("attestors"), path)


def _check(written: Json, rendered: Json, path: str) -> None:
    if type(written) is str and written:
        if _has_gap(rendered):
            text = f"{path} is empty after the substitution of variables"
            raise ExpressionFailed("image.attestor", text)
    elif type(written) is dict and type(rendered) is dict:
        for key, value in written.items():
            if key in rendered and key not in _OPTIONAL:
                _check(value, rendered[key], f"{path}.{key}")
    elif type(written) is list and type(rendered) is list:
        for number, (one, now) in enumerate(zip(written, rendered, strict=False)):
            _check(one, now, f"{path}[{number}]")


def _has_gap(rendered: Json) -> bool:
    """Return whether a value is empty, or a part of it."""
    if type(rendered) is dict:
        return not rendered or any(map(_has_gap, rendered.values()))
    if type(rendered) is list:
        return not rendered or any(map(_has_gap, rendered))
    return rendered is None or (type(rendered) is str and not rendered.strip())
