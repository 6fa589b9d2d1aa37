#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A broker when something runs out, seen from its socket by clients that speak bytes. Each case prints what it counted;
docs/reliability.md has the results of long runs.

    exhaustion.py BROKER TOOL [--long] [CASE ...]     cases: descriptors, silent, stopped, connects; without one: all
"""
import array
import os
import resource
import select
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HEADER = struct.Struct("<IHHQiHH")
HELLO, CREATE, STATUS = 1, 2, 15
IN_FLIGHT = 132  # of a reply to STATUS


def packet(op, body, tag=1, flags=0, fixed=None):
    return HEADER.pack(HEADER.size + len(body), op, flags, tag, 0, 0, len(body) if fixed is None else fixed) + body


def hello():
    library = b"exhaustion"
    body = struct.pack("<HHIQQQ16s16sHHI", 1, 1, os.getpid(), 0, 0, 0, bytes(16), bytes(16), len(library), 0, 0)
    return packet(HELLO, body + library, fixed=len(body))


def create(count, length=4096):
    element = struct.pack("<QQqIIHHI", 0, length, 0, 0, 0, 0, 0, 0)
    return packet(CREATE, struct.pack("<HHI", count, len(element), 0) + element * count, fixed=8)


class Client:
    """One connection. Nothing here waits without a limit: a broker that does not answer fails the case."""

    def __init__(self, path, greet=True):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(60)
        self.socket.connect(path)
        if greet:
            self.socket.send(hello())

    def answer(self):
        """Status of the next reply, and its bytes; None: the connection has ended."""
        try:
            data, control, _, _ = self.socket.recvmsg(65536, socket.CMSG_SPACE(253 * 4))
        except ConnectionError:
            return None
        for _, _, fds in control:
            numbers = array.array("i")
            numbers.frombytes(fds[:len(fds) - len(fds) % numbers.itemsize])
            for fd in numbers:
                os.close(fd)
        return (HEADER.unpack_from(data)[4], data) if data else None

    def ask(self, request):
        self.socket.send(request)
        return self.answer()

    def close(self):
        self.socket.close()


def sentence(reply):
    """Of a refusal: behind the header and the numbers."""
    return reply[1][HEADER.size + 40:].decode()


class Broker:
    def __init__(self, program, config="", descriptors=None):
        self.folder = tempfile.TemporaryDirectory()
        self.path = f"{self.folder.name}/run/socket"
        Path(self.folder.name, "config.toml").write_text(config)
        ready, told = os.pipe()

        def limit():
            if descriptors:
                resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
        self.process = subprocess.Popen(
            [program, "--private", "--directory", f"{self.folder.name}/run", "--config",
             f"{self.folder.name}/config.toml", "--ready-fd", str(told)],
            pass_fds=[told], preexec_fn=limit, stderr=open(f"{self.folder.name}/log", "wb"))
        os.close(told)
        assert os.read(ready, 1) == b"\n", self.log()
        os.close(ready)

    def log(self):
        return Path(self.folder.name, "log").read_text(errors="replace")

    def lives(self):
        return self.process.poll() is None

    def processor_time(self):
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        self.process.terminate()
        status = self.process.wait(60)
        if failure == (None, None, None):
            assert status == 0, f"the broker ended with {status}:\n{self.log()}"
        self.folder.cleanup()


def has_answer(client):
    return bool(select.select([client.socket], [], [], 0)[0])


def descriptors(program, long):
    """A small descriptor table and 1,000 clients: the broker lives, serves those that it has, and takes the others in as
    these leave."""
    for table in (64, 96, 128, 192, 256) if long else (64, 256):
        with Broker(program, "hello_timeout = '10m'", table) as broker:
            waiting = [Client(broker.path) for _ in range(1000)]
            served = refused = ended = rounds = most = 0
            while waiting:
                rounds += 1
                assert rounds < 5000, f"{len(waiting)} of 1,000 clients got no answer:\n{broker.log()}"
                select.select([client.socket for client in waiting], [], [], 60)
                ready = [client for client in waiting if has_answer(client)]
                assert ready and broker.lives(), f"{len(waiting)} of 1,000 clients got no answer:\n{broker.log()}"
                in_service = []
                for client in ready:
                    reply = client.answer()
                    if reply is None:
                        ended += 1
                    elif reply[0] == 0:
                        served += 1
                        in_service.append(client)
                    else:
                        refused += 1
                        assert "descriptors" in sentence(reply), sentence(reply)
                most = max(most, len(in_service))
                for client in in_service:
                    assert client.ask(packet(STATUS, bytes(8)))[0] == 0, broker.log()
                if rounds == 1:
                    before, begin = broker.processor_time(), time.monotonic()
                    time.sleep(2 if long else 0.2)
                    share = (broker.processor_time() - before) / (time.monotonic() - begin)
                for client in ready:
                    client.close()
                waiting = [client for client in waiting if client not in ready]
            last = Client(broker.path)
            assert last.answer()[0] == 0 and last.ask(packet(STATUS, bytes(8)))[0] == 0
            last.close()
            print(f"descriptors: table {table}: 1,000 clients: {served} served, at most {most} at once, {refused} refused in "
                  f"words, {ended} closed; processor while full {share:.1%}")
            assert served + refused + ended == 1000 and served > 0


def percentile(values, part):
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


def latencies(client, count):
    times = []
    for _ in range(count):
        begin = time.perf_counter()
        assert client.ask(packet(STATUS, bytes(8)))[0] == 0
        times.append(time.perf_counter() - begin)
    return times


def silent_process(path):
    """Its pid, once each of its 100 clients has asked for 150 descriptors. It reads none of them."""
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            clients = [Client(path) for _ in range(100)]
            for client in clients:
                assert client.answer()[0] == 0
                for _ in range(3):
                    client.socket.send(create(50))
            os.write(told, b"x")
            signal.pause()
        finally:
            os._exit(1)
    os.close(told)
    assert os.read(ready, 1) == b"x", "the silent clients did not get so far"
    os.close(ready)
    return pid


def silent(program, long):
    """100 clients ask for descriptors and read nothing: another one is served all the time."""
    rounds, count = (9, 2000) if long else (1, 300)
    ratios = []
    for _ in range(rounds):
        with Broker(program) as broker:
            worker = Client(broker.path)
            assert worker.answer()[0] == 0
            idle = percentile(latencies(worker, count), 0.99)
            lazy = silent_process(broker.path)  # a process of its own: what it leaves unread counts for it
            beside = latencies(worker, count)
            for _ in range(20):
                assert worker.ask(create(1))[0] == 0
            ratios.append(percentile(beside, 0.99) / idle)
            os.kill(lazy, signal.SIGKILL)
            os.waitpid(lazy, 0)
            deadline = time.monotonic() + 120
            while struct.unpack_from("<I", worker.ask(packet(STATUS, bytes(8)))[1], HEADER.size + IN_FLIGHT)[0] != 0:
                assert time.monotonic() < deadline, "descriptors stay in flight to clients that have gone"
                time.sleep(0.01)
            worker.close()
    print(f"silent: 100 clients that read nothing, {rounds} x {count} requests of another one: p99 beside them is "
          f"{statistics.median(ratios):.2f} x that of an idle broker (median; {min(ratios):.2f} to {max(ratios):.2f})")


def stopped(program, tool, long):
    """The broker is stopped by SIGSTOP: calls end at their deadline, and everything goes on after SIGCONT."""
    seconds = 30 if long else 1
    with Broker(program) as broker:
        clients = [Client(broker.path) for _ in range(50)]
        for client in clients:
            assert client.answer()[0] == 0 and client.ask(create(2))[0] == 0
        broker.process.send_signal(signal.SIGSTOP)
        for client in clients:
            client.socket.send(packet(STATUS, bytes(8)))
        late = subprocess.run([tool, "status", "--socket", broker.path, "--timeout", "500ms"], capture_output=True, text=True,
                              timeout=60)
        assert late.returncode == 124 and late.stderr, late
        time.sleep(seconds)
        gone = clients[:10]
        for client in gone:
            client.close()
        broker.process.send_signal(signal.SIGCONT)
        for client in clients[10:]:
            reply = client.answer()
            assert reply is not None and reply[0] == 0, "a session was lost while the broker was stopped"
        after = subprocess.run([tool, "list", "--socket", broker.path, "-q"], capture_output=True, text=True, timeout=60)
        deadline = time.monotonic() + 60
        while after.returncode == 0 and len(after.stdout.split()) != 80:
            assert time.monotonic() < deadline, after
            after = subprocess.run([tool, "list", "--socket", broker.path, "-q"], capture_output=True, text=True, timeout=60)
        assert after.returncode == 0, after
        for client in clients[10:]:
            client.close()
        print(f"stopped: {seconds} s by SIGSTOP with 50 sessions: 40 answered afterwards, 10 that ended meanwhile left nothing")


def connects(program, long):
    """One process connects and leaves all the time, while another one works."""
    total = 100_000 if long else 2000
    with Broker(program) as broker:
        worker = Client(broker.path)
        assert worker.answer()[0] == 0
        idle = percentile(latencies(worker, 500), 0.99)
        times = []
        for number in range(total):
            client = Client(broker.path, greet=number % 2 == 0)
            if number % 4 == 0:
                client.answer()
            client.close()
            if number % 20 == 0:
                times += latencies(worker, 1)
        assert worker.ask(create(5))[0] == 0
        worker.close()
        last = Client(broker.path)
        assert last.answer()[0] == 0
        last.close()
        print(f"connects: {total} from one process, {len(times)} requests of another one beside them: p99 is "
              f"{percentile(times, 0.99) / idle:.2f} x that of an idle broker")


def main():
    words = sys.argv[1:]
    long = "--long" in words
    words = [word for word in words if word != "--long"]
    program, tool = (str(Path(word).resolve()) for word in words[:2])
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)
    cases = {"descriptors": lambda: descriptors(program, long), "silent": lambda: silent(program, long),
             "stopped": lambda: stopped(program, tool, long), "connects": lambda: connects(program, long)}
    for name in words[2:] or cases:
        cases[name]()


if __name__ == "__main__":
    main()
