#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every installed header compiles alone, from a folder that holds nothing but the installed headers: as C11 by gcc, and
as C++20 without exceptions by every C++ compiler at hand. As C++23, as C11 by clang, and by nvcc they compile all
together: nvcc takes seconds for each run, and what a header lacks the others have found.
Options of which a user names one member, `{.name = "x"}`, bring no warning: every member has a default.
Those that throw (heap*.hpp, which need Boost, spawn.hpp, and remote.hpp, which needs msgpack-cxx) need exceptions, say so
without them, and are not for nvcc. shmbroker.hpp and spawn.hpp stay quick to compile: they include none of the headers that
take long, and are no longer than they were, as bytes behind the preprocessor.
Usage: headers_test.py HEADER...
"""
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

STRICT = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror", "-fsyntax-only"]
C11 = ["-std=c11", "-Wstrict-prototypes", *STRICT]
CXX20 = ["-std=c++20", "-fno-exceptions", *STRICT]
CXX23 = ["-std=c++23", *STRICT]
NVCC = ["-std=c++20", "-Werror", "all-warnings", "-Xcompiler", "-fno-exceptions,-Wall,-Wextra", "-o", "/dev/null", "-c"]

# compiler, options, suffix of the including file, takes the C++ headers too, each alone, must be there
COMPILERS = [
    ("gcc", C11, ".c", False, True, True),
    ("g++", CXX20, ".cpp", True, True, True),
    ("g++", CXX23, ".cpp", True, False, True),
    ("clang-19", C11, ".c", False, False, False),
    ("clang++-19", CXX20, ".cpp", True, True, False),
    ("clang++-19", CXX23, ".cpp", True, False, False),
    ("nvcc", NVCC, ".cu", True, False, False),
]


# Headers that take 30 ms and more by themselves. bits/chrono.h is not among them.
HEAVY = {"algorithm", "any", "chrono", "format", "functional", "future", "iomanip", "iostream", "istream", "locale", "map",
         "memory", "memory_resource", "msgpack.hpp", "object.hpp", "ostream", "print", "random", "ranges", "regex", "set",
         "sstream", "thread", "unordered_map", "variant"}
# Header and most bytes: with GCC 12, a tenth above what it had on 2026-11-23. Others may have a larger std.
LIGHT = [("shmbroker.hpp", 1_130_000), ("spawn.hpp", 1_430_000)]


def find(compiler):
    return shutil.which(compiler) or shutil.which(compiler, path="/usr/local/cuda/bin")


def compiles(folder, compiler, options, suffix, text):
    source = folder / ("one" + suffix)
    source.write_text(text)
    return subprocess.run([find(compiler), *options, f"-I{folder}", str(source)], capture_output=True, text=True)


def throws(header):
    return header.startswith("heap") or header in ("packed.hpp", "spawn.hpp", "spawn_msgpack.hpp", "spawn_values.hpp",
                                                   "remote.hpp", "remote_values.hpp", "thrown.hpp", "throw_point.hpp")


def weight(folder, header):
    """The headers that it includes and that take long to compile, and its bytes behind the preprocessor."""
    source = folder / "weight.cpp"
    source.write_text(f'#include "{header}"\n')
    command = ["g++", "-std=c++20", f"-I{folder}", "-E", "-P", str(source)]
    included = subprocess.run([*command, "-M"], capture_output=True, text=True, check=True).stdout.split()
    text = subprocess.run(command, capture_output=True, check=True).stdout
    return sorted({Path(path).name for path in included} & HEAVY), len(text)


def options_of(header):
    """A statement for each struct of options, which names its first member alone."""
    scopes, out, text = [], [], header.read_text()
    pattern = r"^(?:namespace ([\w:]+) \{|(\}  // namespace [\w:]+)|struct (\w+Options) \{\n((?:  .*\n)+))"
    for opened, closed, struct, body in re.findall(pattern, text, re.MULTILINE):
        if opened:
            scopes.append(opened)
        elif closed:
            scopes.pop()
        else:
            member = re.search(r"(\w+)(?: = [^;,]*|\{[^}]*\})?[;,]", body)[1]
            out.append(f"inline auto named_{struct} = ::{'::'.join(scopes)}::{struct}{{.{member} = {{}}}};\n")
    return out


def main():
    failures, done = 0, 0
    with tempfile.TemporaryDirectory(prefix="shmb-headers-") as name:
        folder = Path(name)
        headers = [Path(argument) for argument in sys.argv[1:]]
        if missing := [str(header) for header in headers if not header.is_file()]:
            sys.exit(f"not there: {', '.join(missing)}")
        for header in headers:
            shutil.copy(header, folder / header.name)
        tried = set()
        for compiler, options, suffix, takes_cxx, alone, required in COMPILERS:
            label = f"{compiler} {options[0]}"
            if find(compiler) is None:
                print(f"SKIPPED: {label}: no {compiler} here")
                failures += required
                continue
            # Else a compiler that accepts anything would pass everything.
            first = compiler not in tried
            tried.add(compiler)
            if first and compiles(folder, compiler, options, suffix, "#include \"missing.h\"\n").returncode == 0:
                print(f"{label}: accepts an include that does not exist")
                failures += 1
            taken = [header.name for header in headers if takes_cxx or header.suffix != ".hpp"]
            if compiler == "nvcc":
                taken = [header for header in taken if not throws(header)]
            if not alone:
                taken = ["".join(f'{header}"\n#include "' for header in taken) + taken[0]]
            for header in taken:
                chosen = options
                if throws(header) and "-fno-exceptions" in options:
                    chosen = [option for option in options if option != "-fno-exceptions"]
                # The preprocessor's message is the same everywhere. The first error is enough.
                if chosen is not options and compiler == "g++":
                    refused = compiles(folder, compiler, [*options, "-Wfatal-errors"], suffix, f'#include "{header}"\n')
                    if refused.returncode == 0 or "needs exceptions" not in refused.stderr:
                        print(f"{label}: {header} does not say that it needs exceptions:\n{refused.stderr}")
                        failures += 1
                # An older standard is refused with one sentence, not with what it does not understand.
                if compiler == "g++" and alone and header.endswith(".hpp"):
                    refused = compiles(folder, compiler, ["-std=c++17", "-fsyntax-only"], suffix, f'#include "{header}"\n')
                    if refused.stderr.count("error:") != 1 or "needs C++20: compile with -std=c++20" not in refused.stderr:
                        print(f"{label}: {header} does not say that it needs C++20:\n{refused.stderr}")
                        failures += 1
                # Twice: the include guard is part of the promise.
                result = compiles(folder, compiler, chosen, suffix, f'#include "{header}"\n' * 2 + "extern int shmb_end;\n")
                done += 1
                if result.returncode != 0:
                    failures += 1
                    print(f"{label}: {header} does not compile alone:\n{result.stdout}{result.stderr}")
        version = subprocess.run(["g++", "-dumpversion"], capture_output=True, text=True).stdout.strip()
        for header, most in LIGHT if any(header.name == "spawn.hpp" for header in headers) else []:
            heavy, size = weight(folder, header)
            if heavy or (version == "12" and size > most):
                failures += 1
                print(f"{header} takes long to compile: it includes {', '.join(heavy) or 'nothing heavy'}, and has {size} bytes "
                      f"behind the preprocessor, at most {most}")
        # Gaps in such a list are warned of by -Wextra of g++ alone.
        named = [(header.name, options_of(header)) for header in headers if header.suffix == ".hpp"]
        text = "".join(f'#include "{name}"\n' for name, found in named if found) + "".join(sum((f for _, f in named), []))
        result = compiles(folder, "g++", ["-std=c++20", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"], ".cpp", text)
        done += 1
        if result.returncode != 0 or text.count("named_") < 12:
            failures += 1
            print(f"options with one member named:\n{text}{result.stderr}")
    print(f"{done} compilations, {failures} failures")
    return 1 if failures or done == 0 else 0


sys.exit(main())
