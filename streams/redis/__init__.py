"""One Redis: connections, exchanges, scripts, Cluster, Sentinels, and how safe a write is."""
