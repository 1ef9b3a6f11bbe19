"""Ranks of a mesh: their hosts and nodes, and the communicator of ranks that do not share memory."""
