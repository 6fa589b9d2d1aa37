#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`shmbroker metrics` is OpenMetrics text by the judgement of Prometheus' own parser, once and over HTTP, and what it
says is what `status` says. Usage: metrics_test.py TOOL BROKER"""
import contextlib
import http.client
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from prometheus_client.openmetrics.parser import text_string_to_metric_families

TOOL, BROKER = (str(Path(word).resolve()) for word in sys.argv[1:3])


def tool(*words, text=True):
    return subprocess.run([TOOL, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=text, timeout=120)


def families(text):
    """By name. Beside the parser's own checks: names carry the unit, nothing is said twice, everything has a help."""
    found = {}
    for family in text_string_to_metric_families(text):
        assert family.name not in found, f"{family.name} is there twice"
        assert family.name.startswith("shmbroker_") and family.documentation.endswith("."), family
        assert not family.unit or family.name.endswith("_" + family.unit), family
        for word in ("bytes", "seconds"):
            assert (word in family.name.split("_")) == (family.unit == word), f"{family.name}: unit {family.unit!r}"
        found[family.name] = family
    return found


def value(found, name, **labels):
    family = found[name]
    suffix = "_total" if family.type == "counter" else ""
    values = [sample.value for sample in family.samples
              if sample.name == name + suffix and labels.items() <= sample.labels.items()]
    assert len(values) == 1, f"{name} {labels}: {values}"
    return values[0]


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=60)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(self.path)


def ask(connection, method="GET", target="/metrics"):
    with contextlib.closing(connection):
        connection.request(method, target)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()


@contextlib.contextmanager
def served(address):
    process = subprocess.Popen([TOOL, "metrics", "--listen", address], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True)
    try:
        yield process, process.stdout.readline()
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, process.stderr.read()


def check_content():
    nothing = tool("metrics")
    assert nothing.returncode == 3 and not nothing.stdout and "starts a private one" in nothing.stderr, nothing
    data = Path(os.environ["XDG_RUNTIME_DIR"], "data")
    data.write_bytes(b"x" * 5000)
    assert tool("put", str(data), "--name", "a", "--group", "first").returncode == 0
    assert tool("put", str(data), "--name", "a", "--group", "second").returncode == 0
    assert tool("limit", "second", "1M").returncode == 0
    assert tool("cat", "no-such-name").returncode == 5
    status = json.loads(tool("status", "--json").stdout)["broker"]
    metrics = tool("metrics")
    assert metrics.returncode == 0 and metrics.stdout.endswith("\n# EOF\n"), metrics
    found = families(metrics.stdout)
    uid = str(os.geteuid())
    assert value(found, "shmbroker_up") == 1
    assert value(found, "shmbroker_memory_bytes") == status["bytes"] == 16384
    assert value(found, "shmbroker_memory_limit_bytes") == status["bytes_limit"]
    assert value(found, "shmbroker_regions") == 2 and value(found, "shmbroker_groups") == 2
    assert value(found, "shmbroker_user_memory_bytes", uid=uid) == 16384
    for group in ("first", "second"):
        assert value(found, "shmbroker_group_memory_bytes", group=group, uid=uid) == 8192
        assert value(found, "shmbroker_group_regions", group=group) == 1
        assert value(found, "shmbroker_group_ended", group=group) == 1  # kept: put has left
    assert value(found, "shmbroker_group_memory_limit_bytes", group="second") == 1 << 20
    assert found["shmbroker_broker"].type == "info"
    assert found["shmbroker_broker"].samples[0].labels["mode"] == "private"
    assert found["shmbroker_requests"].type == "counter" and value(found, "shmbroker_requests") > 0
    assert value(found, "shmbroker_refusals") >= 1
    assert not found["shmbroker_limit_refusals"].samples
    assert tool("put", str(data), "--name", "b", "--group", "second").returncode == 0
    assert tool("limit", "second", "16K").returncode == 0
    assert tool("put", str(data), "--name", "c", "--group", "second").returncode == 4
    refused = families(tool("metrics").stdout)
    assert value(refused, "shmbroker_limit_refusals", slot="bytes", scope="group") >= 1
    # Counters only rise.
    later = families(tool("metrics").stdout)
    assert value(later, "shmbroker_requests") > value(found, "shmbroker_requests")
    assert value(later, "shmbroker_start_time_seconds") == value(found, "shmbroker_start_time_seconds") or abs(
        value(later, "shmbroker_start_time_seconds") - value(found, "shmbroker_start_time_seconds")) < 1
    shmem = int(re.search(r"^Shmem:\s+(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)[1])
    assert (value(found, "shmbroker_host_shared_memory_bytes") > 0) == (shmem > 0)


def check_served():
    folder = os.environ["XDG_RUNTIME_DIR"]
    path = f"{folder}/metrics.sock"
    with served(path) as (_, line):
        assert line == f"serving metrics on the UNIX socket {path}\n", line
        status, headers, body = ask(UnixConnection(path))
        assert status == 200 and value(families(body), "shmbroker_up") == 1
        assert headers["Content-Type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
        assert int(headers["Content-Length"]) == len(body)
        busy = tool("metrics", "--listen", path)
        assert busy.returncode == 1 and "remove it or give another path" in busy.stderr, busy
        assert ask(UnixConnection(path))[0] == 200, "a second server took the socket of the first"
    assert not os.path.exists(path), "the socket file is left"

    left = socket.socket(socket.AF_UNIX)
    left.bind(path)
    left.close()  # as a server that was killed leaves it
    with served(path) as (_, line):
        assert ask(UnixConnection(path))[0] == 200

    with served("127.0.0.1:0") as (_, line):
        port = int(re.fullmatch(r"serving metrics on http://127\.0\.0\.1:(\d+)/metrics\n", line)[1])

        def connection():
            return http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        assert value(families(ask(connection())[2]), "shmbroker_up") == 1
        assert ask(connection(), target="/metrics?x=1")[0] == 200
        assert ask(connection(), "HEAD")[::2] == (200, "")
        assert ask(connection(), target="/")[0] == 404
        assert ask(connection(), "POST")[0] == 405
        # Silent readers, more than there are places, delay nobody for long; junk is answered.
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(80)]
        assert ask(connection())[0] == 200
        with socket.create_connection(("127.0.0.1", port)) as junk:
            junk.settimeout(60)
            junk.sendall(b"\x00\xff\r\n\r\n")
            assert junk.recv(4096).startswith(b"HTTP/1.1 400 ")
        with socket.create_connection(("127.0.0.1", port)) as endless:
            endless.settimeout(60)
            endless.sendall(b"GET /metrics HTTP/1.1\r\n" + b"a: b\r\n" * 1500)
            assert endless.recv(4096).startswith(b"HTTP/1.1 431 ")
        for each in silent:
            each.close()
        # A broker that is gone is a figure.
        pid = json.loads(tool("status", "--json").stdout)["broker"]["pid"]
        for group in ("first", "second"):
            assert tool("release", "--group", group).returncode == 0
        end = os.pidfd_open(pid)
        os.kill(pid, signal.SIGTERM)
        assert select.select([end], [], [], 60)[0]
        os.close(end)
        gone = families(ask(connection())[2])
        assert value(gone, "shmbroker_up") == 0 and "shmbroker_memory_bytes" not in gone
        assert value(gone, "shmbroker_host_shared_memory_bytes") >= 0

    for refused in ("0.0.0.0:9000", "192.0.2.1:80", "[::]:9000", "[2001:db8::1]:80", ":9000", "example.org:80"):
        ended = tool("metrics", "--listen", refused)
        assert ended.returncode == 2 and "on this host only" in ended.stderr, (refused, ended)
    for refused in ("x", "9000", "localhost", "127.0.0.1:", "127.0.0.1:99999", "127.0.0.1:x"):
        ended = tool("metrics", "--listen=" + refused)
        assert ended.returncode == 2 and "127.0.0.1:PORT" in ended.stderr, (refused, ended)


def main():
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(XDG_RUNTIME_DIR=folder, SHMBROKER_DAEMON=BROKER)
        os.environ.pop("SHMBROKER_SOCKET", None)
        os.environ.pop("SHMBROKER_GROUP", None)
        try:
            check_content()
            check_served()
        finally:
            status = tool("status", "--json")
            if status.returncode == 0:
                os.kill(json.loads(status.stdout)["broker"]["pid"], signal.SIGTERM)


if __name__ == "__main__":
    main()
