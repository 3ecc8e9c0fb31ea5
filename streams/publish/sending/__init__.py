"""The half of a publisher that sends: rounds, messages alone, and whose turn it is to send."""
