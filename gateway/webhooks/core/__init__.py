"""The pure parts of webhooks: which callbacks are acceptable, what becomes of a delivery, what is shown."""
