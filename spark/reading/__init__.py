"""What runs in Spark's executor tasks: they read parts of cuts, and parts of batches."""
