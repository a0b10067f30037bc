"""Build the Scene of ``apply --cluster``: its objects, and access to the cluster.

Room: cli. Takes: the flags, the policies. Gives: a Scene. Next: command.
May touch: the API server through kube/ and egress/, standard output and error.
Source: docs/behaviour/cli 2, 3 (7), 5, 7, 21.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import click

from kyverno_mp.cli.apply.given import Given, Loaded
from kyverno_mp.cli.apply.options import Options, echo_of
from kyverno_mp.cli.apply.scene import Scene
from kyverno_mp.cli.cluster.access import Cluster, open_cluster
from kyverno_mp.cli.cluster.data import image_verification, registry_images
from kyverno_mp.cli.cluster.live_data import ClusterPorts, live_cluster_data
from kyverno_mp.cli.cluster.resources import (
    Loading,
    Wanted,
    kinds_of,
    load_cluster,
    load_params,
    resources_of,
)
from kyverno_mp.cli.cluster.spool import Spool
from kyverno_mp.cli.output.screen import say
from kyverno_mp.cli.sources.compiled import (
    compile_admission,
    compile_all,
    compile_cel,
    compile_images,
    compile_others,
)
from kyverno_mp.cli.sources.policy_set import PolicySet
from kyverno_mp.cli.sources.resources import Location, load_resources
from kyverno_mp.kube.discovery import Directory, Discovery
from kyverno_mp.kube.resource import Resource
from kyverno_mp.kube.rest import Client


@contextmanager
def cluster_scene(options: Options, policies: PolicySet) -> Iterator[Scene]:
    """Load objects of the policies' kinds. Raises: CommandFailed, DependencyError."""
    with (
        open_cluster(options.kubeconfig, options.context) as cluster,
        Spool() as spool,
    ):
        yield _scene(cluster, spool, options, policies)


def _scene(
    cluster: Cluster, spool: Spool, options: Options, policies: PolicySet
) -> Scene:
    directory = _directory(cluster.client)
    loaded: Given
    errors = 0
    if options.resources[:1] == ("-",):
        # KYVERNO: objects from standard input, evaluated with access to the cluster.
        locations: list[Location] = []
        objects = load_resources(options.resources, locations=locations)
        loaded = Loaded(objects, locations)
    else:
        resources = _resources(directory, policies)
        loading = load_cluster(cluster.client, resources, _wanted(options), spool)
        _print_loading(loading, options)
        loaded, errors = spool, len(loading.errors)
    unread: list[str] = []
    params = load_resources(
        options.parameter_resources, echo=echo_of(options), unread=unread
    )
    admission = compile_admission(policies)
    params += load_params(cluster.client, admission, directory)
    layout = options.image_layout
    uses_images = options.registry or bool(layout)
    images = registry_images(layout) if uses_images else None
    plurals = {
        (resource.group, resource.kind): resource.plural
        for resource in directory.resources
        if not resource.subresource
    }
    ports = ClusterPorts(cluster, directory)
    cluster_data = live_cluster_data(ports, images)
    if uses_images:
        reviewed = image_verification(layout, ports.secret)
        cluster_data = replace(cluster_data, reviewed_images=reviewed)
    return Scene(loaded, cluster_data, params, plurals, errors, unread)


def _directory(client: Client) -> Directory:
    discovery = Discovery(client)
    discovery.refresh()
    for group_version in discovery.stale:
        say(
            f"the API server does not serve this group at the moment: {group_version}",
            err=True,
        )
    return discovery.directory


def _resources(directory: Directory, policies: PolicySet) -> list[Resource]:
    # Only the matched kinds are used, so exceptions are not needed yet.
    compiled = compile_all(policies.documents, (), policies.cleanups)
    constraints = [ir.constraints for ir in compile_admission(policies)]
    for cel in compile_cel(policies, (), compiled):
        constraints += [body.constraints for body in cel.bodies]
    for image in compile_images(policies, (), compiled):
        constraints += [body.constraints for body in image.bodies]
    for policy in compile_others(policies, (), compiled):
        bodies: tuple[Any, ...] = getattr(policy, "bodies", (policy,))
        constraints += [body.constraints for body in bodies]
    return resources_of(kinds_of(compiled), constraints, directory)


def _wanted(options: Options) -> Wanted:
    return Wanted(
        namespace=options.namespace,
        cluster_wide=options.cluster_wide_resources,
        names=options.resources,
        concurrent=options.concurrent,
        page_objects=options.batch_size,
        continue_on_error=options.continue_on_error,
    )


def _print_loading(loading: Loading, options: Options) -> None:
    if options.show_performance:
        click.echo(loading.summary(), err=options.is_quiet)
    for error in loading.errors:
        say(f"not listed: {error}", err=True)
