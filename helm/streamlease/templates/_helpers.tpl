{{/* Name of the chart, at most 63 characters. */}}
{{- define "streamlease.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* Full name of the release's objects, at most 63 characters. */}}
{{- define "streamlease.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Full name of the Spark job's objects: room is left for a hash, as a Job's name is a label of its pods. */}}
{{- define "streamlease.sparkName" -}}
{{- printf "%s-spark" (include "streamlease.fullname" . | trunc 48 | trimSuffix "-") -}}
{{- end -}}

{{/* Full name of the page's objects. */}}
{{- define "streamlease.uiName" -}}
{{- printf "%s-ui" (include "streamlease.fullname" . | trunc 60 | trimSuffix "-") -}}
{{- end -}}

{{/* Full name of the gateway's objects; room is left for that of its test. */}}
{{- define "streamlease.gatewayName" -}}
{{- printf "%s-gateway" (include "streamlease.fullname" . | trunc 50 | trimSuffix "-") -}}
{{- end -}}

{{/* Full name of the bridge's objects: room is left for a number, and the hash that is a label of its pods. */}}
{{- define "streamlease.bridgeName" -}}
{{- printf "%s-mqtt" (include "streamlease.fullname" . | trunc 43 | trimSuffix "-") -}}
{{- end -}}

{{/* Full name of the executors' objects; room is left for a number, and the hash that is a label of their pods. */}}
{{- define "streamlease.executorName" -}}
{{- printf "%s-executor" (include "streamlease.fullname" . | trunc 39 | trimSuffix "-") -}}
{{- end -}}

{{- define "streamlease.executorImage" -}}
{{- $image := .Values.executors.image -}}
{{- $tag := $image.tag | default .Values.image.tag | default .Chart.AppVersion -}}
{{- $repository := default .Values.image.repository $image.repository -}}
{{- $digest := $image.digest | default (ternary .Values.image.digest "" (and (empty $image.tag) (empty $image.repository))) -}}
{{- include "streamlease.imageReference" (dict "repository" $repository "tag" $tag "digest" $digest "pinned" .Values.requireDigests) -}}
{{- end -}}

{{/* Full name of a CronJob that archives; room is left for what tells one space from another, and for the number of a run. */}}
{{- define "streamlease.archiveName" -}}
{{- printf "%s-archive" (include "streamlease.fullname" . | trunc 34 | trimSuffix "-") -}}
{{- end -}}

{{- define "streamlease.archiveImage" -}}
{{- $own := .Values.archiveJob -}}
{{- $usual := printf "%s%s" (default .Chart.AppVersion .Values.image.tag) (ternary "-spark" "" (not (empty $own.spark))) -}}
{{- $hosts := ternary .Values.image.digest "" (and (empty $own.spark) (empty $own.image.tag) (empty $own.image.repository)) -}}
{{- include "streamlease.imageReference" (dict "repository" (default .Values.image.repository $own.image.repository) "tag" (default $usual $own.image.tag) "digest" (default $hosts $own.image.digest) "pinned" .Values.requireDigests) -}}
{{- end -}}

{{/* The port of the broker in mqttBridge.url. */}}
{{- define "streamlease.brokerPort" -}}
{{- $url := .Values.mqttBridge.url | trimSuffix "/" -}}
{{- regexFind ":[0-9]+$" $url | trimPrefix ":" | default (ternary "8883" "1883" (hasPrefix "mqtts:" $url)) -}}
{{- end -}}

{{/* Full name of the Service through which Prometheus finds the leader hosts. */}}
{{- define "streamlease.metricsName" -}}
{{- printf "%s-metrics" (include "streamlease.fullname" . | trunc 55 | trimSuffix "-") -}}
{{- end -}}

{{/* Full name of the objects of the trial Redis. */}}
{{- define "streamlease.trialName" -}}
{{- printf "%s-redis" (include "streamlease.fullname" . | trunc 52 | trimSuffix "-") -}}
{{- end -}}

{{- define "streamlease.trialPing" -}}
[sh, -c, {{ printf "%s ping | grep -q PONG" .Values.trialRedis.client | quote }}]
{{- end -}}

{{/* Labels that select one component's pods. Argument: dict "root" $ "component" NAME. */}}
{{- define "streamlease.selectorLabels" -}}
app.kubernetes.io/name: {{ include "streamlease.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* The recommended label set. Argument as above. */}}
{{- define "streamlease.labels" -}}
{{ include "streamlease.selectorLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: streamlease
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{- define "streamlease.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "streamlease.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* repository:tag or repository@digest. Argument: dict "repository" "tag" "digest" "pinned". */}}
{{- define "streamlease.imageReference" -}}
{{- if .digest -}}
{{- printf "%s@%s" .repository .digest -}}
{{- else if .pinned -}}
{{- fail (printf "requireDigests is true, and the image %s:%s has no digest: give its digest: sha256:..." .repository .tag) -}}
{{- else -}}
{{- printf "%s:%s" .repository .tag -}}
{{- end -}}
{{- end -}}

{{- define "streamlease.image" -}}
{{- $tag := default .Chart.AppVersion .Values.image.tag -}}
{{- include "streamlease.imageReference" (dict "repository" .Values.image.repository "tag" $tag "digest" .Values.image.digest "pinned" .Values.requireDigests) -}}
{{- end -}}

{{- define "streamlease.sparkImage" -}}
{{- $image := .Values.sparkJob.image -}}
{{- $tag := default (printf "%s-spark" (default .Chart.AppVersion .Values.image.tag)) $image.tag -}}
{{- $repository := default .Values.image.repository $image.repository -}}
{{- include "streamlease.imageReference" (dict "repository" $repository "tag" $tag "digest" $image.digest "pinned" .Values.requireDigests) -}}
{{- end -}}

{{/* The one variable that says where Redis is. values.schema.json sees to it that exactly one source is given.
Argument: dict "root" $ "key" NAME, the name of the value with the key of this pod's own user in the Secret; "name" of
the variable, if it is another one. */}}
{{- define "streamlease.redisEnv" -}}
{{- $redis := .root.Values.redis -}}
- name: {{ .name | default "STREAMLEASE_REDIS_URL" }}
  {{- if $redis.trial }}
  valueFrom:
    secretKeyRef:
      name: {{ include "streamlease.trialName" .root }}
      key: url
  {{- else if $redis.existingSecret }}
  valueFrom:
    secretKeyRef:
      name: {{ $redis.existingSecret.name }}
      key: {{ get $redis.existingSecret .key | default $redis.existingSecret.key }}
  {{- else }}
  value: {{ $redis.url | quote }}
  {{- end }}
{{- end -}}

{{/* The files of redis.tlsSecret, for a URL such as rediss://host:6380/0?ssl_ca_certs=/redis-tls/ca.crt. */}}
{{- define "streamlease.tlsMount" -}}
{{- if .Values.redis.tlsSecret }}
- name: redis-tls
  mountPath: /redis-tls
  readOnly: true
{{- end }}
{{- end -}}

{{- define "streamlease.tlsVolume" -}}
{{- with .Values.redis.tlsSecret }}
- name: redis-tls
  secret:
    secretName: {{ . }}
    defaultMode: 0440
{{- end }}
{{- end -}}

{{/* What every pod of this chart runs under. Fixed on purpose: the image needs nothing more. OpenShift gives each
namespace users of its own, and refuses pods that name one. */}}
{{- define "streamlease.podSecurityContext" -}}
runAsNonRoot: true
{{- if not .Values.openshift }}
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
{{- end }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "streamlease.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
{{- if not .Values.openshift }}
runAsUser: 10001
runAsGroup: 10001
{{- end }}
capabilities:
  drop: [ALL]
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/* A quantity as a number, to be compared with another. */}}
{{- define "streamlease.amount" -}}
{{- $text := toString . -}}
{{- $units := dict "m" 0.001 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 "Pi" 1125899906842624.0 "Ei" 1152921504606846976.0 -}}
{{- $unit := regexFind "[A-Za-z]+$" $text -}}
{{- mulf (trimSuffix $unit $text | float64) (default 1.0 (get $units $unit)) -}}
{{- end -}}

{{/* Requests and limits, of which no request is above its limit. Argument: dict "of" PATH "resources" VALUES. */}}
{{- define "streamlease.resources" -}}
{{- $of := .of -}}
{{- $limits := .resources.limits -}}
{{- range $name, $asked := .resources.requests -}}
{{- if hasKey $limits $name -}}
{{- if gt (include "streamlease.amount" $asked | float64) (include "streamlease.amount" (get $limits $name) | float64) -}}
{{- fail (printf "%s.requests.%s is %v, which is more than its limit, %v" $of $name $asked (get $limits $name)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml .resources -}}
{{- end -}}

{{/* Where and how soon pods may run. Argument: the values that hold nodeSelector, tolerations, affinity and priorityClassName. */}}
{{- define "streamlease.placement" -}}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
