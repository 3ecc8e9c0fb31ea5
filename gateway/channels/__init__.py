"""Channels: one long poll of a client for any number of subscriptions."""
