"""Look for lost triggers before their request has waited long enough.

Room: background. Takes: requests that name only a policy and a time. Gives: Looks.
Next: background/requests.py makes the last look; background/generate/lost.py finds the
triggers.
May touch: the API server through the runner, the clock, threads, the log.
Source: docs/background.md (when the journal is full); docs/SECURITY.md (reviews without
proof).

Such a request waits for 30 seconds, because more triggers may be lost. Until then, a
pod of Kyverno can take over, which cannot read the request. So there is an early look
at what is stored by then, and another one when the pool ends. Neither finishes the
request: its last look finds the same triggers again, and those that were stored late.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Final

from kyverno_mp.background.dependencies import BackgroundDependencies
from kyverno_mp.background.outcome import ABSENT_S
from kyverno_mp.background.runner import Runner
from kyverno_mp.background.update_request import StoredRequest
from kyverno_mp.errors import (
    DependencyError,
    KubeNotFound,
    KubeRefused,
    LeaseLost,
    SnapshotUnusable,
)
from kyverno_mp.limits import BACKGROUND_FINISH_S_MAX
from kyverno_mp.telemetry.families import BACKGROUND_LOOKS
from kyverno_mp.telemetry.log import fields

_log = logging.getLogger(__name__)
EARLY: Final = "early"
LAST: Final = "last"
ENDING: Final = "ending"
LEFT: Final = "left"
_SHOWN: Final = 10


class Looks:
    """The early looks, and those at the end of a term; threads may share it."""

    def __init__(self, dependencies: BackgroundDependencies, runner: Runner) -> None:
        self._dependencies = dependencies
        self._runner = runner
        self._lock = threading.Lock()
        self._last_s: dict[tuple[str, str], float] = {}
        """The last look for each type of requests and policy, within ``ABSENT_S``."""

    def early(self, request: StoredRequest) -> None:
        """Look unless the policy's last look was recently. Raises: outages; LeaseLost.

        SAFETY: anyone may send reviews without proof. So each early look follows 30
        seconds without a look, as each last look follows a wait of 30 seconds.
        """
        if not self._note(request, only_if_due=True):
            return
        try:
            self._look(request, EARLY, lambda: False)
        except (KubeRefused, KubeNotFound) as error:
            # The last look reports it, e.g. a kind that may not be listed.
            _log.info(error.message, extra=fields(policy=request.spec.policy))

    def last(self, request: StoredRequest) -> None:
        """Note that the caller makes the last look of a request."""
        if request.lost_since_ns:
            self._note(request)
            self._count(LAST)

    def finish(self, requests: Sequence[StoredRequest]) -> list[StoredRequest]:
        """Look for all at once, because the pool ends; return those that are left.

        They stay as they are for the next lease holder.
        """
        clock_s = self._dependencies.clock.monotonic_s
        until_s = clock_s() + BACKGROUND_FINISH_S_MAX

        def is_over() -> bool:
            return clock_s() >= until_s or not self._dependencies.holds_lease()

        workers = max(1, self._dependencies.settings.background_workers)
        pool = ThreadPoolExecutor(workers, "background-end")
        looks = {
            pool.submit(self._ends, request, is_over): request for request in requests
        }
        # The last call of a rule may take longer than the process lives.
        ended, _ = wait(looks, timeout=BACKGROUND_FINISH_S_MAX)
        pool.shutdown(wait=False, cancel_futures=True)
        left = [
            request
            for look, request in looks.items()
            if look not in ended or not look.result()
        ]
        if left:
            policies = sorted({request.spec.policy for request in left})
            self._count(LEFT, len(left))
            _log.warning(
                "the pool ends before it has looked for the triggers of %d policies;"
                " the next lease holder looks for them",
                *(len(policies),),
                extra=fields(policies=policies[:_SHOWN]),
            )
        return left

    def _ends(self, request: StoredRequest, is_over: Callable[[], bool]) -> bool:
        """Look; return whether all triggers were processed."""
        if is_over():
            return False
        try:
            self._look(request, ENDING, is_over)
        except (DependencyError, LeaseLost, SnapshotUnusable) as error:
            _log.warning(error.message, extra=fields(policy=request.spec.policy))
            return False
        except Exception:  # noqa: BLE001 - one request must not stop the others
            self._runner.on_defect()
            _log.exception(
                "unexpected error of a look", extra=fields(policy=request.spec.policy)
            )
            return False
        return not is_over()

    def _look(
        self, request: StoredRequest, when: str, is_over: Callable[[], bool]
    ) -> None:
        self._count(when)
        self._runner.look(request, is_over)

    def _note(self, request: StoredRequest, *, only_if_due: bool = False) -> bool:
        """Note a look; return whether the last one of the policy is long ago."""
        now_s = self._dependencies.clock.monotonic_s()
        key = request.spec.request_type, request.spec.policy
        with self._lock:
            self._last_s = {
                other: last_s
                for other, last_s in self._last_s.items()
                if now_s - last_s < ABSENT_S
            }
            is_due = key not in self._last_s
            if is_due or not only_if_due:
                self._last_s[key] = now_s
        return is_due

    def _count(self, when: str, number: int = 1) -> None:
        for _ in range(number):
            self._dependencies.metrics.count(BACKGROUND_LOOKS, (when,))
