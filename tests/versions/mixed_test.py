#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Programs of one version beside a broker of another one. A wire that only grows at the tail makes both pairs work.

    mixed_test.py BROKER TOOL [--older BROKER TOOL]

An older library: what it sent is on record here, byte for byte, as the first version of protocol 1 sent it. Newer fields
are missing, and the answers are read only as far as it knew them. An older broker: a stand-in answers HELLO as the
first version did, and refuses the rest as it would. With --older also the real programs of an older build: its tool,
which has its library inside, at this broker, and this tool at its broker. docs/compatibility.md has the last run.
"""
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

HEADER = struct.Struct("<IHHQiHH")
HELLO, CREATE, ATTACH, RELEASE, LIST, STATUS = 1, 2, 3, 4, 14, 15
REPLY, NO_REPLY = 0x8000, 2
UNKNOWN_OP, INVALID = 3, 1
OLD = b"shmbrokerd 0.0.9"


def packet(op, fixed, texts=b"", tag=1, status=0):
    return HEADER.pack(HEADER.size + len(fixed) + len(texts), op, 0, tag, status, 0, len(fixed)) + fixed + texts


class Broker:
    """A private broker of the given program."""

    def __init__(self, program):
        self.folder = tempfile.TemporaryDirectory()
        self.path = f"{self.folder.name}/run/socket"
        ready, told = os.pipe()
        self.process = subprocess.Popen([program, "--private", "--directory", f"{self.folder.name}/run", "--ready-fd",
                                         str(told)], pass_fds=[told], stderr=subprocess.DEVNULL)
        os.close(told)
        assert os.read(ready, 1) == b"\n", f"{program} did not start"
        os.close(ready)

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        self.process.terminate()
        assert self.process.wait(60) == 0
        self.folder.cleanup()


class OlderBroker:
    """Knows HELLO and STATUS; refuses tables as the first version of protocol 1 did, and all else as unknown."""

    REFUSAL = b"list regions, groups, sessions, leases, tickets, uids, pools, queues, participants, worlds, workers, " \
              b"references or gpu_regions"

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = f"{self.folder.name}/socket"
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(self.path)
        self.listener.listen(8)
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.talk, args=(client,), daemon=True).start()

    def talk(self, client):
        while request := client.recv(65536):
            _, op, flags, tag, _, _, _ = HEADER.unpack_from(request)
            if flags & NO_REPLY:
                continue
            client.send(self.answer(op, tag))

    @staticmethod
    def refuse(op, tag, status, sentence):
        return packet(op | REPLY, struct.pack("<HHIQQQQ", 0, 0, 0, 0, 0, 0, 0), sentence, tag, status)

    def answer(self, op, tag):
        if op == HELLO:
            fixed = struct.pack("<HHIIIQQQQ16sHHI", 1, 1, os.getuid(), os.getuid(), 65536, 0, 4711, 1, 0, bytes(16), 253,
                                len(OLD), 0)
            return packet(op | REPLY, fixed, OLD, tag)
        if op == LIST:
            return self.refuse(op, tag, INVALID, self.REFUSAL)
        return self.refuse(op, tag, UNKNOWN_OP, f"request {op} is not known to this broker ({OLD.decode()})".encode())

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        self.listener.close()
        self.folder.cleanup()


def run(tool, *words):
    return subprocess.run([tool, *words], capture_output=True, text=True, timeout=120)


def names_the_older_broker(ended, version):
    assert ended.returncode != 0, ended
    assert "older than this library" in ended.stderr and version in ended.stderr, ended.stderr


def an_older_broker_is_named_with_its_version(tool):
    with OlderBroker() as broker:
        for verb in (["events"], ["list", "--groups"]):
            names_the_older_broker(run(tool, *verb, "--socket", broker.path), OLD.decode())
        names_the_older_broker(run(tool, "limit", "job", "1G", "--socket", broker.path), OLD.decode())


class OlderLibrary:
    """A session that sends what the first version of protocol 1 sent, or less: the fields up to `hello` bytes of HELLO."""

    def __init__(self, path, hello):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(60)
        self.socket.connect(path)
        whole = struct.pack("<HHIQQQ16s16sHHI", 1, 1, os.getpid(), 0, 0, 0, bytes(16), bytes(16), 0, 0, 0)
        assert len(whole) == 72
        self.broker = self.ask(HELLO, whole[:hello])

    def ask(self, op, fixed, texts=b""):
        """The fixed part of the answer, and what is behind it. Descriptors are closed by the kernel: no room is given."""
        self.socket.send(packet(op, fixed, texts, tag=77))
        answer = self.socket.recv(65536)
        _, told, _, tag, status, _, size = HEADER.unpack_from(answer)
        assert told == op | REPLY and tag == 77, (told, tag)
        assert status == 0, (status, answer[HEADER.size + size:])
        return answer[HEADER.size:HEADER.size + size], answer[HEADER.size + size:]

    def elements(self, op, elements, texts=b""):
        fixed, rest = self.ask(op, struct.pack("<HHI", len(elements), len(elements[0]), 0), b"".join(elements) + texts)
        count, size, _ = struct.unpack_from("<HHI", fixed)
        assert count == len(elements)
        return [rest[i * size:(i + 1) * size] for i in range(count)]

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        self.socket.close()


def an_older_library_is_served(program):
    """With every length of HELLO that ends behind a field, and elements without their last fields."""
    with Broker(program) as broker:
        for hello in (4, 8, 16, 24, 32, 48, 64, 66, 68, 72):
            with OlderLibrary(broker.path, hello) as client:
                fixed, _ = client.broker
                assert struct.unpack_from("<H", fixed)[0] == 1
                # group, length, keep, flags, rights; with and without the length of the name
                for element in (struct.pack("<QQqII", 0, 4096, 0, 0, 0), struct.pack("<QQqIIH", 0, 4096, 0, 0, 0, 0)):
                    created = client.elements(CREATE, [element, element])
                    for one in created:
                        status, _, _ = struct.unpack_from("<iHH", one)
                        region = one[8:24]
                        assert status == 0 and struct.unpack_from("<Q", region)[0] > 0, one
                        # by id, rights, flags, owner, region: without the ticket
                        attached, = client.elements(ATTACH, [struct.pack("<IIII", 1, 3, 1, 0) + region])
                        assert struct.unpack_from("<i", attached)[0] == 0, attached
                        # region and count, without flags
                        released, = client.elements(RELEASE, [region + struct.pack("<I", 0)])
                        assert struct.unpack_from("<i", released)[0] == 0, released
                fixed, _ = client.ask(LIST, struct.pack("<IIQ", 1, 0, 0))
                assert struct.unpack_from("<QQQ", fixed)[0] == 0
                client.ask(STATUS, b"")


def a_newer_library_is_told_what_this_broker_does_not_know(program):
    """A table, a request and a flag of the future: words with the broker's version, and the session goes on."""
    with Broker(program) as broker, OlderLibrary(broker.path, 72) as client:
        version = client.broker[1].decode()
        assert version.startswith("shmbrokerd "), version

        def refused(op, fixed, texts=b""):
            client.socket.send(packet(op, fixed, texts, tag=5))
            answer = client.socket.recv(65536)
            _, told, _, _, status, _, size = HEADER.unpack_from(answer)
            assert told == op | REPLY and status != 0, answer
            return status, answer[HEADER.size + size:].decode()
        status, sentence = refused(LIST, struct.pack("<IIQ", 200, 0, 0))
        assert status == INVALID and version in sentence and "table 200" in sentence, sentence
        status, sentence = refused(500, bytes(8))
        assert status == UNKNOWN_OP and version in sentence, sentence
        client.ask(STATUS, b"")


def works_with(tool, path):
    """A round with a file: put, list, cat and release, by another program than the broker's."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "data")
        file.write_bytes(os.urandom(100_000))
        for words in (["status"], ["put", str(file), "--name", "round"], ["list"], ["inspect", "round"]):
            ended = run(tool, words[0], *words[1:], "--socket", path)
            assert ended.returncode == 0, (words, ended)
        read = subprocess.run([tool, "cat", "round", "--socket", path], capture_output=True, timeout=60)
        assert read.stdout == file.read_bytes(), read.stderr
        ended = run(tool, "release", "round", "--socket", path)
        assert ended.returncode == 0, ended


def version_of(tool):
    return run(tool, "--version").stdout.strip()


def real_programs(program, tool, older, older_tool):
    with Broker(program) as broker:
        works_with(older_tool, broker.path)
    with Broker(older) as broker:
        works_with(tool, broker.path)
        told = json.loads(run(tool, "status", "--json", "--socket", broker.path).stdout)["broker"]["version"]
        ended = run(tool, "events", "--socket", broker.path)
        if ended.returncode != 0:
            names_the_older_broker(ended, told)
        print(f"an older broker ({told}) and this tool: a round works; events: {ended.stderr.strip() or 'listed'}")
    print(f"an older tool ({version_of(older_tool)}) and this broker: a round works")

def main():
    program, tool = (str(Path(word).resolve()) for word in sys.argv[1:3])
    an_older_broker_is_named_with_its_version(tool)
    an_older_library_is_served(program)
    a_newer_library_is_told_what_this_broker_does_not_know(program)
    print("mixed: 10 lengths of HELLO and elements without their last fields were served; an older broker was named")
    if sys.argv[3:4] == ["--older"]:
        real_programs(program, tool, *(str(Path(word).resolve()) for word in sys.argv[4:6]))


if __name__ == "__main__":
    main()
