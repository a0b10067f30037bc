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
kyverno
{{- end }}

{{- define "kyverno.config.metricsConfigMapName" -}}
kyverno-metrics
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

{{- /* The flags for features and extraArgs. Takes the root and extraArgs. */}}
{{- define "kyverno.args" -}}
{{- $root := index . 0 }}{{ $extra := index . 1 }}{{ $features := $root.Values.features }}
{{- $flags := dict
  "autoUpdateWebhooks" $features.autoUpdateWebhooks.enabled
  "enableConfigMapCaching" $features.configMapCaching.enabled
  "disableCertManagerController" $features.disableCertManagerController.enabled
  "excludeBootstrapResources" $features.excludeBootstrapResources.enabled
  "forceFailurePolicyIgnore" $features.forceFailurePolicyIgnore.enabled
  "generateMutatingAdmissionPolicy" $features.generateMutatingAdmissionPolicy.enabled
  "generateValidatingAdmissionPolicy" $features.generateValidatingAdmissionPolicy.enabled
  "maxAPICallResponseLength" $features.globalContext.maxApiCallResponseLength
  "apiCallTimeout" $features.globalContext.apiCallTimeout
  "maxGlobalContextEntries" $features.globalContext.maxGlobalContextEntries
  "loggingFormat" $features.logging.format
  "v" $features.logging.verbosity
  "enablePolicyException" $features.policyExceptions.enabled
  "exceptionNamespace" $features.policyExceptions.namespace
  "protectManagedResources" $features.protectManagedResources.enabled }}
{{- with $features.omitEvents.eventTypes }}
{{- $_ := set $flags "omitEvents" (join "," .) }}
{{- end }}
{{- range $name, $value := merge (deepCopy $extra) $flags }}
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
