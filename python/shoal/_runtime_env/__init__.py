"""The ``runtime_env`` of a job, an actor or a function: its checks, its copies on this host, and their way to other hosts."""
