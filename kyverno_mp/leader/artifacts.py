"""Read policies from images in registries, as sources of an authorizer.

Room: leader. Takes: references, a client with the operator's credentials. Gives: the
files of each image as Changes. Next: leader/authorizer.py. May touch: a thread for each
image, registries, the clock.
Source: docs/behaviour/cel 15.8.

An image that cannot be read, or only in part, leaves its last content in force; if it
was never read, it is reported as unread, which makes each request an error. So does an
image without a policy: a wrong tag would allow everything. A digest is read once, a tag
at an interval.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

from kyverno_mp.errors import (
    DependencyError,
    InputError,
    PolicyInvalid,
    RequestInvalid,
)
from kyverno_mp.leader.folder import Changes
from kyverno_mp.limits import ARTIFACT_RETRY_S, ARTIFACT_S_MAX
from kyverno_mp.policy.cel_kinds.served import authorization_mode
from kyverno_mp.policy.reading.load import load
from kyverno_mp.registry.client import Client
from kyverno_mp.registry.image import read_image
from kyverno_mp.registry.reference import Reference
from kyverno_mp.registry.tree import Files, policy_files

SCHEME: Final = "oci://"
_LOG = logging.getLogger(__name__)


class Artifact:
    """One image, read by a thread; the leader polls it."""

    def __init__(
        self,
        reference: Reference,
        client: Callable[[], Client],
        interval_s: float,
        mode: str = "",
    ) -> None:
        """``client`` returns one with the current credentials.

        ``mode``: the evaluation mode of which the image must have a policy; "" for
        none.
        """
        self.name: Final = f"{SCHEME}{reference.name}"
        self._reference = reference
        self._client = client
        self._interval_s = interval_s
        self._mode = mode
        self._lock = threading.Lock()
        self._digest = ""
        self._files: Files = {}
        self._polled: Files = {}
        self._problem = ""
        self._wake: Callable[[], None] = lambda: None
        self._due = threading.Event()
        self._is_stopping = False
        self.is_tried = False
        """Whether a first attempt to read the image has ended."""

    def start(self) -> None:
        """Begin to read the image, again and again unless a digest names it."""
        name = f"read {self.name}"
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def stop(self) -> None:
        """Read no more."""
        self._is_stopping = True
        self._due.set()

    def on_change(self, wake: Callable[[], None]) -> None:
        """Call ``wake``, in the thread of the image, when there is a change to poll."""
        self._wake = wake

    def poll(
        self,
        now_ns: int,
        *,
        force: bool = False,
        wait: Callable[[], None] | None = None,
    ) -> Changes:
        """Return the changes since the last call. ``force``: also read the tag now."""
        del now_ns, wait
        if force:
            self._due.set()
        with self._lock:
            files, problem = self._files, self._problem
            has_read = bool(self._digest)
        before, self._polled = self._polled, files
        changed = {
            path: content
            for path, content in files.items()
            if before.get(path) != content
        }
        return Changes(
            changed,
            tuple(path for path in before if path not in files),
            (problem,) if problem else (),
            () if has_read else (self.name,),
        )

    def read(self) -> None:
        """Read the image once, unless it is the one that was read before."""
        deadline_ns = time.monotonic_ns() + int(ARTIFACT_S_MAX * 1e9)
        try:
            client = self._client()
            image = read_image(client, self._reference, deadline_ns)
            if image.digest != self._digest:
                files = policy_files(client, image, deadline_ns)
                if self._mode and self._mode not in _modes(files):
                    raise RequestInvalid(
                        "registry.artifact",
                        f"no policy of mode {self._mode} in {len(files)} YAML or JSON"
                        " files",
                    )
                self._take(image.digest, files)
            self._problem = ""
        except (InputError, DependencyError) as error:
            self._problem = f"{self.name}: {error.message}"

    def _take(self, digest: str, files: Files) -> None:
        # Absolute, as names of files in folders are: leader/authorizer.py.
        named = {
            f"/oci/{self._reference.name}/{path}": content
            for path, content in files.items()
        }
        with self._lock:
            self._digest, self._files = digest, named
        _LOG.info("%s has %d files of policies: %s", self.name, len(named), digest)

    def _work(self) -> None:
        while not self._is_stopping:
            self._due.clear()
            try:
                self.read()
            except Exception as error:  # noqa: BLE001 - later images are still read
                _LOG.exception("%s: a defect", self.name)
                self._problem = f"{self.name}: {type(error).__name__}"
            self.is_tried = True
            self._wake()
            if self._digest and self._reference.digest:
                return
            pause_s = self._interval_s
            if not self._digest:
                pause_s = min(ARTIFACT_RETRY_S, pause_s)
            self._due.wait(pause_s)


def _modes(files: Files) -> Iterator[str]:
    """Yield the modes of the policies; a file that cannot be read has none."""
    for path, content in files.items():
        with suppress(PolicyInvalid):
            for document in load(content, file=path):
                yield authorization_mode(document.raw)
