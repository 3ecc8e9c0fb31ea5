#!/bin/sh
# The same query without an operator: spark-submit of a machine that reaches the cluster makes the driver's pod, and that
# one its executors. Needs the image of the Dockerfile beside it, a service account that may make pods, the Secret
# streamlease-redis with the URL of Redis under the key url, and the claim flights-checkpoint.
#   sh examples/kubernetes/spark-submit.sh https://kubernetes.example.internal:6443
set -eu
api=${1:?give the address of the Kubernetes API, such as https://kubernetes.example.internal:6443}

exec "${SPARK_SUBMIT:-spark-submit}" \
  --master "k8s://$api" \
  --deploy-mode cluster \
  --name flights \
  --conf spark.kubernetes.namespace=streams \
  --conf spark.kubernetes.authenticate.driver.serviceAccountName=spark \
  --conf spark.kubernetes.container.image=registry.example.internal/streamlease-on-spark:0.1.0 \
  --conf spark.executor.instances=2 \
  --conf spark.executor.cores=2 \
  --conf spark.driver.memory=1g \
  --conf spark.executor.memory=1g \
  --conf spark.kubernetes.driver.secretKeyRef.STREAMLEASE_REDIS_URL=streamlease-redis:url \
  --conf 'spark.kubernetes.driverEnv.SPARK_JOB_SUBSCRIPTION=$shared/analytics/flights/+/LAX' \
  --conf spark.kubernetes.driverEnv.SPARK_JOB_STARTING_OFFSETS=earliest \
  --conf spark.kubernetes.driverEnv.SPARK_JOB_SLOTS=4 \
  --conf 'spark.kubernetes.driverEnv.SPARK_JOB_TRIGGER=5 seconds' \
  --conf spark.kubernetes.driverEnv.SPARK_JOB_SINK=parquet \
  --conf spark.kubernetes.driverEnv.SPARK_JOB_CHECKPOINT=/data/checkpoint \
  --conf spark.kubernetes.driverEnv.SPARK_JOB_OUTPUT=/data/output \
  --conf spark.kubernetes.driver.volumes.persistentVolumeClaim.data.mount.path=/data \
  --conf spark.kubernetes.driver.volumes.persistentVolumeClaim.data.options.claimName=flights-checkpoint \
  --conf spark.kubernetes.executor.volumes.persistentVolumeClaim.data.mount.path=/data \
  --conf spark.kubernetes.executor.volumes.persistentVolumeClaim.data.options.claimName=flights-checkpoint \
  local:///opt/streamlease/spark_job.py
