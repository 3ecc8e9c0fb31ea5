"""What a leader host tells Prometheus: of itself and its leaders, and one of them of all groups."""
