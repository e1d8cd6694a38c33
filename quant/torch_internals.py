"""Every private name of torch that DAF uses, in one place. A new torch release is one diff of this file.

Each entry has a record: what it is for, and what is lost where the installed torch lacks it. Nothing raises because
a name is gone: `missing()` lists what is, for `daf doctor`, and the function beside the name does what can be done
without it. Written for torch 2.6 and later.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Hook = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Internal:
    """One private name: where it is found, what DAF does with it, and what a torch without it loses."""

    name: str
    purpose: str
    loss: str
    is_for_cuda: bool = False

    def find(self) -> Any:
        """What stands at the name in the installed torch; None where there is nothing."""
        found: Any = torch
        for part in self.name.removeprefix("torch.").split("."):
            found = getattr(found, part, None)
            if found is None:
                return None
        return found

    @property
    def is_here(self) -> bool:
        return self.find() is not None


_records: list[Internal] = []


def _internal(name: str, purpose: str, loss: str, *, is_for_cuda: bool = False) -> Any:
    record = Internal(name, purpose, loss, is_for_cuda)
    _records.append(record)
    return record.find()


def internals() -> list[Internal]:
    return list(_records)


def missing() -> list[Internal]:
    """What the installed torch lacks and could have; empty on the pinned one."""
    has_cuda = torch.version.cuda is not None
    return [record for record in _records if not record.is_here and (has_cuda or not record.is_for_cuda)]


# -- hooks of saved tensors

_push = _internal(
    "torch._C._autograd._push_saved_tensors_default_hooks",
    "puts DAF's hooks on a thread",
    "nothing: the public context manager is entered instead",
)
_pop = _internal(
    "torch._C._autograd._pop_saved_tensors_default_hooks",
    "takes DAF's hooks off a thread",
    "nothing: the public context manager is left instead",
)
_top = _internal(
    "torch._C._autograd._top_saved_tensors_default_hooks",
    "tells whose hooks are innermost before any are taken off",
    "a closed session's hooks stay on its threads and keep everything exact; torch.func refuses to run beside them",
)
_refusal = _internal(
    "torch._C._autograd._saved_tensors_hooks_get_disabled_error_message",
    "tells that a torch.func transform refuses hooks",
    "a session opened inside a transform fails to start",
)


def push_hooks(pack: Hook, unpack: Hook) -> None:
    """Every save of this thread goes through `pack` from now on, every use through `unpack`."""
    if _push is not None:
        _push(pack, unpack)
    else:
        torch.autograd.graph.saved_tensors_hooks(pack, unpack).__enter__()


def pop_hooks() -> None:
    """Takes the innermost pair off this thread."""
    if _pop is not None:
        _pop()
    else:
        torch.autograd.graph.saved_tensors_hooks(_same, _same).__exit__()


def top_hooks() -> tuple[Hook, Hook] | None:
    """The innermost pair of this thread; None where there is none, or it cannot be told."""
    return _top(True) if _top is not None else None


def why_hooks_are_refused() -> str | None:
    return _refusal() if _refusal is not None else None


def _same(packed: Any) -> Any:
    return packed


# -- autograd's nodes

# The node that this thread's backward runs; None outside of a backward.
current_node: Callable[[], Any] = _internal(
    "torch._C._current_autograd_node",
    "tells which op asks for a saved tensor",
    "readers are never known, so every saved tensor is kept exact",
) or (lambda: None)
# The number that this thread's next node gets.
next_number: Callable[[], int] = _internal(
    "torch._C._autograd._get_sequence_nr",
    "tells which saves belong to one op",
    "the gradient error of single ops is not measured; attention on a device is kept exact",
) or (lambda: -1)
_raw_hook = _internal(
    "torch._C._autograd.SavedTensor.unpack_hook",
    "tells whose hooks packed a saved tensor, and gives what they packed, without running any",
    "less is recomputed, and readers are known only after the first backward",
)


def number_of(node: Any) -> int:
    """The number of a node, in the order that the forward made them; -1 where it cannot be told."""
    tell = getattr(node, "_sequence_nr", None)
    return int(tell()) if tell is not None else -1


Kinds = tuple[type, ...]
_RAW = "_raw_saved_"


def saved_handle(node: Any, name: str, kinds: Kinds) -> Any:
    """What hooks packed as the saved tensor `name` of a node ("self", "result" ...), if it is of one of these kinds.

    No hook is run: reading `node._saved_self` would run whoever's hooks packed it, and a checkpoint's raise. None where
    the node has no such tensor, has let go of it, or somebody else's hooks or none packed it.
    """
    return next(_packed(node, name, kinds), None)


def saved_fields(node: Any) -> tuple[str, ...]:
    """The names of the tensors that a node's kind saves."""
    return tuple(name.removeprefix(_RAW) for name in dir(node) if name.startswith(_RAW))


def saved_handles(node: Any, kinds: Kinds, fields: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Name and handle of each of these tensors of a node that was packed as one of these kinds."""
    for field in fields:
        for handle in _packed(node, field, kinds):
            yield field, handle


def is_packed_by_others(node: Any, kinds: Kinds) -> bool:
    """Whether a node's own saved tensors went through hooks that are not ours: calling the node would run those."""
    hooked = (one for field in saved_fields(node) for one in _hooked(node, field))
    return _raw_hook is None or any(not isinstance(one.data, kinds) for one in hooked)


def can_tell_handles() -> bool:
    return _raw_hook is not None


def _packed(node: Any, field: str, kinds: Kinds) -> Iterator[Any]:
    return (one.data for one in _hooked(node, field) if isinstance(one.data, kinds))


def _hooked(node: Any, field: str) -> Iterator[Any]:
    if _raw_hook is None:
        return
    try:
        saved = getattr(node, _RAW + field, None)
    except RuntimeError:  # released
        return
    for one in saved if isinstance(saved, (tuple, list)) else (saved,):
        if getattr(one, "unpack_hook", None) is not None:
            yield one


def saved_number(node: Any, field: str) -> Tensor | None:
    """A Python number that a node saved as a tensor of one element: no hook sees those."""
    raw = getattr(node, _RAW + field, None)
    if raw is None or isinstance(raw, (tuple, list)) or getattr(raw, "unpack_hook", None) is not None:
        return None
    try:
        found = getattr(node, f"_saved_{field}", None)
    except RuntimeError:  # released
        return None
    return found if isinstance(found, Tensor) and found.dim() == 0 else None


def output_of_node(node: Any, number: int) -> tuple[tuple[int, ...], torch.dtype] | None:
    """Shape and dtype of a node's output; None where it cannot be told."""
    known = getattr(node, "_input_metadata", None)
    if known is None or number >= len(known):
        return None
    return tuple(known[number].shape), known[number].dtype


def setting(node: Any, name: str, default: Any = None) -> Any:
    """A number, flag or text that a node holds: the name must not be a tensor's."""
    return getattr(node, f"_saved_{name}", default)


# -- tensors


def _has_storage(tensor: Tensor) -> bool:
    try:
        tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return False
    return True


has_storage: Callable[[Tensor], bool] = (
    _internal(
        "torch._C._has_storage",
        "tells tensors without memory (sparse, functional) from others",
        "nothing: the storage is asked for instead",
    )
    or _has_storage
)
_internal(
    "torch._C._cuda_getCurrentRawStream",
    "tells whether a save is made on the stream that DAF's kernels run on",
    "saves on a second CUDA stream wait for the device",
    is_for_cuda=True,
)
_internal(
    "torch.UntypedStorage._cdata",
    "tells that two saves are of one storage",
    "nothing: the address is compared",
)

_use_count = _internal(
    "torch._C._storage_Use_Count",
    "tells that only the graph holds a tensor that was kept exact, so that compressing it frees its memory",
    "tensors that were kept exact are not compressed late, when memory runs short",
)
_MANY = 1 << 30


def storage_use_count(record: int) -> int:
    """How many hold the storage with this record (storage_record); many, where it cannot be told."""
    return int(_use_count(record)) if _use_count is not None else _MANY


def current_stream(device_index: int) -> int:
    """The address of the device's current stream; -1, which is no stream's, where it cannot be told."""
    tell = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return int(tell(device_index)) if tell is not None else -1


def storage_record(tensor: Tensor) -> int:
    """The address of the storage's record: one for all tensors that share the memory, as long as any lives."""
    storage = tensor.untyped_storage()
    record = getattr(storage, "_cdata", None)
    return int(storage.data_ptr() if record is None else record)


# -- the dispatcher

_keys = _internal(
    "torch._C.DispatchKey",
    "calls torch's own convolution from the one that stands before it",
    "convolutions are not cut into slices where memory is short",
)
_key_set = _internal(
    "torch._C.DispatchKeySet",
    "calls torch's own batch norm from the one that stands before it",
    "the backward of batch norms is not cut into slices where memory is short",
)
_call = _internal(
    "torch.ops.aten.convolution.default._op_dk",
    "calls one kernel of an op",
    "convolutions are not cut into slices where memory is short",
)
_destroy = _internal(
    "torch.library.Library._destroy",
    "takes DAF's convolutions off the dispatcher",
    "they stay, and call torch's own",
)
_get_kernel = _internal(
    "torch.library.get_kernel",
    "calls torch's own batch norm from the one that stands before it",
    "the backward of batch norms is not cut into slices where memory is short",
)


def can_call_kernels() -> bool:
    """Whether a kernel that stands before torch's own can still call it."""
    return _keys is not None and _call is not None


def call_composite(overload: Any, *arguments: Any) -> Any:
    """An op's kernel for all devices, such as torch's own convolution, whatever stands before it on one of them."""
    return overload._op_dk(_keys.CompositeExplicitAutograd, *arguments)


def cpu_kernel(name: str) -> Callable[..., Any] | None:
    """Torch's own CPU kernel of aten's `name`, to be called while another stands before it; None where it has none."""
    if _get_kernel is None or _key_set is None or _keys is None:
        return None
    try:
        kernel = _get_kernel(f"aten::{name}", "CPU")
    except (AttributeError, RuntimeError):
        return None
    on_cpu = _key_set(_keys.CPU)
    return lambda *arguments: kernel.call_boxed(on_cpu, *arguments)


def destroy(library: Any) -> bool:
    """Takes a library's kernels off the dispatcher; False where they stay."""
    if _destroy is None:
        return False
    library._destroy()
    return True


# -- compiled graphs, and structures of tensors

_apply = _internal(
    "torch.autograd.Function.apply.__func__.__code__",
    "tells saves of compiled graphs, whose consistency DAF cannot know, from others",
    "saves of compiled graphs are kept exact only because they have no history",
)
_tree = _internal(
    "torch.utils._pytree.tree_leaves",
    "finds the tensors in what a module returns",
    "they are found in tuples, lists and dicts only",
)


def has_compiled() -> bool:
    """Whether this process has compiled graphs. Not looked up when DAF is imported: torch would import its compiler."""
    utils = sys.modules.get("torch._dynamo.utils")
    return utils is not None and bool(getattr(utils, "counters", {"frames": True}).get("frames"))


def is_compiled(frame: Any) -> bool:
    """Whether a compiled graph saves: `frame` is where the hook was called from."""
    return frame.f_code is _apply and getattr(frame.f_locals.get("cls"), "__name__", "") == "CompiledFunction"


def leaves_of(structure: object) -> Iterable[object]:
    """Everything in a nest of tuples, lists and dicts, or of classes that torch knows."""
    return _tree(structure) if _tree is not None else _leaves(structure)


def _leaves(structure: object) -> Iterator[object]:
    if isinstance(structure, dict):
        structure = list(structure.values())
    if isinstance(structure, (tuple, list)):
        for part in structure:
            yield from _leaves(part)
    else:
        yield structure
