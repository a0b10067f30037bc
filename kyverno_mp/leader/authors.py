"""Check the authors of stored namespaced policies: when they take effect, and hourly.

Room: leader. Takes: the policies in the informers' caches, an Authors port. Gives: the
policies whose author has lost a right that they use, and why.
Next: leader/documents/without_rights.py. May touch: the API server through the ports,
the clock, a thread.
Source: docs/operate.md (the author of a namespaced policy); egress/author_rights.py.

The author stands in an annotation that only our webhook writes. Of a policy without it
(stored before, or while no webhook was registered) the author is unknown, and it stays
in force: an upgrade must lift no policy. While the API server does not answer, the last
verdict holds.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from kyverno_mp.egress.author_rights import author_of, lacking_rights
from kyverno_mp.errors import DependencyError, InputError
from kyverno_mp.leader.stored_document import Key
from kyverno_mp.limits import AUTHOR_CHECK_AGAIN_S, AUTHOR_POLL_S, AUTHOR_RETRY_S
from kyverno_mp.policy.cel_kinds.served import decode_policy
from kyverno_mp.policy.ports import Authors, Kinds

_log = logging.getLogger(__name__)


Name = tuple[str, str, str]
"""Plural, namespace, name."""


class _Checked(NamedTuple):
    """``until_s``: when it is due again; ``reason``: the missing right, or ""."""

    text: bytes
    until_s: float
    reason: str


class AuthorWatch:
    """The verdicts; ``lost`` is a new object after each change, for any thread."""

    def __init__(
        self,
        stored: Callable[[], Mapping[Name, bytes]],
        kinds: Kinds,
        authors: Authors,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """``stored`` returns the namespaced policies, as JSON."""
        self._stored = stored
        self._kinds = kinds
        self._authors = authors
        self._monotonic_s = monotonic_s
        self._checked: dict[Name, _Checked] = {}
        self._stopping = threading.Event()
        self._wake: Callable[[], None] = lambda: None
        self.lost: Mapping[Key, str] = {}
        """The policies whose author lacks a right, and the reason."""

    def on_change(self, wake: Callable[[], None]) -> None:
        """Call ``wake``, in the thread of the checks, when ``lost`` has changed."""
        self._wake = wake

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name="authors", daemon=True).start()

    def stop(self) -> None:
        """Let the thread end."""
        self._stopping.set()

    def check_due(self) -> None:
        """Check what is new, changed or due."""
        before, self._checked = self._checked, {}
        lost: dict[Key, str] = {}
        for name, content in self._stored().items():
            checked = before.get(name)
            if (
                checked is None
                or checked.text != content
                or checked.until_s <= self._now()
            ):
                checked = self._checked_safely(name, content, checked)
            self._checked[name] = checked
            if checked.reason:
                kind = msgspec.json.decode(content)["kind"]
                lost[kind, *name[1:]] = checked.reason
        if lost != self.lost:
            for key in lost.keys() - self.lost.keys():
                _log.warning("author of %s: %s", "/".join(key), lost[key])
            self.lost = lost
            self._wake()

    def _run(self) -> None:
        while not self._stopping.wait(AUTHOR_POLL_S):
            try:
                self.check_due()
            except Exception:  # noqa: BLE001 - the thread must survive
                _log.exception("unexpected error in the check of authors, trying again")

    def _now(self) -> float:
        return self._monotonic_s()

    def _checked_safely(
        self, name: Name, content: bytes, before: _Checked | None
    ) -> _Checked:
        """Check a policy; an unexpected error concerns only this one.

        SAFETY: it must neither end the leader nor count as a right.
        """
        try:
            return self._check(content, before)
        except Exception as error:  # noqa: BLE001 - reported in the policy's status
            _log.exception("unexpected error while checking the author of %s", name)
            again_s = self._now() + AUTHOR_RETRY_S
            return _Checked(
                content, again_s, f"author not checked: {type(error).__name__}"
            )

    def _check(self, content: bytes, before: _Checked | None) -> _Checked:
        raw = msgspec.json.decode(content)
        metadata = raw.get("metadata") or {}
        author = author_of(metadata.get("annotations"))
        again_s = self._now() + AUTHOR_CHECK_AGAIN_S
        try:
            document = decode_policy(raw) if author is not None else None
        except InputError:
            # It does not come into force, and its status has the reason.
            document = None
        if author is None or document is None:
            return _Checked(content, again_s, "")
        try:
            reason = lacking_rights(
                document, metadata["namespace"], author, self._kinds, self._authors
            )
        except DependencyError as error:
            _log.info("author not checked: %s", error.message)
            reason = before.reason if before is not None else ""
            again_s = self._now() + AUTHOR_RETRY_S
        return _Checked(content, again_s, reason)
