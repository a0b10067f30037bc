"""Provide the JSON context of rules: the values that expressions load on demand.

Room: program. Takes: Request, ClusterData, Runtime; context entries. Gives:
RequestContext (one per request) and RuleContext, the Scope of one rule. Next: every
body.
May touch: the cluster data through program/ports only. Roots are immutable: a change
creates a new dict, so rules, checkpoints and the review share equal parts.
Source: docs/behaviour/engine 3.4, 3.7, 3.8; docs/behaviour/cli 7, 7b.

Over 400 lines: RuleContexts read the RequestContext's shared state, and both loaded
entries and foreach checkpoints change the same root.
"""

import contextlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from kyverno_mp.errors import BudgetExceeded, ExpressionFailed
from kyverno_mp.expr.scope import Runtime
from kyverno_mp.ir.rules import ContextEntryIR
from kyverno_mp.limits import CONTEXT_NESTING_MAX
from kyverno_mp.program.context.entries import LinkedEntries, LinkedEntry, link_entries
from kyverno_mp.program.context.request_root import request_root
from kyverno_mp.program.ports import ClusterData
from kyverno_mp.program.request import Request
from kyverno_mp.values.dotted import merged
from kyverno_mp.values.effort import CHARACTERS_PER_STEP, weigh
from kyverno_mp.values.jsonvalue import Json
from kyverno_mp.values.kubernetes.containers import count_containers
from kyverno_mp.values.kubernetes.image import extract_images

if TYPE_CHECKING:
    from kyverno_mp.program.context.cel_scope import Shared

_IMAGES: Final = re.compile(r"(?:\A|\s|[^.0-9A-Za-z])images\b", re.ASCII)
_RULE_LEVEL: Final = 1
_STEPS_PER_LOADER: Final = 1
_STEPS_PER_IMAGE: Final = 20

_ELEMENT_KEYS: Final = tuple(
    (f"element{depth}", f"elementIndex{depth}") for depth in range(16)
)


def _element_keys(depth: int) -> tuple[str, str]:
    if depth < len(_ELEMENT_KEYS):
        return _ELEMENT_KEYS[depth]
    return f"element{depth}", f"elementIndex{depth}"


class RequestContext:
    """The state that rules of one request share: the root, cluster data, images."""

    __slots__ = (
        "_base",
        "_images",
        "cel",
        "cluster_data",
        "request",
        "runtime",
    )

    def __init__(
        self, request: Request, cluster_data: ClusterData, runtime: Runtime
    ) -> None:
        self.request = request
        self.cluster_data = cluster_data
        self.runtime = runtime
        self._base: dict[str, Json] | None = None
        self._images: dict[str, Json] | None = None
        self.cel: Shared | None = None
        """State shared by CEL rules; the first CEL rule creates it."""

    @property
    def base(self) -> dict[str, Json]:
        """Return the common root of all rules; callers must not change it.

        PERF: many rules need no scope, so the first rule that does creates the root.
        """
        if self._base is None:
            self._base = request_root(self.request)
        return self._base

    def rule_scope(
        self,
        rule: str = "",
        *,
        policy_namespace: str = "",
        runtime: Runtime | None = None,
    ) -> "RuleContext":
        """Return the scope of one rule; ``rule`` selects the CLI's values for it.

        ``runtime``: a separate budget for the rule; the default is the request's
        budget.
        """
        base = self.base
        if rule and self.request.rule_variables:
            base = merged(base, self.request.rule_variables.get(rule, {}))
        return RuleContext(
            self,
            base,
            runtime or self.runtime,
            self.request.operation,
            policy_namespace,
        )

    def of_creation(self, created: Request) -> "RequestContext":
        """Return the shared state for rules that evaluate the old object as a creation.

        ``created``: the synthetic request, whose ``object`` is the old object. The new
        state does not contain the entries and images that were loaded for the new
        object.
        """
        context = RequestContext(created, self.cluster_data, self.runtime)
        # KYVERNO: request.oldObject becomes an empty map instead of null: upstream sets
        # a nil map, so every field is an unknown key (docs/behaviour/engine 6.8).
        request = {
            **self.base.get("request", {}),
            "object": created.object,
            "oldObject": {},
            "operation": created.operation,
        }
        context._base = {**self.base, "request": request}
        return context

    def images(self) -> dict[str, Json]:
        """Return the ``images`` variable, extracted once.

        Raises: ExpressionFailed for an image that does not parse.
        """
        if self._images is None:
            request = self.request
            resource = request.object
            if not resource and not request.ints_are_numbers:
                # KYVERNO: outside admission the deleted object has images too
                # (docs/behaviour/engine 3.8; docs/behaviour/cli 7).
                resource = request.old_object
            kind = resource.get("kind")
            # Charge in advance, in proportion: an image takes as long as 20 steps.
            self.runtime.charge(_STEPS_PER_IMAGE * count_containers(resource))
            self._images = extract_images(
                resource,
                kind if type(kind) is str else "",
                settings=self.cluster_data.settings().images,
            )
        return self._images


class _Loader:
    """The level and the state of one registered context entry."""

    __slots__ = (
        "applied",
        "applied_at",
        "entry",
        "level",
        "loaded",
        "matched",
        "value",
    )

    def __init__(self, entry: LinkedEntry, level: int) -> None:
        self.entry = entry
        self.level = level
        self.matched = False
        self.loaded = False
        self.applied: Json = None
        self.applied_at = 0
        self.value: Json = None


class RuleContext:
    """The Scope of one rule on one request.

    ``root``, ``runtime`` and ``operation`` implement expr.scope.Scope. The rule's
    entries are at level 1, a foreach's entries at 1 + the number of checkpoints.
    """

    __slots__ = (
        "_checkpoints",
        "_images_matched",
        "_loaders",
        "_nesting",
        "_running",
        "_size",
        "operation",
        "policy_namespace",
        "root",
        "runtime",
        "shared",
    )

    def __init__(
        self,
        shared: RequestContext,
        root: dict[str, Json],
        runtime: Runtime,
        operation: str,
        policy_namespace: str = "",
    ) -> None:
        self.shared = shared
        self.root = root
        self.runtime = runtime
        self.operation = operation
        self.policy_namespace = policy_namespace
        self._checkpoints: list[dict[str, Json]] | None = None
        self._loaders: list[_Loader] | None = None
        self._images_matched = False
        self._size = 0
        self._running: tuple[int, int] | None = None
        self._nesting = 0

    @property
    def cluster_data(self) -> ClusterData:
        """The ports that context entries can use."""
        return self.shared.cluster_data

    # Called by expressions before a query.

    def ensure(self, query: str) -> None:
        """Load ``images`` and the unloaded context entries that ``query`` mentions.

        Raises: ExpressionFailed with the loader's text.
        """
        # PERF: a query in a rule without context entries costs only two checks.
        if "images" in query and not self._images_matched:
            self._load_images(query)
        if self._loaders:
            self._load_matching(query)

    # Context entries.

    def add_entries(self, entries: LinkedEntries | Sequence[ContextEntryIR]) -> None:
        """Register context entries at the current level; nothing is loaded yet.

        Entries whose port is None are not registered. Link entries once with
        ``link_entries`` when the same entries are added repeatedly.

        Raises: ExpressionFailed ``failed to create deferred loader for context entry``.
        """
        if not isinstance(entries, LinkedEntries):
            entries = link_entries(entries, self.policy_namespace)
        level = self._level()
        loaders = self._loaders
        if loaders is None:
            loaders = self._loaders = []
        for entry in entries.entries:
            if entry.problem:
                raise ExpressionFailed("context.entry", entry.problem)
            if entry.refusal is not None and (
                refusal := entry.refusal(self.cluster_data)
            ):
                raise ExpressionFailed("context.entry", refusal)
            if entry.available(self.cluster_data):
                loaders.append(_Loader(entry, level))

    def _level(self) -> int:
        return _RULE_LEVEL + (len(self._checkpoints) if self._checkpoints else 0)

    def _load_images(self, query: str) -> None:
        if _IMAGES.search(query) is None:
            return
        self._images_matched = True
        images = self.shared.images()
        if images:
            self.root = {
                **self.root,
                "images": merged(self.root.get("images"), images),
            }

    def _load_matching(self, query: str) -> None:
        """Run the loaders that ``query`` mentions, in the order of declaration.

        A running loader can use only entries declared before it, at its level or above.
        """
        loaders = self._loaders
        assert loaders is not None
        steps = len(loaders) * (_STEPS_PER_LOADER + len(query) // CHARACTERS_PER_STEP)
        self.runtime.charge(steps)
        level, limit = self._running or (self._level(), len(loaders))
        position = 0
        while position < min(limit, len(loaders)):
            loader = loaders[position]
            position += 1
            if (
                loader.loaded
                or loader.matched
                or loader.level > level
                or not loader.entry.mentioned(query)
            ):
                continue
            loader.matched = True
            self._run(loader, position - 1)
            # KYVERNO: the search restarts at the first entry after each load
            # (docs/behaviour/engine 3.7), which matters when a load registered other
            # entries.
            position = 0

    def _run(self, loader: _Loader, position: int) -> None:
        entry = loader.entry
        if not loader.loaded:
            if self._nesting >= CONTEXT_NESTING_MAX:
                raise BudgetExceeded(
                    "context.nesting", "context entries are nested too deeply"
                )
            self._nesting += 1
            self._running = (loader.level, position)
            try:
                loader.value = self._loaded(entry)
            finally:
                # KYVERNO: this also removes the bound of an outer loader, which can
                # then use entries declared after it (docs/behaviour/engine 3.7).
                self._running = None
                self._nesting -= 1
            loader.loaded = True
        value = loader.value
        if not entry.replaces:
            base = self.root.get(entry.name)
            if type(base) is dict:
                self.runtime.charge(weigh(base, self.runtime.charge))
            value = merged(base, value)
        self.root = {**self.root, entry.name: value}
        loader.applied = value
        loader.applied_at = len(self._checkpoints) if self._checkpoints else 0

    def _loaded(self, entry: LinkedEntry) -> Json:
        """Fetch an entry's value and charge its size."""
        value = entry.load(self)
        runtime = self.runtime
        runtime.charge(weigh(value, runtime.charge))
        size = self._size + len(msgspec.json.encode(value))
        bytes_max = self.shared.cluster_data.settings().context_bytes_max
        if size > bytes_max:
            raise ExpressionFailed(
                "context.size",
                f"{entry.too_large}context size limit exceeded: {size} bytes"
                f" exceeds limit of {bytes_max} bytes",
            )
        self._size = size
        return value

    # foreach.

    def checkpoint(self) -> int:
        """Save the current root; return a token for ``restore``."""
        if self._checkpoints is None:
            self._checkpoints = []
        self._checkpoints.append(self.root)
        return len(self._checkpoints) - 1

    def restore(self, token: int) -> None:
        """Return to a checkpoint before each element; the checkpoint remains valid.

        Entries declared after the checkpoint are removed; loaded entries of outer
        levels are restored.
        """
        checkpoints = self._checkpoints
        assert checkpoints is not None
        self.root = checkpoints[token]
        del checkpoints[token + 1 :]
        self._images_matched = False
        if self._loaders:
            self._reset_loaders(token)

    def leave(self, token: int) -> None:
        """Return to a checkpoint and remove it, after the last element."""
        self.restore(token)
        assert self._checkpoints is not None
        del self._checkpoints[token:]
        if self._loaders:
            # KYVERNO: loaded values stay in the root but are no longer entries
            # (docs/behaviour/engine 3.7).
            self._loaders = [
                loader
                for loader in self._loaders
                if not loader.loaded or loader.level != self._level()
            ]

    def _reset_loaders(self, token: int) -> None:
        assert self._loaders is not None
        self.runtime.charge(len(self._loaders))
        inner = _RULE_LEVEL + token + 1
        self._loaders = [loader for loader in self._loaders if loader.level < inner]
        for loader in self._loaders:
            loader.matched = False
        for position, loader in enumerate(self._loaders):
            if not loader.loaded:
                continue
            if not loader.entry.keeps:
                loader.loaded = loader.applied_at <= token
            # PERF: a constant value that is still in place is not written again.
            elif (
                loader.entry.varies
                or self.root.get(loader.entry.name) is not loader.applied
            ):
                self._put_back(loader, position)

    def _put_back(self, loader: _Loader, position: int) -> None:
        """Restore a loaded entry; a variable is evaluated again, without the element.

        KYVERNO: if the evaluation fails because the variable needs the element or a
        later entry, the variable is undefined from then on (docs/behaviour/engine 3.7).
        """
        size = self._size
        loader.loaded = not loader.entry.varies
        with contextlib.suppress(ExpressionFailed):
            self._run(loader, position)
        loader.loaded = True
        # A value is charged only once, not for each element.
        self._size = size

    def push_element(self, index: int, element: Json, depth: int) -> None:
        """Set ``element``, ``elementIndex`` and their numbered variants."""
        name, index_name = _element_keys(depth)
        self.root = {
            **self.root,
            "element": element,
            name: element,
            "elementIndex": index,
            index_name: index,
        }

    @property
    def has_entries(self) -> bool:
        """Return whether context entries are registered."""
        return bool(self._loaders)

    def open_loop(self, depth: int) -> tuple[dict[str, Json], tuple[str, str]]:
        """Return a root for a loop, to be passed to ``enter`` for each element.

        Also return the numbered names of ``element`` and ``elementIndex``.
        """
        return dict(self.root), _element_keys(depth)

    def enter(self, root: dict[str, Json]) -> None:
        """Make ``root`` the current root; only allowed without context entries."""
        self.root = root
        self._images_matched = False

    # Replacing parts of the context.

    def set_object(self, value: Json) -> None:
        """Replace ``request.object``, e.g. after a rule has changed it."""
        request = self.root.get("request")
        fields = request if type(request) is dict else {}
        self.root = {**self.root, "request": {**fields, "object": value}}
