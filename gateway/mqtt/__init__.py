"""The bridge to an MQTT broker: its messages into spaces, and those of a group to it."""
