{{- /* Names do not depend on the release's name, because every part of the program knows
the names of webhook configurations and ClusterRoles. The helpers have the names of
Kyverno's chart, because values such as filters may use them. */}}

{{- define "kyverno.namespace" -}}
{{ .Values.namespaceOverride | default .Release.Namespace }}
{{- end }}

{{- define "kyverno.fullname" -}}
kyverno
{{- end }}

{{- define "kyverno.config.configMapName" -}}
{{ .Values.config.name | default "kyverno" }}
{{- end }}

{{- define "kyverno.config.metricsConfigMapName" -}}
{{ .Values.metricsConfig.name | default "kyverno-metrics" }}
{{- end }}

{{- define "kyverno.admission-controller.name" -}}
kyverno-admission-controller
{{- end }}

{{- define "kyverno.admission-controller.roleName" -}}
kyverno:admission-controller
{{- end }}

{{- define "kyverno.admission-controller.serviceAccountName" -}}
kyverno-admission-controller
{{- end }}

{{- define "kyverno.admission-controller.serviceName" -}}
kyverno-svc
{{- end }}

{{- define "kyverno.background-controller.name" -}}
kyverno-background-controller
{{- end }}

{{- define "kyverno.background-controller.roleName" -}}
kyverno:background-controller
{{- end }}

{{- define "kyverno.background-controller.serviceAccountName" -}}
kyverno-background-controller
{{- end }}

{{- define "kyverno.reports-controller.name" -}}
kyverno-reports-controller
{{- end }}

{{- define "kyverno.reports-controller.roleName" -}}
kyverno:reports-controller
{{- end }}

{{- define "kyverno.reports-controller.serviceAccountName" -}}
kyverno-reports-controller
{{- end }}

{{- define "kyverno.cleanup-controller.name" -}}
kyverno-cleanup-controller
{{- end }}

{{- define "kyverno.cleanup-controller.roleName" -}}
kyverno:cleanup-controller
{{- end }}

{{- define "kyverno.cleanup-controller.serviceAccountName" -}}
kyverno-cleanup-controller
{{- end }}

{{- /* Labels that Helm adds to every object. */}}
{{- define "kyverno.labels" -}}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- with .Values.customLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* The image: registry, repository, tag. Takes the root and the value. */}}
{{- define "kyverno.image" -}}
{{- $root := index . 0 }}{{ $image := index . 1 }}
{{- $global := (($root.Values.global).image).registry }}
{{- with $image.registry | default $global }}{{ . }}/{{ end -}}
{{ $image.repository }}:{{ $image.tag | default $root.Chart.AppVersion }}
{{- end }}

{{- /* The pods' class: the component's, else the global one, else ours. */}}
{{- define "kyverno.priorityClassName" -}}
{{- $root := index . 0 }}{{ $own := index . 1 }}{{ $ours := "kyverno-admission-controller" }}
{{- if and $own (ne $own $ours) }}{{ $own }}
{{- else }}{{ $root.Values.global.priorityClassName | default $own }}
{{- end }}
{{- end }}

{{- /* The names of the Secrets with credentials of registries. */}}
{{- define "kyverno.pullSecrets" -}}
{{ concat (keys .Values.imagePullSecrets | sortAlpha) (.Values.existingImagePullSecrets | sortAlpha) | join "," }}
{{- end }}

{{- /* The security context of pods; without users and groups if the platform sets them. */}}
{{- define "kyverno.podSecurityContext" -}}
{{- $root := index . 0 }}{{ $context := index . 1 | default dict -}}
{{- if $root.Values.openshift }}{{ $context = omit $context "runAsUser" "runAsGroup" "fsGroup" }}{{ end -}}
{{ toYaml $context }}
{{- end }}

{{- /* The flags for features and extraArgs. Takes the root, extraArgs, the component. */}}
{{- define "kyverno.args" -}}
{{- $root := index . 0 }}{{ $extra := index . 1 | default dict }}{{ $features := $root.Values.features }}
{{- $ownCertificates := $features.disableCertManagerController.enabled }}
{{- if $root.Values.admissionController.certManager.enabled }}{{ $ownCertificates = true }}{{ end }}
{{- $flags := dict
  "admissionReports" $features.admissionReports.enabled
  "aggregateReports" $features.aggregateReports.enabled
  "allowInsecureRegistry" $features.registryClient.allowInsecure
  "autoUpdateWebhooks" $features.autoUpdateWebhooks.enabled
  "backgroundScan" $features.backgroundScan.enabled
  "backgroundScanInterval" $features.backgroundScan.backgroundScanInterval
  "enableConfigMapCaching" $features.configMapCaching.enabled
  "disableCertManagerController" $ownCertificates
  "enableTuf" $features.tuf.enabled
  "excludeBootstrapResources" $features.excludeBootstrapResources.enabled
  "forceFailurePolicyIgnore" $features.forceFailurePolicyIgnore.enabled
  "generateMutatingAdmissionPolicy" $features.generateMutatingAdmissionPolicy.enabled
  "generateValidatingAdmissionPolicy" $features.generateValidatingAdmissionPolicy.enabled
  "maxAPICallResponseLength" $features.globalContext.maxApiCallResponseLength
  "apiCallTimeout" $features.globalContext.apiCallTimeout
  "maxGlobalContextEntries" $features.globalContext.maxGlobalContextEntries
  "loggingFormat" $features.logging.format
  "mutatingAdmissionPolicyReports" $features.mutatingAdmissionPolicyReports.enabled
  "openreportsEnabled" $root.Values.openreports.enabled
  "v" $features.logging.verbosity
  "enablePolicyException" $features.policyExceptions.enabled
  "exceptionNamespace" $features.policyExceptions.namespace
  "policyReports" $features.policyReports.enabled
  "protectManagedResources" $features.protectManagedResources.enabled
  "skipResourceFilters" $features.backgroundScan.skipResourceFilters
  "tlsKeyAlgorithm" $root.Values.admissionController.tlsKeyAlgorithm
  "ttlReconciliationInterval" $features.ttlController.reconciliationInterval
  "tufMirror" $features.tuf.mirror
  "tufRoot" $features.tuf.root
  "tufRootRaw" $features.tuf.rootRaw
  "validatingAdmissionPolicyReports" $features.validatingAdmissionPolicyReports.enabled }}
{{- $reporting := omit $features.reporting "allowedResults" }}
{{- range $flag, $choice := dict "enableReporting" $reporting "allowedResults" ($features.reporting.allowedResults | default dict) }}
{{- $on := list }}{{ $given := false }}
{{- range $name, $value := $choice }}
{{- if kindIs "invalid" $value }}{{ $value = true }}{{ else }}{{ $given = true }}{{ end }}
{{- if $value }}{{ $on = append $on $name }}{{ end }}
{{- end }}
{{- if $given }}{{ $_ := set $flags $flag (join "," $on) }}{{ end }}
{{- end }}
{{- with $features.registryClient.credentialHelpers }}
{{- $_ := set $flags "registryCredentialHelpers" (join "," .) }}
{{- end }}
{{- with include "kyverno.pullSecrets" $root }}
{{- $_ := set $flags "imagePullSecrets" . }}
{{- end }}
{{- with $features.omitEvents.eventTypes }}
{{- $_ := set $flags "omitEvents" (join "," .) }}
{{- end }}
{{- include "kyverno.flags" (merge (deepCopy $extra) $flags) }}
{{- end }}

{{- /* Flags from a map of names and values. */}}
{{- define "kyverno.flags" -}}
{{- range $name, $value := . }}
{{- if not (kindIs "invalid" $value) }}
{{- if kindIs "float64" $value }}
- --{{ $name }}={{ int64 $value }}
{{- else }}
- {{ printf "--%s=%v" $name $value | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- /* One of the two limits of a PodDisruptionBudget; the lower limit takes precedence. */}}
{{- define "kyverno.bounds" -}}
{{- if not (kindIs "invalid" .minAvailable) -}}
minAvailable: {{ .minAvailable }}
{{- else -}}
maxUnavailable: {{ .maxUnavailable }}
{{- end }}
{{- end }}

{{- /* The value at a path, as JSON; null if there is none. Takes the values and the path. */}}
{{- define "kyverno.valueAt" -}}
{{- $part := index . 0 }}
{{- range splitList "." (index . 1) }}
{{- if kindIs "map" $part }}{{ $part = index $part . }}{{ else }}{{ $part = index (dict) . }}{{ end }}
{{- end }}
{{- toJson $part }}
{{- end }}

{{- /* Labels of an object of a template that is written by hand. Takes root, component. */}}
{{- define "kyverno.handwritten" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/component: {{ index . 1 }}
app.kubernetes.io/instance: kyverno
app.kubernetes.io/part-of: kyverno
app.kubernetes.io/name: kyverno-mp
app.kubernetes.io/version: {{ $root.Chart.AppVersion }}
{{ include "kyverno.labels" $root }}
{{- end }}
