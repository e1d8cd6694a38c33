"""What backward recomputes: attention and pointwise functions, fused, in C."""
