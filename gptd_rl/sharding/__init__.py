"""More data than memory holds: sources, sharded datasets, backends."""
