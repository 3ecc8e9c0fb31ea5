"""What must be there before Spark can run: Java, and versions that fit each other."""
