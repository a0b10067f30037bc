"""List the types of the built-in kinds, part 1 of four.

Room: values. Takes: nothing. Gives: TABLE. Next: schema.py, which has the notation.
May touch: nothing. Source: Kubernetes OpenAPI v3, release 1.32
(python -m tests.unit.values.typed_schemas writes this module).
"""

from typing import Final

TABLE: Final = """\
/v1 Binding =core.v1.Binding
/v1 ComponentStatus =core.v1.ComponentStatus
/v1 ConfigMap =core.v1.ConfigMap
/v1 Endpoints =core.v1.Endpoints
/v1 Event =core.v1.Event
/v1 LimitRange =core.v1.LimitRange
/v1 Namespace =core.v1.Namespace
/v1 Node =core.v1.Node
/v1 PersistentVolume =core.v1.PersistentVolume
/v1 PersistentVolumeClaim =core.v1.PersistentVolumeClaim
/v1 Pod =core.v1.Pod
/v1 PodTemplate =core.v1.PodTemplate
/v1 ReplicationController =core.v1.ReplicationController
/v1 ResourceQuota =core.v1.ResourceQuota
/v1 Secret =core.v1.Secret
/v1 Service =core.v1.Service
/v1 ServiceAccount =core.v1.ServiceAccount
/v1 Status =meta.v1.Status
admissionregistration.k8s.io/v1 MutatingWebhookConfiguration
 =admissionregistration.v1.MutatingWebhookConfiguration
admissionregistration.k8s.io/v1 ValidatingAdmissionPolicy
 =admissionregistration.v1.ValidatingAdmissionPolicy
admissionregistration.k8s.io/v1 ValidatingAdmissionPolicyBinding
 =admissionregistration.v1.ValidatingAdmissionPolicyBinding
admissionregistration.k8s.io/v1 ValidatingWebhookConfiguration
 =admissionregistration.v1.ValidatingWebhookConfiguration
admissionregistration.k8s.io/v1alpha1 MutatingAdmissionPolicy
 =admissionregistration.v1alpha1.MutatingAdmissionPolicy
admissionregistration.k8s.io/v1alpha1 MutatingAdmissionPolicyBinding
 =admissionregistration.v1alpha1.MutatingAdmissionPolicyBinding
admissionregistration.k8s.io/v1beta1 ValidatingAdmissionPolicy
 =admissionregistration.v1beta1.ValidatingAdmissionPolicy
admissionregistration.k8s.io/v1beta1 ValidatingAdmissionPolicyBinding
 =admissionregistration.v1beta1.ValidatingAdmissionPolicyBinding
apiextensions.k8s.io/v1 CustomResourceDefinition
 =apiextensions.v1.CustomResourceDefinition
apiregistration.k8s.io/v1 APIService =apiregistration.v1.APIService
apps/v1 ControllerRevision =apps.v1.ControllerRevision
apps/v1 DaemonSet =apps.v1.DaemonSet
apps/v1 Deployment =apps.v1.Deployment
apps/v1 ReplicaSet =apps.v1.ReplicaSet
apps/v1 StatefulSet =apps.v1.StatefulSet
authentication.k8s.io/v1 SelfSubjectReview =authentication.v1.SelfSubjectReview
authentication.k8s.io/v1 TokenRequest =authentication.v1.TokenRequest
authentication.k8s.io/v1 TokenReview =authentication.v1.TokenReview
authentication.k8s.io/v1beta1 SelfSubjectReview
 =authentication.v1beta1.SelfSubjectReview
authorization.k8s.io/v1 LocalSubjectAccessReview
 =authorization.v1.LocalSubjectAccessReview
authorization.k8s.io/v1 SelfSubjectAccessReview
 =authorization.v1.SelfSubjectAccessReview
authorization.k8s.io/v1 SelfSubjectRulesReview =authorization.v1.SelfSubjectRulesReview
authorization.k8s.io/v1 SubjectAccessReview =authorization.v1.SubjectAccessReview
autoscaling/v1 HorizontalPodAutoscaler =autoscaling.v1.HorizontalPodAutoscaler
autoscaling/v1 Scale =autoscaling.v1.Scale
autoscaling/v2 HorizontalPodAutoscaler =autoscaling.v2.HorizontalPodAutoscaler
batch/v1 CronJob =batch.v1.CronJob
batch/v1 Job =batch.v1.Job
certificates.k8s.io/v1 CertificateSigningRequest
 =certificates.v1.CertificateSigningRequest
certificates.k8s.io/v1alpha1 ClusterTrustBundle
 =certificates.v1alpha1.ClusterTrustBundle
coordination.k8s.io/v1 Lease =coordination.v1.Lease
coordination.k8s.io/v1alpha2 LeaseCandidate =coordination.v1alpha2.LeaseCandidate
discovery.k8s.io/v1 EndpointSlice =discovery.v1.EndpointSlice
events.k8s.io/v1 Event =events.v1.Event
flowcontrol.apiserver.k8s.io/v1 FlowSchema =flowcontrol.v1.FlowSchema
flowcontrol.apiserver.k8s.io/v1 PriorityLevelConfiguration
 =flowcontrol.v1.PriorityLevelConfiguration
internal.apiserver.k8s.io/v1alpha1 StorageVersion
 =apiserverinternal.v1alpha1.StorageVersion
networking.k8s.io/v1 Ingress =networking.v1.Ingress
networking.k8s.io/v1 IngressClass =networking.v1.IngressClass
networking.k8s.io/v1 NetworkPolicy =networking.v1.NetworkPolicy
networking.k8s.io/v1beta1 IPAddress =networking.v1beta1.IPAddress
networking.k8s.io/v1beta1 ServiceCIDR =networking.v1beta1.ServiceCIDR
node.k8s.io/v1 RuntimeClass =node.v1.RuntimeClass
policy/v1 Eviction =policy.v1.Eviction
policy/v1 PodDisruptionBudget =policy.v1.PodDisruptionBudget
rbac.authorization.k8s.io/v1 ClusterRole =rbac.v1.ClusterRole
rbac.authorization.k8s.io/v1 ClusterRoleBinding =rbac.v1.ClusterRoleBinding
rbac.authorization.k8s.io/v1 Role =rbac.v1.Role
rbac.authorization.k8s.io/v1 RoleBinding =rbac.v1.RoleBinding
resource.k8s.io/v1alpha3 DeviceClass =resource.v1alpha3.DeviceClass
resource.k8s.io/v1alpha3 ResourceClaim =resource.v1alpha3.ResourceClaim
resource.k8s.io/v1alpha3 ResourceClaimTemplate =resource.v1alpha3.ResourceClaimTemplate
resource.k8s.io/v1alpha3 ResourceSlice =resource.v1alpha3.ResourceSlice
resource.k8s.io/v1beta1 DeviceClass =resource.v1beta1.DeviceClass
resource.k8s.io/v1beta1 ResourceClaim =resource.v1beta1.ResourceClaim
resource.k8s.io/v1beta1 ResourceClaimTemplate =resource.v1beta1.ResourceClaimTemplate
resource.k8s.io/v1beta1 ResourceSlice =resource.v1beta1.ResourceSlice
scheduling.k8s.io/v1 PriorityClass =scheduling.v1.PriorityClass
storage.k8s.io/v1 CSIDriver =storage.v1.CSIDriver
storage.k8s.io/v1 CSINode =storage.v1.CSINode
storage.k8s.io/v1 CSIStorageCapacity =storage.v1.CSIStorageCapacity
storage.k8s.io/v1 StorageClass =storage.v1.StorageClass
storage.k8s.io/v1 VolumeAttachment =storage.v1.VolumeAttachment
storage.k8s.io/v1alpha1 VolumeAttributesClass =storage.v1alpha1.VolumeAttributesClass
storage.k8s.io/v1beta1 VolumeAttributesClass =storage.v1beta1.VolumeAttributesClass
storagemigration.k8s.io/v1alpha1 StorageVersionMigration
 =storagemigration.v1alpha1.StorageVersionMigration
admissionregistration.v1.AuditAnnotation key:s valueExpression:s
admissionregistration.v1.ExpressionWarning fieldRef:s warning:s
admissionregistration.v1.MatchCondition expression:s name:s
admissionregistration.v1.MutatingWebhook admissionReviewVersions:[]s
 clientConfig:=admissionregistration.v1.WebhookClientConfig failurePolicy:s
 matchConditions:[name=""]=admissionregistration.v1.MatchCondition matchPolicy:s name:s
 namespaceSelector:=meta.v1.LabelSelector objectSelector:=meta.v1.LabelSelector
 reinvocationPolicy:s rules:[]=admissionregistration.v1.RuleWithOperations sideEffects:s
 timeoutSeconds:n
admissionregistration.v1.MutatingWebhookConfiguration apiVersion:s kind:s
 metadata:=meta.v1.ObjectMeta
 webhooks:[name=""]=admissionregistration.v1.MutatingWebhook
admissionregistration.v1.RuleWithOperations apiGroups:[]s apiVersions:[]s operations:[]s
 resources:[]s scope:s
admissionregistration.v1.ServiceReference name:s namespace:s path:s port:n
admissionregistration.v1.TypeChecking
 expressionWarnings:[]=admissionregistration.v1.ExpressionWarning
admissionregistration.v1.ValidatingAdmissionPolicy apiVersion:s kind:s
 metadata:=meta.v1.ObjectMeta
 spec:=admissionregistration.v1.ValidatingAdmissionPolicySpec
 status:=admissionregistration.v1.ValidatingAdmissionPolicyStatus
admissionregistration.v1.ValidatingAdmissionPolicyBinding apiVersion:s kind:s
 metadata:=meta.v1.ObjectMeta
 spec:=admissionregistration.v1.ValidatingAdmissionPolicyBindingSpec
admissionregistration.v1.ValidatingAdmissionPolicyBindingSpec
 matchResources:=admissionregistration.v1.MatchResources
 paramRef:=admissionregistration.v1.ParamRef policyName:s validationActions:[*]s
admissionregistration.v1.ValidatingAdmissionPolicySpec
 auditAnnotations:[]=admissionregistration.v1.AuditAnnotation failurePolicy:s
 matchConditions:[name=""]=admissionregistration.v1.MatchCondition
 matchConstraints:=admissionregistration.v1.MatchResources
 paramKind:=admissionregistration.v1.ParamKind
 validations:[]=admissionregistration.v1.Validation
 variables:[name=""]=admissionregistration.v1.Variable
admissionregistration.v1.ValidatingAdmissionPolicyStatus
 conditions:[type=""]=meta.v1.Condition observedGeneration:n
 typeChecking:=admissionregistration.v1.TypeChecking
admissionregistration.v1.ValidatingWebhook admissionReviewVersions:[]s
 clientConfig:=admissionregistration.v1.WebhookClientConfig failurePolicy:s
 matchConditions:[name=""]=admissionregistration.v1.MatchCondition matchPolicy:s name:s
 namespaceSelector:=meta.v1.LabelSelector objectSelector:=meta.v1.LabelSelector
 rules:[]=admissionregistration.v1.RuleWithOperations sideEffects:s timeoutSeconds:n
admissionregistration.v1.ValidatingWebhookConfiguration apiVersion:s kind:s
 metadata:=meta.v1.ObjectMeta
 webhooks:[name=""]=admissionregistration.v1.ValidatingWebhook
admissionregistration.v1.Validation expression:s message:s messageExpression:s reason:s
admissionregistration.v1.WebhookClientConfig caBundle:s
 service:=admissionregistration.v1.ServiceReference url:s
admissionregistration.v1alpha1.ApplyConfiguration expression:s
admissionregistration.v1alpha1.JSONPatch expression:s
admissionregistration.v1alpha1.MatchCondition expression:s name:s
admissionregistration.v1alpha1.MutatingAdmissionPolicy apiVersion:s kind:s
 metadata:=meta.v1.ObjectMeta
 spec:=admissionregistration.v1alpha1.MutatingAdmissionPolicySpec
admissionregistration.v1alpha1.MutatingAdmissionPolicyBinding apiVersion:s kind:s
 metadata:=meta.v1.ObjectMeta
 spec:=admissionregistration.v1alpha1.MutatingAdmissionPolicyBindingSpec
admissionregistration.v1alpha1.MutatingAdmissionPolicyBindingSpec
 matchResources:=admissionregistration.v1alpha1.MatchResources
 paramRef:=admissionregistration.v1alpha1.ParamRef policyName:s
admissionregistration.v1alpha1.MutatingAdmissionPolicySpec failurePolicy:s
 matchConditions:[name=""]=admissionregistration.v1alpha1.MatchCondition
 matchConstraints:=admissionregistration.v1alpha1.MatchResources
 mutations:[]=admissionregistration.v1alpha1.Mutation
 paramKind:=admissionregistration.v1alpha1.ParamKind reinvocationPolicy:s
 variables:[]=admissionregistration.v1alpha1.Variable
admissionregistration.v1alpha1.Mutation
 applyConfiguration:=admissionregistration.v1alpha1.ApplyConfiguration
 jsonPatch:=admissionregistration.v1alpha1.JSONPatch patchType:s
admissionregistration.v1alpha1.Variable expression:s name:s
admissionregistration.v1beta1.AuditAnnotation key:s valueExpression:s
admissionregistration.v1beta1.ExpressionWarning fieldRef:s warning:s
admissionregistration.v1beta1.MatchCondition expression:s name:s
admissionregistration.v1beta1.TypeChecking
 expressionWarnings:[]=admissionregistration.v1beta1.ExpressionWarning
admissionregistration.v1beta1.ValidatingAdmissionPolicy apiVersion:s kind:s
 metadata:=meta.v1.ObjectMeta
 spec:=admissionregistration.v1beta1.ValidatingAdmissionPolicySpec
 status:=admissionregistration.v1beta1.ValidatingAdmissionPolicyStatus
admissionregistration.v1beta1.ValidatingAdmissionPolicyBinding apiVersion:s kind:s
 metadata:=meta.v1.ObjectMeta
 spec:=admissionregistration.v1beta1.ValidatingAdmissionPolicyBindingSpec
admissionregistration.v1beta1.ValidatingAdmissionPolicyBindingSpec
 matchResources:=admissionregistration.v1beta1.MatchResources
 paramRef:=admissionregistration.v1beta1.ParamRef policyName:s validationActions:[*]s
admissionregistration.v1beta1.ValidatingAdmissionPolicySpec
 auditAnnotations:[]=admissionregistration.v1beta1.AuditAnnotation failurePolicy:s
 matchConditions:[name=""]=admissionregistration.v1beta1.MatchCondition
 matchConstraints:=admissionregistration.v1beta1.MatchResources
 paramKind:=admissionregistration.v1beta1.ParamKind
 validations:[]=admissionregistration.v1beta1.Validation
 variables:[name=""]=admissionregistration.v1beta1.Variable
admissionregistration.v1beta1.ValidatingAdmissionPolicyStatus
 conditions:[type=""]=meta.v1.Condition observedGeneration:n
 typeChecking:=admissionregistration.v1beta1.TypeChecking
admissionregistration.v1beta1.Validation expression:s message:s messageExpression:s
 reason:s
apiextensions.v1.CustomResourceColumnDefinition description:s format:s jsonPath:s name:s
 priority:n type:s
apiextensions.v1.CustomResourceConversion strategy:s
 webhook:=apiextensions.v1.WebhookConversion
apiextensions.v1.CustomResourceDefinition apiVersion:s kind:s
 metadata:=meta.v1.ObjectMeta spec:=apiextensions.v1.CustomResourceDefinitionSpec
 status:=apiextensions.v1.CustomResourceDefinitionStatus
apiextensions.v1.CustomResourceDefinitionCondition lastTransitionTime:u message:s
 reason:s status:s type:s
apiextensions.v1.CustomResourceDefinitionNames categories:[]s kind:s listKind:s plural:s
 shortNames:[]s singular:s
apiextensions.v1.CustomResourceDefinitionSpec
 conversion:=apiextensions.v1.CustomResourceConversion group:s
 names:=apiextensions.v1.CustomResourceDefinitionNames preserveUnknownFields:b scope:s
 versions:[]=apiextensions.v1.CustomResourceDefinitionVersion
apiextensions.v1.CustomResourceDefinitionStatus
 acceptedNames:=apiextensions.v1.CustomResourceDefinitionNames
 conditions:[type=""]=apiextensions.v1.CustomResourceDefinitionCondition
 storedVersions:[]s
apiextensions.v1.CustomResourceDefinitionVersion
 additionalPrinterColumns:[]=apiextensions.v1.CustomResourceColumnDefinition
 deprecated:b deprecationWarning:s name:s
 schema:=apiextensions.v1.CustomResourceValidation
 selectableFields:[]=apiextensions.v1.SelectableField served:b storage:b
 subresources:=apiextensions.v1.CustomResourceSubresources
apiextensions.v1.CustomResourceSubresourceScale labelSelectorPath:s specReplicasPath:s
 statusReplicasPath:s
apiextensions.v1.CustomResourceSubresources
 scale:=apiextensions.v1.CustomResourceSubresourceScale status:{}?
apiextensions.v1.CustomResourceValidation
 openAPIV3Schema:=apiextensions.v1.JSONSchemaProps
apiextensions.v1.ExternalDocumentation description:s url:s
apiextensions.v1.JSONSchemaProps $ref:s $schema:s additionalItems:?
 additionalProperties:? allOf:[]=apiextensions.v1.JSONSchemaProps
 anyOf:[]=apiextensions.v1.JSONSchemaProps default:?
 definitions:{}=apiextensions.v1.JSONSchemaProps dependencies:{}? description:s enum:[]?
 example:? exclusiveMaximum:b exclusiveMinimum:b
 externalDocs:=apiextensions.v1.ExternalDocumentation format:s id:s items:? maxItems:n
 maxLength:n maxProperties:n maximum:n minItems:n minLength:n minProperties:n minimum:n
 multipleOf:n not:=apiextensions.v1.JSONSchemaProps nullable:b
 oneOf:[]=apiextensions.v1.JSONSchemaProps pattern:s
 patternProperties:{}=apiextensions.v1.JSONSchemaProps
 properties:{}=apiextensions.v1.JSONSchemaProps required:[]s title:s type:s
 uniqueItems:b x-kubernetes-embedded-resource:b x-kubernetes-int-or-string:b
 x-kubernetes-list-map-keys:[]s x-kubernetes-list-type:s x-kubernetes-map-type:s
 x-kubernetes-preserve-unknown-fields:b
 x-kubernetes-validations:[rule=""]=apiextensions.v1.ValidationRule
apiextensions.v1.SelectableField jsonPath:s
apiextensions.v1.ServiceReference name:s namespace:s path:s port:n
apiextensions.v1.ValidationRule fieldPath:s message:s messageExpression:s
 optionalOldSelf:b reason:s rule:s
apiextensions.v1.WebhookClientConfig caBundle:s
 service:=apiextensions.v1.ServiceReference url:s
apiextensions.v1.WebhookConversion clientConfig:=apiextensions.v1.WebhookClientConfig
 conversionReviewVersions:[]s
apiregistration.v1.APIService apiVersion:s kind:s metadata:=meta.v1.ObjectMeta
 spec:=apiregistration.v1.APIServiceSpec status:=apiregistration.v1.APIServiceStatus
apiregistration.v1.APIServiceCondition lastTransitionTime:u message:s reason:s status:s
 type:s
apiregistration.v1.APIServiceSpec caBundle:s group:s groupPriorityMinimum:n
 insecureSkipTLSVerify:b service:=apiregistration.v1.ServiceReference version:s
 versionPriority:n
apiregistration.v1.APIServiceStatus
 conditions:[type=""]=apiregistration.v1.APIServiceCondition
apiregistration.v1.ServiceReference name:s namespace:s port:n
apiserverinternal.v1alpha1.ServerStorageVersion apiServerID:s decodableVersions:[*]s
 encodingVersion:s servedVersions:[*]s
apiserverinternal.v1alpha1.StorageVersion apiVersion:s kind:s
 metadata:=meta.v1.ObjectMeta spec:{}?
 status:=apiserverinternal.v1alpha1.StorageVersionStatus
apiserverinternal.v1alpha1.StorageVersionCondition lastTransitionTime:u message:s
 observedGeneration:n reason:s status:s type:s
apiserverinternal.v1alpha1.StorageVersionStatus commonEncodingVersion:s
 conditions:[type=""]=apiserverinternal.v1alpha1.StorageVersionCondition
 storageVersions:[apiServerID]=apiserverinternal.v1alpha1.ServerStorageVersion
apps.v1.ControllerRevision apiVersion:s data:! kind:s metadata:=meta.v1.ObjectMeta
 revision:n
apps.v1.DaemonSet apiVersion:s kind:s metadata:=meta.v1.ObjectMeta
 spec:=apps.v1.DaemonSetSpec status:=apps.v1.DaemonSetStatus
apps.v1.DaemonSetCondition lastTransitionTime:u message:s reason:s status:s type:s
apps.v1.DaemonSetSpec minReadySeconds:n revisionHistoryLimit:n
 selector:=meta.v1.LabelSelector template:=core.v1.PodTemplateSpec
 updateStrategy:=apps.v1.DaemonSetUpdateStrategy
apps.v1.DaemonSetStatus collisionCount:n conditions:[type=""]=apps.v1.DaemonSetCondition
 currentNumberScheduled:n desiredNumberScheduled:n numberAvailable:n
 numberMisscheduled:n numberReady:n numberUnavailable:n observedGeneration:n
 updatedNumberScheduled:n
apps.v1.DaemonSetUpdateStrategy rollingUpdate:=apps.v1.RollingUpdateDaemonSet type:s
apps.v1.Deployment apiVersion:s kind:s metadata:=meta.v1.ObjectMeta
 spec:=apps.v1.DeploymentSpec status:=apps.v1.DeploymentStatus
apps.v1.DeploymentCondition lastTransitionTime:u lastUpdateTime:u message:s reason:s
 status:s type:s
apps.v1.DeploymentSpec minReadySeconds:n paused:b progressDeadlineSeconds:n replicas:n
 revisionHistoryLimit:n selector:=meta.v1.LabelSelector
 strategy:=apps.v1.DeploymentStrategy template:=core.v1.PodTemplateSpec
apps.v1.DeploymentStatus availableReplicas:n collisionCount:n
 conditions:[type=""]=apps.v1.DeploymentCondition observedGeneration:n readyReplicas:n
 replicas:n unavailableReplicas:n updatedReplicas:n
apps.v1.DeploymentStrategy rollingUpdate:=apps.v1.RollingUpdateDeployment type:s
apps.v1.ReplicaSet apiVersion:s kind:s metadata:=meta.v1.ObjectMeta
 spec:=apps.v1.ReplicaSetSpec status:=apps.v1.ReplicaSetStatus
apps.v1.ReplicaSetCondition lastTransitionTime:u message:s reason:s status:s type:s
apps.v1.ReplicaSetSpec minReadySeconds:n replicas:n selector:=meta.v1.LabelSelector
 template:=core.v1.PodTemplateSpec
apps.v1.ReplicaSetStatus availableReplicas:n
 conditions:[type=""]=apps.v1.ReplicaSetCondition fullyLabeledReplicas:n
"""
