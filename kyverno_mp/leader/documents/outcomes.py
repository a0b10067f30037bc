"""Compile documents, or reuse their outcomes: the previous leader's, or a helper's.

Room: leader. Takes: StoredDocuments, the exceptions in force, Helpers. Gives: Outcomes.
Next: leader/policy_store.py, leader/compile_helpers.py. May touch: the log.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final, Protocol

from kyverno_mp.errors import InputError, PolicyInvalid, Where
from kyverno_mp.expr.compile_budget import CompileBudget, ExpressionKey, bounded
from kyverno_mp.leader.compile_cache import CompileCache, Compiled, CompileOutcome
from kyverno_mp.leader.documents.compiling import clip, compile_document
from kyverno_mp.leader.documents.in_cel import compile_cel_document
from kyverno_mp.leader.exceptions import AnyException, Naming
from kyverno_mp.leader.stored_document import (
    Key,
    StoredDocument,
    digest_of,
    policy_key,
    refuse_unstorable,
)
from kyverno_mp.limits import PARSED_KEPT_CHARACTERS_MAX, PARSED_KEPT_MAX
from kyverno_mp.policy.cel_kinds.validating_policy import CelPolicyException
from kyverno_mp.policy.documents.exception import PolicyException
from kyverno_mp.telemetry.record import Recorder
from kyverno_mp.values.kubernetes.policy_kinds import SEGMENT_OF

_INTERNAL_ERROR: Final = "leader.defect"
_log = logging.getLogger(__name__)


class Helpers(Protocol):
    """Other processes that compile policies."""

    def outcomes(
        self, files: Mapping[str, bytes], on_progress: Callable[[], None]
    ) -> Iterable[Compiled]:
        """Return the outcomes of policies in the files, as many as possible."""

    def count_in(self, recorder: Recorder) -> None:
        """Count what the helpers do."""

    def close(self) -> None:
        """End the helpers."""


class Outcomes:
    """Compiles policies; any error, also one in our code, affects only its policy."""

    def __init__(
        self,
        allows_exceptions: Callable[[str], bool],
        *,
        force_ignore: bool,
        has_background: bool,
        on_progress: Callable[[], None],
        cache: CompileCache,
    ) -> None:
        self.cache = cache
        self.helpers: Helpers | None = None
        self.compiled_count = 0
        """Policies compiled so far, including rejected ones."""
        self._allows_exceptions = allows_exceptions
        self._force_ignore = force_ignore
        self._has_background = has_background
        self._on_progress = on_progress
        self._parsed: dict[ExpressionKey, tuple[Any, int]] = {}
        """PERF: short expressions, which recur in other policies."""

    def prepare(self, files: Mapping[str, bytes]) -> None:
        """Let the helpers compile what the first files contain, and end them."""
        if self.helpers is not None:
            self.cache.lend(self.helpers.outcomes(files, self._on_progress))
            self.helpers.close()
            self.helpers = None

    def end_preparation(self) -> None:
        """Forget what the helpers compiled, once nothing waits for compilation."""
        self.cache.end_loan()

    def of(self, document: StoredDocument, naming: Naming) -> CompileOutcome:
        """Return the outcome of one policy with the exceptions that name it."""
        flags = b"%d%d" % (self._force_ignore, self._has_background)
        identity = digest_of(b"".join((document.digest, naming.digest, flags)))
        outcome = self.cache.take(identity, document.generation)
        if outcome is not None:
            return outcome
        self.compiled_count += 1
        budget = CompileBudget(self._on_progress)
        budget.earlier = self._parsed
        try:
            with bounded(budget):
                outcome = self._compile(document, naming.exceptions)
            self._keep_parsed(budget)
        except Exception as error:  # noqa: BLE001 - reported in the policy's status
            refused = refusal_of(error, document.key)
            outcome = CompileOutcome(code=refused.code, message=clip(refused.message))
        if outcome.code != _INTERNAL_ERROR:
            self.cache.keep(identity, outcome, budget.all_steps)
        return outcome

    def _keep_parsed(self, budget: CompileBudget) -> None:
        short = {
            key: parsed
            for key, parsed in budget.parsed.items()
            if len(key[0]) <= PARSED_KEPT_CHARACTERS_MAX
        }
        if len(self._parsed) + len(short) > PARSED_KEPT_MAX:
            self._parsed.clear()
        self._parsed |= dict(islice(short.items(), PARSED_KEPT_MAX))

    def _compile(
        self, document: StoredDocument, exceptions: Sequence[AnyException]
    ) -> CompileOutcome:
        """Compile one policy with the exceptions in force. Raises: InputError."""
        raw = document.raw()
        refuse_unstorable(raw, document.key)
        if document.key[0] in SEGMENT_OF:
            return compile_cel_document(
                document,
                raw,
                self._cel_exceptions(document.key, exceptions),
                force_ignore=self._force_ignore,
                has_background=self._has_background,
            )
        return compile_document(
            document,
            raw,
            [one for one in exceptions if isinstance(one, PolicyException)],
            force_ignore=self._force_ignore,
            has_background=self._has_background,
        )

    def _cel_exceptions(
        self, key: Key, exceptions: Sequence[AnyException]
    ) -> list[CelPolicyException]:
        """Return the exceptions in CEL that may name the policy.

        A namespaced policy can be exempted only from its own namespace, or from the one
        that the operator has chosen. Other tenants cannot disable it.
        """
        namespace = key[1]
        limited = bool(namespace) and self._allows_exceptions(namespace)
        return [
            exception
            for exception in exceptions
            if isinstance(exception, CelPolicyException)
            and not (limited and exception.metadata.namespace != namespace)
        ]


def refusal_of(error: Exception, key: Key) -> InputError:
    """Return why a document is rejected; an internal error is also a reason."""
    if isinstance(error, InputError):
        return error
    _log.error("internal error while reading %s", "/".join(key), exc_info=error)
    message = f"cannot be read or compiled: {type(error).__name__}"
    return PolicyInvalid(_INTERNAL_ERROR, message, Where(policy=policy_key(key)))
