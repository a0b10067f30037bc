"""Know the permissions that an account lacks for what it was told to do.

Room: kube. Takes: rejections of calls, permissions that a check has found missing.
Gives: MissingRights. Next: kube/rest.py reports each rejection, pool/coordinator.py and
kube/shared_rights.py show the result in health and metrics. May touch: the clock.
Source: Kubernetes authorization (messages of denied requests); docs/operate.md.

Every call of an account passes here, so no room has to remember to report a missing
permission. A rejection counts until the same call succeeds, or has not been tried for
RIGHTS_REFUSED_S.
"""

import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from kyverno_mp.kube.queries import right_of
from kyverno_mp.limits import RIGHTS_MISSING_MAX, RIGHTS_REFUSED_S, RIGHTS_SHOWN_MAX
from kyverno_mp.values.kubernetes.grants import grant_commands

ADMISSION_ACCOUNT: Final = "kyverno-admission-controller"
_DENIED: Final = re.compile(
    r'(?:\S+ )?(?:"[^"]*" )?is forbidden: User "[^"]+" cannot ([a-z]+) resource "'
)
"""K8S: the authorizer's message; quotas, admission plug-ins and namespaces that are
being deleted also answer 403."""
_FORBIDDEN: Final = 403
_FAILED: Final = 400
_NAMESPACES_SHOWN: Final = 3


class Right(NamedTuple):
    """A permission. ``resource``: plural and group, such as ``deployments.apps``."""

    verb: str
    resource: str
    namespace: str = ""


class MissingRights:
    """The missing permissions of one account; thread-safe."""

    def __init__(
        self, account: str = "", monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        """``account``: the name of the ServiceAccount."""
        self.account = account
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._refused: dict[Right, float] = {}
        """Rejected calls, with the time of the last one; the oldest is first."""
        self._checked: dict[str, Mapping[Right, str]] = {}
        self._shown: set[tuple[str, str]] = set()

    def heard(
        self,
        method: str,
        path: str,
        query: Sequence[tuple[str, str]],
        status: int,
        message: str,
    ) -> None:
        """Take the answer to a call. ``message``: of a Status, if it failed."""
        if status != _FORBIDDEN and (status >= _FAILED or not self._refused):
            return
        verbs, resource, namespace = right_of(method, path, query)
        if not resource:
            return
        with self._lock:
            if status != _FORBIDDEN:
                for verb in verbs:
                    self._refused.pop(Right(verb, resource, namespace), None)
                return
            denied = _DENIED.match(message)
            if denied is None:
                return
            right = Right(denied[1], resource, namespace)
            self._refused.pop(right, None)
            self._refused[right] = self._monotonic_s()
            if len(self._refused) > RIGHTS_MISSING_MAX:
                del self._refused[next(iter(self._refused))]

    def hold(self, source: str, rights: Mapping[Right, str]) -> None:
        """Replace the permissions that a check found missing, each with the effect."""
        with self._lock:
            self._checked[source] = dict(rights)

    def missing(self) -> dict[Right, str]:
        """Return what is missing now, each with its effect, "" = unknown."""
        first_s = self._monotonic_s() - RIGHTS_REFUSED_S
        with self._lock:
            self._refused = {
                right: at_s for right, at_s in self._refused.items() if at_s > first_s
            }
            missing = dict.fromkeys(self._refused, "")
            for rights in self._checked.values():
                missing.update(rights)
        return missing

    def problems(self) -> list[str]:
        """Return one text for each missing permission, with the way to grant it."""
        problems = [*self.texts().values()]
        if len(problems) > RIGHTS_SHOWN_MAX:
            more = len(problems) - RIGHTS_SHOWN_MAX
            problems[RIGHTS_SHOWN_MAX:] = [f"{more} more permissions are missing"]
        return problems

    def texts(self) -> dict[tuple[str, str], str]:
        """Return the texts of all, by resource and verb."""
        grouped: dict[tuple[str, str], list[tuple[str, str]]] = {}
        for right, effect in sorted(self.missing().items()):
            group = grouped.setdefault((right.resource, right.verb), [])
            group.append((right.namespace, effect))
        return {
            (resource, verb): self._text(verb, resource, parts)
            for (resource, verb), parts in grouped.items()
        }

    def gauges(self) -> Iterable[tuple[tuple[str, str], float]]:
        """Yield (verb, resource) and 1, or 0 for those no longer missing."""
        now = {(right.verb, right.resource) for right in self.missing()}
        granted, self._shown = self._shown - now, now
        yield from ((labels, 1.0) for labels in now)
        yield from ((labels, 0.0) for labels in granted)

    def _text(self, verb: str, resource: str, parts: list[tuple[str, str]]) -> str:
        namespaces = [namespace for namespace, _ in parts if namespace]
        suffix = ""
        if len(namespaces) == len(parts):
            suffix = f" in {', '.join(namespaces[:_NAMESPACES_SHOWN])}"
            more = len(namespaces) - _NAMESPACES_SHOWN
            suffix += f" and {more} more namespaces" if more > 0 else ""
        effects = "; ".join(dict.fromkeys(effect for _, effect in parts if effect))
        component = self.account.removeprefix("kyverno-").removesuffix("-controller")
        commands = " && ".join(grant_commands(component, resource, (verb,)))
        return (
            f"{self.account} may not {verb} {resource}{suffix}"
            f"{f' ({effects})' if effects else ''}; to grant it: {commands}"
        )
