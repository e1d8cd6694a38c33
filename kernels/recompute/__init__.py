"""What backward works out again: attention and pointwise functions, fused, in C."""
