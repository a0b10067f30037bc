"""List the types of the built-in kinds, part 3 of four.

Room: values. Takes: nothing. Gives: TABLE. Next: schema.py, which has the notation.
May touch: nothing. Source: Kubernetes OpenAPI v3, release 1.32
(python -m tests.unit.values.typed_schemas writes this module).
"""

from typing import Final

TABLE: Final = """\
core.v1.HostPathVolumeSource path:s type:s
core.v1.ISCSIPersistentVolumeSource chapAuthDiscovery:b chapAuthSession:b fsType:s
 initiatorName:s iqn:s iscsiInterface:s lun:n portals:[]s readOnly:b
 secretRef:=core.v1.SecretReference targetPortal:s
core.v1.ISCSIVolumeSource chapAuthDiscovery:b chapAuthSession:b fsType:s initiatorName:s
 iqn:s iscsiInterface:s lun:n portals:[]s readOnly:b
 secretRef:=core.v1.LocalObjectReference targetPortal:s
core.v1.ImageVolumeSource pullPolicy:s reference:s
core.v1.KeyToPath key:s mode:n path:s
core.v1.Lifecycle postStart:=core.v1.LifecycleHandler preStop:=core.v1.LifecycleHandler
core.v1.LifecycleHandler exec:=core.v1.ExecAction httpGet:=core.v1.HTTPGetAction
 sleep:=core.v1.SleepAction tcpSocket:=core.v1.TCPSocketAction
core.v1.LimitRange apiVersion:s kind:s metadata:=meta.v1.ObjectMeta
 spec:=core.v1.LimitRangeSpec
core.v1.LimitRangeItem default:{}u defaultRequest:{}u max:{}u maxLimitRequestRatio:{}u
 min:{}u type:s
core.v1.LimitRangeSpec limits:[]=core.v1.LimitRangeItem
core.v1.LinuxContainerUser gid:n supplementalGroups:[]n uid:n
core.v1.LoadBalancerIngress hostname:s ip:s ipMode:s ports:[]=core.v1.PortStatus
core.v1.LoadBalancerStatus ingress:[]=core.v1.LoadBalancerIngress
core.v1.LocalVolumeSource fsType:s path:s
core.v1.ModifyVolumeStatus status:s targetVolumeAttributesClassName:s
core.v1.NFSVolumeSource path:s readOnly:b server:s
core.v1.Namespace apiVersion:s kind:s metadata:=meta.v1.ObjectMeta
 spec:=core.v1.NamespaceSpec status:=core.v1.NamespaceStatus
core.v1.NamespaceCondition lastTransitionTime:u message:s reason:s status:s type:s
core.v1.NamespaceSpec finalizers:[]s
core.v1.NamespaceStatus conditions:[type=""]=core.v1.NamespaceCondition phase:s
core.v1.Node apiVersion:s kind:s metadata:=meta.v1.ObjectMeta spec:=core.v1.NodeSpec
 status:=core.v1.NodeStatus
core.v1.NodeAddress address:s type:s
core.v1.NodeAffinity
 preferredDuringSchedulingIgnoredDuringExecution:[]=core.v1.PreferredSchedulingTerm
 requiredDuringSchedulingIgnoredDuringExecution:=core.v1.NodeSelector
core.v1.NodeCondition lastHeartbeatTime:u lastTransitionTime:u message:s reason:s
 status:s type:s
core.v1.NodeConfigSource configMap:=core.v1.ConfigMapNodeConfigSource
core.v1.NodeConfigStatus active:=core.v1.NodeConfigSource
 assigned:=core.v1.NodeConfigSource error:s lastKnownGood:=core.v1.NodeConfigSource
core.v1.NodeDaemonEndpoints kubeletEndpoint:=core.v1.DaemonEndpoint
core.v1.NodeFeatures supplementalGroupsPolicy:b
core.v1.NodeRuntimeHandler features:=core.v1.NodeRuntimeHandlerFeatures name:s
core.v1.NodeRuntimeHandlerFeatures recursiveReadOnlyMounts:b userNamespaces:b
core.v1.NodeSelectorRequirement key:s operator:s values:[]s
core.v1.NodeSpec configSource:=core.v1.NodeConfigSource externalID:s podCIDR:s
 podCIDRs:[*]s providerID:s taints:[]=core.v1.Taint unschedulable:b
core.v1.NodeStatus addresses:[type=""]=core.v1.NodeAddress allocatable:{}u capacity:{}u
 conditions:[type=""]=core.v1.NodeCondition config:=core.v1.NodeConfigStatus
 daemonEndpoints:=core.v1.NodeDaemonEndpoints features:=core.v1.NodeFeatures
 images:[]=core.v1.ContainerImage nodeInfo:=core.v1.NodeSystemInfo phase:s
 runtimeHandlers:[]=core.v1.NodeRuntimeHandler volumesAttached:[]=core.v1.AttachedVolume
 volumesInUse:[]s
core.v1.NodeSystemInfo architecture:s bootID:s containerRuntimeVersion:s kernelVersion:s
 kubeProxyVersion:s kubeletVersion:s machineID:s operatingSystem:s osImage:s
 systemUUID:s
core.v1.PersistentVolume apiVersion:s kind:s metadata:=meta.v1.ObjectMeta
 spec:=core.v1.PersistentVolumeSpec status:=core.v1.PersistentVolumeStatus
core.v1.PersistentVolumeClaim apiVersion:s kind:s metadata:=meta.v1.ObjectMeta
 spec:=core.v1.PersistentVolumeClaimSpec status:=core.v1.PersistentVolumeClaimStatus
core.v1.PersistentVolumeClaimCondition lastProbeTime:u lastTransitionTime:u message:s
 reason:s status:s type:s
core.v1.PersistentVolumeClaimSpec accessModes:[]s
 dataSource:=core.v1.TypedLocalObjectReference
 dataSourceRef:=core.v1.TypedObjectReference
 resources:=core.v1.VolumeResourceRequirements selector:=meta.v1.LabelSelector
 storageClassName:s volumeAttributesClassName:s volumeMode:s volumeName:s
core.v1.PersistentVolumeClaimStatus accessModes:[]s allocatedResourceStatuses:{}s
 allocatedResources:{}u capacity:{}u
 conditions:[type=""]=core.v1.PersistentVolumeClaimCondition
 currentVolumeAttributesClassName:s modifyVolumeStatus:=core.v1.ModifyVolumeStatus
 phase:s
core.v1.PersistentVolumeClaimTemplate metadata:=meta.v1.ObjectMeta
 spec:=core.v1.PersistentVolumeClaimSpec
core.v1.PersistentVolumeClaimVolumeSource claimName:s readOnly:b
core.v1.PersistentVolumeSpec accessModes:[]s
 awsElasticBlockStore:=core.v1.AWSElasticBlockStoreVolumeSource
 azureDisk:=core.v1.AzureDiskVolumeSource
 azureFile:=core.v1.AzureFilePersistentVolumeSource capacity:{}u
 cephfs:=core.v1.CephFSPersistentVolumeSource
 cinder:=core.v1.CinderPersistentVolumeSource claimRef:+core.v1.ObjectReference
 csi:=core.v1.CSIPersistentVolumeSource fc:=core.v1.FCVolumeSource
 flexVolume:=core.v1.FlexPersistentVolumeSource flocker:=core.v1.FlockerVolumeSource
 gcePersistentDisk:=core.v1.GCEPersistentDiskVolumeSource
 glusterfs:=core.v1.GlusterfsPersistentVolumeSource
 hostPath:=core.v1.HostPathVolumeSource iscsi:=core.v1.ISCSIPersistentVolumeSource
 local:=core.v1.LocalVolumeSource mountOptions:[]s nfs:=core.v1.NFSVolumeSource
 nodeAffinity:=core.v1.VolumeNodeAffinity persistentVolumeReclaimPolicy:s
 photonPersistentDisk:=core.v1.PhotonPersistentDiskVolumeSource
 portworxVolume:=core.v1.PortworxVolumeSource quobyte:=core.v1.QuobyteVolumeSource
 rbd:=core.v1.RBDPersistentVolumeSource scaleIO:=core.v1.ScaleIOPersistentVolumeSource
 storageClassName:s storageos:=core.v1.StorageOSPersistentVolumeSource
 volumeAttributesClassName:s volumeMode:s
 vsphereVolume:=core.v1.VsphereVirtualDiskVolumeSource
core.v1.PersistentVolumeStatus lastPhaseTransitionTime:u message:s phase:s reason:s
core.v1.PhotonPersistentDiskVolumeSource fsType:s pdID:s
core.v1.Pod apiVersion:s kind:s metadata:=meta.v1.ObjectMeta spec:=core.v1.PodSpec
 status:=core.v1.PodStatus
core.v1.PodAffinity
 preferredDuringSchedulingIgnoredDuringExecution:[]=core.v1.WeightedPodAffinityTerm
 requiredDuringSchedulingIgnoredDuringExecution:[]=core.v1.PodAffinityTerm
core.v1.PodAffinityTerm labelSelector:=meta.v1.LabelSelector matchLabelKeys:[]s
 mismatchLabelKeys:[]s namespaceSelector:=meta.v1.LabelSelector namespaces:[]s
 topologyKey:s
core.v1.PodAntiAffinity
 preferredDuringSchedulingIgnoredDuringExecution:[]=core.v1.WeightedPodAffinityTerm
 requiredDuringSchedulingIgnoredDuringExecution:[]=core.v1.PodAffinityTerm
core.v1.PodCondition lastProbeTime:u lastTransitionTime:u message:s reason:s status:s
 type:s
core.v1.PodDNSConfig nameservers:[]s options:[]=core.v1.PodDNSConfigOption searches:[]s
core.v1.PodDNSConfigOption name:s value:s
core.v1.PodIP ip:s
core.v1.PodOS name:s
core.v1.PodReadinessGate conditionType:s
core.v1.PodResourceClaim name:s resourceClaimName:s resourceClaimTemplateName:s
core.v1.PodResourceClaimStatus name:s resourceClaimName:s
core.v1.PodSchedulingGate name:s
core.v1.PodSecurityContext appArmorProfile:=core.v1.AppArmorProfile fsGroup:n
 fsGroupChangePolicy:s runAsGroup:n runAsNonRoot:b runAsUser:n seLinuxChangePolicy:s
 seLinuxOptions:=core.v1.SELinuxOptions seccompProfile:=core.v1.SeccompProfile
 supplementalGroups:[]n supplementalGroupsPolicy:s sysctls:[]=core.v1.Sysctl
 windowsOptions:=core.v1.WindowsSecurityContextOptions
core.v1.PodSpec activeDeadlineSeconds:n affinity:=core.v1.Affinity
 automountServiceAccountToken:b containers:[name=""]=core.v1.Container
 dnsConfig:=core.v1.PodDNSConfig dnsPolicy:s enableServiceLinks:b
 ephemeralContainers:[name=""]=core.v1.EphemeralContainer
 hostAliases:[ip=""]=core.v1.HostAlias hostIPC:b hostNetwork:b hostPID:b hostUsers:b
 hostname:s imagePullSecrets:[name=""]=core.v1.LocalObjectReference
 initContainers:[name=""]=core.v1.Container nodeName:s nodeSelector:{~}s
 os:=core.v1.PodOS overhead:{}u preemptionPolicy:s priority:n priorityClassName:s
 readinessGates:[]=core.v1.PodReadinessGate
 resourceClaims:[name=""]=core.v1.PodResourceClaim
 resources:=core.v1.ResourceRequirements restartPolicy:s runtimeClassName:s
 schedulerName:s schedulingGates:[name=""]=core.v1.PodSchedulingGate
 securityContext:=core.v1.PodSecurityContext serviceAccount:s serviceAccountName:s
 setHostnameAsFQDN:b shareProcessNamespace:b subdomain:s terminationGracePeriodSeconds:n
 tolerations:[]=core.v1.Toleration
 topologySpreadConstraints:[topologyKey="",whenUnsatisfiable=""]=core.v1.TopologySpreadConstraint
 volumes:[name=""]=core.v1.Volume
core.v1.PodStatus conditions:[type=""]=core.v1.PodCondition
 containerStatuses:[]=core.v1.ContainerStatus
 ephemeralContainerStatuses:[]=core.v1.ContainerStatus hostIP:s
 hostIPs:[]=core.v1.HostIP initContainerStatuses:[]=core.v1.ContainerStatus message:s
 nominatedNodeName:s phase:s podIP:s podIPs:[ip=""]=core.v1.PodIP qosClass:s reason:s
 resize:s resourceClaimStatuses:[name=""]=core.v1.PodResourceClaimStatus startTime:u
core.v1.PodTemplate apiVersion:s kind:s metadata:=meta.v1.ObjectMeta
 template:=core.v1.PodTemplateSpec
core.v1.PodTemplateSpec metadata:=meta.v1.ObjectMeta spec:=core.v1.PodSpec
core.v1.PortStatus error:s port:n protocol:s
core.v1.PortworxVolumeSource fsType:s readOnly:b volumeID:s
core.v1.PreferredSchedulingTerm preference:=core.v1.NodeSelectorTerm weight:n
core.v1.Probe exec:=core.v1.ExecAction failureThreshold:n grpc:=core.v1.GRPCAction
 httpGet:=core.v1.HTTPGetAction initialDelaySeconds:n periodSeconds:n successThreshold:n
 tcpSocket:=core.v1.TCPSocketAction terminationGracePeriodSeconds:n timeoutSeconds:n
core.v1.ProjectedVolumeSource defaultMode:n sources:[]=core.v1.VolumeProjection
core.v1.QuobyteVolumeSource group:s readOnly:b registry:s tenant:s user:s volume:s
core.v1.RBDPersistentVolumeSource fsType:s image:s keyring:s monitors:[]s pool:s
 readOnly:b secretRef:=core.v1.SecretReference user:s
core.v1.RBDVolumeSource fsType:s image:s keyring:s monitors:[]s pool:s readOnly:b
 secretRef:=core.v1.LocalObjectReference user:s
core.v1.ReplicationController apiVersion:s kind:s metadata:=meta.v1.ObjectMeta
 spec:=core.v1.ReplicationControllerSpec status:=core.v1.ReplicationControllerStatus
core.v1.ReplicationControllerCondition lastTransitionTime:u message:s reason:s status:s
 type:s
core.v1.ReplicationControllerSpec minReadySeconds:n replicas:n selector:{~}s
 template:=core.v1.PodTemplateSpec
core.v1.ReplicationControllerStatus availableReplicas:n
 conditions:[type=""]=core.v1.ReplicationControllerCondition fullyLabeledReplicas:n
 observedGeneration:n readyReplicas:n replicas:n
core.v1.ResourceClaim name:s request:s
core.v1.ResourceHealth health:s resourceID:s
core.v1.ResourceQuota apiVersion:s kind:s metadata:=meta.v1.ObjectMeta
 spec:=core.v1.ResourceQuotaSpec status:=core.v1.ResourceQuotaStatus
core.v1.ResourceQuotaSpec hard:{}u scopeSelector:=core.v1.ScopeSelector scopes:[]s
core.v1.ResourceQuotaStatus hard:{}u used:{}u
core.v1.ResourceRequirements claims:[name=""]=core.v1.ResourceClaim limits:{}u
 requests:{}u
core.v1.ResourceStatus name:s resources:[resourceID=""]=core.v1.ResourceHealth
core.v1.SELinuxOptions level:s role:s type:s user:s
core.v1.ScaleIOPersistentVolumeSource fsType:s gateway:s protectionDomain:s readOnly:b
 secretRef:=core.v1.SecretReference sslEnabled:b storageMode:s storagePool:s system:s
 volumeName:s
core.v1.ScaleIOVolumeSource fsType:s gateway:s protectionDomain:s readOnly:b
 secretRef:=core.v1.LocalObjectReference sslEnabled:b storageMode:s storagePool:s
 system:s volumeName:s
core.v1.ScopedResourceSelectorRequirement operator:s scopeName:s values:[]s
core.v1.SeccompProfile localhostProfile:s type:s
core.v1.Secret apiVersion:s data:{}s immutable:b kind:s metadata:=meta.v1.ObjectMeta
 stringData:{}s type:s
core.v1.SecretEnvSource name:s optional:b
core.v1.SecretProjection items:[]=core.v1.KeyToPath name:s optional:b
core.v1.SecretVolumeSource defaultMode:n items:[]=core.v1.KeyToPath optional:b
 secretName:s
core.v1.SecurityContext allowPrivilegeEscalation:b
 appArmorProfile:=core.v1.AppArmorProfile capabilities:=core.v1.Capabilities
 privileged:b procMount:s readOnlyRootFilesystem:b runAsGroup:n runAsNonRoot:b
 runAsUser:n seLinuxOptions:=core.v1.SELinuxOptions
 seccompProfile:=core.v1.SeccompProfile
 windowsOptions:=core.v1.WindowsSecurityContextOptions
core.v1.Service apiVersion:s kind:s metadata:=meta.v1.ObjectMeta
 spec:=core.v1.ServiceSpec status:=core.v1.ServiceStatus
core.v1.ServiceAccount apiVersion:s automountServiceAccountToken:b
 imagePullSecrets:[]=core.v1.LocalObjectReference kind:s metadata:=meta.v1.ObjectMeta
 secrets:[name]=core.v1.ObjectReference
core.v1.ServiceAccountTokenProjection audience:s expirationSeconds:n path:s
core.v1.ServicePort appProtocol:s name:s nodePort:n port:n protocol:s targetPort:?
core.v1.ServiceSpec allocateLoadBalancerNodePorts:b clusterIP:s clusterIPs:[]s
 externalIPs:[]s externalName:s externalTrafficPolicy:s healthCheckNodePort:n
 internalTrafficPolicy:s ipFamilies:[]s ipFamilyPolicy:s loadBalancerClass:s
 loadBalancerIP:s loadBalancerSourceRanges:[]s
 ports:[port=0,protocol="TCP"]=core.v1.ServicePort publishNotReadyAddresses:b
 selector:{~}s sessionAffinity:s sessionAffinityConfig:=core.v1.SessionAffinityConfig
 trafficDistribution:s type:s
core.v1.ServiceStatus conditions:[type=""]=meta.v1.Condition
 loadBalancer:=core.v1.LoadBalancerStatus
core.v1.SessionAffinityConfig clientIP:=core.v1.ClientIPConfig
core.v1.SleepAction seconds:n
core.v1.StorageOSPersistentVolumeSource fsType:s readOnly:b
 secretRef:=core.v1.ObjectReference volumeName:s volumeNamespace:s
core.v1.StorageOSVolumeSource fsType:s readOnly:b
 secretRef:=core.v1.LocalObjectReference volumeName:s volumeNamespace:s
core.v1.Sysctl name:s value:s
core.v1.TCPSocketAction host:s port:?
core.v1.Taint effect:s key:s timeAdded:u value:s
core.v1.Toleration effect:s key:s operator:s tolerationSeconds:n value:s
core.v1.TopologySelectorLabelRequirement key:s values:[]s
core.v1.TopologySpreadConstraint labelSelector:=meta.v1.LabelSelector matchLabelKeys:[]s
 maxSkew:n minDomains:n nodeAffinityPolicy:s nodeTaintsPolicy:s topologyKey:s
 whenUnsatisfiable:s
core.v1.TypedObjectReference apiGroup:s kind:s name:s namespace:s
core.v1.Volume awsElasticBlockStore:=core.v1.AWSElasticBlockStoreVolumeSource
 azureDisk:=core.v1.AzureDiskVolumeSource azureFile:=core.v1.AzureFileVolumeSource
 cephfs:=core.v1.CephFSVolumeSource cinder:=core.v1.CinderVolumeSource
 configMap:=core.v1.ConfigMapVolumeSource csi:=core.v1.CSIVolumeSource
 downwardAPI:=core.v1.DownwardAPIVolumeSource emptyDir:=core.v1.EmptyDirVolumeSource
 ephemeral:=core.v1.EphemeralVolumeSource fc:=core.v1.FCVolumeSource
 flexVolume:=core.v1.FlexVolumeSource flocker:=core.v1.FlockerVolumeSource
 gcePersistentDisk:=core.v1.GCEPersistentDiskVolumeSource
 gitRepo:=core.v1.GitRepoVolumeSource glusterfs:=core.v1.GlusterfsVolumeSource
 hostPath:=core.v1.HostPathVolumeSource image:=core.v1.ImageVolumeSource
 iscsi:=core.v1.ISCSIVolumeSource name:s nfs:=core.v1.NFSVolumeSource
 persistentVolumeClaim:=core.v1.PersistentVolumeClaimVolumeSource
 photonPersistentDisk:=core.v1.PhotonPersistentDiskVolumeSource
 portworxVolume:=core.v1.PortworxVolumeSource projected:=core.v1.ProjectedVolumeSource
 quobyte:=core.v1.QuobyteVolumeSource rbd:=core.v1.RBDVolumeSource
 scaleIO:=core.v1.ScaleIOVolumeSource secret:=core.v1.SecretVolumeSource
 storageos:=core.v1.StorageOSVolumeSource
 vsphereVolume:=core.v1.VsphereVirtualDiskVolumeSource
core.v1.VolumeDevice devicePath:s name:s
core.v1.VolumeMount mountPath:s mountPropagation:s name:s readOnly:b recursiveReadOnly:s
 subPath:s subPathExpr:s
core.v1.VolumeMountStatus mountPath:s name:s readOnly:b recursiveReadOnly:s
core.v1.VolumeNodeAffinity required:=core.v1.NodeSelector
core.v1.VolumeProjection clusterTrustBundle:=core.v1.ClusterTrustBundleProjection
 configMap:=core.v1.ConfigMapProjection downwardAPI:=core.v1.DownwardAPIProjection
 secret:=core.v1.SecretProjection
 serviceAccountToken:=core.v1.ServiceAccountTokenProjection
core.v1.VolumeResourceRequirements limits:{}u requests:{}u
core.v1.VsphereVirtualDiskVolumeSource fsType:s storagePolicyID:s storagePolicyName:s
 volumePath:s
core.v1.WeightedPodAffinityTerm podAffinityTerm:=core.v1.PodAffinityTerm weight:n
core.v1.WindowsSecurityContextOptions gmsaCredentialSpec:s gmsaCredentialSpecName:s
 hostProcess:b runAsUserName:s
discovery.v1.Endpoint addresses:[*]s conditions:=discovery.v1.EndpointConditions
 deprecatedTopology:{}s hints:=discovery.v1.EndpointHints hostname:s nodeName:s
 targetRef:=core.v1.ObjectReference zone:s
discovery.v1.EndpointConditions ready:b serving:b terminating:b
discovery.v1.EndpointHints forZones:[]=discovery.v1.ForZone
discovery.v1.EndpointSlice addressType:s apiVersion:s endpoints:[]=discovery.v1.Endpoint
 kind:s metadata:=meta.v1.ObjectMeta ports:[]=discovery.v1.EndpointPort
discovery.v1.ForZone name:s
events.v1.Event action:s apiVersion:s deprecatedCount:n deprecatedFirstTimestamp:u
 deprecatedLastTimestamp:u deprecatedSource:=core.v1.EventSource eventTime:u kind:s
 metadata:=meta.v1.ObjectMeta note:s reason:s regarding:=core.v1.ObjectReference
 related:=core.v1.ObjectReference reportingController:s reportingInstance:s
 series:=events.v1.EventSeries type:s
events.v1.EventSeries count:n lastObservedTime:u
flowcontrol.v1.ExemptPriorityLevelConfiguration lendablePercent:n
 nominalConcurrencyShares:n
flowcontrol.v1.FlowDistinguisherMethod type:s
flowcontrol.v1.FlowSchema apiVersion:s kind:s metadata:=meta.v1.ObjectMeta
 spec:=flowcontrol.v1.FlowSchemaSpec status:=flowcontrol.v1.FlowSchemaStatus
flowcontrol.v1.FlowSchemaCondition lastTransitionTime:u message:s reason:s status:s
 type:s
flowcontrol.v1.FlowSchemaSpec
 distinguisherMethod:=flowcontrol.v1.FlowDistinguisherMethod matchingPrecedence:n
 priorityLevelConfiguration:=flowcontrol.v1.PriorityLevelConfigurationReference
 rules:[]=flowcontrol.v1.PolicyRulesWithSubjects
flowcontrol.v1.FlowSchemaStatus conditions:[type]=flowcontrol.v1.FlowSchemaCondition
flowcontrol.v1.GroupSubject name:s
flowcontrol.v1.LimitResponse queuing:=flowcontrol.v1.QueuingConfiguration type:s
flowcontrol.v1.LimitedPriorityLevelConfiguration borrowingLimitPercent:n
 lendablePercent:n limitResponse:=flowcontrol.v1.LimitResponse
 nominalConcurrencyShares:n
flowcontrol.v1.NonResourcePolicyRule nonResourceURLs:[*]s verbs:[*]s
flowcontrol.v1.PolicyRulesWithSubjects
 nonResourceRules:[]=flowcontrol.v1.NonResourcePolicyRule
 resourceRules:[]=flowcontrol.v1.ResourcePolicyRule subjects:[]=flowcontrol.v1.Subject
flowcontrol.v1.PriorityLevelConfiguration apiVersion:s kind:s
 metadata:=meta.v1.ObjectMeta spec:=flowcontrol.v1.PriorityLevelConfigurationSpec
 status:=flowcontrol.v1.PriorityLevelConfigurationStatus
flowcontrol.v1.PriorityLevelConfigurationCondition lastTransitionTime:u message:s
 reason:s status:s type:s
flowcontrol.v1.PriorityLevelConfigurationReference name:s
flowcontrol.v1.PriorityLevelConfigurationSpec
"""
