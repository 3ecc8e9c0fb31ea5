"""The catalog over HTTP."""
