#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A broker when something runs out, seen from its socket by clients that speak bytes. Each case prints what it counted;
docs/reliability.md has the results of long runs.

    exhaustion.py BROKER TOOL [--long] [--seconds N] [CASE ...]
                                cases: descriptors, silent, stopped, connects, users, guesses, mix,
                                memory; without one: all. N is for mix
"""
import array
import bisect
import json
import os
import random
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
HELLO, CREATE, ATTACH, STATUS = 1, 2, 3, 15
REGIONS, IN_FLIGHT = 96, 132  # of a reply to STATUS


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
        self.made = []
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
    """A private broker; with `user`, a number, a system broker that runs as that user (the caller is root)."""

    def __init__(self, program, config="", descriptors=None, user=None, cgroup=None):
        self.folder = tempfile.TemporaryDirectory()
        os.chmod(self.folder.name, 0o755)
        mode = ["--private"] if user is None else ["--system", "--user", str(user)]
        self.path = f"{self.folder.name}/run/socket"
        Path(self.folder.name, "config.toml").write_text(config)
        ready, told = os.pipe()

        def limit():
            if cgroup:
                Path(cgroup, "cgroup.procs").write_text("0")
            if descriptors:
                resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
        self.process = subprocess.Popen(
            [program, *mode, "--directory", f"{self.folder.name}/run", "--config",
             f"{self.folder.name}/config.toml", "--ready-fd", str(told)],
            pass_fds=[told], preexec_fn=limit, stderr=open(f"{self.folder.name}/log", "wb"))
        os.close(told)
        assert os.read(ready, 1) == b"\n", self.log()
        os.close(ready)

    def log(self):
        return Path(self.folder.name, "log").read_text(errors="replace")

    def lives(self):
        return self.process.poll() is None

    def resident(self):
        """Bytes of its own memory: regions are not among them, it touches none."""
        facts = dict(line.split(":", 1) for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines())
        return (int(facts["RssAnon"].split()[0]) + int(facts["RssFile"].split()[0])) * 1024

    def open_files(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

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


def compared(workers, count):
    """Times of requests to an idle broker and to one that is busy. They alternate, so what else the host does delays
    both alike."""
    times = ([], [])
    for _ in range(count // 20):
        for worker, into in zip(workers, times):
            into += latencies(worker, 20)
    return times


def ratio_of(times, part):
    idle, busy = times
    return percentile(busy, part) / percentile(idle, part)


def silent(program, long):
    """100 clients ask for descriptors and read nothing: another one is served all the time, as by a broker without them."""
    rounds, count = (9, 2000) if long else (1, 300)
    ratios, medians = [], []
    for _ in range(rounds):
        with Broker(program) as idle, Broker(program) as broker:
            workers = [Client(idle.path), Client(broker.path)]
            assert all(worker.answer()[0] == 0 for worker in workers)
            lazy = silent_process(broker.path)  # a process of its own: what it leaves unread counts for it
            times = compared(workers, count)
            worker = workers[1]
            for _ in range(20):
                assert worker.ask(create(1))[0] == 0
            ratios.append(ratio_of(times, 0.99))
            medians.append(ratio_of(times, 0.5))
            os.kill(lazy, signal.SIGKILL)
            os.waitpid(lazy, 0)
            deadline = time.monotonic() + 120
            while struct.unpack_from("<I", worker.ask(packet(STATUS, bytes(8)))[1], HEADER.size + IN_FLIGHT)[0] != 0:
                assert time.monotonic() < deadline, "descriptors stay in flight to clients that have gone"
                time.sleep(0.01)
            for worker in workers:
                worker.close()
    print(f"silent: 100 clients that read nothing, {rounds} x {count} requests of another one: p99 beside them is "
          f"{statistics.median(ratios):.2f} x that of an idle broker asked in turn (median of rounds; {min(ratios):.2f} to "
          f"{max(ratios):.2f}), the median {statistics.median(medians):.2f} x")


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
    with Broker(program) as idle, Broker(program) as broker:
        workers = [Client(idle.path), Client(broker.path)]
        assert all(worker.answer()[0] == 0 for worker in workers)
        times = ([], [])
        for number in range(total):
            client = Client(broker.path, greet=number % 2 == 0)
            if number % 4 == 0:
                client.answer()
            client.close()
            if number % 20 == 0:
                for worker, into in zip(workers, times):
                    into += latencies(worker, 1)
        assert workers[1].ask(create(5))[0] == 0
        for worker in workers:
            worker.close()
        last = Client(broker.path)
        assert last.answer()[0] == 0
        last.close()
        print(f"connects: {total} from one process, {len(times[1])} requests of another one beside them: p99 is "
              f"{ratio_of(times, 0.99):.2f} x that of an idle broker asked in turn, the median {ratio_of(times, 0.5):.2f} x")


def as_user(uid, work):
    """A process of that user does the work, and says through a pipe what this gives. Gives its pid and the pipe."""
    done, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(done)
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            os.write(told, json.dumps(work()).encode())
            os._exit(0)
        except BaseException as problem:  # the parent says so
            print(f"user {uid}: {problem!r}", file=sys.stderr)
        finally:
            os._exit(1)
    os.close(told)
    return pid, done


def result_of(pid, done, log):
    data = b""
    while more := os.read(done, 65536):
        data += more
    os.close(done)
    assert os.waitpid(pid, 0)[1] == 0 and data, f"a user's process failed\n{log()}"
    return json.loads(data)


def flood(path, total):
    for number in range(total):
        client = Client(path, greet=number % 2 == 0)
        if number % 4 == 0:
            client.answer()
        client.close()
    return total


def users(program, long):
    """One user connects and leaves all the time, while another user works: a system broker, three user numbers."""
    if os.geteuid() != 0:
        print("SKIPPED: case: users: needs root, for processes of two users")
        return
    total = 100_000 if long else 2000
    with Broker(program, user=64901) as idle, Broker(program, user=64901) as broker:
        workers = [Client(idle.path), Client(broker.path)]
        assert all(worker.answer()[0] == 0 for worker in workers)
        pid, done = as_user(64902, lambda: flood(broker.path, total))
        times = ([], [])
        while not select.select([done], [], [], 0)[0]:
            for into, more in zip(times, compared(workers, 20)):
                into += more
            assert workers[1].ask(create(1))[0] == 0
        assert result_of(pid, done, broker.log) == total
        for worker in workers:
            worker.close()
        print(f"users: {total} connections of one user, {len(times[1])} requests of another one beside them, on "
              f"{len(os.sched_getaffinity(0))} cores: p99 is {ratio_of(times, 0.99):.2f} x that of an idle broker asked in turn, "
              f"the median {ratio_of(times, 0.5):.2f} x")


def attach_by_id(region):
    element = struct.pack("<IIIIQII", 1, 1, 1, 0, region, 0, 0) + bytes(24)
    return packet(ATTACH, struct.pack("<HHI", 1, len(element), 0) + element, fixed=8)


def region_ids(reply):
    count, size, _ = struct.unpack_from("<HHI", reply, HEADER.size)
    return [struct.unpack_from("<Q", reply, HEADER.size + 16 + i * size)[0] for i in range(count)]


def guess(path, there, nowhere, total):
    """Guesses of both kinds in random order: the answers without the number asked for, and the times."""
    chance, client = random.Random(19), Client(path)
    assert client.answer()[0] == 0
    answers, times = set(), ([], [])
    for _ in range(2 * total):
        exists = chance.random() < 0.5
        region = chance.choice(there if exists else nowhere)
        request = attach_by_id(region)
        begin = time.perf_counter_ns()
        _, reply = client.ask(request)
        times[exists].append(time.perf_counter_ns() - begin)
        status, = struct.unpack_from("<i", reply, HEADER.size + 8)
        assert status != 0, "another user's region was attached"
        answers.add(f"{status} {reply[HEADER.size + 16:].replace(str(region).encode(), b'N')}")
    nowhere_times, there_times = (sorted(kind) for kind in times)
    longer = sum(bisect.bisect_left(nowhere_times, one) + bisect.bisect_right(nowhere_times, one) for one in there_times)
    return {"answers": sorted(answers), "there": statistics.median(there_times), "nowhere": statistics.median(nowhere_times),
            "longer": longer / 2 / len(there_times) / len(nowhere_times)}


def guesses(program, long):
    """A user guesses ids of another user's regions, and of regions that are gone: same answers, after the same time."""
    if os.geteuid() != 0:
        print("SKIPPED: case: guesses: needs root, for processes of two users")
        return
    total = 1_000_000 if long else 2000
    with Broker(program, user=64901) as broker:
        owner, gone = Client(broker.path), Client(broker.path)
        assert owner.answer()[0] == 0 and gone.answer()[0] == 0
        there, nowhere = [], []
        for _ in range(100):  # their numbers lie between each other
            there += region_ids(owner.ask(create(5))[1])
            nowhere += region_ids(gone.ask(create(5))[1])
        gone.close()
        while struct.unpack_from("<I", owner.ask(packet(STATUS, bytes(8)))[1], HEADER.size + REGIONS)[0] != 500:
            time.sleep(0.01)
        found = result_of(*as_user(64902, lambda: guess(broker.path, there, nowhere, total)), broker.log)
        assert len(found["answers"]) == 1, found["answers"]
        owner.close()
        print(f"guesses: {2 * total} ids of regions that are another user's or gone: one answer for all; medians "
              f"{found['there']:.0f} and {found['nowhere']:.0f} ns; the former took longer in {found['longer']:.4f} of all "
              f"pairs (0.5: nothing is learned)")


def slope(points):
    """Of a straight line through (x, y), by least squares."""
    x_mean, y_mean = (statistics.fmean(values) for values in zip(*points))
    return sum((x - x_mean) * (y - y_mean) for x, y in points) / sum((x - x_mean) ** 2 for x, _ in points)


def mix(program, seconds):
    """Sessions come, make regions, ask, read nothing for a while and go, in random order. Memory and descriptors of the
    broker do not grow: the slope counts from the second fifth on."""
    chance = random.Random(19)
    with Broker(program) as broker:
        clients, points, requests, sessions = [], [], 0, 0
        begin = time.monotonic()
        looked = begin
        while (now := time.monotonic()) < begin + seconds:
            time.sleep(0.001)  # a broker at work, not a broker at its limit
            what = chance.random()
            if not clients or (what < 0.3 and len(clients) < 16):
                clients.append(Client(broker.path))
                sessions += 1
                assert clients[-1].answer()[0] == 0, broker.log()
                continue
            client = chance.choice(clients)
            if what < 0.4 or len(client.made) > 20:
                if chance.random() < 0.5:  # without reading what it has asked for
                    client.socket.send(create(chance.randrange(1, 8)))
                client.close()
                clients.remove(client)
                continue
            request = create(chance.randrange(1, 8), chance.choice([1, 4096, 1 << 20, 3 << 20])) if what < 0.8 \
                else packet(STATUS, bytes(8))
            status = client.ask(request)[0]
            assert status == 0, (status, broker.log())
            client.made.append(request)
            requests += 1
            if now - looked >= seconds / 200:
                looked = now
                points.append((now - begin, broker.resident(), broker.open_files()))
        for client in clients:
            client.close()
        last = Client(broker.path)
        assert last.answer()[0] == 0
        settled = time.monotonic() + 60
        while struct.unpack_from("<I", last.ask(packet(STATUS, bytes(8)))[1], HEADER.size + REGIONS)[0] != 0:
            assert time.monotonic() < settled, "regions are left after the last session has gone"
            time.sleep(0.01)
        last.close()
        late = [point for point in points if point[0] > seconds / 5]
        memory, at_last = (slope([(x, y) for x, y, _ in points if x > seconds * part]) * 60 / 1024 for part in (0.2, 0.5))
        print(f"mix: {seconds:.0f} s, {sessions} sessions, {requests} requests: own memory from {points[0][1] >> 10} to "
              f"{points[-1][1] >> 10} KiB, slope {memory:+.2f} KiB a minute from the second fifth on, {at_last:+.2f} in the second half; "
              f"descriptors "
              f"{min(p[2] for p in late)} to {max(p[2] for p in late)}")


class MemoryCgroup:
    """A memory cgroup of either version, for one broker. `why`: there can be none."""

    def __init__(self, limit):
        first = Path("/sys/fs/cgroup/memory/memory.limit_in_bytes").exists()
        above = Path("/sys/fs/cgroup/memory" if first else "/sys/fs/cgroup")
        self.folder, self.why = above / f"shmbroker-exhaustion-{os.getpid()}", ""
        try:
            if not first and "memory" not in (above / "cgroup.subtree_control").read_text().split():
                (above / "cgroup.subtree_control").write_text("+memory")
            self.folder.mkdir()
            (self.folder / ("memory.limit_in_bytes" if first else "memory.max")).write_text(str(limit))
        except OSError as problem:
            self.why = f"no memory cgroup can be made: {problem}"
        self.usage = self.folder / ("memory.usage_in_bytes" if first else "memory.current")
        self.events = self.folder / ("memory.oom_control" if first else "memory.events")

    def used(self):
        return int(self.usage.read_text())

    def killed(self):
        return int(dict(line.split() for line in self.events.read_text().splitlines())["oom_kill"])

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        for _ in range(1000):
            try:
                if self.folder.exists():
                    self.folder.rmdir()
                return
            except OSError:  # its processes have ended; the kernel may still be busy with them
                time.sleep(0.01)


def memory(program):
    """A broker with 32 MiB of memory is asked for 100 GiB: it promises them, refuses the next ones in words, and grows by
    its books alone, because it touches no region."""
    with MemoryCgroup(32 << 20) as cgroup:
        if cgroup.why:
            print(f"SKIPPED: case: memory: {cgroup.why}")
            return
        with Broker(program, "[limits]\nbytes = '100G'\n", cgroup=cgroup.folder) as broker:
            client = Client(broker.path)
            assert client.answer()[0] == 0
            before, used = broker.resident(), cgroup.used()
            made = 0
            for _ in range(100):
                status, reply = client.ask(create(10, 100 << 20))
                assert status == 0, broker.log()
                count, size, _ = struct.unpack_from("<HHI", reply, HEADER.size)
                for i in range(count):
                    made += struct.unpack_from("<i", reply, HEADER.size + 8 + i * size)[0] == 0
            assert made == 1000, f"{made} of 1,000 regions of 100 MiB were made\n{broker.log()}"
            told = client.ask(packet(STATUS, bytes(8)))[1]
            assert struct.unpack_from("<Q", told, HEADER.size + 32)[0] == 1000 * (100 << 20)
            _, reply = client.ask(create(1, 3 << 30))
            assert b"limit" in reply[HEADER.size:], reply
            assert broker.lives() and cgroup.killed() == 0
            print(f"memory: 1,000 regions of 100 MiB promised by a broker in a cgroup of 32 MiB, the next refused in words: "
                  f"own memory {before >> 10} to {broker.resident() >> 10} KiB, its cgroup {used >> 10} to "
                  f"{cgroup.used() >> 10} KiB, none killed")
            client.close()


def main():
    words = sys.argv[1:]
    long = "--long" in words
    seconds = 1800 if long else 5
    if "--seconds" in words:
        at = words.index("--seconds")
        seconds = float(words[at + 1])
        del words[at:at + 2]
    words = [word for word in words if word != "--long"]
    program, tool = (str(Path(word).resolve()) for word in words[:2])
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)
    cases = {"descriptors": lambda: descriptors(program, long), "silent": lambda: silent(program, long),
             "stopped": lambda: stopped(program, tool, long), "connects": lambda: connects(program, long), "users": lambda: users(program, long),
             "guesses": lambda: guesses(program, long), "mix": lambda: mix(program, seconds), "memory": lambda: memory(program)}
    for name in words[2:] or cases:
        cases[name]()


if __name__ == "__main__":
    main()
