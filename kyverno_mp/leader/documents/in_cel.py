"""Compile one stored policy of policies.kyverno.io, of any kind.

Room: leader. Takes: a StoredDocument, the exceptions that may name it. Gives:
CompileOutcome. Next: leader/policy_store.py, which also handles the errors.
May touch: nothing outside its arguments.
Source: docs/behaviour/cel 4, 6, 7, 10; docs/behaviour/controllers 13.

All kinds take the same steps; a row of _ROWS has what differs. Workers find the
requests that trigger a GeneratingPolicy; the background pool reads and evaluates the
policy itself, with its exceptions.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from kyverno_mp.compiler.cel_kinds import image_validating_policy as images
from kyverno_mp.compiler.cel_kinds.index import encode_cel_policy
from kyverno_mp.compiler.cel_kinds.mutating_policy import (
    compile_mutating_with_exceptions,
)
from kyverno_mp.compiler.cel_kinds.policies import (
    EXCEPTION_NAMES_OF_GENERATING,
    compile_generating_with,
)
from kyverno_mp.compiler.cel_kinds.review import review
from kyverno_mp.compiler.cel_kinds.validating_policy import (
    EXCEPTION_NAMES,
    compile_with_exceptions,
    names_policy,
)
from kyverno_mp.compiler.unlinked import failing_on_payloads
from kyverno_mp.errors import PolicyInvalid, Where
from kyverno_mp.expr.cel.types import Type
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
from kyverno_mp.policy.cel_kinds.image_validating_policy import ImageValidatingPolicy
from kyverno_mp.policy.cel_kinds.policies import GeneratingPolicy
from kyverno_mp.policy.cel_kinds.served import AnyServedPolicy, decode_served
from kyverno_mp.policy.cel_kinds.validating_policy import (
    CEL_EXCEPTION,
    JSON_MODE,
    AnyValidatingPolicy,
    AuthorizationPolicy,
    CelPolicyException,
    decode_validating_policy,
)
from kyverno_mp.policy.problems import DocumentInvalid, Problem
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.policy_kinds import (
    GENERATING_POLICY,
    IMAGE_VALIDATING_POLICY,
    MUTATING_POLICY,
    OF_AUTHORIZERS,
    VALIDATING_POLICY,
    PolicyKind,
)

_AnyIR = (
    ValidatingPolicyIR | MutatingPolicyIR | GeneratingPolicyIR | ImageValidatingPolicyIR
)
_Unusable = list[tuple[str, Problem]]
"""Exceptions that do not compile, or whose condition would make external calls."""


class _Body(NamedTuple):
    """What differs between the kinds."""

    kind: PolicyKind
    compile: Callable[
        [Any, Sequence[CelPolicyException], dict[str, Type]], tuple[Any, _Unusable]
    ]
    exception_names: dict[str, Type]
    rules_of: Callable[[Any], Sequence[object]]
    """The rules of the document as written."""
    missing: Callable[[Any], str] = lambda _compiled: ""
    """What the policy needs that only a background pool can do."""
    is_scanned: bool = False
    """Whether the status tells if the policy is evaluated in the background."""
    denies: bool = True
    """Whether its failures can deny requests."""


def _compile_generating(
    document: GeneratingPolicy,
    exceptions: Sequence[CelPolicyException],
    names: dict[str, Type],
) -> tuple[GeneratingPolicyIR, _Unusable]:
    named = [exception for exception in exceptions if names_policy(exception, document)]
    compiled, unusable = compile_generating_with(document, named, names)
    # A worker needs only the match constraints of the trigger.
    return msgspec.structs.replace(compiled, exceptions=()), unusable


_JSON_ONLY: Final = (
    "evaluation mode JSON: the policy concerns payloads, and no request to the API"
    " server is one"
)
_ROWS: Final = (
    _Body(
        VALIDATING_POLICY,
        compile_with_exceptions,
        EXCEPTION_NAMES,
        lambda document: document.spec.validations,
        is_scanned=True,
    ),
    _Body(
        MUTATING_POLICY,
        compile_mutating_with_exceptions,
        EXCEPTION_NAMES,
        lambda document: document.spec.mutations,
        missing=lambda compiled: "mutate existing" if compiled.mutates_existing else "",
        is_scanned=True,
    ),
    _Body(
        GENERATING_POLICY,
        _compile_generating,
        EXCEPTION_NAMES_OF_GENERATING,
        lambda document: document.spec.generate,
        missing=lambda _compiled: "generate",
        denies=False,
    ),
    _Body(
        IMAGE_VALIDATING_POLICY,
        images.compile_with_exceptions,
        images.EXCEPTION_NAMES,
        lambda document: document.spec.validations,
    ),
)
_BODIES: Final[Mapping[str, _Body]] = {
    name: body for body in _ROWS for name in body.kind.names
}


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
    body = _BODIES[document.key[0]]
    decoded = decode_served(in_namespace(raw, document.key[1]), file=document.file)
    assert not isinstance(decoded, CelPolicyException)
    _check(decoded)
    compiled, unusable = body.compile(decoded, exceptions, body.exception_names)
    missing = "" if has_background else body.missing(compiled)
    if missing:
        raise PolicyInvalid(UNSUPPORTED, f"{missing} {NO_POOL}")
    is_native = document.is_from_cluster() and is_generated(decoded.status)
    if body.kind.native and is_native:
        compiled = left_to_api_server(compiled)
    if force_ignore and body.denies:
        ignoring = msgspec.structs.replace(compiled.policy, failure_policy="Ignore")
        compiled = msgspec.structs.replace(compiled, policy=ignoring)
    warnings = [
        f"PolicyException {key} is ignored: {reason}" for key, reason in unusable
    ]
    if getattr(compiled, "is_json", False):
        warnings.append(_JSON_ONLY)
    rule_count = len(body.rules_of(decoded))
    status = _status_of(document, body, compiled, warnings, rule_count)
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

    decoded = decode_validating_policy(raw, file=document.file)
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
        rules=(RuleStatus(name, VALIDATING_POLICY.rule_type),),
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
    is_json = False
    if isinstance(document, AnyValidatingPolicy | ImageValidatingPolicy):
        if document.mode not in {"", "Kubernetes", JSON_MODE}:
            message = (
                f"evaluation mode {document.mode} is not supported by this version"
            )
            raise PolicyInvalid(UNSUPPORTED_KIND, message)
        is_json = document.mode == JSON_MODE
    problems = list(review(document))
    # A ValidatingPolicy for JSON payloads needs no constraints, and no request has one.
    is_excused = is_json and isinstance(document, AnyValidatingPolicy)
    if problems and not is_excused:
        raise DocumentInvalid(problems, Where(policy=document.metadata.name))


def _status_of(
    source: StoredDocument,
    body: _Body,
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
        background=body.is_scanned and compiled.policy.background,
        rules=tuple(
            RuleStatus(f"{copy}-{name}" if copy else name, body.kind.rule_type)
            for copy in copies
        ),
        generation=source.generation,
    )
