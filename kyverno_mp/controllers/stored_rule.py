"""Convert an autogen rule to the form in which the API server stores it.

Room: controllers. Takes: a Rule from autogen. Gives: its JSON, with the empty fields
that Go writes and the defaults of the CRD, without the fields that Go omits.
Next: controllers/policy_status.py.
Source: docs/behaviour/controllers 3.8; Kyverno api/kyverno/v1.

KYVERNO: Go writes struct values even when they are empty, but not pointers, lists and
maps. A rule in its stored form equals the rule that the API server returns, so an
unchanged status is not written again.
"""

from collections.abc import Callable, Iterable
from typing import Final

from kyverno_mp.policy.documents.cluster_policy import Rule
from kyverno_mp.values.jsonvalue import Json

_Object = dict[str, Json]
_VERIFIED: Final = {
    "mutateDigest": True,
    "verifyDigest": True,
    "required": True,
    "useCache": True,
    "validate": {},
}
_ATTESTATION: Final = {"predicateType": "", "type": ""}
_SIGNED: Final = {"signatureAlgorithm": "sha256"}


def as_stored(rule: Rule) -> _Object:
    """Return the rule as stored in ``status.autogen.rules``."""
    raw: _Object = rule.raw()
    made: _Object = {
        **raw,
        "match": _filtered(raw["match"]),
        "skipBackgroundRequests": rule.skip_background_requests,
    }
    if not raw.get("exclude"):
        made.pop("exclude", None)
    if not raw.get("celPreconditions"):
        made.pop("celPreconditions", None)
    _at(made, "exclude", _filtered)
    _each(made, "context", _entry)
    _at(made, "validate", _validation)
    _at(made, "mutate", _mutation)
    _each(made, "verifyImages", _verification)
    return made


def _at(holder: _Object, key: str, store: Callable[[_Object], _Object]) -> None:
    """Rewrite the object under a key, if present."""
    if type(holder.get(key)) is dict:
        holder[key] = store(holder[key])


def _each(holder: _Object, key: str, store: Callable[[_Object], _Object]) -> None:
    """Rewrite each object of the list under a key, if present."""
    if type(holder.get(key)) is list:
        holder[key] = [store(one) for one in holder[key]]


def _without_empty(holder: _Object, keys: Iterable[str]) -> _Object:
    return {k: v for k, v in holder.items() if v or k not in keys}


def _filtered(block: _Object) -> _Object:
    """Convert ``match`` or ``exclude``, or one filter of it."""
    made = {"resources": {}, **block}
    made["resources"] = _without_empty(made["resources"], ("annotations",))
    for mode in ("any", "all"):
        _each(made, mode, _filtered)
    return made


def _entry(entry: _Object) -> _Object:
    """Convert a context entry."""
    made = _nested_entry(entry)
    _at(made, "apiCall", lambda call: {"method": "GET", **call})
    return made


def _nested_entry(entry: _Object) -> _Object:
    """Convert an entry of a nested foreach, which the CRD does not validate."""
    made = dict(entry)
    _at(made, "apiCall", _call)
    return made


def _call(call: _Object) -> _Object:
    made = {"urlPath": "", **call}
    _at(made, "service", lambda service: {"caBundle": "", **service})
    return made


def _validation(validate: _Object) -> _Object:
    made = {"allowExistingViolations": True, **_without_empty(validate, ("foreach",))}
    _at(made, "cel", lambda cel: {"generate": False, **cel})
    _at(made, "manifests", _manifests)
    _each(made, "foreach", _loop)
    return made


def _manifests(manifests: _Object) -> _Object:
    made = {"dryRun": {}, **manifests}
    _each(made, "attestors", _attestors)
    return made


def _mutation(mutate: _Object) -> _Object:
    made = dict(mutate)
    _each(made, "foreach", _loop)
    return made


def _loop(loop: _Object) -> _Object:
    made = _without_empty(loop, ("foreach",))
    _each(made, "context", _entry)
    _each(made, "foreach", _nested_loop)
    return made


def _nested_loop(loop: _Object) -> _Object:
    made = _without_empty(loop, ("foreach",))
    _each(made, "context", _nested_entry)
    _each(made, "foreach", _nested_loop)
    return made


def _verification(verified: _Object) -> _Object:
    made = {**_VERIFIED, **verified}
    _each(made, "attestors", _attestors)
    _each(made, "attestations", _attestation)
    return made


def _attestation(attestation: _Object) -> _Object:
    made = {**_ATTESTATION, **attestation}
    _each(made, "attestors", _attestors)
    return made


def _attestors(attestors: _Object) -> _Object:
    made = dict(attestors)
    _each(made, "entries", _attestor)
    return made


def _attestor(attestor: _Object) -> _Object:
    made = {**_SIGNED, **attestor}
    _at(made, "keys", lambda keys: _with_log({**_SIGNED, **keys}))
    _at(made, "certificates", _with_log)
    _at(made, "keyless", _with_log)
    return made


def _with_log(key: _Object) -> _Object:
    made = dict(key)
    _at(made, "rekor", lambda rekor: {"url": "", **rekor})
    return made
