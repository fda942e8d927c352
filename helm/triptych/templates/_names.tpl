{{/* Names and labels. */}}
{{- define "triptych.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "triptych.fullname" -}}
{{- $base := ternary .Release.Name (printf "%s-%s" .Release.Name (include "triptych.name" .)) (contains (include "triptych.name" .) .Release.Name) -}}
{{- default $base .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* Labels that select a component's pods; `dict "root" $ "component" "router"`. */}}
{{- define "triptych.selector" -}}
app.kubernetes.io/name: {{ include "triptych.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "triptych.labels" -}}
{{ include "triptych.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- with .root.Values.global.labels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "triptych.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "triptych.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* Image of `.values`, of its own tag where it has one. */}}
{{- define "triptych.image" -}}
{{- $registry := .root.Values.global.registry -}}
{{- $tag := coalesce .values.tag .root.Values.global.tag .root.Chart.AppVersion -}}
{{- printf "%s%s:%s" (ternary "" (printf "%s/" (trimSuffix "/" $registry)) (empty $registry)) .values.image $tag -}}
{{- end -}}

{{- define "triptych.tlsSecret" -}}
{{- default (printf "%s-tls" (include "triptych.fullname" .)) .Values.tls.secret -}}
{{- end -}}

{{- define "triptych.redisSecret" -}}
{{- default (printf "%s-redis" (include "triptych.fullname" .)) .Values.redis.existingSecret -}}
{{- end -}}
