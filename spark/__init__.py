"""Streams of Streamlease as streaming and batch DataFrames."""

from streamlease.spark.setup import source_process

source_process.begin()  # before the imports that the source needs
