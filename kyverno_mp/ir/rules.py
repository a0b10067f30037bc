"""Define the records of compiled policies and rules, which compiler and program share.

Room: ir. Takes: written by compiler/build.py. Gives: read by program/rule.py, the
snapshot index and the CLI's explain. Plain data with a layout version; no behaviour
here. Embeds the node records of expr (template, conditions, pattern, assertion).
"""

from typing import Final

import msgspec

from kyverno_mp.expr.assertion.nodes import Assertion
from kyverno_mp.expr.conditions.nodes import Conditions
from kyverno_mp.expr.effects import EFFECT_PURE
from kyverno_mp.expr.pattern.nodes import Pattern
from kyverno_mp.expr.template.nodes import Document
from kyverno_mp.ir.cel import CelIR, NamedExpressionIR
from kyverno_mp.ir.match import MatchIR, SelectorIR
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.image import ImageExtractor

LAYOUT_VERSION: Final = 17
"""Increment it with every change of a record in ir/ or of a node record in expr/."""


class OverrideIR(msgspec.Struct, frozen=True, array_like=True):
    """One failureActionOverrides entry; ``action`` is "Enforce" or "Audit"."""

    action: str
    namespaces: tuple[str, ...] = ()
    selector: SelectorIR | None = None


class ActionIR(msgspec.Struct, frozen=True, array_like=True):
    """A failure action with its overrides; "" if this level does not set one."""

    action: str = ""
    overrides: tuple[OverrideIR, ...] = ()


class VariableEntryIR(msgspec.Struct, frozen=True, array_like=True, tag="variable"):
    """``context[].variable``: value, jmesPath, default (None if absent)."""

    name: str
    value: Document | None = None
    jmes_path: Document | None = None
    default: Document | None = None


class ConfigMapEntryIR(msgspec.Struct, frozen=True, array_like=True, tag="configMap"):
    """``context[].configMap``."""

    name: str
    config_map_name: Document
    namespace: Document | None = None


class ApiCallEntryIR(msgspec.Struct, frozen=True, array_like=True, tag="apiCall"):
    """``context[].apiCall``.

    ``call`` is the whole apiCall mapping as one document (urlPath, service, method,
    data, jmesPath); ``default`` is the entry's default as raw JSON.
    """

    name: str
    call: Document
    default: Json = None
    has_default: bool = False


class ImageRegistryEntryIR(
    msgspec.Struct, frozen=True, array_like=True, tag="imageRegistry"
):
    """``context[].imageRegistry``."""

    name: str
    reference: Document
    jmes_path: Document | None = None


class GlobalReferenceEntryIR(
    msgspec.Struct, frozen=True, array_like=True, tag="globalReference"
):
    """``context[].globalReference``."""

    name: str
    reference: Document
    jmes_path: Document | None = None


class InvalidEntryIR(msgspec.Struct, frozen=True, array_like=True, tag="invalid"):
    """An entry of an unknown type: loading it fails with upstream's message."""

    name: str


ContextEntryIR = (
    VariableEntryIR
    | ConfigMapEntryIR
    | ApiCallEntryIR
    | ImageRegistryEntryIR
    | GlobalReferenceEntryIR
    | InvalidEntryIR
)


class PatternIR(msgspec.Struct, frozen=True, array_like=True):
    """A pattern: ``static`` or ``document``.

    ``static`` is set if it has no variables or references. Otherwise ``document`` is
    substituted and parsed on each request, with cached parse results.
    """

    static: Pattern | None = None
    document: Document | None = None


class ForEachIR(msgspec.Struct, frozen=True, array_like=True):
    """One entry of validate.foreach; exactly one body is set."""

    list_query: str
    element_scope: bool | None = None
    context: tuple[ContextEntryIR, ...] = ()
    preconditions: Conditions | None = None
    pattern: PatternIR | None = None
    any_pattern: tuple[PatternIR, ...] | None = None
    deny: Conditions | None = None
    foreach: tuple["ForEachIR", ...] = ()


class PodSecurityExcludeIR(msgspec.Struct, frozen=True, array_like=True):
    """One podSecurity.exclude entry (also of PolicyException)."""

    control_name: str
    images: tuple[str, ...] = ()
    restricted_field: str = ""
    values: tuple[str, ...] = ()


class PodSecurityIR(msgspec.Struct, frozen=True, array_like=True):
    """validate.podSecurity; ``version`` as in the policy (may be "")."""

    level: str
    version: str = ""
    exclude: tuple[PodSecurityExcludeIR, ...] = ()


class ManifestsIR(msgspec.Struct, frozen=True, array_like=True):
    """``validate.manifests`` as written in the policy: it contains no variables."""

    settings: Json


class ValidateIR(msgspec.Struct, frozen=True, array_like=True):
    """The body of a validate rule; exactly one of the bodies is set."""

    message: Document | None = None
    raw_message: str = ""
    pattern: PatternIR | None = None
    any_pattern: tuple[PatternIR, ...] | None = None
    deny: Conditions | None = None
    foreach: tuple[ForEachIR, ...] = ()
    pod_security: PodSecurityIR | None = None
    assertion: Assertion | None = None
    allow_existing_violations: bool = True
    cel: CelIR | None = None
    manifests: ManifestsIR | None = None


class PatchIR(msgspec.Struct, frozen=True, array_like=True):
    """A patch, with the document whose variables are substituted for it.

    ``document``: for a rule's patch, the whole rule, because an unresolvable variable
    anywhere in the rule is an error (docs/behaviour/engine 3.6); for a foreach entry,
    its two patches. ``place`` is the path to the map that contains the patches.
    """

    document: Document
    place: tuple[str, ...] = ()


class MutateForEachIR(msgspec.Struct, frozen=True, array_like=True):
    """One entry of mutate.foreach: a patch or nested entries."""

    list_query: str
    is_descending: bool = False
    context: tuple[ContextEntryIR, ...] = ()
    preconditions: Conditions | None = None
    patch: PatchIR | None = None
    foreach: tuple["MutateForEachIR", ...] = ()


class MutateTargetIR(msgspec.Struct, frozen=True, array_like=True):
    """One of mutate.targets; ``selected``: apiVersion, kind, name and selectors."""

    selected: Document
    context: tuple[ContextEntryIR, ...] = ()
    preconditions: Conditions | None = None


class MutateIR(msgspec.Struct, frozen=True, array_like=True):
    """The body of a mutate rule.

    If ``targets`` is present, even empty, the rule mutates existing objects. If
    ``foreach`` is present, ``patch`` is ignored.
    """

    patch: PatchIR | None = None
    foreach: tuple[MutateForEachIR, ...] | None = None
    targets: tuple[MutateTargetIR, ...] | None = None


class ExceptionIR(msgspec.Struct, frozen=True, array_like=True):
    """A PolicyException that names this rule."""

    key: str
    match: MatchIR
    conditions: Conditions | None = None
    pod_security: tuple[PodSecurityExcludeIR, ...] = ()
    background: bool = True
    expires_at_ns: int | None = None
    """Nanoseconds since the Unix epoch; None: the exception does not expire."""


class GenerateForEachIR(msgspec.Struct, frozen=True, array_like=True):
    """One entry of generate.foreach; ``pattern`` as in GenerateIR."""

    list_query: str
    pattern: Document
    context: tuple[ContextEntryIR, ...] = ()
    preconditions: Conditions | None = None


class GenerateIR(msgspec.Struct, frozen=True, array_like=True):
    """The body of a generate rule: ``pattern`` or ``foreach``.

    ``pattern``: target (apiVersion, kind, namespace, name) with data, clone or
    cloneList, as one document, because one unresolvable variable fails the whole
    target.
    """

    pattern: Document | None = None
    foreach: tuple[GenerateForEachIR, ...] | None = None
    synchronize: bool = False


class ImageBlockIR(msgspec.Struct, frozen=True, array_like=True):
    """One verifyImages entry.

    ``settings``: the whole entry without conditions as one document, because upstream
    substitutes the variables in the whole entry. ``conditions``: the condition blocks
    of each attestation, and the list of these blocks as one document.
    """

    settings: Document
    references: tuple[str, ...] = ()
    verify_digest: bool = True
    required: bool = True
    conditions: tuple[tuple[Document, tuple[Conditions, ...]], ...] = ()
    deny: Conditions | None = None
    has_validate: bool = False


class VerifyImagesIR(msgspec.Struct, frozen=True, array_like=True):
    """The body of a verifyImages rule; ``extractors`` are grouped by kind."""

    blocks: tuple[ImageBlockIR, ...]
    extractors: tuple[tuple[str, tuple[ImageExtractor, ...]], ...] = ()


class RuleIR(msgspec.Struct, frozen=True, array_like=True):
    """One rule after autogen. ``rule_type``: validate, mutate, generate, verifyImages.

    ``unsupported`` names the capability that this version lacks (e.g. "validate.cel").
    Such a rule is rejected at compile time unless the caller keeps it; if it runs, its
    status is error, never a silent skip.
    """

    name: str
    rule_type: str
    match: MatchIR
    exclude: MatchIR | None = None
    context: tuple[ContextEntryIR, ...] = ()
    preconditions: Conditions | None = None
    validate: ValidateIR | None = None
    action: ActionIR = ActionIR()
    exceptions: tuple[ExceptionIR, ...] = ()
    report_properties: tuple[tuple[str, Document], ...] = ()
    effects: int = EFFECT_PURE
    unsupported: str = ""
    skip_background_requests: bool = True
    mutate: MutateIR | None = None
    generate: GenerateIR | None = None
    cel_preconditions: tuple[NamedExpressionIR, ...] = ()
    verify_images: VerifyImagesIR | None = None


class BudgetIR(msgspec.Struct, frozen=True, array_like=True):
    """How many denials a step of a rollout may add before the policy falls back.

    Within ``window_s``, at most ``per_namespace`` and ``per_user`` of them count.
    """

    denials: int
    window_s: int
    per_namespace: int
    per_user: int


class RolloutIR(msgspec.Struct, frozen=True, array_like=True):
    """The annotations that put a policy into force gradually (policy/gradual.py).

    ``plan`` identifies these annotations: the state of another plan does not apply.
    """

    plan: str
    steps: tuple[int, ...]
    step_s: int = 0
    by_owner: bool = False
    rings: tuple[tuple[str, ...], ...] = ()
    budget: BudgetIR | None = None


class PolicyIR(msgspec.Struct, frozen=True, array_like=True):
    """The data shared by the rules of one policy.

    ``rule_actions``: (rule name, rule_type, action) of every rule in order, for the
    response-level action (docs/behaviour/engine 6.9: the first rule with an explicit
    action decides).
    """

    kind: str
    name: str
    namespace: str = ""
    action: ActionIR = ActionIR()
    rule_actions: tuple[tuple[str, str, ActionIR], ...] = ()
    failure_policy: str = "Fail"
    apply_rules: str = "All"
    admission: bool = True
    background: bool = True
    emit_warning: bool = False
    scored: bool = True
    category: str = ""
    severity: str = ""
    uid: str = ""
    resource_version: str = ""
    metadata_generation: int = 0
    labels: tuple[tuple[str, str], ...] = ()
    fine_grained: bool = False
    """The policy has matchConditions in webhookConfiguration, so it has its own webhook
    path."""
    match_conditions: tuple[NamedExpressionIR, ...] = ()
    namespace_implied: bool = False
    """The document has no namespace, so the policy belongs to ``default``."""
    review_rules: tuple[str, ...] = ()
    """Validate rules that read more of a review than its object, so a scan may return
    other results (compiler/review_reads.py)."""
    rollout: RolloutIR | None = None
    """None: the policy is enforced for all subjects."""

    @property
    def is_decoded(self) -> bool:
        """Whether this is the whole policy, see UndecodedPolicyIR."""
        return True

    @property
    def key(self) -> str:
        """Return ``ns/name`` for a Policy and ``name`` for a ClusterPolicy."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    @property
    def written_namespace(self) -> str:
        """Namespace in the document, which reports use."""
        return "" if self.namespace_implied else self.namespace

    @property
    def written_key(self) -> str:
        """``ns/name`` of a Policy whose document has a namespace, else ``name``."""
        return self.name if self.namespace_implied else self.key


class UndecodedPolicyIR(PolicyIR, frozen=True, array_like=True):
    """Stands for a policy of which not everything can be decoded: it is an error.

    It has the fields that can be decoded, and denies where others decide.
    """

    @property
    def is_decoded(self) -> bool:
        """Whether this is the whole policy: never."""
        return False


class CompiledPolicy(msgspec.Struct, frozen=True, array_like=True):
    """One policy with its rules in execution order."""

    policy: PolicyIR
    rules: tuple[RuleIR, ...]
