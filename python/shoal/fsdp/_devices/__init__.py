"""Communication between devices: the ranks' groups, gathers into place, and transfers while the device computes."""
