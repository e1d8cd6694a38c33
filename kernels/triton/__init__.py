"""The codecs and reductions on a GPU: Triton twins that write the C kernels' bytes."""
