"""A driver's way into a cluster: init, the decorator remote, the cluster's resources, and its HTTP interface."""
