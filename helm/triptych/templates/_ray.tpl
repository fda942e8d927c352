{{/* Ray's head beside the front: they share a network, /tmp/ray and /dev/shm, so the front is a driver on its node. */}}
{{- define "triptych.rayHead" -}}
- name: ray-head
  image: {{ include "triptych.image" . }}
  imagePullPolicy: {{ .root.Values.global.pullPolicy }}
  command:
    - ray
    - start
    - --head
    - --block
    - --port=6379
    - --num-cpus=0
    - --include-dashboard=false
    {{- include "triptych.rayFlags" .root | nindent 4 }}
  env: {{- include "triptych.rayNodeEnv" . | nindent 4 }}
  ports:
    - {name: gcs, containerPort: 6379}
  resources: {{- toYaml .values.headResources | nindent 4 }}
  securityContext: {{- include "triptych.containerSecurity" .root | nindent 4 }}
  volumeMounts:
    - {name: tmp, mountPath: /tmp}
    - {name: ray, mountPath: /tmp/ray}
    - {name: shm, mountPath: /dev/shm}
{{- end -}}

{{/* Of every node. Embeddings never use the object store, and one that is larger than /dev/shm is a file on a disk. */}}
{{- define "triptych.rayStart" -}}
disable-usage-stats: "true"
object-store-memory: "83886080"
{{- end -}}

{{- define "triptych.rayFlags" -}}
{{- range $name, $value := include "triptych.rayStart" . | fromYaml }}
- --{{ $name }}{{ if ne $value "true" }}={{ $value }}{{ end }}
{{- end }}
{{- end -}}

{{/* Without the mode, only a head takes the token for a reason to ask for it. */}}
{{- define "triptych.rayToken" -}}
- {name: RAY_AUTH_MODE, value: token}
- name: RAY_AUTH_TOKEN
  valueFrom: {secretKeyRef: {name: {{ .name }}-ray, key: token}}
{{- end -}}

{{/* Of a node that the chart starts itself. */}}
{{- define "triptych.rayNodeEnv" -}}
{{ include "triptych.rayToken" . }}
{{ include "triptych.rayEnv" . }}
{{- include "triptych.moreEnv" . }}
{{- end -}}

{{/* What Ray's processes read when they start; an encoder with a Ray of its own sets it by itself. */}}
{{- define "triptych.rayEnv" -}}
- {name: RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO, value: "0"}
- {name: RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S, value: "1.0"}
- {name: GRPC_ENABLE_FORK_SUPPORT, value: "0"}
{{- end -}}

{{/* Pods that join the head's cluster; Serve puts one replica of the tower on each. */}}
{{- define "triptych.rayWorkers" -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ .name }}-ray
  labels: {{- include "triptych.labels" . | nindent 4 }}
spec:
  replicas: {{ .values.workers }}
  strategy: {type: RollingUpdate, rollingUpdate: {maxUnavailable: 0, maxSurge: 1}}
  selector:
    matchLabels: {{- include "triptych.selector" . | nindent 6 }}
  template: {{- include "triptych.pod" (merge (dict "container" (include "triptych.rayWorker" .)) .) | nindent 4 }}
{{- end -}}

{{- define "triptych.rayWorker" -}}
- name: ray
  image: {{ include "triptych.image" . }}
  imagePullPolicy: {{ .root.Values.global.pullPolicy }}
  command:
    - ray
    - start
    - --block
    - --address={{ .name }}:6379
    - --num-cpus=1
    - --num-gpus={{ .values.gpus }}
    {{- include "triptych.rayFlags" .root | nindent 4 }}
  env: {{- include "triptych.rayNodeEnv" . | nindent 4 }}
  livenessProbe:
    exec: {command: [ray, health-check, "--address={{ .name }}:6379"]}
    periodSeconds: 30
    failureThreshold: 5
    timeoutSeconds: 20
  resources: {{- include "triptych.resources" .values | nindent 4 }}
  securityContext: {{- include "triptych.containerSecurity" .root | nindent 4 }}
  volumeMounts: {{- include "triptych.mounts" . | nindent 4 }}
{{- end -}}
