"""The plan of a model's steps, the memory that it needs, and a step on fake tensors."""
