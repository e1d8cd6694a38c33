"""How much a loss of bits matters, and what it did to the gradient."""
