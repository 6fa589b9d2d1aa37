# SPDX-License-Identifier: Apache-2.0
"""The books of the broker as dataclasses: `status()` and `list()`. They are made of the JSON that the command `shmbroker`
prints, and tell what it tells. Fields of a newer broker are in `more`.
"""
from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
from typing import Any

from . import errors
from .arguments import seconds, text_or_none


@dataclasses.dataclass(frozen=True)
class Row:
    """Named fields. Those that this file does not know are in `more`."""

    more: dict[str, Any] = dataclasses.field(default_factory=dict, kw_only=True, repr=False)

    @classmethod
    def of(cls, given: dict[str, Any]) -> Any:
        known = {field.name for field in dataclasses.fields(cls)} - {"more"}
        return cls(**{name: value for name, value in given.items() if name in known},
                   more={name: value for name, value in given.items() if name not in known})


@dataclasses.dataclass(frozen=True)
class Broker(Row):
    """Which broker answers, and how full it is. Sizes are bytes."""

    version: str = ""
    mode: str = ""
    socket: str = ""
    found: str = ""
    pid: int = 0
    uid: int = 0
    epoch: str = ""
    uptime_seconds: float = 0.0
    engine: str = ""
    engine_reason: str = ""
    kernel: str = ""
    losses: list[str] = dataclasses.field(default_factory=lambda: [])
    bytes: int = 0
    bytes_limit: int = 0
    bytes_cached: int = 0
    regions: int = 0
    groups: int = 0
    sessions: int = 0
    leases: int = 0
    tickets: int = 0
    watches: int = 0
    descriptors: int = 0
    descriptors_limit: int = 0
    requests: int = 0
    refusals: int = 0
    reclaims: int = 0
    bytes_reclaimed: int = 0


@dataclasses.dataclass(frozen=True)
class Group(Row):
    """A group, alive or kept."""

    group: str | None = None
    group_id: int = 0
    owner_uid: int = 0
    bytes: int = 0
    bytes_limit: int = 0
    bytes_peak: int = 0
    bytes_cached: int = 0
    regions: int = 0
    regions_limit: int = 0
    members: int = 0
    heirs: int = 0
    supervised: bool = False
    ended: bool = False
    created: str = ""
    keep_seconds: float | str | None = None


@dataclasses.dataclass(frozen=True)
class Region(Row):
    """A region of the broker. address: what attach() takes."""

    id: str = ""
    address: str | None = None
    group: str | None = None
    group_id: int = 0
    name: str | None = None
    owner_uid: int = 0
    length: int = 0
    bytes: int = 0
    touched: int = 0
    state: str = ""
    access: str = ""
    pages: str = ""
    holders: int = 0
    writers: int = 0
    tickets: int = 0
    queues: int = 0
    pool: int | str | None = None
    creator_pid: int = 0
    created: str = ""
    keep_seconds: float | str | None = None
    freed_at: str | None = None


@dataclasses.dataclass(frozen=True)
class Listing(Row):
    """The content of `shmbroker list`. Pools, queues, worlds and GPU regions are dictionaries, as the command has them."""

    broker: Broker = Broker()
    groups: list[Group] = dataclasses.field(default_factory=lambda: [])
    regions: list[Region] = dataclasses.field(default_factory=lambda: [])
    pools: list[dict[str, Any]] = dataclasses.field(default_factory=lambda: [])
    queues: list[dict[str, Any]] = dataclasses.field(default_factory=lambda: [])
    worlds: list[dict[str, Any]] = dataclasses.field(default_factory=lambda: [])
    gpu_regions: list[dict[str, Any]] = dataclasses.field(default_factory=lambda: [])
    totals: dict[str, int] = dataclasses.field(default_factory=dict)


def tool() -> str:
    """The command `shmbroker`: SHMBROKER_TOOL, that of this package, or the one along PATH."""
    given = os.environ.get("SHMBROKER_TOOL")
    if given:
        return given
    here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "shmbroker")
    found = here if os.access(here, os.X_OK) else shutil.which("shmbroker")
    if found is None:
        raise errors.NotFound("the command shmbroker is missing: it is neither in this package nor along PATH. Install "
                              "it, or name it by SHMBROKER_TOOL")
    return found


_LONGEST = 1e9  # seconds
_FAILURES = {3: errors.NoBroker, 4: errors.Denied, 5: errors.NotFound, 124: errors.Timeout}


def _ask(verb: str, socket: str | None, timeout: float, *options: str) -> dict[str, Any]:
    text_or_none(socket, "socket")
    timeout = seconds(timeout, "timeout")
    if not 0 < timeout <= _LONGEST:
        raise errors.Invalid(f"timeout is {timeout:g}: a call to the broker has a limit, above 0 and at most "
                             f"{_LONGEST:g} seconds")
    command = [tool(), verb, "--json", f"--timeout={max(1, round(timeout * 1000))}ms", *options]
    if socket is not None:
        command.append(f"--socket={socket}")
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout + 60)
    if done.returncode not in (0, 7):
        kind = _FAILURES.get(done.returncode, errors.Error)
        raise kind(done.stderr.strip().removeprefix("shmbroker: ") or f"shmbroker {verb} ended with {done.returncode}")
    made: dict[str, Any] = json.loads(done.stdout)
    made.pop("schema", None)
    return made


def status(socket: str | None = None, *, timeout: float = 5.0) -> Broker:
    """Which broker answers and how full it is."""
    return Broker.of(_ask("status", socket, timeout)["broker"])


def list(group: str | None = None, *, socket: str | None = None, timeout: float = 5.0) -> Listing:
    """All that this user may see, or only a group: "NAME", "UID:NAME" or "@ID"."""
    text_or_none(group, "group", 'None or a str ("NAME", "UID:NAME", "@ID")')
    options = () if group is None else (f"--group={group}",)
    found = _ask("list", socket, timeout, *options)
    found["broker"] = Broker.of(found["broker"])
    for name, kind in (("groups", Group), ("regions", Region)):
        found[name] = [kind.of(one) for one in found.get(name, ())]
    return Listing.of(found)
