"""Warn of a TTL label that has no effect, or whose writer may not delete the object.

Room: webhook. Takes: bodies of reviews, the permissions of the clean-up account and of
users. Gives: TtlReview. Next: webhook/rest.py. May touch: the API server through
policy/ports.py, a few threads, the clock.
Source: docs/behaviour/controllers 2.1, 7 (TTL); docs/cleanup.md (TTL label).

An object is never delayed by many others: while all threads check permissions, further
objects get no warning. Only the operator's setting rejects an object, if its writer may
not delete it or that could not be checked.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from kyverno_mp.admission.decode import decode
from kyverno_mp.admission.encode import allowed, denied
from kyverno_mp.errors import DependencyError, ExpressionFailed
from kyverno_mp.limits import (
    ACCESS_ANSWERS_MAX,
    TTL_CHECK_THREADS,
    TTL_CHECKED_S,
    TTL_CHECKS_MAX,
)
from kyverno_mp.policy.ports import Authors, ClusterView, PermissionTarget
from kyverno_mp.program.request import Request
from kyverno_mp.values import ttl
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.built_in_kinds import ApiResource
from kyverno_mp.values.kubernetes.grants import TTL_VERBS, grant_commands
from kyverno_mp.webhook.author_review import author_of_request

_log = logging.getLogger(__name__)
_CALL_NS_MAX: Final = 3 * 10**9
_USER_SHOWN: Final = 100
"""Characters of a user's name in a warning."""
_UNREADABLE: Final = "label value cannot be parsed as any recognizable format"


class TtlReview:
    """Answers the reviews of labelled objects, on the event loop."""

    def __init__(
        self,
        view: ClusterView | None,
        monotonic_s: Callable[[], float] = time.monotonic,
        *,
        needs_delete: bool = False,
    ) -> None:
        """``view``: without permissions or account, only the label is checked.

        ``needs_delete``: an object is rejected if its writer may not delete it.
        """
        self._view = view
        self._needs_delete = needs_delete
        self._monotonic_s = monotonic_s
        self._threads = ThreadPoolExecutor(TTL_CHECK_THREADS, "ttl-review")
        self._known: dict[PermissionTarget, tuple[float, str]] = {}
        """The missing verb, "" = none, and when it was checked."""
        self._checks = 0

    async def answer(self, body: bytes) -> bytes:
        """Answer for an object, with warnings. Raises: RequestInvalid."""
        request = decode(body)
        value = _label_of(request)
        if value is None:
            return allowed(request.uid)
        try:
            ttl.parse_ttl(value)
        except ExpressionFailed as error:
            text = f"{ttl.LABEL} {_UNREADABLE} ({error.message})"
            return allowed(request.uid, [text])
        target = _target_of(request)
        if target is None:
            return allowed(request.uid)
        against = await self._against_writer(request, target)
        if against and self._needs_delete:
            return denied(request.uid, against)
        warnings = [against] if against else []
        verb = await self._missing(target)
        if verb:
            warnings += self._warnings(target, verb)
        return allowed(request.uid, warnings)

    async def _against_writer(self, request: Request, target: PermissionTarget) -> str:
        """Return what is wrong with a new label of this user, or ""."""
        view = self._view
        is_known = request.old_object and _label_of(request) == _label_in(
            request.old_object
        )
        if view is None or view.authors is None or is_known:
            return ""
        unchecked = "it could not be checked whether its writer may delete the object"
        if self._checks >= TTL_CHECKS_MAX:
            return f"{ttl.LABEL}: {unchecked}" if self._needs_delete else ""
        self._checks += 1
        try:
            may = await asyncio.get_running_loop().run_in_executor(
                self._threads, self._may_delete, view.authors, request, target
            )
        except DependencyError as error:
            _log.info("writer of a TTL label not checked: %s", error)
            return f"{ttl.LABEL}: {unchecked}" if self._needs_delete else ""
        finally:
            self._checks -= 1
        resource = target.resource
        name = f"{resource.plural}.{resource.group}".rstrip(".")
        user = request.username[:_USER_SHOWN]
        text = f"{ttl.LABEL}: {user} may not delete {name}, but the label deletes it"
        return "" if may else text

    @staticmethod
    def _may_delete(
        authors: Authors, request: Request, target: PermissionTarget
    ) -> bool:
        """Raises: DependencyError."""
        attributes = {
            "verb": "delete",
            "group": target.resource.group,
            "version": target.resource.version,
            "resource": target.resource.plural,
            "namespace": target.namespace,
            "name": request.name,
        }
        asked = {name: value for name, value in attributes.items() if value}
        deadline_ns = time.monotonic_ns() + _CALL_NS_MAX
        return authors.author_may(author_of_request(request), asked, deadline_ns)

    async def _missing(self, target: PermissionTarget) -> str:
        """Return the first verb that the clean-up account lacks, "" if none."""
        view = self._view
        if view is None or view.permissions is None or not view.cleanup:
            return ""
        now_s = self._monotonic_s()
        known = self._known.get(target)
        if known is not None and now_s - known[0] < TTL_CHECKED_S:
            return known[1]
        if self._checks >= TTL_CHECKS_MAX:
            return ""
        self._checks += 1
        try:
            verb = await asyncio.get_running_loop().run_in_executor(
                self._threads, self._ask, view, target
            )
        except DependencyError as error:
            _log.info("TTL label not checked: %s", error)
            return ""
        finally:
            self._checks -= 1
        if len(self._known) >= ACCESS_ANSWERS_MAX:
            self._known.clear()
        self._known[target] = now_s, verb
        return verb

    @staticmethod
    def _ask(view: ClusterView, target: PermissionTarget) -> str:
        """Ask for each permission. Raises: DependencyError."""
        permissions = view.permissions
        assert permissions is not None
        for verb in reversed(TTL_VERBS):
            if not permissions.allows(view.cleanup, verb, target):
                return verb
        return ""

    def _warnings(self, target: PermissionTarget, verb: str) -> list[str]:
        """K8S: a warning is cut at 256 characters, so the commands are separate."""
        assert self._view is not None
        resource = target.resource
        name = f"{resource.plural}.{resource.group}".rstrip(".")
        account = self._view.cleanup.rpartition(":")[2]
        return [
            (
                f"{ttl.LABEL} has no effect: {account} may not {verb} {name};"
                " these commands permit it:"
            ),
            *grant_commands("cleanup", name, TTL_VERBS),
        ]


def _label_of(request: Request) -> str | None:
    return _label_in(request.object)


def _label_in(raw: dict[str, Json]) -> str | None:
    metadata = raw.get("metadata")
    labels = metadata.get("labels") if isinstance(metadata, dict) else None
    value = labels.get(ttl.LABEL) if isinstance(labels, dict) else None
    return value if isinstance(value, str) else None


def _target_of(request: Request) -> PermissionTarget | None:
    """Return the object's resource in its namespace, None if it is not named."""
    raw: Any = request.review_request
    named = raw.get("resource") if isinstance(raw, dict) else None
    parts = named if isinstance(named, dict) else {}
    group, version, plural = (
        parts.get(part) or "" for part in ("group", "version", "resource")
    )
    if not (plural and all(isinstance(part, str) for part in (group, version, plural))):
        return None
    resource = ApiResource(group, version, "", plural, is_namespaced=True)
    return PermissionTarget(resource, namespace=request.namespace)
