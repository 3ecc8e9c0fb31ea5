"""What there is: spaces, hosts, leaders, leases and what processes made, to list and to follow."""
