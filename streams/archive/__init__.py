"""The Iceberg table with the older messages of a space: writing it, checking it, merging its files."""
