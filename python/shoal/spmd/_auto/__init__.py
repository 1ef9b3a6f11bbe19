"""Automatic sharding: a recorded step, its costs, and the choice of specs."""
