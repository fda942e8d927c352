{{/*
The pod of a service: `dict "root" $ "component" "prefill" "module" "services.prefill" "prefix" ... "values" .Values.prefill`.
Further keys: `container`, a whole container instead of the service's; `sidecar`, one beside it; `withoutModel`; `ownAccount`,
for a pod whose service account is somebody else's matter.
*/}}
{{- define "triptych.pod" -}}
{{- $root := .root -}}
{{- $global := $root.Values.global -}}
{{- $values := .values -}}
metadata:
  labels: {{- include "triptych.labels" . | nindent 4 }}
  annotations:
    checksum/config: {{ toYaml (dict "values" $values "model" $root.Values.model "redis" $root.Values.redis "tls" $root.Values.tls) | sha256sum }}
    {{- with $global.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  {{- if not .ownAccount }}
  serviceAccountName: {{ include "triptych.serviceAccount" $root }}
  automountServiceAccountToken: false
  {{- end }}
  terminationGracePeriodSeconds: {{ $values.gracePeriodSeconds }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    runAsGroup: 10001
    fsGroup: 10001
    seccompProfile: {type: RuntimeDefault}
  {{- with $global.pullSecrets }}
  imagePullSecrets: {{- range . }}
    - name: {{ . }}
    {{- end }}
  {{- end }}
  {{- include "triptych.scheduling" . | nindent 2 }}
  {{- if eq (include "triptych.modelSource" .) "initContainer" }}
  initContainers:
    - name: model
      image: {{ required "model.initContainer.image is needed" $root.Values.model.initContainer.image }}
      {{- with $root.Values.model.initContainer.command }}
      command: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $root.Values.model.initContainer.env }}
      env: {{- toYaml . | nindent 8 }}
      {{- end }}
      securityContext: {{- include "triptych.containerSecurity" $root | nindent 8 }}
      volumeMounts:
        - {name: model, mountPath: {{ $root.Values.model.path }}}
        - {name: tmp, mountPath: /tmp}
  {{- end }}
  containers:
    {{- .container | default (include "triptych.container" .) | nindent 4 }}
    {{- with .sidecar }}
    {{- . | nindent 4 }}
    {{- end }}
  volumes: {{- include "triptych.volumes" . | nindent 4 }}
{{- end -}}

{{/* Without `module` the command is somebody else's matter. */}}
{{- define "triptych.container" -}}
- name: {{ .component }}
  image: {{ include "triptych.image" . }}
  imagePullPolicy: {{ .root.Values.global.pullPolicy }}
  {{- with .module }}
  command: [python, -P, -m, {{ . }}]
  {{- end }}
  env: {{- include "triptych.env" . | nindent 4 }}
  ports: {{- include "triptych.ports" . | nindent 4 }}
  {{- include "triptych.probes" . | nindent 2 }}
  {{- if .values.preStopSeconds }}
  lifecycle:
    preStop: {exec: {command: [sleep, {{ .values.preStopSeconds | quote }}]}}
  {{- end }}
  resources: {{- include "triptych.resources" .values | nindent 4 }}
  securityContext: {{- include "triptych.containerSecurity" .root | nindent 4 }}
  volumeMounts: {{- include "triptych.mounts" . | nindent 4 }}
{{- end -}}

{{- define "triptych.scheduling" -}}
{{- $global := .root.Values.global -}}
{{- $priority := default (ternary (include "triptych.fullname" .root) "" .root.Values.priorityClass.create) $global.priorityClassName -}}
{{- with $priority }}
priorityClassName: {{ . }}
{{- end }}
{{- with $global.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with default $global.nodeSelector .values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with default $global.tolerations .values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with default $global.affinity .values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $global.spreadOver }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "triptych.selector" $ | nindent 8 }}
{{- end }}
{{- end -}}

{{- define "triptych.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "triptych.ports" -}}
{{- if .kuberay }}
- {name: ray-agent, containerPort: 52365}
{{- end }}
{{- if eq .component "encoder-head" }}
- {name: gcs-server, containerPort: 6379}
- {name: dashboard, containerPort: 8265}
{{- /* Nobody listens there, but the operator makes no cluster without a port of this name. */}}
- {name: serve, containerPort: 8000}
{{- else if ne .component "encoder-ray" }}
- {name: grpc, containerPort: 50051}
{{- end }}
{{- if eq .component "router" }}
- {name: http, containerPort: 8000}
{{- else if not (hasPrefix "encoder-" .component) }}
- {name: metrics, containerPort: 9090}
{{- end }}
{{- end -}}

{{- define "triptych.resources" -}}
{{- $gpus := default 0 .gpus | int -}}
{{- $resources := deepCopy (default dict .resources) -}}
{{- if gt $gpus 0 -}}
{{- $_ := set $resources "limits" (merge (dict .gpuResource (toString $gpus)) (default dict $resources.limits)) -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}
