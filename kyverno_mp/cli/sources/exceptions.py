"""Load files of policy exceptions.

Room: cli. Takes: paths of files. Gives: Exceptions. Next: apply, testing, explain.
May touch: files named by the user. Source: docs/behaviour/cli 12.
"""

import time
from collections.abc import Sequence

import msgspec

from kyverno_mp.cli.output.warned import warn
from kyverno_mp.cli.shell.errors import CommandFailed, read_error
from kyverno_mp.cli.sources.reading import read_file
from kyverno_mp.errors import InputError
from kyverno_mp.policy.cel_kinds.validating_policy import (
    CelPolicyException,
    decode_cel_exception,
    is_cel_exception,
)
from kyverno_mp.policy.checks.exception import condition_faults
from kyverno_mp.policy.documents.exception import PolicyException
from kyverno_mp.policy.expiry import EXPIRED, INVALID, standing
from kyverno_mp.policy.problems import DocumentInvalid
from kyverno_mp.policy.reading.decode import decode, where_of
from kyverno_mp.policy.reading.json_duplicates import (
    refuse_duplicate_key,
    with_duplicate_keys,
)
from kyverno_mp.policy.reading.load import load
from kyverno_mp.policy.stored import storage_problems
from kyverno_mp.values.jsonvalue import Json


class Exceptions(msgspec.Struct, frozen=True):
    """The exceptions of a run, for rules and for policies in CEL."""

    of_rules: list[PolicyException] = []
    of_cel: list[CelPolicyException] = []

    @property
    def count(self) -> int:
        """Return the number of exceptions."""
        return len(self.of_rules) + len(self.of_cel)


def load_exceptions(paths: Sequence[str], *, are_arguments: bool = True) -> Exceptions:
    """Load exception files; raises CommandFailed, which names the file.

    ``are_arguments``: see ``read_file``.
    """
    exceptions = Exceptions()
    for path in paths:
        try:
            data = read_file(path, is_argument=are_arguments)
            for document in with_duplicate_keys(load(data, file=path), data):
                raw = document.raw
                refuse_duplicate_key(document)
                if is_cel_exception(raw):
                    exception = decode_cel_exception(raw, file=path)
                    _refuse_unstorable(raw, path)
                    exceptions.of_cel.append(exception)
                    continue
                policy = decode(raw, file=path)
                if not isinstance(policy, PolicyException):
                    api, kind = raw.get("apiVersion", ""), raw.get("kind", "")
                    raise CommandFailed(
                        "failed to load exceptions (policy exception type not"
                        f" supported {api} {kind})"
                    )
                _refuse_unstorable(raw, path)
                exceptions.of_rules.append(policy)
        except OSError as error:
            message = f"failed to load exceptions ({read_error(error, path)})"
            raise CommandFailed(message) from error
        except InputError as error:
            raise CommandFailed(f"failed to load exceptions ({error})") from error
    return exceptions


def warn_of_conditions(exceptions: Exceptions) -> None:
    """Print why exceptions of a run exempt nothing, whatever the data.

    A policy in CEL whose exception does not compile is an error instead.
    """
    now_ns = time.time_ns()
    every: list[PolicyException | CelPolicyException]
    every = [*exceptions.of_rules, *exceptions.of_cel]
    for either in every:
        if standing(either.expires_at_ns, now_ns) in (EXPIRED, INVALID):
            faults = [str(problem) for problem in either.expiry_problems()]
            reason = "; ".join(faults) or "it has expired"
            warn(f"exception {either.key}: {reason}; it exempts nothing")
    if not exceptions.of_rules:
        return
    # PERF: the functions of JMESPath are 16 modules.
    from kyverno_mp.policy.checks.rules.calls import call_faults

    for exception in exceptions.of_rules:
        calls = call_faults(exception.spec.raw())
        failing = [f"spec{path}: {reason}" for path, reason in calls]
        for fault in (*condition_faults(exception), *failing):
            warn(
                f"exception {exception.key}: {fault}; it exempts nothing when this"
                " query is evaluated"
            )


def _refuse_unstorable(raw: dict[str, Json], file: str) -> None:
    """Raise DocumentInvalid for metadata that an API server would reject."""
    problems = storage_problems(raw)
    if problems:
        raise DocumentInvalid(problems, where_of(raw, file))
