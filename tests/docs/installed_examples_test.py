#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""All code of the documents is compiled against an installed tree and nothing else: each command in the comment at the
head of an example, the commands of README.md and docs/ for a program of one's own, with each code block that is a whole
program, and each other C++ block with its page. Commands run as they are written. Programs in C are run. Usage:
installed_examples_test.py ROOT MESON BUILD BROKER"""
import contextlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

COMMAND = re.compile(r"(?:g\+\+|gcc|cc) -std=[^\n`]*")
PAGES = ["README.md", *(f"docs/{name}.md" for name in ("client", "pools", "spawn", "remote", "gpu"))]


def fenced(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def as_one_function(pieces):
    """Blocks of a page that are no programs follow each other in one function."""
    lines = [line for piece in pieces for line in piece.splitlines()]
    includes = [line for line in lines if line.startswith("#include")]
    return "\n".join(includes) + "\nvoid tutorial() {\n" + "\n".join(line for line in lines if line not in includes) + "\n}\n"


def install(meson, build, folder):
    done = subprocess.run([*shlex.split(meson), "install", "-C", build, "--no-rebuild", "--quiet", "--tags", "devel,runtime",
                           "--destdir", str(folder)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"meson install: {done.stdout}{done.stderr}")
    [pc] = folder.rglob("shmbroker.pc")
    return os.environ | {"PKG_CONFIG_PATH": str(pc.parent), "PKG_CONFIG_SYSROOT_DIR": str(folder)}


def run(command, folder, environment):
    print(command, flush=True)
    done = subprocess.run(["sh", "-ec", command], cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        sys.exit(f"does not work as documented: {command}\n{done.stderr[:4000]}")


@contextlib.contextmanager
def broker_of(program, folder):
    ready, write_end = os.pipe()
    broker = subprocess.Popen([program, "--directory", str(folder / "broker"), "--ready-fd", str(write_end), "--log-level",
                               "error"], pass_fds=[write_end])
    try:
        os.close(write_end)
        if os.read(ready, 1) != b"\n":
            sys.exit("the broker did not start")
        yield {"SHMBROKER_SOCKET": str(folder / "broker/socket")}
    finally:
        os.close(ready)
        broker.terminate()
        broker.wait(30)


def main():
    root, meson, build = Path(sys.argv[1]).resolve(), sys.argv[2], sys.argv[3]
    if shutil.which("pkg-config") is None:
        print("SKIPPED: pkg-config: not here")
        return
    with tempfile.TemporaryDirectory(prefix="shmb-examples-") as name:
        here = Path(name)
        environment = install(meson, build, here / "installed")
        examples = here / "examples"
        shutil.copytree(root / "examples", examples)
        mains = [path for path in sorted(examples.rglob("*.cpp")) if re.search(r"^int main\(", path.read_text(), re.MULTILINE)]
        for path in mains:
            head = re.match(r"(?://.*\n)+", path.read_text())[0]
            commands = COMMAND.findall(head)
            if not commands:
                sys.exit(f"{path.relative_to(here)} does not say how it is compiled")
            for command in commands:
                run(command, examples, environment)
        own = programs = 0
        for page in PAGES:
            text = (root / page).read_text()
            commands = {language: [one for one in COMMAND.findall(text) if re.search(rf"program\.{suffix}\b", one)]
                        for language, suffix in (("cpp", "cpp"), ("c", "c"))}
            for command in COMMAND.findall(text):
                if "program.c" not in command:  # of an example
                    run(command, examples, environment)
                    own += 1
            for language in ("cpp", "c"):
                pieces = fenced(text, language)
                whole = [piece for piece in pieces if re.search(r"^int main\(", piece, re.MULTILINE)]
                rest = [piece for piece in pieces if piece not in whole]
                if language == "c" and rest:
                    sys.exit(f"{page}: a block in C is a whole program")
                if page == "README.md":  # its program is the example of its own command
                    continue
                if pieces and not commands[language]:
                    sys.exit(f"{page} does not say how its code in {language} is compiled")
                for text_of in whole + ([as_one_function(rest)] if rest else []):
                    (here / f"program.{language}").write_text(text_of)
                    command = commands[language][0] + ("" if text_of in whole else " -fsyntax-only")
                    run(command, here, environment)
                    programs += 1
                    if language == "c":
                        [library] = (here / "installed").rglob("libshmbroker.so")
                        with broker_of(sys.argv[4], here) as told:
                            run("./a.out", here, environment | told | {"LD_LIBRARY_PATH": str(library.parent)})
        print(f"{len(mains)} examples, {own} commands for them in pages, {programs} programs and pages")
        if len(mains) < 6 or own < 1 or programs < 5:
            sys.exit("too little was found: this test looks at nothing")


if __name__ == "__main__":
    main()
