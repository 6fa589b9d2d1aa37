#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A source file includes the headers of this project that it uses, directly or by another header. The builds of
tools/test cannot see that: they make one translation unit of each target, in which a file finds what the files before it
have included. A build of single files then fails.

The test takes names that only one header declares, at the scope of a namespace: classes, enumerations, aliases,
constants, macros, and functions with several words in their names. A file that uses such a name must reach that header by
its includes. Names that the file declares itself, and names after `.` or `->`, are not looked at. So a few are missed.
tools/check-single asks the compiler instead, and takes minutes. The rule is first tried on files without one of their
includes. Usage: includes_test.py ROOT
"""
import collections
import re
import sys
from pathlib import Path

FOLDERS = ("base", "proto", "daemon", "client", "spawn", "cuda", "tools")
SEARCHED = ("", "client/face", "spawn/face", "proto", "cuda")  # where an include may lie
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
# At the start of a line, because what is in a namespace is not indented (.clang-format).
DECLARED = [re.compile(pattern, re.MULTILINE) for pattern in (
    r"^(?:template ?<.*>\n?)?(?:class|struct|enum class|enum|union)(?: \[\[\w+\]\]| alignas\(\w+\))? (\w+)(?: final)?"
    r"(?: : [^;{]*)? ?\{",
    r"^using (\w+) =",
    r"^(?:inline )?(?:constexpr|const) [\w:<>, ]+[ &*](k[A-Z]\w+)(?:\[\])? ?[={]",
    r"^(?=\S)(?:template ?<.*>\n)?(?:\[\[\w+\]\] )?(?:SHMB_API )?(?:inline |constexpr |extern )*[\w:<>,*& ]+?[ *&](\w+)\(",
    r"^#define (SHMB\w+)")]
# The same at any other scope: such a name may mean another thing.
NESTED = re.compile(r"^[ \t]+(?:(?:class|struct|enum class|enum|using) (\w+)\b(?! \w+ ?[;(=])|"
                    r"(?!return\b|else\b|new\b|throw\b|delete\b)(?:\[\[\w+\]\] )?"
                    r"(?:inline |constexpr |static |virtual |explicit )*[\w:<>,*&]+[ *&]+(\w+)\()", re.MULTILINE)
LOCAL = re.compile(r"\b(?!return |else |new |throw |case )[\w>]+[ &*]+(\w+) ?[={;(,)>]|\b(k[A-Z]\w+) = ")
FORWARD = re.compile(r"^ *(?:class|struct) (\w+);", re.MULTILINE)
USE = re.compile(r"(?<![\w.>~])(?:[a-z_]\w*::)*([A-Z]\w{2,}|k[A-Z]\w+)\b|(?<![\w.>])(?:[a-z_]\w*::)*([a-z]+_\w+)(?=\()")
# file and include: without that the file is to be found
TRIED = [("client/region/attach.cpp", "client/session/name_wait.hpp"), ("tools/tool.cpp", "client/face/shmbroker.h")]


def plain(text):
    """The text without comments, and with empty strings."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)
    return re.sub(r'"(?:[^"\\\n]|\\.)*"', '""', re.sub(r'R"(\w*)\(.*?\)\1"', '""', text, flags=re.DOTALL))


def words(pattern, text):
    return {word for found in pattern.findall(text) for word in ((found,) if isinstance(found, str) else found) if word}


class Sources:
    def __init__(self, raw):
        texts = {name: plain(text) for name, text in raw.items()}
        self.texts = texts
        self.own = {name: set().union(*(words(pattern, text) for pattern in DECLARED)) for name, text in texts.items()}
        self.nested = set().union(*(words(NESTED, text) for text in texts.values()))
        self.homes = collections.defaultdict(set)
        for name, names in self.own.items():
            if not name.endswith(".cpp") and not name.startswith("tools/benchmarks/"):
                for one in names:
                    self.homes[one].add(name)
        self.direct = {name: {self.found(include, name) for include in INCLUDE.findall(text)} - {None}
                       for name, text in raw.items()}

    def found(self, include, by):
        places = ((Path(place) / include).as_posix() for place in (Path(by).parent, *SEARCHED))
        return next((name for name in places if name in self.texts), None)

    def reached(self, name, but=None):
        out, left = {name}, [name]
        while left:
            at = left.pop()
            for one in self.direct[at] - out:
                if (at, one) != but:
                    out.add(one)
                    left.append(one)
        return out

    def complaints(self, name, but=None):
        """Pairs of line and sentence; and how many uses were looked at. `but`: an include that does not count."""
        near = self.reached(name, but)
        text, found, looked = self.texts[name], {}, 0
        known = self.own[name] | self.nested | words(LOCAL, text)
        for one in near:  # a class that is only named
            known |= words(FORWARD, self.texts[one])
        for use in USE.finditer(text):
            word = use[1] or use[2]
            homes = self.homes.get(word, ())
            if len(homes) != 1 or word in known:
                continue
            looked += 1
            [home] = homes
            if home not in near:
                found.setdefault(word, f"{name}:{text.count(chr(10), 0, use.start()) + 1}: {word} is declared in {home}, "
                                       "which the file does not include")
        return list(found.values()), looked


def main():
    root = Path(sys.argv[1]).resolve()
    sources = Sources({path.relative_to(root).as_posix(): path.read_text() for folder in FOLDERS
                       for path in sorted((root / folder).rglob("*")) if path.suffix in (".hpp", ".h", ".cpp")})
    for name, include in TRIED:
        if include not in sources.direct[name] or not sources.complaints(name, (name, include))[0]:
            sys.exit(f"the rule itself fails: {name} without {include} is not found")
    bad, looked = [], 0
    for name in sources.texts:
        if not name.startswith("tools/benchmarks/"):
            found, count = sources.complaints(name)
            bad += found
            looked += count
    print("\n".join(bad), end="\n" if bad else "")
    print(f"{len(sources.texts)} files, {looked} uses looked at, {len(bad)} names without their headers")
    sys.exit(1 if bad or looked < 5000 else 0)


main()
