#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The README's example is examples/hello.cpp to the letter, and runs; the code of docs/client.md compiles, C and C++, and
so do that of docs/gpu.md and the programs of docs/spawn.md and docs/remote.md.
Usage: example_test.py ROOT BROKER HELLO"""
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path


def fenced(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def words(source):
    """Without the head comment, and without regard to the order of #include."""
    lines = [line for line in source.splitlines() if line.strip() and not line.startswith("//")]
    includes = sorted(line for line in lines if line.startswith("#include"))
    return includes + [line for line in lines if not line.startswith("#include")]


def runs(broker, hello):
    with tempfile.TemporaryDirectory(prefix="shmb-example-") as folder:
        ready, write_end = os.pipe()
        daemon = subprocess.Popen([broker, "--directory", folder + "/broker", "--ready-fd", str(write_end), "--log-level",
                                   "error"], pass_fds=[write_end])
        try:
            os.close(write_end)
            if os.read(ready, 1) != b"\n":
                return "the broker did not start"
            environment = {key: value for key, value in os.environ.items() if key != "SHMBROKER_GROUP"}
            done = subprocess.run([hello], env=environment | {"SHMBROKER_SOCKET": folder + "/broker/socket"},
                                  capture_output=True, text=True, timeout=60)
            if done.returncode != 0 or done.stdout != "42 in 67108864 bytes\n":
                return f"hello: status {done.returncode}, {done.stdout!r}, {done.stderr!r}"
        finally:
            os.close(ready)
            daemon.terminate()
            status = daemon.wait(30)
        return None if status == 0 else f"the broker ended with {status}"


def one_function(text):
    """C++ blocks are parts of one function, one after the other."""
    pieces = fenced(text, "cpp")
    includes = [line for piece in pieces for line in piece.splitlines() if line.startswith("#include")]
    bodies = ["\n".join(line for line in piece.splitlines() if not line.startswith("#include")) for piece in pieces]
    return "\n".join(includes) + "\nvoid tutorial() {\n" + "\n".join(bodies) + "\n}\n" if pieces else ""


def compiles(root, text, programs):
    """C blocks are whole files."""
    tutorial = one_function(text)
    sources = [("c++", ["-std=c++20"], tutorial)] + [("c", ["-std=c11"], piece) for piece in fenced(text, "c")]
    sources += [("c++", ["-std=c++20"], piece) for piece in programs]
    if len(sources) < 2 or not all(source for _, _, source in sources):
        return "docs/client.md or docs/gpu.md has no C++ or no C code"
    with tempfile.TemporaryDirectory(prefix="shmb-example-") as folder:
        # The installed layout: shmbroker/shmbroker.h.
        (Path(folder) / "shmbroker").mkdir()
        for header in ("client/face/shmbroker.h", "client/face/shmbroker_pool.h", "client/face/shmbroker.hpp", "client/face/shmbroker_result.hpp", "client/face/shmbroker_types.hpp", "client/face/shmbroker_message.hpp", "client/face/heap.hpp", "client/face/heap_lock.hpp",
                       "spawn/face/packed.hpp", "spawn/face/spawn_msgpack.hpp",
                       "spawn/face/shmbroker_spawn.h", "spawn/face/spawn.hpp", "spawn/face/spawn_values.hpp", "spawn/face/throw_point.hpp", "spawn/face/thrown.hpp", "spawn/face/torch_words.hpp",
                       "spawn/face/shmbroker_cause.h", "spawn/face/shmbroker_remote.h",
                       "spawn/face/remote.hpp", "spawn/face/remote_values.hpp", "cuda/shmbroker_cuda.h", "cuda/cuda.hpp",
                       "proto/shmb_enums.h", "proto/shmb_status.h", "proto/shmb_wire.h"):
            (Path(folder) / "shmbroker" / Path(header).name).symlink_to(root / header)
        (Path(folder) / "shmbroker" / "pool.hpp").symlink_to(root / "client/face/shmbroker_pool.hpp")
        for language, flags, source in sources:
            compiler = os.environ.get("CXX" if language == "c++" else "CC", language == "c++" and "c++" or "cc")
            done = subprocess.run([*compiler.split(), *flags, "-Wall", "-Wno-unused", "-Werror", "-fsyntax-only", "-I",
                                   folder, "-x", language, "-"], input=source, capture_output=True, text=True)
            if done.returncode != 0:
                return f"docs/client.md, gpu.md, spawn.md or remote.md, {language}:\n{done.stderr}"
    return None


def main():
    root, broker, hello = Path(sys.argv[1]).resolve(), sys.argv[2], sys.argv[3]
    shown = fenced((root / "README.md").read_text(), "cpp")
    if len(shown) != 1 or words(shown[0]) != words((root / "examples/hello.cpp").read_text()):
        sys.exit("the example of README.md is not examples/hello.cpp")
    programs = [piece for page in ("spawn", "remote") for piece in fenced((root / f"docs/{page}.md").read_text(), "cpp")]
    programs.append(one_function((root / "docs/gpu.md").read_text()))
    for wrong in (runs(broker, hello), compiles(root, (root / "docs/client.md").read_text(), programs)):
        if wrong:
            sys.exit(wrong)


if __name__ == "__main__":
    main()
