"""Small Spark jobs on real data; each module is one, and says how to run it."""
