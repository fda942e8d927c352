{{/* Deployment, headless Service, HPA and PDB of a language-side worker. */}}
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
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  name: {{ $name }}
  labels: {{- include "triptych.labels" . | nindent 4 }}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: {{ $name }}}
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
  behavior:
    # Streams must end before a worker goes, so scaling down is slow on purpose.
    scaleDown: {stabilizationWindowSeconds: 300, policies: [{type: Pods, value: 1, periodSeconds: 120}]}
{{- end }}
{{ include "triptych.budget" . }}
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
