"""Tell the API server's audit log which policies decided a review.

Room: admission. Takes: the responses of the policies. Gives: audit annotations of the
answer. Next: encode.
Source: admission.k8s.io/v1 AdmissionResponse.auditAnnotations; the API server prefixes
each key with the webhook's name.

SAFETY: whoever reads audit logs may not read the objects, so the values name policies,
rules, exceptions and codes, and no message, which can contain any value.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from kyverno_mp.limits import AUDIT_ANNOTATION_CHARACTERS_MAX
from kyverno_mp.program.result import PASS, SKIP, PolicyResponse, SharedResponses

OFF: Final = "off"
DECISIONS: Final = "decisions"
ALL: Final = "all"
Annotations = Mapping[str, str]
NONE: Final[Annotations] = MappingProxyType({})
_ROOM_FOR_REST: Final = 24
"""Characters of ", and 1000000 more"."""


def annotations_of(
    responses: Sequence[PolicyResponse], amount: str, code: str = ""
) -> Annotations:
    """Return the annotations of an answer, e.g. ``{"policies": "team/p/rule=fail"}``.

    ``policies``: rules that neither passed nor were skipped; with ALL, also those that
    passed. ``exceptions``: those that exempted the object. ``error``: ``code``, the
    reason why not all policies were evaluated. With OFF, nothing.
    """
    if amount == OFF:
        return NONE
    if type(responses) is SharedResponses:
        # PERF: nearly all answers, of few different outcomes.
        key = (annotations_of, amount)
        annotations: Annotations | None = responses.derived.get(key)
        if annotations is None:
            annotations = responses.derived[key] = _annotations(responses, amount)
    else:
        annotations = _annotations(responses, amount)
    return {**annotations, "error": code} if code else annotations


def _annotations(responses: Sequence[PolicyResponse], amount: str) -> Annotations:
    by_name = {
        "policies": _listed(_decisions(responses, amount)),
        "exceptions": _listed(_exceptions(responses)),
    }
    listed = {name: value for name, value in by_name.items() if value}
    return listed or NONE


def _decisions(responses: Iterable[PolicyResponse], amount: str) -> Iterator[str]:
    for response in responses:
        key = response.policy.key
        if amount == ALL:
            yield from (f"{key}/{rule}=pass" for rule in response.passed)
        for result in response.results:
            if result.status == SKIP or (result.status == PASS and amount != ALL):
                continue
            yield "/".join(filter(None, (key, result.rule))) + f"={result.status}"


def _exceptions(responses: Iterable[PolicyResponse]) -> Iterator[str]:
    for response in responses:
        for result in response.results:
            yield from result.exceptions


def _listed(names: Iterable[str]) -> str:
    """Return the names in order, each once, and how many there is no room for."""
    unique = list(dict.fromkeys(names))
    listed: list[str] = []
    characters_left = AUDIT_ANNOTATION_CHARACTERS_MAX - _ROOM_FOR_REST
    for name in unique:
        characters_left -= len(name) + 2
        if characters_left < 0:
            listed.append(f"and {len(unique) - len(listed)} more")
            break
        listed.append(_printable(name))
    return ", ".join(listed)


def _printable(name: str) -> str:
    """Return a name without characters that could disguise a line of a log."""
    return "".join(letter if letter.isprintable() else "?" for letter in name)
