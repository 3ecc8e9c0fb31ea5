"""What was read of streams, as it is handed on: rows of a shared record batch, or messages of none.

Pure: nothing in here knows Redis, Spark or asyncio.
"""
