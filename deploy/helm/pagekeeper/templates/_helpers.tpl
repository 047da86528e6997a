{{/* Labels by which the DaemonSet, the PodMonitor and the NetworkPolicy select the pods. */}}
{{- define "pagekeeper.selectorLabels" -}}
app.kubernetes.io/name: {{ .Values.name | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{/* Labels that Kubernetes recommends for every object. */}}
{{- define "pagekeeper.labels" -}}
{{ include "pagekeeper.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: guard
app.kubernetes.io/part-of: pagekeeper
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* The image by its digest if there is one, otherwise by its tag. */}}
{{- define "pagekeeper.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}
{{- end }}

{{/* guard.toml: dry_run comes first, since it stands above all sections. */}}
{{- define "pagekeeper.config" -}}
{{- if regexMatch "(?m)^\\s*dry_run\\s*=" .Values.config }}
{{- fail "config: dry_run is the value dryRun of the chart" }}
{{- end -}}
dry_run = {{ ne .Values.dryRun false }}
{{ .Values.config }}
{{- end }}
