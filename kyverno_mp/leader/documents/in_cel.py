"""Compile one stored policy of policies.kyverno.io, of any kind.

Room: leader. Takes: a StoredDocument, the exceptions that may name it. Gives:
CompileOutcome. Next: leader/policy_store.py, which also handles the errors.
Source: docs/behaviour/cel 4, 6, 7, 10; docs/behaviour/controllers 13.

All kinds take the same steps; a row of the compiler has what differs. Workers find the
requests that trigger a GeneratingPolicy; the background pool reads and evaluates the
policy itself, with its exceptions.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from kyverno_mp.compiler.cel_kinds.index import encode_cel_policy
from kyverno_mp.compiler.cel_kinds.kinds import CompiledKind, row_of
from kyverno_mp.compiler.cel_kinds.review import review
from kyverno_mp.compiler.unlinked import failing_on_payloads
from kyverno_mp.errors import PolicyInvalid, Where
from kyverno_mp.ir.authorization import AuthorizationPolicyIR
from kyverno_mp.ir.cel_policies import GeneratingPolicyIR, MutatingPolicyIR
from kyverno_mp.ir.image_policies import ImageValidatingPolicyIR
from kyverno_mp.ir.index import EncodedPolicy
from kyverno_mp.ir.rules import PolicyIR
from kyverno_mp.ir.validating_policy import ValidatingPolicyIR
from kyverno_mp.leader.compile_cache import CompileOutcome
from kyverno_mp.leader.documents.compiling import clip
from kyverno_mp.leader.exceptions import in_namespace
from kyverno_mp.leader.servable import (
    NO_POOL,
    UNSUPPORTED,
    UNSUPPORTED_KIND,
    left_to_api_server,
)
from kyverno_mp.leader.status import PolicyStatus, RuleStatus
from kyverno_mp.leader.stored_document import Key, StoredDocument
from kyverno_mp.policy.cel_kinds.generated import is_generated
from kyverno_mp.policy.cel_kinds.served import (
    AnyServedPolicy,
    decode_cel_document,
    decode_served,
    evaluation_mode_of,
)
from kyverno_mp.policy.cel_kinds.validating_policy import (
    CEL_EXCEPTION,
    JSON_MODE,
    AuthorizationPolicy,
    CelPolicyException,
)
from kyverno_mp.policy.problems import DocumentInvalid
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.policy_kinds import (
    OF_AUTHORIZERS,
)

_AnyIR = (
    ValidatingPolicyIR | MutatingPolicyIR | GeneratingPolicyIR | ImageValidatingPolicyIR
)
_JSON_ONLY: Final = (
    "evaluation mode JSON: the policy concerns payloads, and no request to the API"
    " server is one"
)


def compile_cel_document(
    document: StoredDocument,
    raw: Json,
    exceptions: Sequence[CelPolicyException],
    *,
    force_ignore: bool,
    has_background: bool,
) -> CompileOutcome:
    """Read, check, compile and encode one policy. Raises: InputError.

    An exception that is not usable exempts nothing, and the status reports it.
    """
    if document.authorizes:
        return _compile_authorization(
            document, raw, exceptions, force_ignore=force_ignore
        )
    row = row_of(document.key[0])
    decoded = decode_served(in_namespace(raw, document.key[1]), file=document.file)
    assert not isinstance(decoded, CelPolicyException)
    _check(decoded)
    assert row.publish is not None
    compiled, unusable = row.publish(decoded, exceptions, row.exception_names)
    missing = "" if has_background else row.missing(compiled)
    if missing:
        raise PolicyInvalid(UNSUPPORTED, f"{missing} {NO_POOL}")
    is_native = document.is_from_cluster() and is_generated(decoded.status)
    if row.kind.native and is_native:
        compiled = left_to_api_server(compiled)
    if force_ignore and row.denies:
        ignoring = msgspec.structs.replace(compiled.policy, failure_policy="Ignore")
        compiled = msgspec.structs.replace(compiled, policy=ignoring)
    warnings = [
        f"PolicyException {key} is ignored: {reason}" for key, reason in unusable
    ]
    if getattr(compiled, "is_json", False):
        warnings.append(_JSON_ONLY)
    rule_count = len(getattr(decoded.spec, row.rules))
    status = _status_of(document, row, compiled, warnings, rule_count)
    return CompileOutcome(status, encode_cel_policy(compiled))


def _compile_authorization(
    document: StoredDocument,
    raw: Json,
    exceptions: Sequence[CelPolicyException],
    *,
    force_ignore: bool,
) -> CompileOutcome:
    """Read, compile and encode a policy of an authorizer. Raises: InputError."""
    # Imported late: other services do not load these modes.
    from kyverno_mp.compiler.cel_kinds.authorization import compile_authorization_with

    decoded = decode_cel_document(raw, file=document.file)
    assert isinstance(decoded, AuthorizationPolicy)
    compiled, unusable = compile_authorization_with(decoded, exceptions)
    if force_ignore:
        ignoring = msgspec.structs.replace(compiled.policy, failure_policy="Ignore")
        compiled = msgspec.structs.replace(compiled, policy=ignoring)
    warnings = [
        f"PolicyException {key} is ignored: {reason}" for key, reason in unusable
    ]
    kind, namespace, name = document.key
    status = PolicyStatus(
        kind=kind,
        namespace=namespace,
        name=name,
        ready=True,
        message=clip("; ".join(("Ready", *warnings))),
        rule_count=len(compiled.validations),
        mode="enforce",
        background=False,
        rules=(RuleStatus(name, OF_AUTHORIZERS.rule_type),),
        generation=document.generation,
    )
    return CompileOutcome(status, encode_cel_policy(compiled))


class Modes(NamedTuple):
    """The evaluation modes besides Kubernetes by which a service decides."""

    authorizes: str = ""
    """Of an authorizer: HTTP or Envoy."""
    payloads: bool = False
    """JSON."""

    def use(self, document: StoredDocument) -> bool:
        """Return whether the service uses a document.

        The webhook also has those that it does not use, to report them. An authorizer
        judges payloads by policies of the kind of its other ones.
        """
        if not self.authorizes or document.authorizes == self.authorizes:
            return True
        if self.payloads and document.judges_payloads:
            return document.key[0] == OF_AUTHORIZERS.name
        return document.known and document.key[0] == CEL_EXCEPTION

    def failing(self, document: StoredDocument) -> EncodedPolicy | None:
        """Return what stands for a policy that never compiled, None for nothing.

        SAFETY: left out, an authorizer's policy would let through the requests that its
        author denies, and a report on a payload would hide a policy in mode JSON. So it
        is an error of each request, unless its failurePolicy is Ignore, or of each
        payload.
        """
        mode = JSON_MODE if document.judges_payloads else document.authorizes
        if not mode or (mode == JSON_MODE and not self.payloads):
            return None
        raw = document.raw()
        spec = raw.get("spec") if type(raw) is dict else None
        failure_policy = spec.get("failurePolicy") if type(spec) is dict else None
        kind, namespace, name = document.key
        policy = PolicyIR(
            kind,
            name,
            namespace=namespace,
            failure_policy="Ignore" if failure_policy == "Ignore" else "Fail",
        )
        return _failing(policy, mode, f"the policy {name} does not compile")

    def failing_files(self, paths: Iterable[str]) -> dict[Key, EncodedPolicy]:
        """Return what stands for the policies in files that were never read.

        SAFETY: as above. The name, a path, sorts before those of policies, so that it
        decides first.
        """
        message = "a file with policies cannot be read"
        kind = OF_AUTHORIZERS.name
        modes = (self.authorizes, JSON_MODE if self.payloads else "")
        return {
            (kind, "", f"{path} ({mode})"): _failing(
                PolicyIR(kind, path), mode, message
            )
            for path in sorted(paths)
            for mode in filter(None, modes)
        }


def _failing(policy: PolicyIR, mode: str, message: str) -> EncodedPolicy:
    """Return a policy that is an error of each request or payload."""
    if mode == JSON_MODE:
        return failing_on_payloads(policy, message)
    return encode_cel_policy(
        AuthorizationPolicyIR(policy, mode, (), (), (), error=message)
    )


def _check(document: AnyServedPolicy) -> None:
    """Raise DocumentInvalid, or PolicyInvalid for a mode that is not supported."""
    row = row_of(document.kind)
    mode = evaluation_mode_of(document) if row.kind.judges_payloads else ""
    if mode not in {"", "Kubernetes", JSON_MODE}:
        message = f"evaluation mode {mode} is not supported by this version"
        raise PolicyInvalid(UNSUPPORTED_KIND, message)
    problems = list(review(document))
    # A policy for JSON payloads needs no constraints, and no request has one.
    is_excused = mode == JSON_MODE and row.needs_constraints
    if problems and not is_excused:
        raise DocumentInvalid(problems, Where(policy=document.metadata.name))


def _status_of(
    source: StoredDocument,
    row: CompiledKind,
    compiled: _AnyIR,
    warnings: Sequence[str],
    rule_count: int,
) -> PolicyStatus:
    kind, namespace, name = source.key
    actions: Sequence[str] = ()
    if isinstance(compiled, ValidatingPolicyIR | ImageValidatingPolicyIR):
        actions = compiled.actions
    copies = [""]
    if not isinstance(compiled, GeneratingPolicyIR):
        copies = [compiled_body.copy for compiled_body in compiled.bodies]
    return PolicyStatus(
        kind=kind,
        namespace=namespace,
        name=name,
        ready=True,
        message=clip("; ".join(("Ready", *warnings))),
        rule_count=rule_count,
        mode="enforce" if "Deny" in actions else "audit",
        background=row.is_scanned and compiled.policy.background,
        rules=tuple(
            RuleStatus(f"{copy}-{name}" if copy else name, row.kind.rule_type)
            for copy in copies
        ),
        generation=source.generation,
    )
