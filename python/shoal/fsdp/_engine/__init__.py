"""Sharded modules as the engine runs them: units, the hooks that report a step's progress, and the model that units form."""
