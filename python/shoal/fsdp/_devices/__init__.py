"""Communication between devices: the ranks' groups, gathers into place, and what travels while the device computes."""
