"""Assemble the data that rules of a worker read: shared segments, live calls, images.

Room: webhook. Takes: the shared cluster data, the live ports, the registry ports.
Gives: ClusterData. Next: program/ports.py.
Source: docs/architecture.md 3 (shared data segments).
"""

import os

from kyverno_mp.egress.hosts import resolve_host
from kyverno_mp.egress.lookups import Lookups
from kyverno_mp.program.ports import CelPorts, ClusterData
from kyverno_mp.webhook.configured import CurrentConfiguration
from kyverno_mp.webhook.images import ServedImages
from kyverno_mp.webhook.live import Live
from kyverno_mp.webhook.shared import SharedClusterData


def cluster_data(
    shared: SharedClusterData,
    live: Live | None,
    served: ServedImages,
    configuration: CurrentConfiguration,
) -> ClusterData:
    """Return the ports of one worker; without a cluster, a folder has the answers."""
    cel = CelPorts(references=shared, namespaces=shared)
    manifests = served.manifests
    if live is not None:
        cel = live.cel._replace(images=served.metadata, own_images=served.own_metadata)
        manifests = manifests.with_dry_runs(live.dry_runs)
    return ClusterData(
        config_maps=live.config_maps if live else shared,
        api_calls=live.api_calls if live else shared,
        # Canned image data is for standalone mode.
        images=served.data if live else shared,
        reviewed_images=served.begin,
        manifests=manifests,
        global_context=shared,
        namespaces=shared,
        namespace_objects=live.namespaces if live else None,
        objects=live.objects if live else None,
        scopes=live.scopes if live else None,
        authority=live.authority if live else None,
        random_bytes=os.urandom,
        resolve_host=Lookups(resolve_host).soon,
        settings=configuration.rule_settings,
        cel=cel,
    )
