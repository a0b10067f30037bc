"""Link the context entries of a rule or of a foreach, once.

Room: program. Takes: ContextEntryIR records. Gives: LinkedEntries, registered in a
RuleContext with ``add_entries``. Next: program/context.
Source: docs/behaviour/engine 3.7.
"""

from collections.abc import Callable, Sequence

import re2

from kyverno_mp.ir.rules import (
    ApiCallEntryIR,
    ConfigMapEntryIR,
    ContextEntryIR,
    GlobalReferenceEntryIR,
    ImageRegistryEntryIR,
    InvalidEntryIR,
    VariableEntryIR,
)
from kyverno_mp.limits import PARSE_CACHE_ENTRIES_MAX
from kyverno_mp.program.context.api_call import link_api_call
from kyverno_mp.program.context.loaders import (
    Load,
    link_config_map,
    link_global_reference,
    link_image_registry,
    link_refusal,
    link_variable_entry,
)
from kyverno_mp.program.ports import ClusterData
from kyverno_mp.values.jsonvalue import Json


class LinkedEntry:
    """One context entry, ready to be registered in many scopes.

    ``replaces``: the entry's value replaces an existing value; otherwise maps are
    merged. ``keeps``: the value is kept for the scope's lifetime; otherwise it is
    reloaded for each foreach element. ``varies``: the value can differ between
    elements. ``too_large``: prefix of the message for the size limit. ``problem``: the
    error of an entry that cannot be registered, otherwise "". ``refusal``: returns why
    the policy may not read the entry, otherwise ""; None: it may.
    """

    __slots__ = (
        "_mentions",
        "_search",
        "available",
        "keeps",
        "load",
        "name",
        "problem",
        "refusal",
        "replaces",
        "too_large",
        "varies",
    )

    def __init__(self, entry: ContextEntryIR, policy_namespace: str) -> None:
        self.name = entry.name
        self.problem = ""
        self.refusal: Callable[[ClusterData], str] | None = None
        if policy_namespace and type(entry) is GlobalReferenceEntryIR:
            self.refusal = link_refusal(entry, policy_namespace)
        self.replaces = type(entry) is VariableEntryIR
        self.keeps = type(entry) is not GlobalReferenceEntryIR
        self.varies = type(entry) is VariableEntryIR and not _is_constant(entry)
        self.too_large = _too_large(entry)
        self.load: Load = _never
        self.available: Callable[[ClusterData], bool] = _always
        self._mentions: dict[str, bool] = {}
        self._search: Callable[[str], Json] = _never
        link = None if type(entry) is InvalidEntryIR else _link(entry, policy_namespace)
        try:
            # KYVERNO: the name is used in the expression unescaped
            # (docs/behaviour/engine 3.7).
            pattern = rf"(?:\A|\z|\s|[^.0-9A-Za-z]){entry.name}\b"
            self._search = re2.compile(pattern, _QUIET).search
        except re2.error:
            link = None
        if link is None:
            self.problem = (
                f"failed to create deferred loader for context entry {entry.name}"
            )
        else:
            self.load, self.available = link

    def mentioned(self, query: str) -> bool:
        """Return whether a query's text mentions this entry; string literals count."""
        is_mentioned = self._mentions.get(query)
        if is_mentioned is None:
            if len(self._mentions) >= PARSE_CACHE_ENTRIES_MAX:
                self._mentions.clear()
            is_mentioned = self._mentions[query] = self._search(query) is not None
        return is_mentioned


class LinkedEntries:
    """The context entries of one rule or foreach, in order of declaration."""

    __slots__ = ("entries",)

    def __init__(self, entries: tuple[LinkedEntry, ...]) -> None:
        self.entries = entries


def link_entries(
    entries: Sequence[ContextEntryIR], policy_namespace: str = ""
) -> LinkedEntries:
    """Link entries; ``policy_namespace`` is "" for a ClusterPolicy."""
    return LinkedEntries(
        tuple(LinkedEntry(entry, policy_namespace) for entry in entries)
    )


def _is_constant(entry: VariableEntryIR) -> bool:
    parts = (entry.value, entry.default)
    return entry.jmes_path is None and all(
        part is None or part.is_constant for part in parts
    )


def _quiet() -> Json:
    """Return options that keep re2 from logging invalid patterns."""
    options = re2.Options()
    options.log_errors = False
    return options


_QUIET = _quiet()


def _link(
    entry: ContextEntryIR, policy_namespace: str
) -> tuple[Load, Callable[[ClusterData], bool]] | None:
    if type(entry) is VariableEntryIR:
        return link_variable_entry(entry), _always
    if type(entry) is ConfigMapEntryIR:
        return (
            link_config_map(entry, policy_namespace),
            lambda cluster_data: cluster_data.config_maps is not None,
        )
    if type(entry) is ApiCallEntryIR:
        return (
            link_api_call(entry, policy_namespace),
            lambda cluster_data: cluster_data.api_calls is not None,
        )
    if type(entry) is GlobalReferenceEntryIR:
        return (
            link_global_reference(entry),
            lambda cluster_data: cluster_data.global_context is not None,
        )
    if type(entry) is ImageRegistryEntryIR:
        return (
            link_image_registry(entry, policy_namespace),
            lambda cluster_data: cluster_data.images is not None,
        )
    return None


def _too_large(entry: ContextEntryIR) -> str:
    if type(entry) is ConfigMapEntryIR:
        return f"failed to add config map for context entry {entry.name}: "
    if type(entry) is ApiCallEntryIR:
        return (
            "failed to store data for APICall: failed to add resource data to context"
            f" entry {entry.name}: "
        )
    if type(entry) is GlobalReferenceEntryIR:
        return f"failed to add resource cache results for context entry {entry.name}: "
    return ""


def _always(_cluster_data: ClusterData) -> bool:
    return True


def _never(_argument: object) -> Json:
    msg = "an entry with a problem is refused when it is registered"
    raise AssertionError(msg)
