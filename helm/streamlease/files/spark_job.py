"""Consumes one shared subscription and writes it to a sink; every setting comes from the environment."""

import os
import signal
import sys
import threading

from pyspark.sql import SparkSession

slots, trigger = os.environ["SPARK_JOB_SLOTS"], os.environ["SPARK_JOB_TRIGGER"]
# Who starts it names the master: local[SLOTS] in the Job of the chart, k8s://... with spark-submit.
spark = SparkSession.builder.appName("streamlease-example").getOrCreate()
messages = (
    spark.readStream.format("streamlease")
    .option("redis", os.environ["STREAMLEASE_REDIS_URL"])
    .option("subscribe", os.environ["SPARK_JOB_SUBSCRIPTION"])
    .option("startingOffsets", os.environ["SPARK_JOB_STARTING_OFFSETS"])
    .option("slots", slots)
    .load()
)
writer = (
    messages.writeStream.format(os.environ["SPARK_JOB_SINK"])
    .option("checkpointLocation", os.environ["SPARK_JOB_CHECKPOINT"])
    .option("path", os.environ["SPARK_JOB_OUTPUT"])
)
timing = {"availableNow": True} if trigger == "availableNow" else {"processingTime": trigger}
stopping = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stopping.set())
query = writer.trigger(**timing).start()

while not query.awaitTermination(timeout=1):
    if stopping.is_set():
        query.stop()
        spark.stop()
        # An evicted job is not a finished one: a code other than 0 makes Kubernetes start it again.
        sys.exit(128 + signal.SIGTERM)
spark.stop()
