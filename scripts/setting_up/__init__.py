"""What ``run.py`` does on a machine with nothing but Python: standard library only."""
