"""Planning: finds the partitioning that minimises the work after forwarding."""
