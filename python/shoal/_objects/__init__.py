"""Values and references to them: their arrival, streams of them, and the memory of tensors."""
