"""Subscriptions to collections: the multiset as of one point, and then the changes behind it."""
