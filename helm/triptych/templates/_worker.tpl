{{/* Deployment, headless Service, autoscaler and PDB of a language-side worker. */}}
{{- define "triptych.worker" -}}
{{- $name := printf "%s-%s" (include "triptych.fullname" .root) .component -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ $name }}
  labels: {{- include "triptych.labels" . | nindent 4 }}
spec:
  {{- if not .values.autoscaling.enabled }}
  replicas: {{ .values.replicas }}
  {{- end }}
  # A worker that leaves drains by itself; its successor is up before.
  strategy: {type: RollingUpdate, rollingUpdate: {maxUnavailable: 0, maxSurge: 1}}
  selector:
    matchLabels: {{- include "triptych.selector" . | nindent 6 }}
  template: {{- include "triptych.pod" . | nindent 4 }}
---
apiVersion: v1
kind: Service
metadata:
  name: {{ $name }}
  labels: {{- include "triptych.labels" . | nindent 4 }}
spec:
  # Headless: workers are found by the registry, and one by one.
  clusterIP: None
  selector: {{- include "triptych.selector" . | nindent 4 }}
  ports:
    - {name: grpc, port: 50051, targetPort: grpc}
    - {name: metrics, port: 9090, targetPort: metrics}
{{- if .values.autoscaling.enabled }}
---
{{ include (ternary "triptych.scaledObject" "triptych.autoscaler" (not (empty .values.autoscaling.prometheus))) (merge (dict "name" $name) .) }}
{{- end }}
{{ include "triptych.budget" . }}
{{- end -}}

{{- define "triptych.autoscaler" -}}
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  name: {{ .name }}
  labels: {{- include "triptych.labels" . | nindent 4 }}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: {{ .name }}}
  minReplicas: {{ .values.autoscaling.min }}
  maxReplicas: {{ .values.autoscaling.max }}
  metrics:
    - type: Pods
      pods:
        metric:
          name: {{ .values.autoscaling.metric }}
          {{- with .values.autoscaling.labels }}
          selector:
            matchLabels: {{- toYaml . | nindent 14 }}
          {{- end }}
        target: {type: AverageValue, averageValue: {{ .values.autoscaling.target | quote }}}
  behavior: {{- include "triptych.scaling" . | nindent 4 }}
{{- end -}}

{{/* KEDA's autoscaler asks Prometheus itself, so that no metrics adapter is needed. */}}
{{- define "triptych.scaledObject" -}}
{{- $selected := merge (dict "namespace" .root.Release.Namespace) (default dict .values.autoscaling.labels) -}}
{{- $matchers := list (printf "pod=~\"%s-.+\"" .name) -}}
{{- range $label, $value := $selected -}}
{{- $matchers = append $matchers (printf "%s=%q" $label (toString $value)) -}}
{{- end -}}
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata:
  name: {{ .name }}
  labels: {{- include "triptych.labels" . | nindent 4 }}
spec:
  scaleTargetRef: {name: {{ .name }}}
  minReplicaCount: {{ .values.autoscaling.min }}
  maxReplicaCount: {{ .values.autoscaling.max }}
  advanced:
    horizontalPodAutoscalerConfig:
      behavior: {{- include "triptych.scaling" . | nindent 8 }}
  triggers:
    - type: prometheus
      metricType: AverageValue
      metadata:
        serverAddress: {{ .values.autoscaling.prometheus | quote }}
        query: {{ printf "sum(%s{%s})" .values.autoscaling.metric (join ", " $matchers) | quote }}
        threshold: {{ .values.autoscaling.target | quote }}
{{- end -}}

{{/* Streams must end before a worker goes, so scaling down is slow on purpose. */}}
{{- define "triptych.scaling" -}}
scaleDown: {stabilizationWindowSeconds: 300, policies: [{type: Pods, value: 1, periodSeconds: 120}]}
{{- end -}}

{{- define "triptych.budget" -}}
{{- if gt (int .values.minAvailable) 0 -}}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "triptych.fullname" .root }}-{{ .component }}
  labels: {{- include "triptych.labels" . | nindent 4 }}
spec:
  minAvailable: {{ .values.minAvailable }}
  selector:
    matchLabels: {{- include "triptych.selector" . | nindent 6 }}
{{- end -}}
{{- end -}}
