"""Gateways among themselves: which of them live, and requests that one passes on to another."""
