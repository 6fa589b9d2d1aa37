# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.rpc over the broker: the same names, on one host.

    import shmbroker.torch.rpc as rpc

    rpc.init_rpc("worker0", rank=0, world_size=2)      # MASTER_ADDR, MASTER_PORT
    rref = rpc.remote("worker1", torch.add, args=(torch.ones(2), 3))
    print(rref.to_here())
    rpc.shutdown()

Workers are processes of one user on one host, up to 64. They may be written in C++ as well (shmbroker/remote.hpp):
functions of those are called by their names, and rpc.functions.register gives a function of Python a name.

Where things are: world.py joins and leaves, calls.py sends, service.py runs what others ask, references.py has RRef.
message.py lays out what workers of Python send each other, plain.py what those of C++ understand. state.py knows the
world, futures.py, failures.py and options.py stand in for torch's classes. All memory and all counting of references is
the broker's, under _core.RemoteWorld.
"""
from . import functions
from .calls import remote, rpc_async, rpc_sync
from .failures import RemoteException, RpcError, RpcTimeout, RpcWorkerGone
from .options import BackendType, RpcBackendOptions, TensorPipeRpcBackendOptions
from .references import RRef
from .state import WorkerInfo
from .world import _set_rpc_timeout, get_rpc_timeout, get_worker_info, get_worker_infos, init_rpc, shutdown

PyRRef = RRef


def is_available() -> bool:
    return True


__all__ = ["BackendType", "PyRRef", "RRef", "RemoteException", "RpcBackendOptions", "RpcError", "RpcTimeout",
           "RpcWorkerGone", "TensorPipeRpcBackendOptions", "WorkerInfo", "functions", "get_rpc_timeout",
           "get_worker_info", "get_worker_infos", "init_rpc", "is_available", "remote", "rpc_async", "rpc_sync",
           "shutdown"]
