"""The session of a streaming query, beside the stream reader on Spark's driver."""
