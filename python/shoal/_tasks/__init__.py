"""Remote functions and the pools of workers that run them."""
