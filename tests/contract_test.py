#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each public call and class says its contract. A comment with `/**` or `///` stands above each public function, class
and struct; it also covers the declarations that follow without a blank line. A C function that can fail lists its
errors. A C++ function that returns a Result names its statuses. One that may throw says so. A class names its
ownership, its lifetime and the rule for threads, or says that it is a plain value. clang's -Wdocumentation reads the
comments too, where clang++-19 is installed. The rules are first tried on samples that break them.
"""
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HEADERS = ["client/face/*.h", "client/face/*.hpp", "spawn/face/*.h", "spawn/face/*.hpp", "cuda/shmbroker_cuda.h",
           "cuda/cuda.hpp"]
INSIDE = {"detail", "inside"}  # namespaces that are not for programs
KEYWORDS = r"(?:using|typedef|static_assert|friend|enum|namespace|extern|requires|concept|return|if|for|while|switch)\b"
PLAIN = re.compile(r"~|= ?(default|delete)|\boperator\b")  # what every C++ program knows
STATUS = re.compile(r"[Ss]tatus|Errors?:|Never fails")
THROWS = re.compile(r"[Tt]hrows?\b|[Nn]ever throws|value\(\)")


def blank(text):
    """The text with strings and characters emptied, and preprocessor lines removed; lines stay lines."""
    text = re.sub(r'"(?:[^"\\\n]|\\.)*"', lambda found: '"' + " " * (len(found.group()) - 2) + '"', text)
    text = re.sub(r"(?<![0-9a-fA-F])'(?:[^'\\\n]|\\.)'", "' '", text)
    return re.sub(r"^[ \t]*#(?:[^\n\\]|\\\n|\\.)*", lambda found: "\n" * found.group().count("\n"), text, flags=re.M)


def declarations(text):
    """The declarations of a header: scopes, access, text, comment above, line, whether it is without a body. Bodies of
    functions are passed over."""
    text = blank(text)
    scopes, access = [], []
    docs, begun, at = None, None, 0
    out = []

    def seen():
        return "public" if all(one == "public" for one in access) else "private"

    def take(end):
        nonlocal begun
        said = re.sub(r"/\*.*?\*/|//[^\n]*", " ", text[begun:end], flags=re.S) if begun is not None else ""
        said = " ".join(said.split())
        where = text.count("\n", 0, at if begun is None else begun) + 1
        begun = None
        return said, where

    while at < len(text):
        if text.startswith(("//", "/*"), at) and begun is None:
            end = text.find("\n", at) if text.startswith("//", at) else text.index("*/", at) + 2
            part = text[at:end]
            on_line = text[text.rfind("\n", 0, at) + 1:at].strip() == ""
            if on_line:
                is_doc = part.startswith(("///", "/**"))
                if is_doc:
                    docs = (docs or "") + "\n" + part
            at = end
            continue
        if text.startswith("//", at):
            at = text.find("\n", at)
            continue
        if text.startswith("/*", at):
            at = text.index("*/", at) + 2
            continue
        c = text[at]
        if c == "\n" and begun is None:
            rest = text[at + 1:]
            if re.match(r"[ \t]*\n", rest):
                docs = None
            at += 1
            continue
        if c in " \t\n" and begun is None:
            at += 1
            continue
        if begun is None and c not in "{};":
            label = re.match(r"(public|private|protected)\s*:(?!:)", text[at:])
            if label:
                access[-1] = label.group(1)
                docs = None
                at += label.end()
                continue
            begun = at
        if c == "(":
            depth = 0
            while True:
                depth += {"(": 1, ")": -1}.get(text[at], 0)
                at += 1
                if depth == 0:
                    break
            continue
        if c == ";":
            said, where = take(at)
            if said:
                out.append((tuple(scopes), seen(), said, docs, where, True))
            at += 1
            continue
        if c == "{":
            said, where = take(at)
            space = re.match(r"(?:inline )?namespace ?([\w:]*)", said)
            kind = re.match(r"(?:template ?<.*> ?)?(?:typedef )?(class|struct|union)\b(?! \w+ ?\()", said)
            if space or said.startswith('extern "'):
                scopes.append(("namespace", space.group(1) if space else ""))
                access.append("public")
                docs = None
                at += 1
                continue
            if kind and "(" not in re.sub(r"\[\[.*?\]\]|alignas ?\(.*?\)", "", said):
                out.append((tuple(scopes), seen(), said, docs, where, False))
                scopes.append((kind.group(1), said))
                access.append("private" if kind.group(1) == "class" else "public")
                docs = None
                at += 1
                continue
            depth = 0
            while True:
                depth += {"{": 1, "}": -1}.get(text[at], 0)
                at += 1
                if depth == 0:
                    break
            if said and not said.endswith(("=", ",")) and re.match(r"\s*[;,]", text[at:]) is None or "(" in said:
                if said:
                    out.append((tuple(scopes), seen(), said, docs, where, False))
            elif said:
                begun = at  # an initialiser in braces; the rest of the declaration follows
                out.append((tuple(scopes), seen(), said, docs, where, False))
            continue
        if c == "}":
            scopes.pop()
            access.pop()
            docs = None
            at += 1
            continue
        at += 1
    return out


def public(scopes, access):
    if access != "public":
        return False
    names = [part for kind, name in scopes if kind == "namespace" for part in name.split("::")]
    return not INSIDE & set(names) and "std" not in names


def function_of(said):
    """The name, if the declaration is a function."""
    said = re.sub(r"^template ?<(?:[^<>]|<[^<>]*>)*> ?", "", said)
    said = re.sub(r"\[\[.*?\]\] ?|__attribute__ ?\(\(.*?\)\) ?|\brequires ?\(.*?\)(?= |$)", "", said)
    if re.match(KEYWORDS, said) or "(" not in said or re.match(r"[A-Z][A-Z0-9_]+ ?\(", said):
        return None
    before = said.split("(")[0]
    if "=" in before and "operator" not in before:
        return None
    found = re.search(r"([~\w]+)\s*$", before)
    return found.group(1) if found else ("operator" if "operator" in before else None)


def complaints(name, text):
    cxx = name.endswith(".hpp")
    for scopes, access, said, docs, line, ahead in declarations(text):
        if not public(scopes, access):
            continue
        where = f"{name}:{line}"
        if docs is not None:  # as one line: a sentence may be wrapped anywhere
            docs = " ".join(re.sub(r"^[ \t]*(?:///|/\*\*|\*/|\*) ?", "", docs, flags=re.M).split())
        if not cxx:
            if said.startswith("SHMB_API") and "(" in said:
                function = re.search(r"(\w+) ?\(", said).group(1)
                if docs is None:
                    yield f"{where}: {function} has no contract: write a comment with /** above it"
                elif re.search(r"shmb_error ?\*", said) and not STATUS.search(docs):
                    yield f"{where}: {function} can fail and lists no errors: add \"Errors:\" to its comment"
                elif re.search(r"\blifetime_ns\b", said) and not re.search(r"lifetime_ns", docs):
                    yield f"{where}: {function} takes a duration and does not say for what"
            continue
        kind = re.match(r"(?:template ?<.*> ?)?(class|struct)\b(?: \[\[\w+\]\])? (\w+)", said)
        if kind and function_of(said) is None:
            if ahead or "::" in said or any(k == "class" for k, _ in scopes):
                continue
            if docs is None:
                yield f"{where}: {kind.group(1)} {kind.group(2)} has no comment with ///"
            elif kind.group(1) == "class" and "plain value" not in docs:
                for word in ("Ownership", "Lifetime", "Threads"):
                    if word + ":" not in docs:
                        yield f"{where}: class {kind.group(2)} says nothing of \"{word}:\""
            continue
        function = function_of(said)
        if function is None or PLAIN.search(said):
            continue
        if any(k in ("class", "struct") and re.search(r"\b%s\b" % re.escape(function), n) for k, n in scopes) and \
                re.search(r"%s ?\((?:const )?%s ?&&? ?\w*\)" % (function, function), said):
            continue  # copying and moving
        if docs is None:
            yield f"{where}: {function} has no contract: write a comment with /// above it"
        elif re.search(r"\bResult ?<", said.split("(")[0]) and not STATUS.search(docs):
            yield f"{where}: {function} returns a Result and names no status"
        elif "noexcept" not in said and "Result<" not in said.split("(")[0] and not THROWS.search(docs):
            yield f"{where}: {function} is not noexcept and does not say what it throws"


SAMPLES = [
    ("a.h", "/** Frees it. Never fails. */\nSHMB_API void f(int* a) X;\n", None),
    ("a.h", "SHMB_API void f(int* a) X;\n", "f has no contract"),
    ("a.h", "/* Frees it. */\nSHMB_API void f(int* a) X;\n", "f has no contract"),
    ("a.h", "/** Frees it. */\n\nSHMB_API void f(int* a) X;\n", "f has no contract"),
    ("a.h", "/** Makes it. */\nSHMB_API int f(int* a, shmb_error* error) X;\n", "lists no errors"),
    ("a.h", "/** Makes it. Errors: LIMIT. */\nSHMB_API int f(int* a, shmb_error* error) X;\nSHMB_API int g(shmb_error* e);\n", None),
    ("a.h", "/** Makes it. Errors: LIMIT. */\nSHMB_API int f(int64_t lifetime_ns, shmb_error* error) X;\n", "takes a duration"),
    ("a.hpp", "namespace n {\n/// A. Ownership: b. Lifetime: c. Threads: d.\nclass A {\n public:\n  /// It. Never throws.\n  int f() { return 1; }\n private:\n  int g();\n};\n}\n", None),
    ("a.hpp", "namespace n {\n/// A. A plain value.\nclass A {\n private:\n  struct B {\n    B(int b);\n  };\n};\n}\n", None),
    ("a.hpp", "namespace n {\n/// A. Ownership: b. Threads: d.\nclass A {\n};\n}\n", "nothing of \"Lifetime:\""),
    ("a.hpp", "namespace n {\n// A. Ownership: b. Lifetime: c. Threads: d.\nclass A {\n};\n}\n", "class A has no comment"),
    ("a.hpp", "namespace n {\n/// A. Ownership: b. Lifetime: c. Threads: d.\nclass A {\n public:\n  int f() noexcept { return 1; }\n};\n}\n", "f has no contract"),
    ("a.hpp", "namespace n {\n/// Makes it.\ninline Result<int> f() noexcept { return 1; }\n}\n", "names no status"),
    ("a.hpp", "namespace n {\n/// Makes it.\ninline int f(int a = {}) { return 1; }\n}\n", "does not say what it throws"),
    ("a.hpp", "namespace n::detail {\ninline int f() { return 1; }\n}\n", None),
    ("a.hpp", "namespace n {\nstruct A {\n  int a{};\n};\n}\n", "struct A has no comment"),
]


def try_the_rules():
    for name, text, expected in SAMPLES:
        found = list(complaints(name, text))
        if (expected is None and found) or (expected is not None and not any(expected in one for one in found)):
            sys.exit(f"the rules themselves fail: {text!r} gave {found}")
    return len(SAMPLES)


def read_by_clang(root, headers):
    """The warnings of clang's -Wdocumentation: an unknown word after a backslash, a parameter that is none."""
    clang = shutil.which("clang++-19")
    if clang is None:
        return [], "clang++-19 is not installed"
    options = ["-fsyntax-only", "-Wdocumentation", "-Wdocumentation-pedantic", "-Wno-documentation-html", "-I", root,
               *(option for folder in ("client/face", "spawn/face", "proto", "cuda") for option in ("-I", root / folder))]
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for language, ending, standard in (("c", ".h", "-std=c11"), ("c++", ".hpp", "-std=c++20")):
            own = [header for header in headers if header.name.endswith(ending)]
            source = Path(folder) / ("all" + (".c" if language == "c" else ".cpp"))
            source.write_text("".join(f'#include "{header}"\n' for header in own))
            done = subprocess.run([clang, "-x", language, standard, *options, source], capture_output=True, text=True)
            found += [line for line in done.stderr.splitlines() if ": warning:" in line or ": error:" in line]
    return found, "clang read them too"


def main():
    root = Path(sys.argv[1]).resolve()
    tried = try_the_rules()
    headers = sorted(path for pattern in HEADERS for path in root.glob(pattern))
    if len(headers) < 20:
        sys.exit(f"only {len(headers)} public headers found under {root}: looking in the wrong place")
    found = [one for path in headers for one in complaints(path.relative_to(root).as_posix(), path.read_text())]
    said, how = read_by_clang(root, headers)
    print("\n".join(found + said))
    print(f"{len(headers)} headers, {len(found) + len(said)} calls and classes without a whole contract; {how}; {tried} "
          "samples tried first")
    sys.exit(1 if found or said else 0)


main()
