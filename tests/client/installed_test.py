#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A stranger's program finds the library as it is installed: by pkg-config from C and C++, by find_package from CMake.
The tree is laid out in a folder of its own, so nothing of this source tree can help. The program of docs/remote.md is
started twice, as by hand in two terminals: the two start their broker themselves, and find each other.
Usage: installed_test.py LIBRARY PC_FILE LIBDIR BROKER REMOTE_PAGE CMAKE_FILE... -- HEADER..."""
import os
import re
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

C_PROGRAM = """#include <shmbroker/shmbroker.h>
#include <string.h>
int main(void) {
  shmb_connect_options options = {sizeof options, 0, 0, 0, SHMB_CONNECT_LOCAL_ONLY, 0, 0};
  shmb_session* session = 0;
  shmb_region* region = 0;
  if (shmb_connect(&options, &session, 0) != SHMB_OK || shmb_create(session, 10, 0, &region, 0) != SHMB_OK) return 1;
  memset(shmb_region_data(region), 1, 10);
  shmb_release(region, 0, 0);
  shmb_disconnect(session);
  return 0;
}
"""
CXX_PROGRAM = """#include <shmbroker/shmbroker.hpp>
int main() {
  auto session = shmbroker::Session::try_connect({.local_only = true});
  if (!session) return 1;
  auto region = session->try_create(10);
  return region && region->size() == 10 ? 0 : 2;
}
"""
HEAP_PROGRAM = """#include <shmbroker/heap.hpp>
int main() {
  auto session = shmbroker::Session::connect({.local_only = true});
  auto heap = shmbroker::Heap::create(session, "", 1 << 16);
  return *heap.construct<int>("seven", 7) == 7 ? 0 : 1;
}
"""
GPU_PROGRAM = """#include <shmbroker/cuda.hpp>
int main() {
  auto devices = shmbroker::gpu::try_devices();
  if (devices) return 0;
  const auto why = devices.error().status();
  return why == shmbroker::Status::no_driver || why == shmbroker::Status::no_device ||
                 why == shmbroker::Status::stub_driver || why == shmbroker::Status::driver_too_old
             ? 0 : 1;
}
"""
# Without a broker: what the headers and the library say by themselves.
SPAWN_PROGRAM = """#include <shmbroker/spawn.hpp>
void nothing(int) {}
SHMBROKER_SPAWN_FUNCTION("nothing", nothing);
int main(int argc, char** argv) {
  if (auto ended = shmbroker::spawn_child(argc, argv)) return *ended;
  try {
    shmbroker::spawn("nothing", shmbroker::SpawnOptions{.nprocs = 0});
  } catch (const shmbroker::Error& error) {
    return error.status() == shmbroker::Status::invalid ? 0 : 2;
  }
  return 1;
}
"""
REMOTE_PROGRAM = """#include <shmbroker/remote.hpp>
int add(int a, int b) { return a + b; }
SHMBROKER_REMOTE_FUNCTION("add", add);
int main() {
  try {
    shmbroker::remote::init("a", 3, 2, {.address = "localhost:29500"});
  } catch (const shmbroker::Error& error) {
    return error.status() == shmbroker::Status::invalid ? 0 : 2;
  }
  return 1;
}
"""
CMAKE = """cmake_minimum_required(VERSION 3.16)
project(stranger C CXX)
find_package(shmbroker 0.1 REQUIRED)
set(CMAKE_CXX_STANDARD 20)
add_executable(stranger stranger.c)
target_link_libraries(stranger shmbroker::shmbroker)
add_executable(heap heap.cpp)
target_link_libraries(heap shmbroker::heap)
add_executable(spawn spawn.cpp)
target_link_libraries(spawn shmbroker::spawn)
add_executable(remote remote.cpp)
target_link_libraries(remote shmbroker::spawn)
"""


def run(*command, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def two_by_hand(program, environment, broker, folder):
    """With nothing but torch's variables."""
    (folder / "run").mkdir(mode=0o700)
    bare = {key: value for key, value in environment.items() if not key.startswith("SHMBROKER_")}
    bare.update(XDG_RUNTIME_DIR=str(folder / "run"), SHMBROKER_DAEMON=str(broker), WORLD_SIZE="2",
                MASTER_ADDR="localhost", MASTER_PORT="29500")
    workers = [subprocess.Popen([program, name], env=bare | {"RANK": str(rank)}, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True) for rank, name in enumerate("ab")]
    told = []
    for worker in workers:
        try:
            told.append(worker.communicate(timeout=90)[0])
        except subprocess.TimeoutExpired:
            worker.kill()
            told.append(worker.communicate()[0] + "\nkilled after 90 s")
    end_broker(folder / "run/shmbroker/socket")
    if any(worker.returncode != 0 for worker in workers):
        sys.exit(f"docs/remote.md, started twice: {[worker.returncode for worker in workers]}\n" + "\n".join(told))
    print("docs/remote.md, started twice")


def end_broker(path):
    """That which the two have started: it would wait half a minute for others."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as there:
        try:
            there.connect(str(path))
        except OSError:
            return
        pid = struct.unpack("iII", there.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    os.kill(pid, signal.SIGTERM)


def main():
    split = sys.argv.index("--")
    library, pc_file, libdir = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    broker, page = Path(sys.argv[4]).resolve(), Path(sys.argv[5]).read_text()
    cmake_files, headers = map(Path, sys.argv[6:split]), map(Path, sys.argv[split + 1:])
    with tempfile.TemporaryDirectory(prefix="shmb-installed-") as name:
        folder = Path(name)
        prefix = folder / "prefix"
        lib = prefix / libdir
        (lib / "pkgconfig").mkdir(parents=True)
        (lib / "cmake/shmbroker").mkdir(parents=True)
        (prefix / "include/shmbroker").mkdir(parents=True)
        shutil.copy(library, lib / "libshmbroker.so.0")
        (lib / "libshmbroker.so").symlink_to("libshmbroker.so.0")
        for pc in ("shmbroker.pc", "shmbroker-heap.pc", "shmbroker-spawn.pc"):
            shutil.copy(pc_file.with_name(pc), lib / "pkgconfig")
        for file in cmake_files:
            shutil.copy(file, lib / "cmake/shmbroker")
        for header in headers:
            shutil.copy(header, prefix / "include/shmbroker")
        here = dict(os.environ, LD_LIBRARY_PATH=str(lib))
        (folder / "stranger.c").write_text(C_PROGRAM)
        (folder / "stranger.cpp").write_text(CXX_PROGRAM)
        (folder / "heap.cpp").write_text(HEAP_PROGRAM)
        (folder / "gpu.cpp").write_text(GPU_PROGRAM)
        (folder / "spawn.cpp").write_text(SPAWN_PROGRAM)
        (folder / "remote.cpp").write_text(REMOTE_PROGRAM)
        (folder / "by_hand.cpp").write_text(re.search(r"^```cpp\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)[1])
        if shutil.which("pkg-config") is None:
            print("SKIPPED: pkg-config: not here")
        else:
            for compiler, standard, source, package in [("cc", "-std=c11", "stranger.c", "shmbroker"),
                                                        ("c++", "-std=c++20", "stranger.cpp", "shmbroker"),
                                                        ("c++", "-std=c++20", "gpu.cpp", "shmbroker"),
                                                        ("c++", "-std=c++20", "heap.cpp", "shmbroker-heap"),
                                                        ("c++", "-std=c++20", "spawn.cpp", "shmbroker-spawn"),
                                                        ("c++", "-std=c++20", "remote.cpp", "shmbroker-spawn")]:
                flags = shlex.split(run("pkg-config", f"--define-variable=prefix={prefix}", "--cflags", "--libs", package,
                                        env=dict(os.environ, PKG_CONFIG_PATH=str(lib / "pkgconfig"))))
                run(compiler, standard, "-Wall", "-Werror", folder / source, "-o", folder / "stranger", *flags)
                run(folder / "stranger", env=here)
                print(f"{compiler} {standard} {source} by pkg-config")
            run("c++", "-std=c++20", folder / "by_hand.cpp", "-o", folder / "by_hand", *flags)
            two_by_hand(folder / "by_hand", here, broker, folder)
        if shutil.which("cmake") is None:
            print("SKIPPED: find_package: no cmake here")
        else:
            (folder / "CMakeLists.txt").write_text(CMAKE)
            run("cmake", "-G", "Ninja", "-S", folder, "-B", folder / "build", f"-DCMAKE_PREFIX_PATH={prefix}")
            run("cmake", "--build", folder / "build")
            for program in ("stranger", "heap", "spawn", "remote"):
                run(folder / "build" / program, env=here)
                print(f"{program} by find_package")
            (folder / "CMakeLists.txt").write_text(CMAKE.replace("shmbroker 0.1", "shmbroker 99"))
            refused = subprocess.run(["cmake", "-G", "Ninja", "-S", folder, "-B", folder / "newer", f"-DCMAKE_PREFIX_PATH={prefix}"],
                                     capture_output=True, text=True)
            if refused.returncode == 0:
                sys.exit("find_package accepted version 99")


if __name__ == "__main__":
    main()
