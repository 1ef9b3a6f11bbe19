"""Values and references to them: ``get``, ``put`` and ``wait``, generators, and the memory of tensors."""
