"""List the fields of Pods and Pod controllers with their Go types.

Room: program.pod_security. Takes: nothing. Gives: FIELDS. Next: decoded.
May touch: nothing. Source: Kubernetes core/v1, apps/v1, batch/v1 and meta/v1 types as
of 1.35, including ``status``, because Go decodes the whole object.
"""

from typing import Final

FIELDS: Final = """\
AWSElasticBlockStoreVolumeSource: bool readOnly; int32 partition; string fsType
  volumeID
Affinity: NodeAffinity nodeAffinity; PodAffinity podAffinity; PodAntiAffinity
  podAntiAffinity
AppArmorProfile: string localhostProfile; ~AppArmorProfileType type
AzureDiskVolumeSource: bool readOnly; string diskName diskURI fsType;
  ~AzureDataDiskCachingMode cachingMode; ~AzureDataDiskKind kind
AzureFileVolumeSource: bool readOnly; string secretName shareName
CSIVolumeSource: LocalObjectReference nodePublishSecretRef; bool readOnly;
  map[string]string volumeAttributes; string driver fsType
Capabilities: []~Capability add drop
CephFSVolumeSource: LocalObjectReference secretRef; []string monitors; bool readOnly;
  string path secretFile user
CinderVolumeSource: LocalObjectReference secretRef; bool readOnly; string fsType
  volumeID
ClusterTrustBundleProjection: LabelSelector labelSelector; bool optional; string name
  path signerName
ConfigMapEnvSource: bool optional; string@LocalObjectReference name
ConfigMapKeySelector: bool optional; string key; string@LocalObjectReference name
ConfigMapProjection: []KeyToPath items; bool optional; string@LocalObjectReference
  name
ConfigMapVolumeSource: []KeyToPath items; bool optional; int32 defaultMode;
  string@LocalObjectReference name
Container: Lifecycle lifecycle; Probe livenessProbe readinessProbe startupProbe;
  ResourceRequirements resources; SecurityContext securityContext; []ContainerPort
  ports; []ContainerResizePolicy resizePolicy; []ContainerRestartRule
  restartPolicyRules; []EnvFromSource envFrom; []EnvVar env; []VolumeDevice
  volumeDevices; []VolumeMount volumeMounts; []string args command; bool stdin
  stdinOnce tty; string image name terminationMessagePath workingDir;
  ~ContainerRestartPolicy restartPolicy; ~PullPolicy imagePullPolicy;
  ~TerminationMessagePolicy terminationMessagePolicy
ContainerExtendedResourceRequest: string containerName requestName resourceName
ContainerPort: int32 containerPort hostPort; string hostIP name; ~Protocol protocol
ContainerResizePolicy: ~ResourceName resourceName; ~ResourceResizeRestartPolicy
  restartPolicy
ContainerRestartRule: ContainerRestartRuleOnExitCodes exitCodes;
  ~ContainerRestartRuleAction action
ContainerRestartRuleOnExitCodes: []int32 values;
  ~ContainerRestartRuleOnExitCodesOperator operator
ContainerState: ContainerStateRunning running; ContainerStateTerminated terminated;
  ContainerStateWaiting waiting
ContainerStateRunning: Time startedAt
ContainerStateTerminated: Time finishedAt startedAt; int32 exitCode signal; string
  containerID message reason
ContainerStateWaiting: string message reason
ContainerStatus: ContainerState lastState state; ContainerUser user; ResourceList
  allocatedResources; ResourceRequirements resources; []ResourceStatus
  allocatedResourcesStatus; []VolumeMountStatus volumeMounts; bool ready started;
  int32 restartCount; string containerID image imageID name; ~Signal stopSignal
ContainerUser: LinuxContainerUser linux
CronJob: CronJobSpec spec; CronJobStatus status; ObjectMeta metadata; string@TypeMeta
  apiVersion kind
CronJobSpec: JobTemplateSpec jobTemplate; bool suspend; int32 failedJobsHistoryLimit
  successfulJobsHistoryLimit; int64 startingDeadlineSeconds; string schedule timeZone;
  ~ConcurrencyPolicy concurrencyPolicy
CronJobStatus: Time lastScheduleTime lastSuccessfulTime; []ObjectReference active
Deployment: DeploymentSpec spec; DeploymentStatus status; ObjectMeta metadata;
  string@TypeMeta apiVersion kind
DeploymentCondition: Time lastTransitionTime lastUpdateTime; string message reason;
  ~ConditionStatus status; ~DeploymentConditionType type
DeploymentSpec: DeploymentStrategy strategy; LabelSelector selector; PodTemplateSpec
  template; bool paused; int32 minReadySeconds progressDeadlineSeconds replicas
  revisionHistoryLimit
DeploymentStatus: []DeploymentCondition conditions; int32 availableReplicas
  collisionCount readyReplicas replicas terminatingReplicas unavailableReplicas
  updatedReplicas; int64 observedGeneration
DeploymentStrategy: RollingUpdateDeployment rollingUpdate; ~DeploymentStrategyType
  type
DownwardAPIProjection: []DownwardAPIVolumeFile items
DownwardAPIVolumeFile: ObjectFieldSelector fieldRef; ResourceFieldSelector
  resourceFieldRef; int32 mode; string path
DownwardAPIVolumeSource: []DownwardAPIVolumeFile items; int32 defaultMode
EmptyDirVolumeSource: Quantity sizeLimit; ~StorageMedium medium
EnvFromSource: ConfigMapEnvSource configMapRef; SecretEnvSource secretRef; string
  prefix
EnvVar: EnvVarSource valueFrom; string name value
EnvVarSource: ConfigMapKeySelector configMapKeyRef; FileKeySelector fileKeyRef;
  ObjectFieldSelector fieldRef; ResourceFieldSelector resourceFieldRef;
  SecretKeySelector secretKeyRef
EphemeralContainer: Lifecycle@EphemeralContainerCommon lifecycle;
  Probe@EphemeralContainerCommon livenessProbe readinessProbe startupProbe;
  ResourceRequirements@EphemeralContainerCommon resources;
  SecurityContext@EphemeralContainerCommon securityContext;
  []ContainerPort@EphemeralContainerCommon ports;
  []ContainerResizePolicy@EphemeralContainerCommon resizePolicy;
  []ContainerRestartRule@EphemeralContainerCommon restartPolicyRules;
  []EnvFromSource@EphemeralContainerCommon envFrom; []EnvVar@EphemeralContainerCommon
  env; []VolumeDevice@EphemeralContainerCommon volumeDevices;
  []VolumeMount@EphemeralContainerCommon volumeMounts;
  []string@EphemeralContainerCommon args command; bool@EphemeralContainerCommon stdin
  stdinOnce tty; string targetContainerName; string@EphemeralContainerCommon image
  name terminationMessagePath workingDir;
  ~ContainerRestartPolicy@EphemeralContainerCommon restartPolicy;
  ~PullPolicy@EphemeralContainerCommon imagePullPolicy;
  ~TerminationMessagePolicy@EphemeralContainerCommon terminationMessagePolicy
EphemeralVolumeSource: PersistentVolumeClaimTemplate volumeClaimTemplate
ExecAction: []string command
FCVolumeSource: []string targetWWNs wwids; bool readOnly; int32 lun; string fsType
FileKeySelector: bool optional; string key path volumeName
FlexVolumeSource: LocalObjectReference secretRef; bool readOnly; map[string]string
  options; string driver fsType
FlockerVolumeSource: string datasetName datasetUUID
GCEPersistentDiskVolumeSource: bool readOnly; int32 partition; string fsType pdName
GRPCAction: int32 port; string service
GitRepoVolumeSource: string directory repository revision
GlusterfsVolumeSource: bool readOnly; string endpoints path
HTTPGetAction: IntOrString port; []HTTPHeader httpHeaders; string host path;
  ~URIScheme scheme
HTTPHeader: string name value
HostAlias: []string hostnames; string ip
HostIP: string ip
HostPathVolumeSource: string path; ~HostPathType type
ISCSIVolumeSource: LocalObjectReference secretRef; []string portals; bool
  chapAuthDiscovery chapAuthSession readOnly; int32 lun; string fsType initiatorName
  iqn iscsiInterface targetPortal
ImageVolumeSource: string reference; ~PullPolicy pullPolicy
JobSpec: LabelSelector selector; PodFailurePolicy podFailurePolicy; PodTemplateSpec
  template; SuccessPolicy successPolicy; bool manualSelector suspend; int32
  backoffLimit backoffLimitPerIndex completions maxFailedIndexes parallelism
  ttlSecondsAfterFinished; int64 activeDeadlineSeconds; string managedBy;
  ~CompletionMode completionMode; ~PodReplacementPolicy podReplacementPolicy
JobTemplateSpec: JobSpec spec; ObjectMeta metadata
KeyToPath: int32 mode; string key path
LabelSelector: []LabelSelectorRequirement matchExpressions; map[string]string
  matchLabels
LabelSelectorRequirement: []string values; string key; ~LabelSelectorOperator operator
Lifecycle: LifecycleHandler postStart preStop; ~Signal stopSignal
LifecycleHandler: ExecAction exec; HTTPGetAction httpGet; SleepAction sleep;
  TCPSocketAction tcpSocket
LinuxContainerUser: []int64 supplementalGroups; int64 gid uid
LocalObjectReference: string name
ManagedFieldsEntry: FieldsV1 fieldsV1; Time time; string apiVersion fieldsType manager
  subresource; ~ManagedFieldsOperationType operation
NFSVolumeSource: bool readOnly; string path server
NodeAffinity: NodeSelector requiredDuringSchedulingIgnoredDuringExecution;
  []PreferredSchedulingTerm preferredDuringSchedulingIgnoredDuringExecution
NodeSelector: []NodeSelectorTerm nodeSelectorTerms
NodeSelectorRequirement: []string values; string key; ~NodeSelectorOperator operator
NodeSelectorTerm: []NodeSelectorRequirement matchExpressions matchFields
ObjectFieldSelector: string apiVersion fieldPath
ObjectMeta: Time creationTimestamp deletionTimestamp; []ManagedFieldsEntry
  managedFields; []OwnerReference ownerReferences; []string finalizers; int64
  deletionGracePeriodSeconds generation; map[string]string annotations labels; string
  generateName name namespace resourceVersion selfLink; ~types.UID uid
ObjectReference: string apiVersion fieldPath kind name namespace resourceVersion;
  ~types.UID uid
OwnerReference: bool blockOwnerDeletion controller; string apiVersion kind name;
  ~types.UID uid
PersistentVolumeClaimSpec: LabelSelector selector; TypedLocalObjectReference
  dataSource; TypedObjectReference dataSourceRef; VolumeResourceRequirements
  resources; []~PersistentVolumeAccessMode accessModes; string storageClassName
  volumeAttributesClassName volumeName; ~PersistentVolumeMode volumeMode
PersistentVolumeClaimTemplate: ObjectMeta metadata; PersistentVolumeClaimSpec spec
PersistentVolumeClaimVolumeSource: bool readOnly; string claimName
PhotonPersistentDiskVolumeSource: string fsType pdID
Pod: ObjectMeta metadata; PodSpec spec; PodStatus status; string@TypeMeta apiVersion
  kind
PodAffinity: []PodAffinityTerm requiredDuringSchedulingIgnoredDuringExecution;
  []WeightedPodAffinityTerm preferredDuringSchedulingIgnoredDuringExecution
PodAffinityTerm: LabelSelector labelSelector namespaceSelector; []string
  matchLabelKeys mismatchLabelKeys namespaces; string topologyKey
PodAntiAffinity: []PodAffinityTerm requiredDuringSchedulingIgnoredDuringExecution;
  []WeightedPodAffinityTerm preferredDuringSchedulingIgnoredDuringExecution
PodCertificateProjection: int32 maxExpirationSeconds; map[string]string
  userAnnotations; string certificateChainPath credentialBundlePath keyPath keyType
  signerName
PodCondition: Time lastProbeTime lastTransitionTime; int64 observedGeneration; string
  message reason; ~ConditionStatus status; ~PodConditionType type
PodDNSConfig: []PodDNSConfigOption options; []string nameservers searches
PodDNSConfigOption: string name value
PodExtendedResourceClaimStatus: []ContainerExtendedResourceRequest requestMappings;
  string resourceClaimName
PodFailurePolicy: []PodFailurePolicyRule rules
PodFailurePolicyOnExitCodesRequirement: []int32 values; string containerName;
  ~PodFailurePolicyOnExitCodesOperator operator
PodFailurePolicyOnPodConditionsPattern: ~ConditionStatus status; ~PodConditionType
  type
PodFailurePolicyRule: PodFailurePolicyOnExitCodesRequirement onExitCodes;
  []PodFailurePolicyOnPodConditionsPattern onPodConditions; ~PodFailurePolicyAction
  action
PodIP: string ip
PodOS: ~OSName name
PodReadinessGate: ~PodConditionType conditionType
PodResourceClaim: string name resourceClaimName resourceClaimTemplateName
PodResourceClaimStatus: string name resourceClaimName
PodSchedulingGate: string name
PodSecurityContext: AppArmorProfile appArmorProfile; SELinuxOptions seLinuxOptions;
  SeccompProfile seccompProfile; WindowsSecurityContextOptions windowsOptions;
  []Sysctl sysctls; []int64 supplementalGroups; bool runAsNonRoot; int64 fsGroup
  runAsGroup runAsUser; ~PodFSGroupChangePolicy fsGroupChangePolicy;
  ~PodSELinuxChangePolicy seLinuxChangePolicy; ~SupplementalGroupsPolicy
  supplementalGroupsPolicy
PodSpec: Affinity affinity; PodDNSConfig dnsConfig; PodOS os; PodSecurityContext
  securityContext; ResourceList overhead; ResourceRequirements resources;
  WorkloadReference workloadRef; []Container containers initContainers;
  []EphemeralContainer ephemeralContainers; []HostAlias hostAliases;
  []LocalObjectReference imagePullSecrets; []PodReadinessGate readinessGates;
  []PodResourceClaim resourceClaims; []PodSchedulingGate schedulingGates; []Toleration
  tolerations; []TopologySpreadConstraint topologySpreadConstraints; []Volume volumes;
  bool automountServiceAccountToken enableServiceLinks hostIPC hostNetwork hostPID
  hostUsers setHostnameAsFQDN shareProcessNamespace; int32 priority; int64
  activeDeadlineSeconds terminationGracePeriodSeconds; map[string]string nodeSelector;
  string hostname hostnameOverride nodeName priorityClassName runtimeClassName
  schedulerName serviceAccount serviceAccountName subdomain; ~DNSPolicy dnsPolicy;
  ~PreemptionPolicy preemptionPolicy; ~RestartPolicy restartPolicy
PodStatus: PodExtendedResourceClaimStatus extendedResourceClaimStatus; ResourceList
  allocatedResources; ResourceRequirements resources; Time startTime;
  []ContainerStatus containerStatuses ephemeralContainerStatuses
  initContainerStatuses; []HostIP hostIPs; []PodCondition conditions; []PodIP podIPs;
  []PodResourceClaimStatus resourceClaimStatuses; int64 observedGeneration; string
  hostIP message nominatedNodeName podIP reason; ~PodPhase phase; ~PodQOSClass
  qosClass; ~PodResizeStatus resize
PodTemplateSpec: ObjectMeta metadata; PodSpec spec
PortworxVolumeSource: bool readOnly; string fsType volumeID
PreferredSchedulingTerm: NodeSelectorTerm preference; int32 weight
Probe: ExecAction@ProbeHandler exec; GRPCAction@ProbeHandler grpc;
  HTTPGetAction@ProbeHandler httpGet; TCPSocketAction@ProbeHandler tcpSocket; int32
  failureThreshold initialDelaySeconds periodSeconds successThreshold timeoutSeconds;
  int64 terminationGracePeriodSeconds
ProjectedVolumeSource: []VolumeProjection sources; int32 defaultMode
QuobyteVolumeSource: bool readOnly; string group registry tenant user volume
RBDVolumeSource: LocalObjectReference secretRef; []string monitors; bool readOnly;
  string fsType image keyring pool user
ResourceClaim: string name request
ResourceFieldSelector: Quantity divisor; string containerName resource
ResourceHealth: ~ResourceHealthStatus health; ~ResourceID resourceID
ResourceRequirements: ResourceList limits requests; []ResourceClaim claims
ResourceStatus: []ResourceHealth resources; ~ResourceName name
RollingUpdateDeployment: IntOrString maxSurge maxUnavailable
SELinuxOptions: string level role type user
ScaleIOVolumeSource: LocalObjectReference secretRef; bool readOnly sslEnabled; string
  fsType gateway protectionDomain storageMode storagePool system volumeName
SeccompProfile: string localhostProfile; ~SeccompProfileType type
SecretEnvSource: bool optional; string@LocalObjectReference name
SecretKeySelector: bool optional; string key; string@LocalObjectReference name
SecretProjection: []KeyToPath items; bool optional; string@LocalObjectReference name
SecretVolumeSource: []KeyToPath items; bool optional; int32 defaultMode; string
  secretName
SecurityContext: AppArmorProfile appArmorProfile; Capabilities capabilities;
  SELinuxOptions seLinuxOptions; SeccompProfile seccompProfile;
  WindowsSecurityContextOptions windowsOptions; bool allowPrivilegeEscalation
  privileged readOnlyRootFilesystem runAsNonRoot; int64 runAsGroup runAsUser;
  ~ProcMountType procMount
ServiceAccountTokenProjection: int64 expirationSeconds; string audience path
SleepAction: int64 seconds
StorageOSVolumeSource: LocalObjectReference secretRef; bool readOnly; string fsType
  volumeName volumeNamespace
SuccessPolicy: []SuccessPolicyRule rules
SuccessPolicyRule: int32 succeededCount; string succeededIndexes
Sysctl: string name value
TCPSocketAction: IntOrString port; string host
Toleration: int64 tolerationSeconds; string key value; ~TaintEffect effect;
  ~TolerationOperator operator
TopologySpreadConstraint: LabelSelector labelSelector; []string matchLabelKeys; int32
  maxSkew minDomains; string topologyKey; ~NodeInclusionPolicy nodeAffinityPolicy
  nodeTaintsPolicy; ~UnsatisfiableConstraintAction whenUnsatisfiable
TypedLocalObjectReference: string apiGroup kind name
TypedObjectReference: string apiGroup kind name namespace
Volume: AWSElasticBlockStoreVolumeSource@VolumeSource awsElasticBlockStore;
  AzureDiskVolumeSource@VolumeSource azureDisk; AzureFileVolumeSource@VolumeSource
  azureFile; CSIVolumeSource@VolumeSource csi; CephFSVolumeSource@VolumeSource cephfs;
  CinderVolumeSource@VolumeSource cinder; ConfigMapVolumeSource@VolumeSource
  configMap; DownwardAPIVolumeSource@VolumeSource downwardAPI;
  EmptyDirVolumeSource@VolumeSource emptyDir; EphemeralVolumeSource@VolumeSource
  ephemeral; FCVolumeSource@VolumeSource fc; FlexVolumeSource@VolumeSource flexVolume;
  FlockerVolumeSource@VolumeSource flocker; GCEPersistentDiskVolumeSource@VolumeSource
  gcePersistentDisk; GitRepoVolumeSource@VolumeSource gitRepo;
  GlusterfsVolumeSource@VolumeSource glusterfs; HostPathVolumeSource@VolumeSource
  hostPath; ISCSIVolumeSource@VolumeSource iscsi; ImageVolumeSource@VolumeSource
  image; NFSVolumeSource@VolumeSource nfs;
  PersistentVolumeClaimVolumeSource@VolumeSource persistentVolumeClaim;
  PhotonPersistentDiskVolumeSource@VolumeSource photonPersistentDisk;
  PortworxVolumeSource@VolumeSource portworxVolume; ProjectedVolumeSource@VolumeSource
  projected; QuobyteVolumeSource@VolumeSource quobyte; RBDVolumeSource@VolumeSource
  rbd; ScaleIOVolumeSource@VolumeSource scaleIO; SecretVolumeSource@VolumeSource
  secret; StorageOSVolumeSource@VolumeSource storageos;
  VsphereVirtualDiskVolumeSource@VolumeSource vsphereVolume; string name
VolumeDevice: string devicePath name
VolumeMount: bool readOnly; string mountPath name subPath subPathExpr;
  ~MountPropagationMode mountPropagation; ~RecursiveReadOnlyMode recursiveReadOnly
VolumeMountStatus: bool readOnly; string mountPath name; ~RecursiveReadOnlyMode
  recursiveReadOnly
VolumeProjection: ClusterTrustBundleProjection clusterTrustBundle; ConfigMapProjection
  configMap; DownwardAPIProjection downwardAPI; PodCertificateProjection
  podCertificate; SecretProjection secret; ServiceAccountTokenProjection
  serviceAccountToken
VolumeResourceRequirements: ResourceList limits requests
VsphereVirtualDiskVolumeSource: string fsType storagePolicyID storagePolicyName
  volumePath
WeightedPodAffinityTerm: PodAffinityTerm podAffinityTerm; int32 weight
WindowsSecurityContextOptions: bool hostProcess; string gmsaCredentialSpec
  gmsaCredentialSpecName runAsUserName
WorkloadReference: string name podGroup podGroupReplicaKey
"""
"""One struct per entry: its name, then each type with its fields.

``[]X``: a list, ``map[string]X``: a map, ``~X``: a string type named X in Go, ``X@Y``:
X within the embedded struct Y.
"""
