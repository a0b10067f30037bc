"""List the types of the built-in kinds, part 2 of four.

Room: values. Takes: nothing. Gives: TABLE. Next: schema.py, which has the notation.
May touch: nothing. Source: Kubernetes OpenAPI v3, release 1.32
(python -m tests.unit.values.typed_schemas writes this module).
"""

from typing import Final

TABLE: Final = """\
 observedGeneration:n readyReplicas:n replicas:n
apps.v1.RollingUpdateDaemonSet maxSurge:? maxUnavailable:?
apps.v1.RollingUpdateDeployment maxSurge:? maxUnavailable:?
apps.v1.RollingUpdateStatefulSetStrategy maxUnavailable:? partition:n
apps.v1.StatefulSet apiVersion:s kind:s metadata:=meta.v1.ObjectMeta
 spec:=apps.v1.StatefulSetSpec status:=apps.v1.StatefulSetStatus
apps.v1.StatefulSetCondition lastTransitionTime:u message:s reason:s status:s type:s
apps.v1.StatefulSetOrdinals start:n
apps.v1.StatefulSetPersistentVolumeClaimRetentionPolicy whenDeleted:s whenScaled:s
apps.v1.StatefulSetSpec minReadySeconds:n ordinals:=apps.v1.StatefulSetOrdinals
 persistentVolumeClaimRetentionPolicy:=apps.v1.StatefulSetPersistentVolumeClaimRetentionPolicy
 podManagementPolicy:s replicas:n revisionHistoryLimit:n selector:=meta.v1.LabelSelector
 serviceName:s template:=core.v1.PodTemplateSpec
 updateStrategy:=apps.v1.StatefulSetUpdateStrategy
 volumeClaimTemplates:[]=core.v1.PersistentVolumeClaim
apps.v1.StatefulSetStatus availableReplicas:n collisionCount:n
 conditions:[type=""]=apps.v1.StatefulSetCondition currentReplicas:n currentRevision:s
 observedGeneration:n readyReplicas:n replicas:n updateRevision:s updatedReplicas:n
apps.v1.StatefulSetUpdateStrategy
 rollingUpdate:=apps.v1.RollingUpdateStatefulSetStrategy type:s
authentication.v1.BoundObjectReference apiVersion:s kind:s name:s uid:s
authentication.v1.SelfSubjectReview apiVersion:s kind:s metadata:=meta.v1.ObjectMeta
 status:=authentication.v1.SelfSubjectReviewStatus
authentication.v1.SelfSubjectReviewStatus userInfo:=authentication.v1.UserInfo
authentication.v1.TokenRequest apiVersion:s kind:s metadata:=meta.v1.ObjectMeta
 spec:=authentication.v1.TokenRequestSpec status:=authentication.v1.TokenRequestStatus
authentication.v1.TokenRequestSpec audiences:[]s
 boundObjectRef:=authentication.v1.BoundObjectReference expirationSeconds:n
authentication.v1.TokenRequestStatus expirationTimestamp:u token:s
authentication.v1.TokenReview apiVersion:s kind:s metadata:=meta.v1.ObjectMeta
 spec:=authentication.v1.TokenReviewSpec status:=authentication.v1.TokenReviewStatus
authentication.v1.TokenReviewSpec audiences:[]s token:s
authentication.v1.TokenReviewStatus audiences:[]s authenticated:b error:s
 user:=authentication.v1.UserInfo
authentication.v1.UserInfo extra:{}[]s groups:[]s uid:s username:s
authentication.v1beta1.SelfSubjectReview apiVersion:s kind:s
 metadata:=meta.v1.ObjectMeta status:=authentication.v1beta1.SelfSubjectReviewStatus
authentication.v1beta1.SelfSubjectReviewStatus userInfo:=authentication.v1.UserInfo
authorization.v1.FieldSelectorAttributes rawSelector:s
 requirements:[]=meta.v1.FieldSelectorRequirement
authorization.v1.LabelSelectorAttributes rawSelector:s
 requirements:[]=meta.v1.LabelSelectorRequirement
authorization.v1.LocalSubjectAccessReview apiVersion:s kind:s
 metadata:=meta.v1.ObjectMeta spec:=authorization.v1.SubjectAccessReviewSpec
 status:=authorization.v1.SubjectAccessReviewStatus
authorization.v1.NonResourceAttributes path:s verb:s
authorization.v1.NonResourceRule nonResourceURLs:[]s verbs:[]s
authorization.v1.ResourceAttributes
 fieldSelector:=authorization.v1.FieldSelectorAttributes group:s
 labelSelector:=authorization.v1.LabelSelectorAttributes name:s namespace:s resource:s
 subresource:s verb:s version:s
authorization.v1.ResourceRule apiGroups:[]s resourceNames:[]s resources:[]s verbs:[]s
authorization.v1.SelfSubjectAccessReview apiVersion:s kind:s
 metadata:=meta.v1.ObjectMeta spec:=authorization.v1.SelfSubjectAccessReviewSpec
 status:=authorization.v1.SubjectAccessReviewStatus
authorization.v1.SelfSubjectAccessReviewSpec
 nonResourceAttributes:=authorization.v1.NonResourceAttributes
 resourceAttributes:=authorization.v1.ResourceAttributes
authorization.v1.SelfSubjectRulesReview apiVersion:s kind:s metadata:=meta.v1.ObjectMeta
 spec:=authorization.v1.SelfSubjectRulesReviewSpec
 status:=authorization.v1.SubjectRulesReviewStatus
authorization.v1.SelfSubjectRulesReviewSpec namespace:s
authorization.v1.SubjectAccessReview apiVersion:s kind:s metadata:=meta.v1.ObjectMeta
 spec:=authorization.v1.SubjectAccessReviewSpec
 status:=authorization.v1.SubjectAccessReviewStatus
authorization.v1.SubjectAccessReviewSpec extra:{}[]s groups:[]s
 nonResourceAttributes:=authorization.v1.NonResourceAttributes
 resourceAttributes:=authorization.v1.ResourceAttributes uid:s user:s
authorization.v1.SubjectAccessReviewStatus allowed:b denied:b evaluationError:s reason:s
authorization.v1.SubjectRulesReviewStatus evaluationError:s incomplete:b
 nonResourceRules:[]=authorization.v1.NonResourceRule
 resourceRules:[]=authorization.v1.ResourceRule
autoscaling.v1.HorizontalPodAutoscaler apiVersion:s kind:s metadata:=meta.v1.ObjectMeta
 spec:=autoscaling.v1.HorizontalPodAutoscalerSpec
 status:=autoscaling.v1.HorizontalPodAutoscalerStatus
autoscaling.v1.HorizontalPodAutoscalerSpec maxReplicas:n minReplicas:n
 scaleTargetRef:=autoscaling.v1.CrossVersionObjectReference
 targetCPUUtilizationPercentage:n
autoscaling.v1.HorizontalPodAutoscalerStatus currentCPUUtilizationPercentage:n
 currentReplicas:n desiredReplicas:n lastScaleTime:u observedGeneration:n
autoscaling.v1.Scale apiVersion:s kind:s metadata:=meta.v1.ObjectMeta
 spec:=autoscaling.v1.ScaleSpec status:=autoscaling.v1.ScaleStatus
autoscaling.v1.ScaleSpec replicas:n
autoscaling.v1.ScaleStatus replicas:n selector:s
autoscaling.v2.ContainerResourceMetricSource container:s name:s
 target:=autoscaling.v2.MetricTarget
autoscaling.v2.ContainerResourceMetricStatus container:s
 current:=autoscaling.v2.MetricValueStatus name:s
autoscaling.v2.CrossVersionObjectReference apiVersion:s kind:s name:s
autoscaling.v2.ExternalMetricSource metric:=autoscaling.v2.MetricIdentifier
 target:=autoscaling.v2.MetricTarget
autoscaling.v2.ExternalMetricStatus current:=autoscaling.v2.MetricValueStatus
 metric:=autoscaling.v2.MetricIdentifier
autoscaling.v2.HPAScalingPolicy periodSeconds:n type:s value:n
autoscaling.v2.HPAScalingRules policies:[]=autoscaling.v2.HPAScalingPolicy
 selectPolicy:s stabilizationWindowSeconds:n
autoscaling.v2.HorizontalPodAutoscaler apiVersion:s kind:s metadata:=meta.v1.ObjectMeta
 spec:=autoscaling.v2.HorizontalPodAutoscalerSpec
 status:=autoscaling.v2.HorizontalPodAutoscalerStatus
autoscaling.v2.HorizontalPodAutoscalerBehavior scaleDown:=autoscaling.v2.HPAScalingRules
 scaleUp:=autoscaling.v2.HPAScalingRules
autoscaling.v2.HorizontalPodAutoscalerCondition lastTransitionTime:u message:s reason:s
 status:s type:s
autoscaling.v2.HorizontalPodAutoscalerSpec
 behavior:=autoscaling.v2.HorizontalPodAutoscalerBehavior maxReplicas:n
 metrics:[]=autoscaling.v2.MetricSpec minReplicas:n
 scaleTargetRef:=autoscaling.v2.CrossVersionObjectReference
autoscaling.v2.HorizontalPodAutoscalerStatus
 conditions:[type=""]=autoscaling.v2.HorizontalPodAutoscalerCondition
 currentMetrics:[]=autoscaling.v2.MetricStatus currentReplicas:n desiredReplicas:n
 lastScaleTime:u observedGeneration:n
autoscaling.v2.MetricIdentifier name:s selector:=meta.v1.LabelSelector
autoscaling.v2.MetricSpec
 containerResource:=autoscaling.v2.ContainerResourceMetricSource
 external:=autoscaling.v2.ExternalMetricSource object:=autoscaling.v2.ObjectMetricSource
 pods:=autoscaling.v2.PodsMetricSource resource:=autoscaling.v2.ResourceMetricSource
 type:s
autoscaling.v2.MetricStatus
 containerResource:=autoscaling.v2.ContainerResourceMetricStatus
 external:=autoscaling.v2.ExternalMetricStatus object:=autoscaling.v2.ObjectMetricStatus
 pods:=autoscaling.v2.PodsMetricStatus resource:=autoscaling.v2.ResourceMetricStatus
 type:s
autoscaling.v2.MetricTarget averageUtilization:n averageValue:u type:s value:u
autoscaling.v2.MetricValueStatus averageUtilization:n averageValue:u value:u
autoscaling.v2.ObjectMetricSource
 describedObject:=autoscaling.v2.CrossVersionObjectReference
 metric:=autoscaling.v2.MetricIdentifier target:=autoscaling.v2.MetricTarget
autoscaling.v2.ObjectMetricStatus current:=autoscaling.v2.MetricValueStatus
 describedObject:=autoscaling.v2.CrossVersionObjectReference
 metric:=autoscaling.v2.MetricIdentifier
autoscaling.v2.PodsMetricSource metric:=autoscaling.v2.MetricIdentifier
 target:=autoscaling.v2.MetricTarget
autoscaling.v2.PodsMetricStatus current:=autoscaling.v2.MetricValueStatus
 metric:=autoscaling.v2.MetricIdentifier
autoscaling.v2.ResourceMetricSource name:s target:=autoscaling.v2.MetricTarget
autoscaling.v2.ResourceMetricStatus current:=autoscaling.v2.MetricValueStatus name:s
batch.v1.CronJob apiVersion:s kind:s metadata:=meta.v1.ObjectMeta
 spec:=batch.v1.CronJobSpec status:=batch.v1.CronJobStatus
batch.v1.CronJobSpec concurrencyPolicy:s failedJobsHistoryLimit:n
 jobTemplate:=batch.v1.JobTemplateSpec schedule:s startingDeadlineSeconds:n
 successfulJobsHistoryLimit:n suspend:b timeZone:s
batch.v1.CronJobStatus active:[]=core.v1.ObjectReference lastScheduleTime:u
 lastSuccessfulTime:u
batch.v1.Job apiVersion:s kind:s metadata:=meta.v1.ObjectMeta spec:=batch.v1.JobSpec
 status:=batch.v1.JobStatus
batch.v1.JobCondition lastProbeTime:u lastTransitionTime:u message:s reason:s status:s
 type:s
batch.v1.JobSpec activeDeadlineSeconds:n backoffLimit:n backoffLimitPerIndex:n
 completionMode:s completions:n managedBy:s manualSelector:b maxFailedIndexes:n
 parallelism:n podFailurePolicy:=batch.v1.PodFailurePolicy podReplacementPolicy:s
 selector:=meta.v1.LabelSelector successPolicy:=batch.v1.SuccessPolicy suspend:b
 template:=core.v1.PodTemplateSpec ttlSecondsAfterFinished:n
batch.v1.JobStatus active:n completedIndexes:s completionTime:u
 conditions:[]=batch.v1.JobCondition failed:n failedIndexes:s ready:n startTime:u
 succeeded:n terminating:n uncountedTerminatedPods:=batch.v1.UncountedTerminatedPods
batch.v1.JobTemplateSpec metadata:=meta.v1.ObjectMeta spec:=batch.v1.JobSpec
batch.v1.PodFailurePolicy rules:[]=batch.v1.PodFailurePolicyRule
batch.v1.PodFailurePolicyOnExitCodesRequirement containerName:s operator:s values:[*]n
batch.v1.PodFailurePolicyOnPodConditionsPattern status:s type:s
batch.v1.PodFailurePolicyRule action:s
 onExitCodes:=batch.v1.PodFailurePolicyOnExitCodesRequirement
 onPodConditions:[]=batch.v1.PodFailurePolicyOnPodConditionsPattern
batch.v1.SuccessPolicy rules:[]=batch.v1.SuccessPolicyRule
batch.v1.SuccessPolicyRule succeededCount:n succeededIndexes:s
batch.v1.UncountedTerminatedPods failed:[*]s succeeded:[*]s
certificates.v1.CertificateSigningRequest apiVersion:s kind:s
 metadata:=meta.v1.ObjectMeta spec:=certificates.v1.CertificateSigningRequestSpec
 status:=certificates.v1.CertificateSigningRequestStatus
certificates.v1.CertificateSigningRequestCondition lastTransitionTime:u lastUpdateTime:u
 message:s reason:s status:s type:s
certificates.v1.CertificateSigningRequestSpec expirationSeconds:n extra:{}[]s groups:[]s
 request:s signerName:s uid:s usages:[]s username:s
certificates.v1.CertificateSigningRequestStatus certificate:s
 conditions:[type=""]=certificates.v1.CertificateSigningRequestCondition
certificates.v1alpha1.ClusterTrustBundle apiVersion:s kind:s
 metadata:=meta.v1.ObjectMeta spec:=certificates.v1alpha1.ClusterTrustBundleSpec
certificates.v1alpha1.ClusterTrustBundleSpec signerName:s trustBundle:s
coordination.v1.Lease apiVersion:s kind:s metadata:=meta.v1.ObjectMeta
 spec:=coordination.v1.LeaseSpec
coordination.v1.LeaseSpec acquireTime:u holderIdentity:s leaseDurationSeconds:n
 leaseTransitions:n preferredHolder:s renewTime:u strategy:s
coordination.v1alpha2.LeaseCandidate apiVersion:s kind:s metadata:=meta.v1.ObjectMeta
 spec:=coordination.v1alpha2.LeaseCandidateSpec
coordination.v1alpha2.LeaseCandidateSpec binaryVersion:s emulationVersion:s leaseName:s
 pingTime:u renewTime:u strategy:s
core.v1.AWSElasticBlockStoreVolumeSource fsType:s partition:n readOnly:b volumeID:s
core.v1.Affinity nodeAffinity:=core.v1.NodeAffinity podAffinity:=core.v1.PodAffinity
 podAntiAffinity:=core.v1.PodAntiAffinity
core.v1.AppArmorProfile localhostProfile:s type:s
core.v1.AttachedVolume devicePath:s name:s
core.v1.AzureDiskVolumeSource cachingMode:s diskName:s diskURI:s fsType:s kind:s
 readOnly:b
core.v1.AzureFilePersistentVolumeSource readOnly:b secretName:s secretNamespace:s
 shareName:s
core.v1.AzureFileVolumeSource readOnly:b secretName:s shareName:s
core.v1.Binding apiVersion:s kind:s metadata:=meta.v1.ObjectMeta
 target:=core.v1.ObjectReference
core.v1.CSIPersistentVolumeSource controllerExpandSecretRef:=core.v1.SecretReference
 controllerPublishSecretRef:=core.v1.SecretReference driver:s fsType:s
 nodeExpandSecretRef:=core.v1.SecretReference
 nodePublishSecretRef:=core.v1.SecretReference
 nodeStageSecretRef:=core.v1.SecretReference readOnly:b volumeAttributes:{}s
 volumeHandle:s
core.v1.CSIVolumeSource driver:s fsType:s
 nodePublishSecretRef:=core.v1.LocalObjectReference readOnly:b volumeAttributes:{}s
core.v1.Capabilities add:[]s drop:[]s
core.v1.CephFSPersistentVolumeSource monitors:[]s path:s readOnly:b secretFile:s
 secretRef:=core.v1.SecretReference user:s
core.v1.CephFSVolumeSource monitors:[]s path:s readOnly:b secretFile:s
 secretRef:=core.v1.LocalObjectReference user:s
core.v1.CinderPersistentVolumeSource fsType:s readOnly:b
 secretRef:=core.v1.SecretReference volumeID:s
core.v1.CinderVolumeSource fsType:s readOnly:b secretRef:=core.v1.LocalObjectReference
 volumeID:s
core.v1.ClientIPConfig timeoutSeconds:n
core.v1.ClusterTrustBundleProjection labelSelector:=meta.v1.LabelSelector name:s
 optional:b path:s signerName:s
core.v1.ComponentCondition error:s message:s status:s type:s
core.v1.ComponentStatus apiVersion:s conditions:[type=""]=core.v1.ComponentCondition
 kind:s metadata:=meta.v1.ObjectMeta
core.v1.ConfigMap apiVersion:s binaryData:{}s data:{}s immutable:b kind:s
 metadata:=meta.v1.ObjectMeta
core.v1.ConfigMapEnvSource name:s optional:b
core.v1.ConfigMapNodeConfigSource kubeletConfigKey:s name:s namespace:s
 resourceVersion:s uid:s
core.v1.ConfigMapProjection items:[]=core.v1.KeyToPath name:s optional:b
core.v1.ConfigMapVolumeSource defaultMode:n items:[]=core.v1.KeyToPath name:s optional:b
core.v1.Container args:[]s command:[]s env:[name=""]=core.v1.EnvVar
 envFrom:[]=core.v1.EnvFromSource image:s imagePullPolicy:s lifecycle:=core.v1.Lifecycle
 livenessProbe:=core.v1.Probe name:s
 ports:[containerPort=0,protocol="TCP"]=core.v1.ContainerPort
 readinessProbe:=core.v1.Probe resizePolicy:[]=core.v1.ContainerResizePolicy
 resources:=core.v1.ResourceRequirements restartPolicy:s
 securityContext:=core.v1.SecurityContext startupProbe:=core.v1.Probe stdin:b
 stdinOnce:b terminationMessagePath:s terminationMessagePolicy:s tty:b
 volumeDevices:[devicePath=""]=core.v1.VolumeDevice
 volumeMounts:[mountPath=""]=core.v1.VolumeMount workingDir:s
core.v1.ContainerImage names:[]s sizeBytes:n
core.v1.ContainerPort containerPort:n hostIP:s hostPort:n name:s protocol:s
core.v1.ContainerResizePolicy resourceName:s restartPolicy:s
core.v1.ContainerState running:=core.v1.ContainerStateRunning
 terminated:=core.v1.ContainerStateTerminated waiting:=core.v1.ContainerStateWaiting
core.v1.ContainerStateRunning startedAt:u
core.v1.ContainerStateTerminated containerID:s exitCode:n finishedAt:u message:s
 reason:s signal:n startedAt:u
core.v1.ContainerStateWaiting message:s reason:s
core.v1.ContainerStatus allocatedResources:{}u
 allocatedResourcesStatus:[name=""]=core.v1.ResourceStatus containerID:s image:s
 imageID:s lastState:=core.v1.ContainerState name:s ready:b
 resources:=core.v1.ResourceRequirements restartCount:n started:b
 state:=core.v1.ContainerState user:=core.v1.ContainerUser
 volumeMounts:[mountPath=""]=core.v1.VolumeMountStatus
core.v1.ContainerUser linux:=core.v1.LinuxContainerUser
core.v1.DaemonEndpoint Port:n
core.v1.DownwardAPIProjection items:[]=core.v1.DownwardAPIVolumeFile
core.v1.DownwardAPIVolumeFile fieldRef:=core.v1.ObjectFieldSelector mode:n path:s
 resourceFieldRef:=core.v1.ResourceFieldSelector
core.v1.DownwardAPIVolumeSource defaultMode:n items:[]=core.v1.DownwardAPIVolumeFile
core.v1.EmptyDirVolumeSource medium:s sizeLimit:u
core.v1.EndpointSubset addresses:[]=core.v1.EndpointAddress
 notReadyAddresses:[]=core.v1.EndpointAddress ports:[]=core.v1.EndpointPort
core.v1.Endpoints apiVersion:s kind:s metadata:=meta.v1.ObjectMeta
 subsets:[]=core.v1.EndpointSubset
core.v1.EnvFromSource configMapRef:=core.v1.ConfigMapEnvSource prefix:s
 secretRef:=core.v1.SecretEnvSource
core.v1.EnvVar name:s value:s valueFrom:=core.v1.EnvVarSource
core.v1.EnvVarSource configMapKeyRef:=core.v1.ConfigMapKeySelector
 fieldRef:=core.v1.ObjectFieldSelector resourceFieldRef:=core.v1.ResourceFieldSelector
 secretKeyRef:=core.v1.SecretKeySelector
core.v1.EphemeralContainer args:[]s command:[]s env:[name=""]=core.v1.EnvVar
 envFrom:[]=core.v1.EnvFromSource image:s imagePullPolicy:s lifecycle:=core.v1.Lifecycle
 livenessProbe:=core.v1.Probe name:s
 ports:[containerPort=0,protocol="TCP"]=core.v1.ContainerPort
 readinessProbe:=core.v1.Probe resizePolicy:[]=core.v1.ContainerResizePolicy
 resources:=core.v1.ResourceRequirements restartPolicy:s
 securityContext:=core.v1.SecurityContext startupProbe:=core.v1.Probe stdin:b
 stdinOnce:b targetContainerName:s terminationMessagePath:s terminationMessagePolicy:s
 tty:b volumeDevices:[devicePath=""]=core.v1.VolumeDevice
 volumeMounts:[mountPath=""]=core.v1.VolumeMount workingDir:s
core.v1.EphemeralVolumeSource volumeClaimTemplate:=core.v1.PersistentVolumeClaimTemplate
core.v1.Event action:s apiVersion:s count:n eventTime:u firstTimestamp:u
 involvedObject:=core.v1.ObjectReference kind:s lastTimestamp:u message:s
 metadata:=meta.v1.ObjectMeta reason:s related:=core.v1.ObjectReference
 reportingComponent:s reportingInstance:s series:=core.v1.EventSeries
 source:=core.v1.EventSource type:s
core.v1.EventSeries count:n lastObservedTime:u
core.v1.EventSource component:s host:s
core.v1.ExecAction command:[]s
core.v1.FCVolumeSource fsType:s lun:n readOnly:b targetWWNs:[]s wwids:[]s
core.v1.FlexPersistentVolumeSource driver:s fsType:s options:{}s readOnly:b
 secretRef:=core.v1.SecretReference
core.v1.FlexVolumeSource driver:s fsType:s options:{}s readOnly:b
 secretRef:=core.v1.LocalObjectReference
core.v1.FlockerVolumeSource datasetName:s datasetUUID:s
core.v1.GCEPersistentDiskVolumeSource fsType:s partition:n pdName:s readOnly:b
core.v1.GRPCAction port:n service:s
core.v1.GitRepoVolumeSource directory:s repository:s revision:s
core.v1.GlusterfsPersistentVolumeSource endpoints:s endpointsNamespace:s path:s
 readOnly:b
core.v1.GlusterfsVolumeSource endpoints:s path:s readOnly:b
core.v1.HTTPGetAction host:s httpHeaders:[]=core.v1.HTTPHeader path:s port:? scheme:s
core.v1.HTTPHeader name:s value:s
core.v1.HostAlias hostnames:[]s ip:s
core.v1.HostIP ip:s
"""
