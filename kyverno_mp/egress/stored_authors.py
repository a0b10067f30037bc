"""Check the author of a policy before a pool carries it out; a verdict holds an hour.

Room: egress. Takes: a Client, ports. Gives: StoredAuthors.
Next: background/runner.py, cleanup/controller.py. May touch: the API server, the clock.
Source: docs/operate.md (the author of a namespaced policy); leader/authors.py does the
same for the policies that reviews and scans evaluate.

Of an unknown author nothing is asked, and its policy is carried out. While the API
server does not answer, the last verdict holds.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from kyverno_mp.egress.author_rights import author_of, lacking_rights
from kyverno_mp.errors import DependencyError, InputError
from kyverno_mp.kube.apply import Objects
from kyverno_mp.kube.resource import Key, Resource
from kyverno_mp.limits import (
    AUTHOR_CHECK_AGAIN_S,
    AUTHOR_RETRY_S,
    AUTHORS_KEPT_MAX,
)
from kyverno_mp.policy.cel_kinds.served import decode_policy
from kyverno_mp.policy.ports import Authors, Kinds

_log = logging.getLogger(__name__)


class _Verdict(NamedTuple):
    reason: str
    until_s: float


class StoredAuthors:
    """The verdicts by policy; threads may share it."""

    def __init__(
        self,
        objects: Objects,
        kinds: Kinds,
        authors: Authors,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._objects = objects
        self._kinds = kinds
        self._authors = authors
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._verdicts: dict[tuple[str, Key], _Verdict] = {}

    def reason(self, resource: Resource, key: Key) -> str:
        """Return the right that the policy uses and its author lacks, or ""."""
        if not resource.namespaced:
            return ""
        name, now_s = (resource.plural, key), self._monotonic_s()
        with self._lock:
            verdict = self._verdicts.get(name)
        if verdict is not None and now_s < verdict.until_s:
            return verdict.reason
        try:
            reason = self._judge(resource, key)
        except DependencyError as error:
            _log.info("author of %s/%s not checked: %s", *key, error.message)
            reason = verdict.reason if verdict is not None else ""
            until_s = now_s + AUTHOR_RETRY_S
        else:
            # A new version may have another author.
            until_s = now_s + (AUTHOR_RETRY_S if reason else AUTHOR_CHECK_AGAIN_S)
        with self._lock:
            if len(self._verdicts) >= AUTHORS_KEPT_MAX:
                self._verdicts.clear()
            self._verdicts[name] = _Verdict(reason, until_s)
        return reason

    def _judge(self, resource: Resource, key: Key) -> str:
        """Raises: DependencyError."""
        raw = self._objects.find(resource, key) or {}
        author = author_of((raw.get("metadata") or {}).get("annotations"))
        if author is None:
            return ""
        try:
            document = decode_policy(raw)
        except InputError:
            document = None
        if document is None:
            return ""
        return lacking_rights(document, key[0], author, self._kinds, self._authors)
