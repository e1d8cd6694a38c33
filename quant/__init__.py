"""Which saved tensor, which codec, how many bits: the engine on autograd's hooks, its slots, importance and planner."""

from daf.quant.engine import Engine
from daf.quant.plan.policy import Wish

__all__ = ["Engine", "Wish"]
