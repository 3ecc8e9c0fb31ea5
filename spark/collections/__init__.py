"""Collections in Spark: as a stream of changes behind a snapshot, and as a table of items."""
