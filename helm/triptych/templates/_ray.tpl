{{/* Ray's head beside the front: they share a network, /tmp/ray and /dev/shm, so the front is a driver on its node. */}}
{{- define "triptych.rayHead" -}}
- name: ray-head
  image: {{ include "triptych.image" (dict "root" .root "image" .values.image) }}
  imagePullPolicy: {{ .root.Values.global.pullPolicy }}
  command: [ray, start, --head, --block, --port=6379, --num-cpus=0, --include-dashboard=false, --disable-usage-stats]
  env:
    - {{ toJson .token }}
  ports:
    - {name: gcs, containerPort: 6379}
  resources: {{- toYaml .values.headResources | nindent 4 }}
  securityContext: {{- include "triptych.containerSecurity" .root | nindent 4 }}
  volumeMounts:
    - {name: tmp, mountPath: /tmp}
    - {name: ray, mountPath: /tmp/ray}
    - {name: shm, mountPath: /dev/shm}
    {{- if ne .root.Values.model.source "image" }}
    - {name: model, mountPath: {{ .root.Values.model.path }}, readOnly: true}
    {{- end }}
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
  selector:
    matchLabels: {{- include "triptych.selector" . | nindent 6 }}
  template:
    metadata:
      labels: {{- include "triptych.labels" . | nindent 8 }}
    spec:
      serviceAccountName: {{ include "triptych.serviceAccount" .root }}
      automountServiceAccountToken: false
      terminationGracePeriodSeconds: {{ .values.gracePeriodSeconds }}
      securityContext:
        runAsNonRoot: true
        runAsUser: 10001
        runAsGroup: 10001
        fsGroup: 10001
        seccompProfile: {type: RuntimeDefault}
      {{- include "triptych.scheduling" . | nindent 6 }}
      containers:
        - name: ray
          image: {{ include "triptych.image" (dict "root" .root "image" .values.image) }}
          imagePullPolicy: {{ .root.Values.global.pullPolicy }}
          command:
            - ray
            - start
            - --block
            - --address={{ .name }}:6379
            - --num-cpus=1
            - --num-gpus={{ .values.gpus }}
            - --disable-usage-stats
          env:
            - name: RAY_AUTH_TOKEN
              valueFrom: {secretKeyRef: {name: {{ .name }}-ray, key: token}}
            {{- with .root.Values.global.env }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
            {{- with .values.env }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
          livenessProbe:
            exec: {command: [ray, health-check, "--address={{ .name }}:6379"]}
            periodSeconds: 30
            failureThreshold: 5
            timeoutSeconds: 20
          resources: {{- include "triptych.resources" .values | nindent 12 }}
          securityContext: {{- include "triptych.containerSecurity" .root | nindent 12 }}
          volumeMounts: {{- include "triptych.mounts" . | nindent 12 }}
      volumes: {{- include "triptych.volumes" . | nindent 8 }}
{{- end -}}
