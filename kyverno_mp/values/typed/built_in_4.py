"""List the types of the built-in kinds, part 4 of four.

Room: values. Takes: nothing. Gives: TABLE. Next: schema.py, which has the notation.
May touch: nothing. Source: Kubernetes OpenAPI v3, release 1.32
(python -m tests.unit.values.typed_schemas writes this module).
"""

from typing import Final

TABLE: Final = """\
 exempt:=flowcontrol.v1.ExemptPriorityLevelConfiguration
 limited:=flowcontrol.v1.LimitedPriorityLevelConfiguration type:s
flowcontrol.v1.PriorityLevelConfigurationStatus
 conditions:[type]=flowcontrol.v1.PriorityLevelConfigurationCondition
flowcontrol.v1.QueuingConfiguration handSize:n queueLengthLimit:n queues:n
flowcontrol.v1.ResourcePolicyRule apiGroups:[*]s clusterScope:b namespaces:[*]s
 resources:[*]s verbs:[*]s
flowcontrol.v1.ServiceAccountSubject name:s namespace:s
flowcontrol.v1.Subject group:=flowcontrol.v1.GroupSubject kind:s
 serviceAccount:=flowcontrol.v1.ServiceAccountSubject user:=flowcontrol.v1.UserSubject
flowcontrol.v1.UserSubject name:s
meta.v1.Condition lastTransitionTime:u message:s observedGeneration:n reason:s status:s
 type:s
meta.v1.DeleteOptions apiVersion:s dryRun:[]s gracePeriodSeconds:n
 ignoreStoreReadErrorWithClusterBreakingPotential:b kind:s orphanDependents:b
 preconditions:=meta.v1.Preconditions propagationPolicy:s
meta.v1.FieldSelectorRequirement key:s operator:s values:[]s
meta.v1.LabelSelectorRequirement key:s operator:s values:[]s
meta.v1.ListMeta continue:s remainingItemCount:n resourceVersion:s selfLink:s
meta.v1.ManagedFieldsEntry apiVersion:s fieldsType:s fieldsV1:{}? manager:s operation:s
 subresource:s time:u
meta.v1.ObjectMeta annotations:{}s creationTimestamp:u deletionGracePeriodSeconds:n
 deletionTimestamp:u finalizers:[*]s generateName:s generation:n labels:{}s
 managedFields:[]=meta.v1.ManagedFieldsEntry name:s namespace:s
 ownerReferences:[uid=""]=meta.v1.OwnerReference resourceVersion:s selfLink:s uid:s
meta.v1.Preconditions resourceVersion:s uid:s
meta.v1.Status apiVersion:s code:n details:=meta.v1.StatusDetails kind:s message:s
 metadata:=meta.v1.ListMeta reason:s status:s
meta.v1.StatusCause field:s message:s reason:s
meta.v1.StatusDetails causes:[]=meta.v1.StatusCause group:s kind:s name:s
 retryAfterSeconds:n uid:s
networking.v1.HTTPIngressPath backend:=networking.v1.IngressBackend path:s pathType:s
networking.v1.HTTPIngressRuleValue paths:[]=networking.v1.HTTPIngressPath
networking.v1.IPBlock cidr:s except:[]s
networking.v1.Ingress apiVersion:s kind:s metadata:=meta.v1.ObjectMeta
 spec:=networking.v1.IngressSpec status:=networking.v1.IngressStatus
networking.v1.IngressBackend resource:=core.v1.TypedLocalObjectReference
 service:=networking.v1.IngressServiceBackend
networking.v1.IngressClass apiVersion:s kind:s metadata:=meta.v1.ObjectMeta
 spec:=networking.v1.IngressClassSpec
networking.v1.IngressClassParametersReference apiGroup:s kind:s name:s namespace:s
 scope:s
networking.v1.IngressClassSpec controller:s
 parameters:=networking.v1.IngressClassParametersReference
networking.v1.IngressLoadBalancerIngress hostname:s ip:s
 ports:[]=networking.v1.IngressPortStatus
networking.v1.IngressLoadBalancerStatus
 ingress:[]=networking.v1.IngressLoadBalancerIngress
networking.v1.IngressPortStatus error:s port:n protocol:s
networking.v1.IngressRule host:s http:=networking.v1.HTTPIngressRuleValue
networking.v1.IngressServiceBackend name:s port:=networking.v1.ServiceBackendPort
networking.v1.IngressSpec defaultBackend:=networking.v1.IngressBackend
 ingressClassName:s rules:[]=networking.v1.IngressRule tls:[]=networking.v1.IngressTLS
networking.v1.IngressStatus loadBalancer:=networking.v1.IngressLoadBalancerStatus
networking.v1.IngressTLS hosts:[]s secretName:s
networking.v1.NetworkPolicy apiVersion:s kind:s metadata:=meta.v1.ObjectMeta
 spec:=networking.v1.NetworkPolicySpec
networking.v1.NetworkPolicyEgressRule ports:[]=networking.v1.NetworkPolicyPort
 to:[]=networking.v1.NetworkPolicyPeer
networking.v1.NetworkPolicyIngressRule from:[]=networking.v1.NetworkPolicyPeer
 ports:[]=networking.v1.NetworkPolicyPort
networking.v1.NetworkPolicyPeer ipBlock:=networking.v1.IPBlock
 namespaceSelector:=meta.v1.LabelSelector podSelector:=meta.v1.LabelSelector
networking.v1.NetworkPolicyPort endPort:n port:? protocol:s
networking.v1.NetworkPolicySpec egress:[]=networking.v1.NetworkPolicyEgressRule
 ingress:[]=networking.v1.NetworkPolicyIngressRule podSelector:=meta.v1.LabelSelector
 policyTypes:[]s
networking.v1beta1.IPAddress apiVersion:s kind:s metadata:=meta.v1.ObjectMeta
 spec:=networking.v1beta1.IPAddressSpec
networking.v1beta1.IPAddressSpec parentRef:=networking.v1beta1.ParentReference
networking.v1beta1.ParentReference group:s name:s namespace:s resource:s
networking.v1beta1.ServiceCIDR apiVersion:s kind:s metadata:=meta.v1.ObjectMeta
 spec:=networking.v1beta1.ServiceCIDRSpec status:=networking.v1beta1.ServiceCIDRStatus
networking.v1beta1.ServiceCIDRSpec cidrs:[]s
networking.v1beta1.ServiceCIDRStatus conditions:[type=""]=meta.v1.Condition
node.v1.Overhead podFixed:{}u
node.v1.RuntimeClass apiVersion:s handler:s kind:s metadata:=meta.v1.ObjectMeta
 overhead:=node.v1.Overhead scheduling:=node.v1.Scheduling
node.v1.Scheduling nodeSelector:{~}s tolerations:[]=core.v1.Toleration
policy.v1.Eviction apiVersion:s deleteOptions:=meta.v1.DeleteOptions kind:s
 metadata:=meta.v1.ObjectMeta
policy.v1.PodDisruptionBudget apiVersion:s kind:s metadata:=meta.v1.ObjectMeta
 spec:=policy.v1.PodDisruptionBudgetSpec status:=policy.v1.PodDisruptionBudgetStatus
policy.v1.PodDisruptionBudgetSpec maxUnavailable:? minAvailable:?
 selector:=meta.v1.LabelSelector unhealthyPodEvictionPolicy:s
policy.v1.PodDisruptionBudgetStatus conditions:[type=""]=meta.v1.Condition
 currentHealthy:n desiredHealthy:n disruptedPods:{}u disruptionsAllowed:n expectedPods:n
 observedGeneration:n
rbac.v1.AggregationRule clusterRoleSelectors:[]=meta.v1.LabelSelector
rbac.v1.ClusterRole aggregationRule:=rbac.v1.AggregationRule apiVersion:s kind:s
 metadata:=meta.v1.ObjectMeta rules:[]=rbac.v1.PolicyRule
rbac.v1.ClusterRoleBinding apiVersion:s kind:s metadata:=meta.v1.ObjectMeta
 roleRef:=rbac.v1.RoleRef subjects:[]=rbac.v1.Subject
rbac.v1.PolicyRule apiGroups:[]s nonResourceURLs:[]s resourceNames:[]s resources:[]s
 verbs:[]s
rbac.v1.Role apiVersion:s kind:s metadata:=meta.v1.ObjectMeta
 rules:[]=rbac.v1.PolicyRule
rbac.v1.RoleBinding apiVersion:s kind:s metadata:=meta.v1.ObjectMeta
 roleRef:=rbac.v1.RoleRef subjects:[]=rbac.v1.Subject
resource.v1alpha3.AllocatedDeviceStatus conditions:[type=""]=meta.v1.Condition data:!
 device:s driver:s networkData:=resource.v1alpha3.NetworkDeviceData pool:s
resource.v1alpha3.AllocationResult devices:=resource.v1alpha3.DeviceAllocationResult
 nodeSelector:=core.v1.NodeSelector
resource.v1alpha3.BasicDevice attributes:{}=resource.v1alpha3.DeviceAttribute
 capacity:{}u
resource.v1alpha3.CELDeviceSelector expression:s
resource.v1alpha3.Device basic:=resource.v1alpha3.BasicDevice name:s
resource.v1alpha3.DeviceAllocationConfiguration
 opaque:=resource.v1alpha3.OpaqueDeviceConfiguration requests:[]s source:s
resource.v1alpha3.DeviceAllocationResult
 config:[]=resource.v1alpha3.DeviceAllocationConfiguration
 results:[]=resource.v1alpha3.DeviceRequestAllocationResult
resource.v1alpha3.DeviceAttribute bool:b int:n string:s version:s
resource.v1alpha3.DeviceClaim config:[]=resource.v1alpha3.DeviceClaimConfiguration
 constraints:[]=resource.v1alpha3.DeviceConstraint
 requests:[]=resource.v1alpha3.DeviceRequest
resource.v1alpha3.DeviceClaimConfiguration
 opaque:=resource.v1alpha3.OpaqueDeviceConfiguration requests:[]s
resource.v1alpha3.DeviceClass apiVersion:s kind:s metadata:=meta.v1.ObjectMeta
 spec:=resource.v1alpha3.DeviceClassSpec
resource.v1alpha3.DeviceClassConfiguration
 opaque:=resource.v1alpha3.OpaqueDeviceConfiguration
resource.v1alpha3.DeviceClassSpec config:[]=resource.v1alpha3.DeviceClassConfiguration
 selectors:[]=resource.v1alpha3.DeviceSelector
resource.v1alpha3.DeviceConstraint matchAttribute:s requests:[]s
resource.v1alpha3.DeviceRequest adminAccess:b allocationMode:s count:n deviceClassName:s
 name:s selectors:[]=resource.v1alpha3.DeviceSelector
resource.v1alpha3.DeviceRequestAllocationResult adminAccess:b device:s driver:s pool:s
 request:s
resource.v1alpha3.DeviceSelector cel:=resource.v1alpha3.CELDeviceSelector
resource.v1alpha3.NetworkDeviceData hardwareAddress:s interfaceName:s ips:[]s
resource.v1alpha3.OpaqueDeviceConfiguration driver:s parameters:!
resource.v1alpha3.ResourceClaim apiVersion:s kind:s metadata:=meta.v1.ObjectMeta
 spec:=resource.v1alpha3.ResourceClaimSpec status:=resource.v1alpha3.ResourceClaimStatus
resource.v1alpha3.ResourceClaimConsumerReference apiGroup:s name:s resource:s uid:s
resource.v1alpha3.ResourceClaimSpec devices:=resource.v1alpha3.DeviceClaim
resource.v1alpha3.ResourceClaimStatus allocation:=resource.v1alpha3.AllocationResult
 devices:[driver="",device="",pool=""]=resource.v1alpha3.AllocatedDeviceStatus
 reservedFor:[uid=""]=resource.v1alpha3.ResourceClaimConsumerReference
resource.v1alpha3.ResourceClaimTemplate apiVersion:s kind:s metadata:=meta.v1.ObjectMeta
 spec:=resource.v1alpha3.ResourceClaimTemplateSpec
resource.v1alpha3.ResourceClaimTemplateSpec metadata:=meta.v1.ObjectMeta
 spec:=resource.v1alpha3.ResourceClaimSpec
resource.v1alpha3.ResourcePool generation:n name:s resourceSliceCount:n
resource.v1alpha3.ResourceSlice apiVersion:s kind:s metadata:=meta.v1.ObjectMeta
 spec:=resource.v1alpha3.ResourceSliceSpec
resource.v1alpha3.ResourceSliceSpec allNodes:b devices:[]=resource.v1alpha3.Device
 driver:s nodeName:s nodeSelector:=core.v1.NodeSelector
 pool:=resource.v1alpha3.ResourcePool
resource.v1beta1.AllocatedDeviceStatus conditions:[type=""]=meta.v1.Condition data:!
 device:s driver:s networkData:=resource.v1beta1.NetworkDeviceData pool:s
resource.v1beta1.AllocationResult devices:=resource.v1beta1.DeviceAllocationResult
 nodeSelector:=core.v1.NodeSelector
resource.v1beta1.BasicDevice attributes:{}=resource.v1beta1.DeviceAttribute
 capacity:{}=resource.v1beta1.DeviceCapacity
resource.v1beta1.CELDeviceSelector expression:s
resource.v1beta1.Device basic:=resource.v1beta1.BasicDevice name:s
resource.v1beta1.DeviceAllocationConfiguration
 opaque:=resource.v1beta1.OpaqueDeviceConfiguration requests:[]s source:s
resource.v1beta1.DeviceAllocationResult
 config:[]=resource.v1beta1.DeviceAllocationConfiguration
 results:[]=resource.v1beta1.DeviceRequestAllocationResult
resource.v1beta1.DeviceAttribute bool:b int:n string:s version:s
resource.v1beta1.DeviceCapacity value:u
resource.v1beta1.DeviceClaim config:[]=resource.v1beta1.DeviceClaimConfiguration
 constraints:[]=resource.v1beta1.DeviceConstraint
 requests:[]=resource.v1beta1.DeviceRequest
resource.v1beta1.DeviceClaimConfiguration
 opaque:=resource.v1beta1.OpaqueDeviceConfiguration requests:[]s
resource.v1beta1.DeviceClass apiVersion:s kind:s metadata:=meta.v1.ObjectMeta
 spec:=resource.v1beta1.DeviceClassSpec
resource.v1beta1.DeviceClassConfiguration
 opaque:=resource.v1beta1.OpaqueDeviceConfiguration
resource.v1beta1.DeviceClassSpec config:[]=resource.v1beta1.DeviceClassConfiguration
 selectors:[]=resource.v1beta1.DeviceSelector
resource.v1beta1.DeviceConstraint matchAttribute:s requests:[]s
resource.v1beta1.DeviceRequest adminAccess:b allocationMode:s count:n deviceClassName:s
 name:s selectors:[]=resource.v1beta1.DeviceSelector
resource.v1beta1.DeviceRequestAllocationResult adminAccess:b device:s driver:s pool:s
 request:s
resource.v1beta1.DeviceSelector cel:=resource.v1beta1.CELDeviceSelector
resource.v1beta1.NetworkDeviceData hardwareAddress:s interfaceName:s ips:[]s
resource.v1beta1.OpaqueDeviceConfiguration driver:s parameters:!
resource.v1beta1.ResourceClaim apiVersion:s kind:s metadata:=meta.v1.ObjectMeta
 spec:=resource.v1beta1.ResourceClaimSpec status:=resource.v1beta1.ResourceClaimStatus
resource.v1beta1.ResourceClaimConsumerReference apiGroup:s name:s resource:s uid:s
resource.v1beta1.ResourceClaimSpec devices:=resource.v1beta1.DeviceClaim
resource.v1beta1.ResourceClaimStatus allocation:=resource.v1beta1.AllocationResult
 devices:[driver="",device="",pool=""]=resource.v1beta1.AllocatedDeviceStatus
 reservedFor:[uid=""]=resource.v1beta1.ResourceClaimConsumerReference
resource.v1beta1.ResourceClaimTemplate apiVersion:s kind:s metadata:=meta.v1.ObjectMeta
 spec:=resource.v1beta1.ResourceClaimTemplateSpec
resource.v1beta1.ResourceClaimTemplateSpec metadata:=meta.v1.ObjectMeta
 spec:=resource.v1beta1.ResourceClaimSpec
resource.v1beta1.ResourcePool generation:n name:s resourceSliceCount:n
resource.v1beta1.ResourceSlice apiVersion:s kind:s metadata:=meta.v1.ObjectMeta
 spec:=resource.v1beta1.ResourceSliceSpec
resource.v1beta1.ResourceSliceSpec allNodes:b devices:[]=resource.v1beta1.Device
 driver:s nodeName:s nodeSelector:=core.v1.NodeSelector
 pool:=resource.v1beta1.ResourcePool
scheduling.v1.PriorityClass apiVersion:s description:s globalDefault:b kind:s
 metadata:=meta.v1.ObjectMeta preemptionPolicy:s value:n
storage.v1.CSIDriver apiVersion:s kind:s metadata:=meta.v1.ObjectMeta
 spec:=storage.v1.CSIDriverSpec
storage.v1.CSIDriverSpec attachRequired:b fsGroupPolicy:s podInfoOnMount:b
 requiresRepublish:b seLinuxMount:b storageCapacity:b
 tokenRequests:[]=storage.v1.TokenRequest volumeLifecycleModes:[*]s
storage.v1.CSINode apiVersion:s kind:s metadata:=meta.v1.ObjectMeta
 spec:=storage.v1.CSINodeSpec
storage.v1.CSINodeDriver allocatable:=storage.v1.VolumeNodeResources name:s nodeID:s
 topologyKeys:[]s
storage.v1.CSINodeSpec drivers:[name=""]=storage.v1.CSINodeDriver
storage.v1.CSIStorageCapacity apiVersion:s capacity:u kind:s maximumVolumeSize:u
 metadata:=meta.v1.ObjectMeta nodeTopology:=meta.v1.LabelSelector storageClassName:s
storage.v1.StorageClass allowVolumeExpansion:b
 allowedTopologies:[]=core.v1.TopologySelectorTerm apiVersion:s kind:s
 metadata:=meta.v1.ObjectMeta mountOptions:[]s parameters:{}s provisioner:s
 reclaimPolicy:s volumeBindingMode:s
storage.v1.TokenRequest audience:s expirationSeconds:n
storage.v1.VolumeAttachment apiVersion:s kind:s metadata:=meta.v1.ObjectMeta
 spec:=storage.v1.VolumeAttachmentSpec status:=storage.v1.VolumeAttachmentStatus
storage.v1.VolumeAttachmentSource inlineVolumeSpec:=core.v1.PersistentVolumeSpec
 persistentVolumeName:s
storage.v1.VolumeAttachmentSpec attacher:s nodeName:s
 source:=storage.v1.VolumeAttachmentSource
storage.v1.VolumeAttachmentStatus attachError:=storage.v1.VolumeError attached:b
 attachmentMetadata:{}s detachError:=storage.v1.VolumeError
storage.v1.VolumeError message:s time:u
storage.v1.VolumeNodeResources count:n
storage.v1alpha1.VolumeAttributesClass apiVersion:s driverName:s kind:s
 metadata:=meta.v1.ObjectMeta parameters:{}s
storage.v1beta1.VolumeAttributesClass apiVersion:s driverName:s kind:s
 metadata:=meta.v1.ObjectMeta parameters:{}s
storagemigration.v1alpha1.GroupVersionResource group:s resource:s version:s
storagemigration.v1alpha1.MigrationCondition lastUpdateTime:u message:s reason:s
 status:s type:s
storagemigration.v1alpha1.StorageVersionMigration apiVersion:s kind:s
 metadata:=meta.v1.ObjectMeta
 spec:=storagemigration.v1alpha1.StorageVersionMigrationSpec
 status:=storagemigration.v1alpha1.StorageVersionMigrationStatus
storagemigration.v1alpha1.StorageVersionMigrationSpec continueToken:s
 resource:=storagemigration.v1alpha1.GroupVersionResource
storagemigration.v1alpha1.StorageVersionMigrationStatus
 conditions:[type=""]=storagemigration.v1alpha1.MigrationCondition resourceVersion:s
~admissionregistration.v1.MatchResources
 excludeResourceRules:[]=admissionregistration.v1.NamedRuleWithOperations matchPolicy:s
 namespaceSelector:=meta.v1.LabelSelector objectSelector:=meta.v1.LabelSelector
 resourceRules:[]=admissionregistration.v1.NamedRuleWithOperations
~admissionregistration.v1.NamedRuleWithOperations apiGroups:[]s apiVersions:[]s
 operations:[]s resourceNames:[]s resources:[]s scope:s
~admissionregistration.v1.ParamKind apiVersion:s kind:s
~admissionregistration.v1.ParamRef name:s namespace:s parameterNotFoundAction:s
 selector:=meta.v1.LabelSelector
~admissionregistration.v1.Variable expression:s name:s
~admissionregistration.v1alpha1.MatchResources
 excludeResourceRules:[]=admissionregistration.v1alpha1.NamedRuleWithOperations
 matchPolicy:s namespaceSelector:=meta.v1.LabelSelector
 objectSelector:=meta.v1.LabelSelector
 resourceRules:[]=admissionregistration.v1alpha1.NamedRuleWithOperations
~admissionregistration.v1alpha1.NamedRuleWithOperations apiGroups:[]s apiVersions:[]s
 operations:[]s resourceNames:[]s resources:[]s scope:s
~admissionregistration.v1alpha1.ParamKind apiVersion:s kind:s
~admissionregistration.v1alpha1.ParamRef name:s namespace:s parameterNotFoundAction:s
 selector:=meta.v1.LabelSelector
~admissionregistration.v1beta1.MatchResources
 excludeResourceRules:[]=admissionregistration.v1beta1.NamedRuleWithOperations
 matchPolicy:s namespaceSelector:=meta.v1.LabelSelector
 objectSelector:=meta.v1.LabelSelector
 resourceRules:[]=admissionregistration.v1beta1.NamedRuleWithOperations
~admissionregistration.v1beta1.NamedRuleWithOperations apiGroups:[]s apiVersions:[]s
 operations:[]s resourceNames:[]s resources:[]s scope:s
~admissionregistration.v1beta1.ParamKind apiVersion:s kind:s
~admissionregistration.v1beta1.ParamRef name:s namespace:s parameterNotFoundAction:s
 selector:=meta.v1.LabelSelector
~admissionregistration.v1beta1.Variable expression:s name:s
~autoscaling.v1.CrossVersionObjectReference apiVersion:s kind:s name:s
~core.v1.ConfigMapKeySelector key:s name:s optional:b
~core.v1.EndpointAddress hostname:s ip:s nodeName:s targetRef:=core.v1.ObjectReference
~core.v1.EndpointPort appProtocol:s name:s port:n protocol:s
~core.v1.LocalObjectReference name:s
~core.v1.NodeSelector nodeSelectorTerms:[]=core.v1.NodeSelectorTerm
~core.v1.NodeSelectorTerm matchExpressions:[]=core.v1.NodeSelectorRequirement
 matchFields:[]=core.v1.NodeSelectorRequirement
~core.v1.ObjectFieldSelector apiVersion:s fieldPath:s
~core.v1.ObjectReference apiVersion:s fieldPath:s kind:s name:s namespace:s
 resourceVersion:s uid:s
~core.v1.ResourceFieldSelector containerName:s divisor:u resource:s
~core.v1.ScopeSelector matchExpressions:[]=core.v1.ScopedResourceSelectorRequirement
~core.v1.SecretKeySelector key:s name:s optional:b
~core.v1.SecretReference name:s namespace:s
~core.v1.TopologySelectorTerm
 matchLabelExpressions:[]=core.v1.TopologySelectorLabelRequirement
~core.v1.TypedLocalObjectReference apiGroup:s kind:s name:s
~discovery.v1.EndpointPort appProtocol:s name:s port:n protocol:s
~meta.v1.LabelSelector matchExpressions:[]=meta.v1.LabelSelectorRequirement
 matchLabels:{}s
~meta.v1.OwnerReference apiVersion:s blockOwnerDeletion:b controller:b kind:s name:s
 uid:s
~networking.v1.ServiceBackendPort name:s number:n
~rbac.v1.RoleRef apiGroup:s kind:s name:s
~rbac.v1.Subject apiGroup:s kind:s name:s namespace:s
"""
