"""The C module of quant/native/gate.c."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

class Books:
    live_bytes: int
    num_packs: int
    num_parameters: int
    num_small: int
    small_bytes: int

class KeptTensor:
    tensor: Tensor
    instead: Any
    @property
    def context(self) -> Any: ...
    @property
    def version(self) -> int: ...
    @property
    def num_bytes(self) -> int: ...
    def __init__(self, tensor: Tensor, context: Any, books: Books, version: int, num_bytes: int, /) -> None: ...
    def uncount(self) -> None: ...

class Gate:
    is_open: bool
    @property
    def known_nodes(self) -> set[type]: ...
    def __init__(
        self,
        pack: Callable[[Any], Any],
        unpack: Callable[[Any], Any],
        context: object,
        books: Books,
        min_bytes: int,
        detach: Callable[[Any], Any],
        current_node: Callable[[], Any],
        tensor_type: type,
        parameter_type: type,
        kept_type: type,
    ) -> None: ...
    def pack(self, tensor: Any, /) -> Any: ...
    def unpack(self, handle: Any, /) -> Any: ...

def set_after_backward(value: bool, /) -> None: ...
def is_after_backward() -> bool: ...
def set_followed(value: bool, /) -> None: ...
