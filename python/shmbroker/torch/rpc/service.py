# SPDX-License-Identifier: Apache-2.0
"""The service of this worker for others. The threads of the library call serve() with one request each."""
from __future__ import annotations

from typing import Any

import torch

from ... import _core, errors
from . import failures, functions, message, plain, state
from .references import RRef, Value, reference_in, type_name


def serve(request: _core.RemoteRequest) -> None:
    state.joined.wait()
    try:
        if request.kind == _core.REQUEST_FETCH:
            _answer_fetch(request, request.object)
            return
        content = request.take()
        if message.is_message(content[0]):
            _run(request, content)
        else:
            _run_plain(request, content)
    except BaseException as error:  # noqa: BLE001 - whatever it is, the caller gets it
        _fail(request, error)


def _run(request: _core.RemoteRequest, content: Any) -> None:
    function, args, kwargs = message.unpack(content)
    if isinstance(function, str):
        function = getattr(RRef.adopt(content[2][0]).local_value(), function)
    answer = _answer_later if hasattr(function, "_wrapped_async_rpc_function") else _answer
    answer(request, function(*args, **kwargs), False)


def _run_plain(request: _core.RemoteRequest, content: Any) -> None:
    name = request.function
    function = functions.find(name)
    if function is None:
        known = ", ".join(functions.names())[:400] or "none"
        text = f'no function "{name}" is registered there (registered: {known})'
        request.fail(errors.NoFunction.code, b"", text.encode("utf-8", "backslashreplace"), b"", ())
        return
    args = plain.Unpacker(content, RRef.adopt).value()
    if not isinstance(args, list):
        raise plain.Malformed("the arguments of a call are no list")
    result = function(*args)
    if hasattr(function, "_wrapped_async_rpc_function"):
        return _answer_later(request, result, True)
    _answer(request, result, True)


def _answer_later(request: _core.RemoteRequest, result: Any, is_plain: bool) -> None:
    if not isinstance(result, torch._C.Future):
        raise RuntimeError("Functions decorated with @rpc.async_function must return a torch.futures.Future object, "
                           f"but got {type(result)}")

    def done(future: Any) -> None:
        try:
            _answer(request, future.value(), is_plain)
        except BaseException as error:  # noqa: BLE001 - of the future, or of the packing
            _fail(request, error)

    result.add_done_callback(done)


def _answer(request: _core.RemoteRequest, result: Any, is_plain: bool) -> None:
    if request.kind != _core.REQUEST_CREATE:
        return _send(request, result, is_plain, None)
    kept, kind = Value(result, is_plain), type_name(result)
    del result  # the asker is faster than the end of this frame, and a value that is held elsewhere has no snapshot
    request.answer_object(kept, kind)


def _answer_fetch(request: _core.RemoteRequest, kept: Value) -> None:
    snapshot = kept.snapshot()  # before this frame has the value, too
    _send(request, kept.value, kept.plain, snapshot)


def _send(request: _core.RemoteRequest, result: Any, is_plain: bool, snapshot: message.Snapshot | None) -> None:
    world = state.current().core
    if is_plain:
        packed = plain.Packer(world, reference_in).pack(result).payload()
    else:
        packed = message.pack(world, result, None, snapshot)
    del result  # before the next fetch comes
    try:
        request.answer(*packed)
    except errors.Error:
        pass  # the library has told the caller, or the caller has gone


def _fail(request: _core.RemoteRequest, error: BaseException) -> None:
    # The program has left the world while the call ran, for instance after the broker's death: nobody waits for it.
    if isinstance(error, state.NotInitialized) and state.current_or_none() is None:
        return
    try:
        request.fail(*failures.of_exception(error))
    except errors.Closed:
        failures.unraisable("after the answer to a call", error)
    except errors.Error as why:
        failures.unraisable("a failure could not be told", why)
