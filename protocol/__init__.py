"""The words that everything else speaks: topics, offsets, ids, control messages and errors.

This room is pure: it knows neither Redis nor Spark nor asyncio. Every other room imports it.
"""
