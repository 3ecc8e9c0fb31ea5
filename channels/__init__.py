"""Channels: one long poll per client for any number of keys, whatever their messages or states come from.

The gateway's keys have the messages of topics (``gateway.channels``), those of the console the states of what
it shows (``admin.ui``). What a client says and gets is the same: see docs/channels.md.
"""
