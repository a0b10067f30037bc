"""Follow the operator's ConfigMaps and compute the current configuration.

Room: leader. Takes: a Client, settings as the base, the last configuration. Gives:
the segment ``settings`` and the Configuration for controllers. Next: leader/loop.py
publishes; webhook/configured.py and leader/control/build.py use it.
May touch: the API server through kube's informers; reads the snapshot folder.
Source: docs/behaviour/controllers 10.3.

The segment, and with it the last valid value of each key, survives the leader.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from kyverno_mp.compiler.rules.cel import cel_environment, compile_conditions
from kyverno_mp.errors import SnapshotUnusable
from kyverno_mp.kube.cache import Informer
from kyverno_mp.kube.resource import core
from kyverno_mp.kube.rest import Client
from kyverno_mp.kube.watch import WatchScope
from kyverno_mp.policy.configuration import Configuration, decode_configuration
from kyverno_mp.policy.fields.meta import NamedExpression
from kyverno_mp.policy.metrics_configuration import (
    MetricsConfiguration,
    decode_metrics_configuration,
)
from kyverno_mp.settings.base import base_of
from kyverno_mp.settings.settings import Settings
from kyverno_mp.snapshot.configured import (
    SETTINGS,
    Configured,
    configured_of,
    values_of,
)
from kyverno_mp.snapshot.data import DataSegment
from kyverno_mp.snapshot.publish import segment_file
from kyverno_mp.snapshot.read import Segment

_Data = dict[str, str]


class _ConfigMap(msgspec.Struct):
    data: _Data | None = None


_CONFIG_MAP = msgspec.json.Decoder(_ConfigMap)


@dataclass(frozen=True, slots=True)
class _Texts:
    """The content of both ConfigMaps; None if a ConfigMap does not exist."""

    kyverno: _Data | None = None
    metrics: _Data | None = None


class ClusterConfiguration:
    """The operator's configuration of one cluster."""

    def __init__(
        self, client: Client, settings: Settings, last: Configured | None = None
    ) -> None:
        """``last``: the configuration that an earlier leader published."""
        self.base = base_of(settings)
        self.current = last or Configured(self.base, MetricsConfiguration())
        self.problems: tuple[str, ...] = ()
        self._names = (settings.config_map_name, settings.metrics_config_map_name)
        self._namespace = settings.namespace
        self.informers = [
            Informer(client, _scope(settings.namespace, name), _data_of)
            for name in self._names
        ]
        self._seen: _Texts | None = None
        self._handlers: list[Callable[[], None]] = []

    def on_change(self, handler: Callable[[], None]) -> None:
        """Call ``handler`` in the leader's thread after ``current`` changed."""
        self._handlers.append(handler)

    def poll(self) -> bool:
        """Read changes; return whether there are any. Cost: two look-ups."""
        config_maps = _Texts(*(self._text(at) for at in range(len(self.informers))))
        if config_maps == self._seen:
            return False
        self._seen = config_maps
        before = self.current
        self.current, self.problems = decode_texts(
            config_maps.kyverno or {},
            config_maps.metrics or {},
            self.base,
            before,
            self._names,
        )
        if self.current != before:
            for handler in self._handlers:
                handler()
        return True

    def values(self) -> Mapping[str, bytes]:
        """Return the content of the segment."""
        return values_of(self.current)

    def _text(self, at: int) -> _Data | None:
        return self.informers[at].get((self._namespace, self._names[at]))


class FixedConfiguration:
    """The configuration without a cluster, from the settings."""

    problems: tuple[str, ...] = ()

    def __init__(self, settings: Settings) -> None:
        self.current = Configured(base_of(settings), MetricsConfiguration())

    def poll(self) -> bool:
        """Return False, because nothing changes."""
        return False

    def values(self) -> Mapping[str, bytes]:
        """Return the content of the segment."""
        return values_of(self.current)


def decode_texts(
    kyverno: Mapping[str, str],
    metrics: Mapping[str, str],
    base: Configuration,
    last: Configured,
    names: tuple[str, str],
) -> tuple[Configured, tuple[str, ...]]:
    """Return the configuration in both ConfigMaps, and its rejected values."""
    main = decode_configuration(kyverno, base, last.configuration, _refusal)
    decoded_metrics = decode_metrics_configuration(metrics, last.metrics)
    problems = [
        f"ConfigMap {name}: {problem}"
        for name, listed in zip(
            names, (main.problems, decoded_metrics.problems), strict=True
        )
        for problem in listed
    ]
    configured = Configured(main.configuration, decoded_metrics.configuration)
    return configured, tuple(problems)


def last_published(directory: Path) -> Configured | None:
    """Return the configuration that an earlier leader of this pod published."""
    try:
        segment = Segment.attach(directory / segment_file(SETTINGS), SETTINGS)
        return configured_of(DataSegment(segment))
    except SnapshotUnusable:
        return None


def _scope(namespace: str, name: str) -> WatchScope:
    # K8S: selected by name, so that permission for this one object is enough.
    return WatchScope(
        resource=core("configmaps"),
        namespace=namespace,
        field_selector=f"metadata.name={name}",
    )


def _data_of(raw: msgspec.Raw) -> _Data:
    return _CONFIG_MAP.decode(raw).data or {}


def _refusal(expression: str) -> str:
    """Return why the API server would reject a match condition, or ""."""
    # K8S: the API server evaluates match conditions itself, so they can use its
    # authorizer.
    environment = cel_environment({}, params=False, authorizer=True)
    condition = NamedExpression(name="", expression=expression)
    (compiled,) = compile_conditions([condition], environment)
    return compiled.expression.error
