"""List the kinds that every cluster with Kyverno has: names, scope, subresources.

Room: values. Takes: nothing. Gives: ApiResource, BUILT_IN. Next: policy/ports.py, for
use without a cluster.
Source: Kubernetes 1.34 discovery (preferred versions), docs/behaviour/controllers 1.1.
"""

from typing import Final, NamedTuple


class ApiResource(NamedTuple):
    """One resource of an API group, e.g. ("apps", "v1", "Deployment", ...)."""

    group: str
    version: str
    kind: str
    plural: str
    is_namespaced: bool
    subresources: tuple[str, ...] = ()

    @property
    def api_version(self) -> str:
        """Return ``group/version``, or only ``version`` for the core group."""
        return f"{self.group}/{self.version}" if self.group else self.version


# One line per group and version; then "plural Kind scope subresources", c = cluster.
_TABLE: Final = """
v1
  bindings Binding n
  componentstatuses ComponentStatus c
  configmaps ConfigMap n
  endpoints Endpoints n
  events Event n
  limitranges LimitRange n
  namespaces Namespace c finalize,status
  nodes Node c proxy,status
  persistentvolumeclaims PersistentVolumeClaim n status
  persistentvolumes PersistentVolume c status
  pods Pod n attach,binding,ephemeralcontainers,eviction,exec,log,portforward,proxy
  pods Pod n resize,status
  podtemplates PodTemplate n
  replicationcontrollers ReplicationController n scale,status
  resourcequotas ResourceQuota n status
  secrets Secret n
  serviceaccounts ServiceAccount n token
  services Service n proxy,status
admissionregistration.k8s.io/v1
  mutatingwebhookconfigurations MutatingWebhookConfiguration c
  validatingadmissionpolicies ValidatingAdmissionPolicy c status
  validatingadmissionpolicybindings ValidatingAdmissionPolicyBinding c
  validatingwebhookconfigurations ValidatingWebhookConfiguration c
apiextensions.k8s.io/v1
  customresourcedefinitions CustomResourceDefinition c status
apiregistration.k8s.io/v1
  apiservices APIService c status
apps/v1
  controllerrevisions ControllerRevision n
  daemonsets DaemonSet n status
  deployments Deployment n scale,status
  replicasets ReplicaSet n scale,status
  statefulsets StatefulSet n scale,status
authentication.k8s.io/v1
  selfsubjectreviews SelfSubjectReview c
  tokenreviews TokenReview c
authorization.k8s.io/v1
  localsubjectaccessreviews LocalSubjectAccessReview n
  selfsubjectaccessreviews SelfSubjectAccessReview c
  selfsubjectrulesreviews SelfSubjectRulesReview c
  subjectaccessreviews SubjectAccessReview c
autoscaling/v2
  horizontalpodautoscalers HorizontalPodAutoscaler n status
autoscaling/v1
  horizontalpodautoscalers HorizontalPodAutoscaler n status
batch/v1
  cronjobs CronJob n status
  jobs Job n status
certificates.k8s.io/v1
  certificatesigningrequests CertificateSigningRequest c approval,status
coordination.k8s.io/v1
  leases Lease n
discovery.k8s.io/v1
  endpointslices EndpointSlice n
events.k8s.io/v1
  events Event n
flowcontrol.apiserver.k8s.io/v1
  flowschemas FlowSchema c status
  prioritylevelconfigurations PriorityLevelConfiguration c status
networking.k8s.io/v1
  ingressclasses IngressClass c
  ingresses Ingress n status
  ipaddresses IPAddress c
  networkpolicies NetworkPolicy n
  servicecidrs ServiceCIDR c status
node.k8s.io/v1
  runtimeclasses RuntimeClass c
policy/v1
  poddisruptionbudgets PodDisruptionBudget n status
rbac.authorization.k8s.io/v1
  clusterrolebindings ClusterRoleBinding c
  clusterroles ClusterRole c
  rolebindings RoleBinding n
  roles Role n
resource.k8s.io/v1
  deviceclasses DeviceClass c
  resourceclaims ResourceClaim n status
  resourceclaimtemplates ResourceClaimTemplate n
  resourceslices ResourceSlice c
scheduling.k8s.io/v1
  priorityclasses PriorityClass c
storage.k8s.io/v1
  csidrivers CSIDriver c
  csinodes CSINode c
  csistoragecapacities CSIStorageCapacity n
  storageclasses StorageClass c
  volumeattachments VolumeAttachment c status
  volumeattributesclasses VolumeAttributesClass c
kyverno.io/v1
  clusterpolicies ClusterPolicy c status
  policies Policy n status
kyverno.io/v2
  cleanuppolicies CleanupPolicy n status
  clustercleanuppolicies ClusterCleanupPolicy c status
  globalcontextentries GlobalContextEntry c status
  policyexceptions PolicyException n
  updaterequests UpdateRequest n status
reports.kyverno.io/v1
  clusterephemeralreports ClusterEphemeralReport c
  ephemeralreports EphemeralReport n
wgpolicyk8s.io/v1alpha2
  clusterpolicyreports ClusterPolicyReport c
  policyreports PolicyReport n
"""


def _read(table: str) -> tuple[ApiResource, ...]:
    by_kind: dict[tuple[str, str, str], ApiResource] = {}
    group = version = ""
    for line in table.splitlines():
        if not line.startswith(" "):
            group, _, version = line.rpartition("/")
            continue
        plural, kind, scope, *listed = line.split()
        key = (group, version, kind)
        before = by_kind[key].subresources if key in by_kind else ()
        names = tuple(listed[0].split(",")) if listed else ()
        by_kind[key] = ApiResource(
            group, version, kind, plural, scope == "n", before + names
        )
    return tuple(by_kind.values())


BUILT_IN: Final = _read(_TABLE)
"""All kinds, in the search order for a kind without a group."""
