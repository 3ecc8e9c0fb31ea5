"""Webhooks: messages that a gateway brings to a callback, in order, until it says that it has them."""
