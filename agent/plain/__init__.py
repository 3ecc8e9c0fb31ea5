"""Reading without a group: plain subscriptions, what they read, and where they are in their streams."""
