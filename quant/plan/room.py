"""How many bytes the budget leaves for saved activations, from what the steps so far have taken.

    live = slots + others      at the peak of a step: slots, what plans are about; others, what they cannot change

`others` are weights, their gradients, the optimizer's state, temporaries, small and unreadable saves. A memory-saving
step spares temporaries, so both kinds of step are remembered apart.
"""

from __future__ import annotations

SHARE = 0.97  # of the budget: the rest is for what changes from step to step, and for the ends of pages
SPARED = 4  # of the largest saved tensors: what a memory-saving step does without (ResNet-18: three)
CHANGE = 0.02  # of the room, that makes a new plan worth while


class Room:
    """Looks at the arena once a step."""

    def __init__(self) -> None:
        self.budget_bytes = 0
        self._others: dict[bool, int] = {}  # by whether the step was a memory-saving one
        self._planned_bytes = 0.0
        self._planned_budget = 0

    def look(self, budget_bytes: int, other_bytes: int, *, is_saving: bool) -> None:
        """A step ended in which everything but slots took `other_bytes` at the peak; 0: nobody knows."""
        self.budget_bytes = budget_bytes
        if other_bytes > 0:
            self._others[is_saving] = other_bytes

    def for_slots(self, largest_bytes: int, *, is_saving: bool) -> float:
        """The room for slots in a step to come. `largest_bytes`: of one saved tensor."""
        others = self._others.get(is_saving)
        if others is None:
            spared = SPARED * largest_bytes if self._others else 0
            others = self._others.get(not is_saving, 0) + (-spared if is_saving else spared)
        return SHARE * self.budget_bytes - max(0, others)

    def has_changed(self, room: float) -> bool:
        """Whether there is more room than was planned for, or another budget. Less room under a plan that fits is no
        news: what is compressed is decoded again, and takes room of its own then."""
        return self.budget_bytes != self._planned_budget or room > (1.0 + CHANGE) * self._planned_bytes

    def at_least_planned(self, room: float) -> float:
        """The room for a plan to follow one that fits."""
        return room if self.budget_bytes != self._planned_budget else max(room, self._planned_bytes)

    def note_planned(self, room: float) -> None:
        self._planned_bytes = room
        self._planned_budget = self.budget_bytes
