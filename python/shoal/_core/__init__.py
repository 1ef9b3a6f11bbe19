"""The lowest layer: this process's place in a cluster, the executing call, and tools that know neither objects nor actors."""
