{{/* The start of every name: the release, and the chart unless the release is named after it. */}}
{{- define "magnetar.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* What selects the pods of a part, for ever: (list root part). */}}
{{- define "magnetar.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ $root.Chart.Name }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{/* All labels of an object of a part: (list root part). */}}
{{- define "magnetar.labels" -}}
{{- $root := index . 0 -}}
{{ include "magnetar.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version }}
{{- end -}}

{{- define "magnetar.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{/* The address of the metadata store: the ensemble of this chart, or one of your own. */}}
{{- define "magnetar.metadataUrl" -}}
{{- if .Values.zookeeper.enabled -}}
{{- $name := printf "%s-zookeeper" (include "magnetar.fullname" .) -}}
{{- $hosts := list -}}
{{- range $i := until (int .Values.zookeeper.replicas) -}}
{{- $hosts = append $hosts (printf "%s-%d.%s-headless.%s.svc.%s:2181" $name $i $name $.Release.Namespace $.Values.clusterDomain) -}}
{{- end -}}
zk://{{ join "," $hosts }}{{ .Values.metadata.path }}
{{- else -}}
{{ required "metadata.url is required when zookeeper.enabled is false" .Values.metadata.url }}
{{- end -}}
{{- end -}}

{{/* Not empty if this chart runs ZooKeeper. */}}
{{- define "magnetar.hasZookeeper" -}}
{{- if and .Values.zookeeper.enabled (not .Values.standalone.enabled) }}yes{{ end }}
{{- end -}}

{{/* The ports of a broker by their names; those over TLS, if the settings have them. */}}
{{- define "magnetar.brokerPorts" -}}
pulsar: 6650
http: 8080
{{- with .Values.tls.enabled | ternary .Values.tls.port (dig "broker" "tls_port" "" .Values.settings) }}
pulsar-tls: {{ int64 . }}
{{- end }}
{{- with .Values.tls.enabled | ternary .Values.tls.httpsPort (dig "broker" "https_port" "" .Values.settings) }}
https: {{ int64 . }}
{{- end }}
{{- end -}}

{{/* No privilege that a server does not need: the pod. */}}
{{- define "magnetar.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ . }}
runAsGroup: {{ . }}
fsGroup: {{ . }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/* The same: its containers. */}}
{{- define "magnetar.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop:
    - ALL
{{- end -}}

{{/* Where pods of a part may run: (dict root part settings). */}}
{{- define "magnetar.scheduling" -}}
{{- $selector := include "magnetar.selector" (list .root .part) -}}
{{- with .settings.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .settings.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .settings.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- if eq .settings.antiAffinity "required" }}
affinity:
  podAntiAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      - topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            {{- $selector | nindent 12 }}
{{- else if eq .settings.antiAffinity "preferred" }}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels:
              {{- $selector | nindent 14 }}
{{- end }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: topology.kubernetes.io/zone
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- $selector | nindent 8 }}
{{- end -}}

{{/* What every server of Magnetar is told by the environment: (dict root settings). */}}
{{- define "magnetar.commonEnv" -}}
- name: POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
- name: MAGNETAR_LOG_LEVEL
  value: {{ .root.Values.logLevel }}
- name: MAGNETAR_LOG_FORMAT
  value: json
{{- with .settings.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Not empty if brokers are told of authentication or authorization: then they must refuse to serve
everybody, also where what they are told of is incomplete or misspelt. */}}
{{- define "magnetar.authenticates" -}}
{{- if .Values.auth.enabled }}yes{{ end }}
{{- range $name := list "authorization" "token_secret_key" "token_public_key" "basic_auth_file" "tls_auth" "oauth_issuers" }}
{{- if get ($.Values.settings.broker | default dict) $name }}yes{{ end }}
{{- end }}
{{- range .Values.broker.extraEnv }}
{{- if regexMatch "^MAGNETAR_BROKER_(AUTHORIZATION|TOKEN|BASIC_AUTH|TLS_AUTH|OAUTH)" .name }}yes{{ end }}
{{- end }}
{{- end -}}

{{/* The secret of the bookies: what a server, and the tools in its container, are told of it. */}}
{{- define "magnetar.secretEnv" -}}
- name: MAGNETAR_LEDGER_SHARED_SECRET_FILE
  value: /etc/magnetar-secret/shared-secret
{{- if .Values.sharedSecret.optional }}
- name: MAGNETAR_LEDGER_SHARED_SECRET_OPTIONAL
  value: "true"
{{- end }}
{{- end -}}

{{- define "magnetar.secretMount" -}}
- name: shared-secret
  mountPath: /etc/magnetar-secret
  readOnly: true
{{- end -}}

{{- define "magnetar.secretName" -}}
{{ .Values.sharedSecret.existingSecret | default (printf "%s-shared-secret" (include "magnetar.fullname" .)) }}
{{- end -}}

{{- define "magnetar.secretVolume" -}}
- name: shared-secret
  secret:
    secretName: {{ include "magnetar.secretName" . }}
    defaultMode: 0440
    items:
      - key: shared-secret
        path: shared-secret
{{- end -}}

{{/* The three probes of a server with /health at a port: (dict port settings). */}}
{{- define "magnetar.probes" -}}
startupProbe:
  httpGet:
    path: /health
    port: {{ .port }}
  periodSeconds: 2
  timeoutSeconds: 5
  failureThreshold: {{ div (int .settings.startupSeconds) 2 }}
readinessProbe:
  httpGet:
    path: /health
    port: {{ .port }}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 2
# Any answer will do: a server that drains, or waits for the metadata store, must not be restarted.
livenessProbe:
  exec:
    command:
      - magnetar-health
      - --alive
      - http://127.0.0.1:{{ .number }}/health
  periodSeconds: 20
  timeoutSeconds: 10
  failureThreshold: 6
{{- end -}}

{{/* Annotations of the pods of a part: (dict root settings). */}}
{{- define "magnetar.annotations" -}}
checksum/settings: {{ toJson .root.Values.settings | sha256sum }}
{{- with .settings.podAnnotations }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Labels of the pods of a part: (dict root part settings). */}}
{{- define "magnetar.podLabels" -}}
{{ include "magnetar.labels" (list .root .part) }}
{{- with .settings.podLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* What a broker is told of authentication and TLS by the values auth, tls and ingress. */}}
{{- define "magnetar.accessEnv" -}}
{{- if .Values.auth.enabled }}
- name: MAGNETAR_BROKER_AUTHORIZATION
  value: "true"
{{- if .Values.auth.secretKey }}
- name: MAGNETAR_BROKER_TOKEN_SECRET_KEY
  value: file:///etc/magnetar-auth/{{ .Values.auth.secretKey }}
{{- else }}
- name: MAGNETAR_BROKER_TOKEN_PUBLIC_KEY
  value: file:///etc/magnetar-auth/{{ required "auth.publicKey or auth.secretKey is required" .Values.auth.publicKey }}
{{- end }}
- name: MAGNETAR_BROKER_BROKER_CLIENT_TOKEN
  value: file:///etc/magnetar-auth/{{ required "auth.brokerToken is required" .Values.auth.brokerToken }}
- name: MAGNETAR_BROKER_SUPER_USERS
  value: {{ toJson .Values.auth.superUsers | squote }}
{{- end }}
{{- if .Values.tls.enabled }}
- name: MAGNETAR_BROKER_TLS_PORT
  value: {{ .Values.tls.port | quote }}
- name: MAGNETAR_BROKER_HTTPS_PORT
  value: {{ .Values.tls.httpsPort | quote }}
- name: MAGNETAR_BROKER_TLS_CERTIFICATE_FILE
  value: /etc/magnetar-tls/tls.crt
- name: MAGNETAR_BROKER_TLS_KEY_FILE
  value: /etc/magnetar-tls/tls.key
{{- if .Values.tls.betweenBrokers }}
- name: MAGNETAR_BROKER_BROKER_CLIENT_TLS
  value: "true"
- name: MAGNETAR_BROKER_BROKER_CLIENT_TLS_CA_FILE
  value: /etc/magnetar-tls/ca.crt
{{- end }}
{{- end }}
{{- if .Values.ingress.enabled }}
- name: MAGNETAR_BROKER_HTTP_NAMES
  value: {{ required "ingress.host is required" .Values.ingress.host }}
{{- end }}
{{- end -}}

{{- define "magnetar.accessMounts" -}}
{{- if .Values.auth.enabled }}
- name: auth
  mountPath: /etc/magnetar-auth
  readOnly: true
{{- end }}
{{- if .Values.tls.enabled }}
- name: tls
  mountPath: /etc/magnetar-tls
  readOnly: true
{{- end }}
{{- end -}}

{{- define "magnetar.accessVolumes" -}}
{{- if .Values.auth.enabled }}
- name: auth
  secret:
    secretName: {{ required "auth.secret is required" .Values.auth.secret }}
    defaultMode: 0440
{{- end }}
{{- if .Values.tls.enabled }}
- name: tls
  secret:
    secretName: {{ required "tls.secret is required" .Values.tls.secret }}
    defaultMode: 0440
{{- end }}
{{- end -}}

{{/* A volume of a pod's own: (dict name storage). */}}
{{- define "magnetar.claim" -}}
- metadata:
    name: {{ .name }}
  spec:
    accessModes:
      - ReadWriteOnce
    {{- with .storage.storageClassName }}
    storageClassName: {{ . }}
    {{- end }}
    resources:
      requests:
        storage: {{ .storage.size }}
{{- end -}}

{{/* At most so many pods of a part may be taken away on purpose: (dict root part settings). */}}
{{- define "magnetar.disruptionBudget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "magnetar.fullname" .root }}-{{ .part }}
  labels:
    {{- include "magnetar.labels" (list .root .part) | nindent 4 }}
spec:
  maxUnavailable: {{ .settings.maxUnavailable }}
  unhealthyPodEvictionPolicy: {{ .eviction }}
  selector:
    matchLabels:
      {{- include "magnetar.selector" (list .root .part) | nindent 6 }}
{{- end -}}
