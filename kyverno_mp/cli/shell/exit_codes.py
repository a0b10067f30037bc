"""Define the exit codes of every command, for help pages, documents and tests.

Room: cli. Gives: EVERYWHERE, EXITS; cli/main.py uses these codes.
Next: cli/commands/declare.py.
Source: docs/behaviour/cli 1.
"""

from typing import Final, NamedTuple

OK: Final = 0
FAILED: Final = 1
INPUT: Final = 2
STATE: Final = 3
INTERNAL_ERROR: Final = 70
INTERRUPTED: Final = 130


class Exit(NamedTuple):
    """One exit code with its meaning; ``code`` may be the name of a flag."""

    code: int | str
    meaning: str


EVERYWHERE: Final = (
    Exit(OK, "success"),
    Exit(FAILED, "violations, failed tests, a wrong flag, or a command that failed"),
    Exit(INPUT, "a setting, a kubeconfig or input that cannot be used"),
    Exit(STATE, "the cluster, a registry or this machine fails"),
    Exit(INTERNAL_ERROR, "an internal error of kyverno-mp"),
    Exit(INTERRUPTED, "interrupted"),
)
"""Meanings of codes that all commands share."""

_LAST: Final = EVERYWHERE[-2:]
_FLAG: Final = "a wrong flag"
_UNWRITTEN: Final = "a wrong flag or value, or a file that cannot be written"
_UNREAD: Final = "a wrong flag, or a path that cannot be read"


def _exits(*exits: tuple[int | str, str]) -> tuple[Exit, ...]:
    return (*(Exit(code, meaning) for code, meaning in exits), *_LAST)


_CLUSTER: Final = (
    (INPUT, "no kubeconfig, or a context that it does not have"),
    (STATE, "the cluster cannot be reached or rejects the request"),
)
_WRITES: Final = _exits((OK, "the file is written"), (FAILED, _UNWRITTEN))

_SERVES: Final = _exits(
    (OK, "ended by SIGTERM or SIGINT"),
    (FAILED, "a wrong flag, or a process that cannot run"),
    (INPUT, "a setting that cannot be used"),
    (STATE, "this machine or the cluster does not allow the start"),
)

EXITS: Final = {
    "": EVERYWHERE,
    "apply": _exits(
        (OK, "no rule failed; a policy file that is named directly may be invalid"),
        (
            FAILED,
            (
                "a rule failed or ended in an error, this version does not evaluate a"
                " policy, a file or folder cannot be used, or a flag is wrong"
            ),
        ),
        ("--warn-exit-code", "rules gave warnings only"),
        (INPUT, "no kubeconfig, or a context that it does not have"),
        (STATE, "the cluster cannot be reached or rejects the request"),
    ),
    "merge": _exits(
        (OK, "no rule failed"),
        (FAILED, "a rule failed or ended in an error, or a file cannot be read"),
        ("--warn-exit-code", "of the shards: rules gave warnings only"),
        (INPUT, "a shard is lost or incomplete, or belongs to another run"),
    ),
    "test": _exits(
        (OK, "all results are as expected"),
        (
            FAILED,
            (
                "a result is not as expected, a test or a folder cannot be read,"
                " a test was skipped (unless --allow-skipped), or a flag is wrong"
            ),
        ),
    ),
    "lint": _exits(
        (OK, "no errors; there may be warnings (unless --strict) and notes"),
        (FAILED, "errors, with --strict also warnings; a path that cannot be read"),
    ),
    "bench": _exits(
        (OK, "measured"),
        (FAILED, "a policy that cannot be used, a path that cannot be read"),
        (INPUT, "no kubeconfig"),
        (STATE, "the cluster cannot be reached or rejects the request"),
    ),
    "explain": _exits(
        (OK, "every policy is explained"),
        (FAILED, "a policy is rejected or not evaluated, or a path cannot be read"),
    ),
    "report": _exits(
        (OK, "the results are shown, and none of them is one of --fail-on"),
        (
            FAILED,
            (
                "a result of --fail-on, a path that cannot be read or has no reports,"
                " a file that cannot be written, or a wrong flag"
            ),
        ),
        (INPUT, "a report that cannot be understood, or no kubeconfig"),
        (STATE, "the cluster cannot be reached or rejects the request"),
    ),
    "replay": _exits(
        (OK, "no verdict changes, or none of the kinds that --fail-on names"),
        (
            FAILED,
            (
                "a verdict changes or is not decidable, a policy cannot be used, a"
                " path cannot be read or has no reviews, or a wrong flag"
            ),
        ),
        (INPUT, "a file that is not a recording, or is damaged"),
    ),
    "jp": _exits((OK, "the help is printed"), (FAILED, "an unknown command")),
    "jp query": _exits(
        (OK, "the results are printed"),
        (FAILED, "a query that is invalid or fails, a file that cannot be read"),
        (INPUT, "input that is neither JSON nor YAML"),
    ),
    "jp parse": _exits(
        (OK, "the tree is printed"),
        (FAILED, "an expression that is invalid, a file that cannot be read"),
        (INPUT, "a file that is not UTF-8"),
    ),
    "jp function": _exits((OK, "the functions are printed"), (FAILED, _FLAG)),
    "json": _exits((OK, "the help is printed"), (FAILED, "an unknown command")),
    "json scan": _exits(
        (OK, "the payload was scanned, even if rules fail"),
        (FAILED, "a payload, a policy or a flag that cannot be used"),
        (INPUT, "a payload or a policy file that is neither JSON nor YAML"),
    ),
    "fix": _exits((OK, "the help is printed"), (FAILED, "an unknown command")),
    "fix policy": _exits(
        (OK, "the files were checked, even if they need changes"),
        (FAILED, f"{_UNREAD}; with --to also a policy that is not rewritten"),
    ),
    "fix test": _exits(
        (OK, "the files were checked, even if they need changes"),
        (FAILED, _UNREAD),
    ),
    "create": _exits((OK, "the help is printed"), (FAILED, "an unknown command")),
    "create exception": _WRITES,
    "create metrics-config": _WRITES,
    "create test": _WRITES,
    "create user-info": _WRITES,
    "create values": _WRITES,
    "create cluster-role": _WRITES,
    "docs": _exits((OK, "the pages are written"), (FAILED, _UNWRITTEN)),
    "completion": _exits(
        (OK, "the script is printed"), (FAILED, "a shell that is not supported")
    ),
    "oci": _exits((OK, "the help is printed"), (FAILED, "an unknown command")),
    "oci push": _exits(
        (OK, "the policies are in the registry"),
        (FAILED, "a flag, a file or a policy that cannot be used"),
        (INPUT, "an image reference that cannot be used"),
        (STATE, "the registry cannot be reached or rejects the request"),
    ),
    "oci pull": _exits(
        (OK, "the policies are in the folder"),
        (FAILED, "a flag, a folder or a policy of the image that cannot be used"),
        (INPUT, "an image reference that cannot be used"),
        (STATE, "the registry cannot be reached or rejects the request"),
    ),
    "images": _exits((OK, "the help is printed"), (FAILED, "an unknown command")),
    "images explain": _exits(
        (OK, "every block that applies to the image passes or skips it"),
        (FAILED, "a block fails or ends in an error, or a flag or a policy is wrong"),
        (INPUT, "a folder that is not an image layout"),
    ),
    "cleanup": _exits(
        (OK, "the objects are shown"),
        (
            FAILED,
            (
                "an object could not be listed or evaluated, a policy does not exist,"
                " or a flag is wrong"
            ),
        ),
        (INPUT, "a policy that cannot be used, or no kubeconfig"),
        (STATE, "the cluster cannot be reached or rejects the request"),
    ),
    "generate": _exits(
        (OK, "the changes are shown"),
        (
            FAILED,
            (
                "a trigger could not be listed or evaluated, a policy does not exist or"
                " has no generate rule, or a flag is wrong"
            ),
        ),
        (INPUT, "a policy that cannot be used, or no kubeconfig"),
        (STATE, "the cluster cannot be reached or rejects the request"),
    ),
    "facts": _exits(
        (OK, "the facts are written; standard error has what is left out"),
        (FAILED, "a path that cannot be read or written, or a wrong flag"),
        (INPUT, "no kubeconfig, or a policy file that cannot be parsed"),
        (STATE, "the cluster cannot be reached or rejects the request"),
    ),
    "authors": _exits(
        (OK, "no known author lacks a right"),
        (FAILED, "an author lacks a right, or a flag is wrong"),
        (INPUT, "no kubeconfig, or a context that it does not have"),
        (STATE, "the cluster cannot be reached or rejects the request"),
    ),
    "rollout": _exits((OK, "the help is printed"), (FAILED, "an unknown command")),
    "rollout status": _exits(
        (OK, "the rollouts are listed"), (FAILED, _FLAG), *_CLUSTER
    ),
    **{
        f"rollout {action}": _exits(
            (OK, "the state of the rollout is changed"),
            (
                FAILED,
                (
                    "the policy is not enforced gradually, its rollout is in another"
                    " phase, or a flag is wrong"
                ),
            ),
            *_CLUSTER,
        )
        for action in ("pause", "resume", "abort")
    },
    "inventory": _exits(
        (OK, "the policies are listed"),
        (FAILED, "a file cannot be used, or a flag is wrong"),
        (INPUT, "no kubeconfig, or a context that it does not have"),
        (STATE, "the cluster cannot be reached or rejects the request"),
    ),
    "migrate": _exits(
        (OK, "all objects are stored in the storage version"),
        (FAILED, "an object could not be written, or a flag is wrong"),
        (INPUT, "no kubeconfig, or a context that it does not have"),
        (STATE, "the cluster cannot be reached or rejects the request"),
    ),
    "snapshot": _exits((OK, "the help is printed"), (FAILED, "an unknown command")),
    "snapshot inspect": _exits(
        (OK, "the file is sound"),
        (FAILED, "a file that cannot be read, or a wrong flag"),
        (STATE, "the file is damaged or of another version"),
    ),
    "crds": _exits((OK, "the definitions are written"), (FAILED, _UNWRITTEN)),
    "serve": _SERVES,
    "serve authz": _SERVES,
    "help": _exits((OK, "always, also for an unknown topic")),
    "version": _exits((OK, "the version is printed"), (FAILED, _FLAG)),
}
"""Command -> its codes, for the help pages and the table in the documentation."""


def table() -> str:
    """Return the codes of all commands as a markdown table."""
    rows = [f"| {code} | {meaning} |" for code, meaning in EVERYWHERE]
    flag = "| `--warn-exit-code` | of `apply`: rules gave warnings only |"
    return "\n".join(
        ["| exit code | meaning |", "|---|---|", *rows[:2], flag, *rows[2:]]
    )
