"""Load policy files into policies and exceptions.

Room: cli. Takes: paths (files, folders, ``-``). Gives: PolicySet: valid policies,
rejected policies with all their problems, policies that this version does not evaluate.
May touch: files named by the user, standard input and error. Next: cli/apply/evaluate.
Source: docs/behaviour/cli 4.
"""

import re
import stat
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import structs

from kyverno_mp.cli.output.progress import Advance, progress
from kyverno_mp.cli.output.warned import warn
from kyverno_mp.cli.shell.errors import read_error
from kyverno_mp.cli.sources.folders import YAML, files_below, may_be_folder
from kyverno_mp.cli.sources.git import ANONYMOUS, GitAccess, cloned, is_git, yaml_files
from kyverno_mp.cli.sources.policy_set import PolicySet
from kyverno_mp.cli.sources.reading import read_file, read_standard_input
from kyverno_mp.errors import InputError, PolicyInvalid, Where
from kyverno_mp.policy.cel_kinds.admission_policy import (
    MutatingAdmissionPolicy,
    ValidatingAdmissionPolicy,
    decode_admission_policy,
    is_admission_policy,
)
from kyverno_mp.policy.cel_kinds.validating_policy import (
    CelPolicyException,
    is_authorization_policy,
)
from kyverno_mp.policy.documents.cleanup_policy import AnyCleanupPolicy
from kyverno_mp.policy.documents.cluster_policy import AnyPolicy
from kyverno_mp.policy.documents.exception import PolicyException
from kyverno_mp.policy.problems import DocumentInvalid, Problem
from kyverno_mp.policy.reading.decode import decode, where_of
from kyverno_mp.policy.reading.free_form import GO_MISFIT, go_misfits, ignored_names
from kyverno_mp.policy.reading.json_duplicates import (
    KEY_TWICE,
    refuses_duplicate_keys,
    with_duplicate_keys,
)
from kyverno_mp.policy.reading.load import RawDocument, load
from kyverno_mp.policy.stored import storage_problems
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.built_in_kinds import BUILT_IN
from kyverno_mp.values.kubernetes.policy_kinds import rule_type_of

_EXCEPTION_VERSION = "/v1beta1"
_POLICY_GROUPS = ("policies.kyverno.io/", "admissionregistration.k8s.io/")

_INVALIDATING = frozenset({"policy.unknown_field", GO_MISFIT})
"""Problems of one document that invalidate its whole path."""

_NO_POLICY: Final = frozenset({"policy.kind", "policy.unknown_kind"})
"""Codes of a document that is no policy at all."""

_SEPARATOR: Final = re.compile(rb"(?m)^---[ \t\r]*$")


def load_policies(
    paths: Sequence[str], git: GitAccess = ANONYMOUS, *, are_arguments: bool = True
) -> PolicySet:
    """Load all paths; record failures and continue with the other paths.

    URLs are git repositories (docs/behaviour/cli 4); raises CommandFailed if a
    repository cannot be cloned. ``are_arguments``: see ``read_file``.
    """
    with progress("Reading policies", 0, "files") as advance:
        policy_set = _load(paths, git, advance, are_arguments=are_arguments)
    for warning in policy_set.warnings:
        warn(warning)
    return policy_set


def stored_policies(objects: Iterable[dict[str, Json]]) -> PolicySet:
    """Decode a cluster's stored policies; record policies that cannot be decoded."""
    policy_set = PolicySet()
    for raw in objects:
        name = f"{raw['kind']} {raw['metadata']['name']}"
        try:
            _add_document(policy_set, raw, name, is_item=True)
        except PolicyInvalid as error:
            policy_set.failed_paths.append((name, _reason(name, error)))
    return policy_set


def _load(
    paths: Sequence[str], git: GitAccess, advance: Advance, *, are_arguments: bool
) -> PolicySet:
    policy_set = PolicySet()
    for path in paths:
        if is_git(path):
            with cloned(path, git) as folder:
                _add_clone(policy_set, folder, path)
            continue
        part = PolicySet()
        try:
            misplaced: list[DocumentInvalid] = []
            for data, file in sources(path, is_argument=are_arguments):
                misplaced += _add_file(part, data, file)
                advance(1)
            if misplaced and not part.has_policies:
                raise misplaced[0]
        except (InputError, OSError) as error:
            policy_set.failed_paths.append((path, _reason(path, error)))
            message = f"failed to load file {path}: {error}"
            if isinstance(error, OSError):
                message = read_error(error, path).replace("open ", "stat ", 1)
                if may_be_folder(path):
                    policy_set.unread.append(str(error.filename or path))
            elif Path(path).is_dir():
                # All policies of the folder are missing, so the run must not succeed.
                policy_set.unread.append(error.where.file or path)
            policy_set.lost_paths.append(message)
            continue
        if part == PolicySet():
            part.silent.append((path, "no policies"))
        _add(policy_set, part)
    return policy_set


def _reason(path: str, error: InputError | OSError, above: int = 0) -> str:
    """Describe an error and its position, with the file if ``path`` is a folder.

    ``above``: number of lines before the parsed part of the file.
    """
    if isinstance(error, OSError):
        file = str(error.filename or path)
        reason = (error.strerror or str(error)).lower()
        return reason if file == path else f"{file}: {reason}"
    position = error.where
    places = [position.file if position.file != path else ""]
    if position.policy:
        places.append(f"policy {position.policy}")
    if position.line:
        places.append(f"line {position.line + above}, column {position.column}")
    return ": ".join(filter(None, [*places, f"{error.message} [{error.code}]"]))


def _add(policy_set: PolicySet, part: PolicySet) -> None:
    for name in part.__struct_fields__:
        more = getattr(part, name)
        if type(more) is dict:
            getattr(policy_set, name).update(more)
        else:
            getattr(policy_set, name).extend(more)


def _add_clone(policy_set: PolicySet, folder: Path, url: str) -> None:
    """Add a repository. KYVERNO: files that are not policies are silently skipped."""
    for file in yaml_files(folder):
        part = PolicySet()
        name = f"{url}:{file.relative_to(folder).as_posix()}"
        try:
            _add_file(part, read_file(file), name)
        except (InputError, OSError) as error:
            if not _is_no_policy(error):
                policy_set.silent.append((name, _reason(name, error)))
            continue
        _add(policy_set, part)


def _is_no_policy(error: InputError | OSError) -> bool:
    return isinstance(error, InputError) and error.code in _NO_POLICY


def sources(path: str, *, is_argument: bool = True) -> Iterable[tuple[bytes, str]]:
    """Yield text and name of each file of a path; raises OSError.

    ``is_argument``: see ``read_file``. A pipe can have any name, e.g. ``/dev/fd/63``.
    """
    if path == "-":
        if not sys.stdin.isatty():
            yield read_standard_input(), "-"
        return
    root = Path(path)
    mode = root.stat().st_mode
    if stat.S_ISDIR(mode):
        for child in files_below(root):
            yield read_file(child), str(child)
    elif root.suffix in YAML or not stat.S_ISREG(mode):
        yield read_file(root, is_argument=is_argument), str(root)


def _add_file(policy_set: PolicySet, data: bytes, file: str) -> list[DocumentInvalid]:
    """Add the documents of a file; return the errors of documents of built-in kinds.

    KYVERNO: a document that violates its schema is skipped alone. An unknown field
    invalidates the whole path (policy/load.go); there, so does any other kind.
    """
    misplaced = []
    for document in _documents(policy_set, data, file):
        raw, is_item = document.raw, document.item >= 0
        if not isinstance(raw, dict) or not (raw.get("apiVersion") and raw.get("kind")):
            policy_set.failed_paths.append((file, "a document that is not an object"))
            _note_foreign(policy_set, raw)
            continue
        try:
            _refuse_misfits(document)
            _add_document(policy_set, raw, file, is_item=is_item)
        except DocumentInvalid as error:
            # KYVERNO: an item of a List does not invalidate the path.
            is_alone = document.item < 0
            if is_alone and any(
                problem.code in _INVALIDATING for problem in error.problems
            ):
                raise
            policy_set.failed_paths.append((file, _reason(file, error)))
            if error.code == KEY_TWICE:
                policy_set.unread.append(file)
            _note_foreign(policy_set, raw)
            if is_alone and error.code == "policy.unknown_kind" and _is_built_in(raw):
                misplaced.append(error)
    return misplaced


def _note_foreign(policy_set: PolicySet, raw: Json) -> None:
    from kyverno_mp.cli.sources.foreign import foreign_kind  # rarely needed

    if foreign_kind(raw):
        policy_set.foreign.append(policy_set.failed_paths[-1])


def _is_built_in(raw: dict[str, Json]) -> bool:
    api_version, kind = raw["apiVersion"], raw["kind"]
    return any(
        built_in.api_version == api_version and built_in.kind == kind
        for built_in in BUILT_IN
    )


def _refuse_misfits(document: RawDocument) -> None:
    """Raise DocumentInvalid for a document that violates the schema of its kind.

    KYVERNO: such a document is ignored, but a policy that the checks reject counts as
    skipped, which is an error. Items of a List are not validated against schemas.
    """
    raw = document.raw
    problems: tuple[Problem, ...] = ()
    if document.item >= 0:
        return
    if str(raw["apiVersion"]).startswith("kyverno.io/"):
        # Imported late: only runs that load such policies need the schemas.
        from kyverno_mp.policy.schema import kyverno_problems

        problems = kyverno_problems(raw) or tuple(go_misfits(raw))
    if not problems and document.duplicate_key and refuses_duplicate_keys(raw):
        message = f'key "{document.duplicate_key}" already set in map'
        problems = (Problem(KEY_TWICE, "", "", message),)
    if problems:
        raise DocumentInvalid(problems, where_of(raw, document.file))


def _documents(policy_set: PolicySet, data: bytes, file: str) -> list[RawDocument]:
    """Read a file; if parts of it are not YAML, return the other documents."""
    try:
        return with_duplicate_keys(load(data, file=file), data)
    except PolicyInvalid as error:
        parts = _SEPARATOR.split(data)
        if error.code != "policy.syntax" or len(parts) == 1:
            raise
    documents: list[RawDocument] = []
    above = 0
    for part in parts:
        try:
            loaded = with_duplicate_keys(load(part, file=file), part)
        except PolicyInvalid as error:
            policy_set.failed_paths.append((file, _reason(file, error, above)))
            loaded = []
        documents += [
            structs.replace(document, line=document.line + above) for document in loaded
        ]
        above += part.count(b"\n")
    return documents


def _add_document(
    policy_set: PolicySet, raw: dict[str, Json], file: str, *, is_item: bool
) -> None:
    """Add one document. KYVERNO: metadata of a List's items is not validated."""
    api, kind = str(raw.get("apiVersion", "")), str(raw.get("kind", ""))
    if is_admission_policy(raw):
        _add_admission(policy_set, raw, file)
        return
    if api.startswith(_POLICY_GROUPS):
        _refuse_invalid_cel(raw, file)
        _add_cel(policy_set, raw, file, is_item=is_item)
        return
    document = decode(raw, file=file)
    if not is_item:
        _refuse_unstorable(raw, file)
    if isinstance(document, PolicyException):
        policy_set.exceptions.append(document)
    elif isinstance(document, AnyPolicy):
        policy_set.documents.append(document)
        policy_set.raw[document.metadata.name] = raw
        policy_set.warnings += ignored_names(raw, file)
    elif isinstance(document, AnyCleanupPolicy):
        policy_set.cleanups.append(document)
    else:
        raise PolicyInvalid("policy.kind", f"policy type not supported {api} {kind}")


def _refuse_unstorable(raw: dict[str, Json], file: str) -> None:
    """Raise DocumentInvalid for a document that no API server would store."""
    problems = storage_problems(raw)
    if problems:
        raise DocumentInvalid(problems, where_of(raw, file))


def _refuse_invalid_cel(raw: dict[str, Json], file: str) -> None:
    """Raise DocumentInvalid for a policy in CEL that violates its schema."""
    # Imported late: only runs with such a policy need the schemas.
    from kyverno_mp.policy.schema import is_cel_kind, schema_problems

    problems = schema_problems(raw) if is_cel_kind(raw) else ()
    if problems:
        raise DocumentInvalid(problems, Where(file=file))


def _add_admission(policy_set: PolicySet, raw: dict[str, Json], file: str) -> None:
    document = decode_admission_policy(raw, file=file)
    _refuse_unstorable(raw, file)
    if isinstance(document, ValidatingAdmissionPolicy | MutatingAdmissionPolicy):
        policy_set.admission.append(document)
        policy_set.raw[document.metadata.name] = raw
    else:
        policy_set.bindings.append(document)


def _add_cel(
    policy_set: PolicySet, raw: dict[str, Json], file: str, *, is_item: bool
) -> None:
    """Add a policy in CEL, or a PolicyException for such policies."""
    # PERF: only runs with such a policy need these modules.
    from kyverno_mp.policy.cel_kinds.served import decode_cel_document, is_cel_document

    if not is_cel_document(raw):
        api, kind = raw.get("apiVersion", ""), raw.get("kind", "")
        raise PolicyInvalid("policy.kind", f"policy type not supported {api} {kind}")
    document = decode_cel_document(raw, file=file)
    if not is_item:
        _refuse_unstorable(raw, file)
    if isinstance(document, CelPolicyException):
        if not document.api_version.endswith(_EXCEPTION_VERSION):
            # KYVERNO: docs/behaviour/cli 4; files of ``--exception`` can have any
            # version.
            message = (
                f"policy type not supported {document.api_version} {document.kind}"
            )
            raise PolicyInvalid("policy.kind", message)
        policy_set.cel_exceptions.append(document)
        return
    of_type: dict[str, list[Any]] = {
        "validate": policy_set.validating,
        "verifyImages": policy_set.images,
    }
    if is_authorization_policy(raw):
        of_type["validate"] = policy_set.authorization
    of_type.get(rule_type_of(document.kind), policy_set.cel).append(document)
    policy_set.raw[document.metadata.name] = raw
