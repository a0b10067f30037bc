"""Parse the path and query of a review: which webhook, which policies, what timeout.

Room: webhook. Takes: request target bytes. Gives: Route, timeout. Next:
webhook/review/service.
Source: docs/behaviour/controllers 2.1 (routes), 2.5 (policy selection), 3.4
(fine-grained).
"""

from functools import lru_cache
from typing import Final

import msgspec

from kyverno_mp.limits import ROUTES_KEPT_MAX
from kyverno_mp.values.go.duration import parse_duration
from kyverno_mp.values.kubernetes.policy_kinds import REVIEWED_CEL_KINDS, ReviewPath

VALIDATE: Final = "validate"
MUTATE: Final = "mutate"
VPOL: Final = "vpol"
"""ValidatingPolicies; the rest of the path names them."""
NVPOL: Final = "nvpol"
"""NamespacedValidatingPolicies; the rest of the path names them."""
MPOL: Final = "mpol"
"""MutatingPolicies; the rest of the path names them."""
NMPOL: Final = "nmpol"
"""NamespacedMutatingPolicies; the rest of the path names them."""
IVPOL: Final = "ivpol"
"""ImageValidatingPolicies; the rest of the path is ``/validate`` and their names."""
NIVPOL: Final = "nivpol"
"""NamespacedImageValidatingPolicies; the rest of the path is as for ``/ivpol``."""
IVPOL_MUTATE: Final = "ivpol/mutate"
"""ImageValidatingPolicies that replace tags by digests; their names follow."""
NIVPOL_MUTATE: Final = "nivpol/mutate"
"""NamespacedImageValidatingPolicies that do so."""
_ALL_VALIDATING: Final = tuple(
    row.validating for row in REVIEWED_CEL_KINDS if row.validating
)
_ALL_MUTATING: Final = tuple(row.mutating for row in REVIEWED_CEL_KINDS if row.mutating)


def webhooks_of(review: ReviewPath) -> tuple[str, str]:
    """Return the names of a kind's webhook for cluster and for namespaced policies."""
    name = review.path.removeprefix("/").removesuffix("/validate")
    return name, f"n{name}"


_BY_NAMES: Final[dict[tuple[str, ...], str]] = {
    tuple(f"{twin}{review.path.removeprefix('/')}".split("/")): webhook
    for review in (*_ALL_VALIDATING, *_ALL_MUTATING)
    for twin, webhook in zip(("", "n"), webhooks_of(review), strict=True)
}
"""The beginnings of paths whose rest names policies -> their webhook."""
RECORDED: Final = frozenset({VALIDATE, MUTATE, VPOL, NVPOL, MPOL, NMPOL})
"""The webhooks whose reviews can be recorded and replayed."""
CEL_WEBHOOKS: Final = frozenset(_BY_NAMES.values())
_OF_KEYS: Final = {
    review.namespaced_path.removeprefix("/"): webhooks_of(review)[1]
    for review in (*_ALL_VALIDATING, *_ALL_MUTATING)
}
"""Paths that also contain namespaces, e.g. ``/nvpol-keys/<ns>/<name>/...`` -> their
webhook. The API server accepts only DNS names between slashes, and any of them can be a
policy's name, so the first segment distinguishes the two paths of a webhook."""
MUTATING: Final = frozenset(
    (MUTATE, *(name for review in _ALL_MUTATING for name in webhooks_of(review)))
)
"""The webhooks of the MutatingWebhookConfiguration."""
BOTH: Final = frozenset({"Fail", "Ignore"})

_REMEMBERED_QUERY_BYTES_MAX: Final = 64
_SUFFIXES: Final = {
    "": BOTH,
    "fail": frozenset({"Fail"}),
    "ignore": frozenset({"Ignore"}),
}


class Route(msgspec.Struct, frozen=True):
    """The target of a path.

    ``failure_policies``: only policies with one of these are evaluated. ``policy_key``:
    ``name`` or ``ns/name`` of the only policy on a fine-grained path, else "". For
    policies in CEL: the names of all policies of the path, separated by slashes. On
    paths like ``/nvpol-keys``, it begins with a slash, and namespaces precede names.
    """

    path: str
    webhook: str
    failure_policies: frozenset[str]
    policy_key: str = ""

    @property
    def ignores_failures(self) -> bool:
        """Return whether the path is for failurePolicy Ignore."""
        return "Fail" not in self.failure_policies


SHARED: Final[dict[bytes, Route]] = {
    path.encode(): Route(path, webhook, policies)
    for webhook in (VALIDATE, MUTATE)
    for suffix, policies in _SUFFIXES.items()
    for path in (f"/{webhook}/{suffix}".rstrip("/"),)
}
"""PERF: the six paths of nearly all reviews, found with one look-up."""


def route_of(path: bytes) -> Route | None:
    """Return the route of a path, None if no webhook has it."""
    return SHARED.get(path) or _named_route_of(path)


# PERF: a path can name a thousand policies, and the API server uses few paths.
@lru_cache(maxsize=ROUTES_KEPT_MAX)
def _named_route_of(path: bytes) -> Route | None:
    try:
        parts = path.decode("ascii").split("/")
    except UnicodeDecodeError:
        return None
    for length in (1, 2) if not parts[0] else ():
        webhook = _BY_NAMES.get(tuple(parts[1 : 1 + length]))
        if webhook is not None:
            names = "/".join(filter(None, parts[1 + length :]))
            return Route("/".join(parts), webhook, BOTH, policy_key=names)
    # "/validate/fail/finegrained/<name>" or ".../<ns>/<name>", as Kyverno registers.
    match parts:
        case ["", ("validate" | "mutate") as webhook, suffix, "finegrained", *key] if (
            suffix in ("fail", "ignore") and 1 <= len(key) <= 2 and all(key)  # noqa: PLR2004 - name, or namespace and name
        ):
            return Route(
                "/".join(parts), webhook, _SUFFIXES[suffix], policy_key="/".join(key)
            )
        case ["", name, *pairs] if (
            name in _OF_KEYS and pairs and len(pairs) % 2 == 0 and all(pairs)
        ):
            named = "/".join(("", *pairs))
            return Route("/".join(parts), _OF_KEYS[name], BOTH, policy_key=named)
    return None


def timeout_ns(query: bytes, default_ns: int, most_ns: int) -> int:
    """Return the caller's timeout, from ``timeout=10s`` (a Go duration).

    Without a positive duration the default applies.
    """
    if len(query) > _REMEMBERED_QUERY_BYTES_MAX:
        return _timeout_ns(query, default_ns, most_ns)
    return _remembered_ns(query, default_ns, most_ns)


def _timeout_ns(query: bytes, default_ns: int, most_ns: int) -> int:
    for pair in query.split(b"&"):
        name, _, value = pair.partition(b"=")
        if name == b"timeout":
            asked = parse_duration(value.decode("latin-1"))
            if asked is not None and asked > 0:
                return min(asked, most_ns)
    return default_ns


# PERF: an API server uses the same few queries for all its reviews.
_remembered_ns = lru_cache(maxsize=64)(_timeout_ns)
