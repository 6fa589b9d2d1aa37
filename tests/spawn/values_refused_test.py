#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Values that would lose members, or refer to bytes that are gone, are refused when compiling, with a sentence that
names a remedy. Usage: values_refused_test.py ROOT
"""
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(sys.argv[1])
HEAD = """
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include "{header}"
struct Fields { int x = 0; SHMBROKER_FIELDS(x) };
template <class T> std::string given(const T& value) { return shmbroker::detail::pack_all({}, value); }
template <class T> auto taken() { return shmbroker::detail::unpack_result<T>(0, nullptr, 0); }
"""
PLAIN, MSGPACK, REMOTE = "spawn/face/spawn.hpp", "spawn/face/spawn_msgpack.hpp", "spawn/face/remote.hpp"
# header, definitions and use, a part of the sentence. None: it compiles.
CASES = [
    (PLAIN, "auto a = [] { return given(std::map<std::string_view, Fields>()); }; auto b = [] { return taken<Fields>(); };", None),
    (MSGPACK, "struct B { int x = 0; MSGPACK_DEFINE(x) }; struct S : B { int y = 0; MSGPACK_DEFINE(MSGPACK_BASE(B), y) };"
     "auto a = [] { return taken<std::vector<S>>(); };", None),
    (MSGPACK, "struct S { std::string_view v; MSGPACK_DEFINE(v) }; auto a = [] { return given(S()); };", None),
    (REMOTE, "std::string_view f(std::string_view v, const std::string_view&) { return v; }"
     "auto a = shmbroker::remote::register_function(\"f\", f); std::string g(int, std::string_view v) { return std::string(v); }"
     "auto b = shmbroker::register_function(\"g\", g);", None),
    (PLAIN, "struct Batch : std::vector<int> { int id = 0; }; auto a = [] { return given(Batch()); };", "travels_as_container"),
    (MSGPACK, "struct Batch : std::vector<int> { int id = 0; }; auto a = [] { return given(Batch()); };", "MSGPACK_DEFINE, also where"),
    (MSGPACK, "struct Batch : std::vector<int> { int id = 0; }; auto a = [] { return taken<Batch>(); };", "MSGPACK_DEFINE, also where"),
    (MSGPACK, "struct Only { void msgpack_unpack(const msgpack::object&) {} }; auto a = [] { return taken<Only>(); };", None),
    (PLAIN, "struct Name : std::string { int id = 0; }; auto a = [] { return taken<Name>(); };", "travels_as_container"),
    (PLAIN, "struct More : Fields { int y = 0; }; auto a = [] { return given(More()); };", "derives from one with SHMBROKER_FIELDS"),
    (MSGPACK, "struct B { int x = 0; MSGPACK_DEFINE(x) }; struct S : B { int y = 0; }; auto a = [] { return given(S()); };",
     "derives from one with MSGPACK_DEFINE"),
    (PLAIN, "auto a = [] { return taken<std::string_view>(); };", "take a std::string"),
    (PLAIN, "auto a = [] { return taken<std::vector<std::string_view>>(); };", "take a std::string"),
    (PLAIN, "auto a = [] { return taken<std::span<const int>>(); };", "std::vector"),
    (PLAIN, "struct S { std::string_view v; SHMBROKER_FIELDS(v) }; auto a = [] { return taken<S>(); };", "take a std::string"),
    (PLAIN, "auto a = [] { return taken<const char*>(); };", "take a std::string"),
    (PLAIN, "auto a = [] { return given(std::filesystem::path()); };", "cannot travel"),
    (REMOTE, "auto a = [] { return shmbroker::remote::rpc_sync<std::string_view>(0, \"f\"); };", "take a std::string"),
    (MSGPACK, "struct S { std::string_view v; MSGPACK_DEFINE(v) }; auto a = [] { return taken<S>(); };", "take a std::string"),
    (MSGPACK, "struct S { std::string_view v; MSGPACK_DEFINE(v) }; struct O { std::map<int, S> all; MSGPACK_DEFINE(all) };"
     "auto a = [] { return taken<O>(); };", "take a std::string"),
    (MSGPACK, "auto a = [] { return taken<msgpack::object>(); };", "take a std::string"),
    (PLAIN, "struct F { void operator()(int* p) const { free(p); } };"
     "auto a = [] { return given(std::unique_ptr<int, F>()); };", "a deleter of its own"),
    (PLAIN, "auto a = [] { return taken<std::optional<std::optional<int>>>(); };", "one that is there and empty"),
    (PLAIN, "auto a = [] { return given(std::vector<std::optional<std::optional<int>>>()); };", "one that is there and empty"),
    (PLAIN, "auto a = [] { return given(std::optional<std::unique_ptr<int>>()); };", "one that is there and empty"),
    (PLAIN, "auto a = [] { return taken<std::shared_ptr<std::optional<int>>>(); };", "one that is there and empty"),
    (PLAIN, "struct Node { int x = 0; std::unique_ptr<Node> next; SHMBROKER_FIELDS(x, next) };"
     "auto a = [] { return taken<std::optional<Node>>(); }; auto b = [] { return taken<std::optional<std::vector<int>>>(); };", None),
    (PLAIN, "enum Colour { red, blue }; auto a = [] { return taken<Colour>(); };", "enum Name : int"),
]


def main():
    failures = 0
    with tempfile.TemporaryDirectory(prefix="shmb-values-") as folder:
        source = Path(folder) / "case.cpp"
        for header, text, sentence in CASES:
            source.write_text(HEAD.replace("{header}", header) + text.replace("; ", ";\n") + "\n")
            result = subprocess.run(["g++", "-std=c++20", "-fsyntax-only", "-DMSGPACK_NO_BOOST", f"-I{ROOT}",
                                     f"-I{ROOT}/client/face", f"-I{ROOT}/spawn/face", f"-I{ROOT}/proto", str(source)],
                                    capture_output=True, text=True)
            said = [line for line in result.stderr.splitlines() if "static assertion failed" in line]
            if (result.returncode == 0) != (sentence is None) or (sentence and not any(sentence in line for line in said)):
                failures += 1
                print(f"{header}: {text}\n  expected: {sentence or 'it compiles'}\n  {result.stderr[:3000]}")
    print(f"{len(CASES)} cases, {failures} failures")
    return 1 if failures else 0


sys.exit(main())
