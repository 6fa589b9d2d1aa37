# SPDX-License-Identifier: Apache-2.0
"""PyTorch on the broker: `import shmbroker.torch; shmbroker.torch.install()` as the first line of a training script.

After it torch.multiprocessing, `share_memory_()` and the workers of a DataLoader use memory of the broker: used again
instead of fresh, without names, without a descriptor for each tensor. `uninstall()` gives stock torch back.

`install` looks for the hooks that torch offers, and not for its version. Where something is missing, torch
stays as it is, and one warning on local rank 0 says so. `shmbroker.torch.multiprocessing` is the way without patching.
"""
from __future__ import annotations

import importlib as _importlib
import os as _os
import sys as _sys
import warnings as _warnings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["install", "uninstall", "installed", "multiprocessing", "rpc"]

_ABSENT = object()
_undo: list[tuple[Any, str, Any]] = []  # what install() has replaced: object, name, what was there
_reducers: dict[Any, Any] = {}
_installed = False


def installed() -> bool:
    """Whether torch uses the broker in this process."""
    return _installed


def install(name: str | None = None) -> bool:
    """Makes torch use the broker, in this process and its children. True: it does.

    name: of the group in which `shmbroker list` shows the tensors; else it is made of script and pid. Programs of a user
    that give the same name share the group. In a program that `shmbroker run` has started, its group is used.
    A second call changes nothing. A forked child has what its parent had. Processes that run already stay as they are:
    both sides understand what the other sends.
    """
    if _installed:
        return True
    from . import wanted
    missing = wanted.missing()
    if missing:
        _warn(f"shmbroker.torch.install: this torch ({wanted.version()}) has no {', no '.join(missing)}. torch keeps its "
              "own shared memory")
        return False
    from multiprocessing import process
    if not getattr(process.current_process(), "_inheriting", False):
        # Else it is the main module of a child: its group is its parent's, which comes with what it has to run.
        from .. import errors
        from ..mp import place
        place.call(name if name is not None else _name())
        try:
            place.home()
        except (errors.NoBroker, errors.Unsupported) as error:
            _warn(f"shmbroker.torch.install: {error}. torch keeps its own shared memory")
            return False
    _install()
    return True


def install_in_child() -> None:
    """In a process that its parent has started by spawn or forkserver: it is in the parent's group already, or will be."""
    if not _installed:
        _install()


def _name() -> str:
    script = _os.path.basename(_sys.argv[0]) if _sys.argv and _sys.argv[0] else ""
    word = "".join(one if one.isalnum() and one.isascii() or one in "._-" else "_" for one in script)[:40].lstrip(".-_")
    return f"{word or 'python'}-{_os.getpid()}"


def _warn(text: str) -> None:
    if _os.environ.get("LOCAL_RANK", "0") == "0":
        _warnings.warn(text, RuntimeWarning, stacklevel=3)


def _install() -> None:
    global _installed
    from . import hooks
    hooks.put(_replace, _reducers)
    _installed = True


def _replace(holder: Any, name: str, value: Any) -> None:
    _undo.append((holder, name, vars(holder).get(name, _ABSENT)))
    setattr(holder, name, value)


def uninstall() -> None:
    """Gives stock torch back, exactly. Tensors that are shared stay valid, and can still be received."""
    global _installed
    if not _installed:
        return
    while _undo:
        holder, name, before = _undo.pop()
        if before is _ABSENT:
            delattr(holder, name)
        else:
            setattr(holder, name, before)
    from . import hooks
    hooks.take_away(_reducers)
    _installed = False


def __getattr__(name: str) -> Any:
    if name in ("multiprocessing", "rpc"):
        return _importlib.import_module("." + name, __name__)
    raise AttributeError(f"module 'shmbroker.torch' has no attribute '{name}'")
