# SPDX-License-Identifier: Apache-2.0
"""The machine itself has what other cases rely on."""
import os
from pathlib import Path

from support import case, good, settles, run


@case
def systemd_is_process_1_and_reached_its_target():
    assert Path("/proc/1/comm").read_text().strip() == "systemd"
    settles(lambda: run("systemctl", "is-active", "multi-user.target")[0] == 0, "multi-user.target")
    failed = good("systemctl", "list-units", "--failed", "--plain", "--no-legend")
    assert not failed.strip(), failed


@case
def the_cgroup_tree_is_version_2_and_may_be_written():
    folder = Path("/sys/fs/cgroup/probe")
    assert "memory" in Path("/sys/fs/cgroup/cgroup.controllers").read_text().split()
    folder.mkdir()
    assert (folder / "cgroup.kill").exists() and (folder / "cgroup.events").exists()
    folder.rmdir()


@case
def root_has_all_capabilities():
    facts = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
    assert int(facts["CapEff"], 16) == (1 << last + 1) - 1, facts["CapEff"]
    assert os.geteuid() == 0


@case
def a_network_can_be_slow_and_can_be_encrypted():
    good("ip", "link", "add", "one", "type", "veth", "peer", "name", "two")
    good("tc", "qdisc", "add", "dev", "one", "root", "netem", "delay", "50ms", "loss", "1%")
    good("ip", "link", "add", "safe", "type", "wireguard")
    for name in ("one", "safe"):
        good("ip", "link", "delete", name)
