"""Which saved tensor, which codec, how many bits: the engine on autograd's hooks, its slots, importance and planner."""

from daf.quant.engine import Engine

__all__ = ["Engine"]
