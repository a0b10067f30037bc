"""Know the resources of custom kinds that policies often match.

Room: cli. Takes: a kind selector. Gives: ApiResources of built-in kinds, of other
versions of them, and of custom kinds. Next: match.py.
Source: docs/behaviour/engine 1.3; the CustomResourceDefinitions of the projects named.

A webhook matches resources (``ingressroutes``), a ClusterPolicy kinds. The name of a
resource cannot be derived from its kind with certainty, and a wrong name would allow
everything; so a kind that is not in the table has to be rewritten by hand.
"""

from typing import Final

from kyverno_mp.policy.ports import BuiltInKinds
from kyverno_mp.values.kubernetes.built_in_kinds import BUILT_IN, ApiResource
from kyverno_mp.values.kubernetes.kinds import KindSelector
from kyverno_mp.values.wildcard import matches

# One line for each API group: its name, then "plural:Kind".
_TABLE: Final = """
argoproj.io applications:Application applicationsets:ApplicationSet \
 appprojects:AppProject workflows:Workflow rollouts:Rollout cronworkflows:CronWorkflow
cert-manager.io certificates:Certificate certificaterequests:CertificateRequest \
 issuers:Issuer clusterissuers:ClusterIssuer
consul.hashicorp.com meshes:Mesh servicedefaults:ServiceDefaults
external-secrets.io externalsecrets:ExternalSecret secretstores:SecretStore \
 clustersecretstores:ClusterSecretStore
source.toolkit.fluxcd.io gitrepositories:GitRepository buckets:Bucket \
 helmrepositories:HelmRepository helmcharts:HelmChart ocirepositories:OCIRepository
kustomize.toolkit.fluxcd.io kustomizations:Kustomization
helm.toolkit.fluxcd.io helmreleases:HelmRelease
networking.istio.io virtualservices:VirtualService destinationrules:DestinationRule \
 gateways:Gateway serviceentries:ServiceEntry sidecars:Sidecar envoyfilters:EnvoyFilter
security.istio.io authorizationpolicies:AuthorizationPolicy \
 peerauthentications:PeerAuthentication requestauthentications:RequestAuthentication
gateway.networking.k8s.io gateways:Gateway httproutes:HTTPRoute \
 gatewayclasses:GatewayClass grpcroutes:GRPCRoute
karpenter.sh nodepools:NodePool nodeclaims:NodeClaim provisioners:Provisioner
config.kio.kasten.io policies:Policy profiles:Profile
kubevirt.io virtualmachines:VirtualMachine \
 virtualmachineinstances:VirtualMachineInstance
policy.linkerd.io authorizationpolicies:AuthorizationPolicy servers:Server
apps.openshift.io deploymentconfigs:DeploymentConfig
authorization.openshift.io clusterroles:ClusterRole roles:Role \
 clusterrolebindings:ClusterRoleBinding rolebindings:RoleBinding
build.openshift.io buildconfigs:BuildConfig builds:Build
image.openshift.io imagestreams:ImageStream
route.openshift.io routes:Route
security.openshift.io securitycontextconstraints:SecurityContextConstraints
machine.openshift.io machinesets:MachineSet machines:Machine
provisioning.cattle.io clusters:Cluster
cluster.x-k8s.io clusters:Cluster machines:Machine
autoscaling.k8s.io verticalpodautoscalers:VerticalPodAutoscaler
keda.sh scaledobjects:ScaledObject scaledjobs:ScaledJob
monitoring.coreos.com prometheuses:Prometheus servicemonitors:ServiceMonitor \
 podmonitors:PodMonitor prometheusrules:PrometheusRule
postgresql.cnpg.io clusters:Cluster
policy podsecuritypolicies:PodSecurityPolicy
serving.knative.dev services:Service routes:Route configurations:Configuration
snapshot.storage.k8s.io volumesnapshots:VolumeSnapshot \
 volumesnapshotclasses:VolumeSnapshotClass
tekton.dev tasks:Task taskruns:TaskRun pipelines:Pipeline pipelineruns:PipelineRun \
 clustertasks:ClusterTask
traefik.io ingressroutes:IngressRoute middlewares:Middleware tlsoptions:TLSOption
velero.io backups:Backup restores:Restore schedules:Schedule
"""
_BUILT_IN: Final = BuiltInKinds()
CONNECTED: Final = {
    "attach": "PodAttachOptions",
    "exec": "PodExecOptions",
    "portforward": "PodPortForwardOptions",
}
"""Subresources of Pods to which clients connect -> the kind of the request's object,
which has no metadata."""


def resources_of_kind(selector: KindSelector) -> list[ApiResource]:
    """Return the resources of a selector without a subresource."""
    found = [one.resource for one in _BUILT_IN.find(selector)]
    return found or [
        ApiResource(
            group,
            "v1" if selector.version == "*" else selector.version,
            kind,
            plural,
            is_namespaced=True,
        )
        for group, plural, kind in _KNOWN
        if kind == selector.kind and matches(selector.group, group)
    ]


def _known() -> tuple[tuple[str, str, str], ...]:
    found = dict.fromkeys((one.group, one.plural, one.kind) for one in BUILT_IN)
    for line in _TABLE.split("\n"):
        group, *names = line.split() or ("",)
        for plural, _, kind in (name.partition(":") for name in names):
            found[group, plural, kind] = None
    return tuple(found)


_KNOWN: Final = _known()
