"""The functions with which a driver joins and uses a cluster: init, remote, the cluster's resources, and its HTTP interface."""
