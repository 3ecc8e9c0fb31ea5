"""Publishing: lanes, parts, the sender, the publisher, and batches that are staged and decided."""
