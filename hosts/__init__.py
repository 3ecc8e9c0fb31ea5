"""A process that runs leaders, and keeps all groups and spaces in order as well."""
