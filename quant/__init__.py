"""Which tensor, which codec, how many bits: the engine on autograd's saved-tensor hooks, and its planner."""
