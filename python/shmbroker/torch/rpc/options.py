# SPDX-License-Identifier: Apache-2.0
"""The arguments of init_rpc: options as torch has them, and where the workers meet.

Only the timeout, the meeting point and the number of threads count. The rest is about devices and transports, which
memory of one host has none of.
"""
from __future__ import annotations

import enum
import os
import urllib.parse
import zlib
from typing import Any

from ...arguments import seconds, text

DEFAULT_RPC_TIMEOUT_SEC = 60.0
DEFAULT_INIT_METHOD = "env://"
DEFAULT_NUM_WORKER_THREADS = 16
DEFAULT_SHUTDOWN_TIMEOUT = 0
UNSET_RPC_TIMEOUT = -1.0

_FOREVER = -1  # SHMB_FOREVER
_FILE_PORTS = range(20000, 60000)


class BackendType(enum.Enum):
    """The names that programs give. All of them mean the broker."""

    TENSORPIPE = "TENSORPIPE"
    SHMBROKER = "SHMBROKER"


class RpcBackendOptions:
    """`rpc_timeout` in seconds, 0 for none; `init_method`: env://, tcp://HOST:PORT or file://PATH."""

    def __init__(self, rpc_timeout: float = DEFAULT_RPC_TIMEOUT_SEC, init_method: str = DEFAULT_INIT_METHOD) -> None:
        self.rpc_timeout, self.init_method = rpc_timeout, init_method


class TensorPipeRpcBackendOptions(RpcBackendOptions):
    def __init__(self, *, num_worker_threads: int = DEFAULT_NUM_WORKER_THREADS,
                 rpc_timeout: float = DEFAULT_RPC_TIMEOUT_SEC, init_method: str = DEFAULT_INIT_METHOD,
                 device_maps: dict[str, Any] | None = None, devices: list[Any] | None = None,
                 _transports: list[str] | None = None, _channels: list[str] | None = None) -> None:
        super().__init__(rpc_timeout, init_method)
        self.num_worker_threads = num_worker_threads
        self.device_maps, self.devices = device_maps or {}, devices or []

    def set_device_map(self, to: str, device_map: dict[Any, Any]) -> None:
        self.device_maps.setdefault(to, {}).update(device_map)

    def set_devices(self, devices: list[Any]) -> None:
        self.devices = list(devices)


def nanoseconds(timeout: float, default: float) -> int:
    """Of a call: -1 is the default, 0 no limit."""
    timeout = seconds(timeout, "timeout")
    if timeout == UNSET_RPC_TIMEOUT:
        timeout = default
    if timeout == 0:
        return _FOREVER
    if not timeout > 0:
        raise ValueError(f"the timeout of a call is a number of seconds, 0 for no limit or -1 for the default, "
                         f"not {timeout}")
    return min(int(timeout * 1e9), 2**62) or 1


def meeting_point(init_method: str, rank: int, world_size: int | None) -> tuple[str, int, int]:
    """(HOST:PORT, rank, size of the world); missing numbers come from the method or from RANK and WORLD_SIZE."""
    text(init_method, "init_method", 'a str ("env://", "tcp://HOST:PORT" or "file://PATH")')
    url = urllib.parse.urlparse(init_method)
    given = urllib.parse.parse_qs(url.query)
    if rank < 0 and "rank" in given:
        rank = int(given["rank"][0])
    if not world_size and "world_size" in given:
        world_size = int(given["world_size"][0])
    if url.scheme == "env":
        for name in ("MASTER_ADDR", "MASTER_PORT"):
            if not os.environ.get(name):
                raise ValueError(f"Error initializing torch.distributed using env:// rendezvous: environment variable "
                                 f"{name} expected, but not set")
        host, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    elif url.scheme == "tcp":
        if not url.hostname or not url.port:
            raise ValueError(f"the meeting point of workers is tcp://HOST:PORT, not {init_method!r}")
        host, port = url.hostname, str(url.port)
    elif url.scheme == "file":
        # Nothing is written there: workers that name one file meet at the number that it stands for.
        path = os.path.realpath(url.netloc + url.path)
        host, port = "localhost", str(_FILE_PORTS[zlib.crc32(os.fsencode(path)) % len(_FILE_PORTS)])
    else:
        raise RuntimeError(f"No rendezvous handler for {url.scheme}://")
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    return f"{host}:{port}", rank, world_size or 0
