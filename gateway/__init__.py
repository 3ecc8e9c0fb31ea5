"""The gateway: HTTP for programs of any language. It keeps nothing; the log is the truth."""
