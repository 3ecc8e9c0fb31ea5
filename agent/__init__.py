"""The consuming and publishing side of a process (EIP-0028, "Shared Subscription Agent").

`subscription` is what a Python program iterates over, `client` is the entrance, and `blocking` is its twin
for programs without an event loop. In the room `membership`, `agent` has the one mailbox of a process and all
its borrowers, and `session` is one shared subscription with its slots. This room knows nothing of Spark.
"""
