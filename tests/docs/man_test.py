#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The man pages say what the programs say: every option of --help is in the page and the other way round, verb by verb,
and so is every key of daemon/start/config.cpp. Where scdoc is, the pages are also formatted.
Usage: man_test.py ROOT BROKER TOOL"""
import re
import shutil
import subprocess
import sys
from pathlib import Path

COMMON = {"--socket", "--timeout", "--json", "-b", "--bytes", "-h", "--help"}
problems = []


def differ(where, help_says, page_says):
    for option in sorted(help_says - page_says):
        problems.append(f"{where}: {option} is in --help and not in the man page")
    for option in sorted(page_says - help_says):
        problems.append(f"{where}: {option} is in the man page and not in --help")


def options_of_help(program, *verb):
    text = subprocess.run([program, *verb, "--help"], capture_output=True, text=True, check=True).stdout
    heads = re.findall(r"^  (-[^ ].*)$", text, re.MULTILINE)
    # The options stand before the first gap of two blanks.
    return {option for head in heads for option in re.findall(r"(?<![\w-])-{1,2}[a-z][a-z-]*", head.split("  ")[0])}


def sections(page):
    """{"OPTIONS": text, ...}"""
    parts = re.split(r"^# (.+)$", page, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2]))


def defined(text, pattern):
    """The words that a line introduces: "*--socket* _PATH_"."""
    return {word for line in text.splitlines() if line.startswith("*") for word in re.findall(pattern, line)}


def main():
    root, broker, tool = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    pages = {path.stem: path.read_text() for path in (root / "packaging/man").glob("*.scd")}
    option = r"\*(-{1,2}[a-z][a-z-]*)\*"

    differ("shmbrokerd(8)", options_of_help(broker), defined(sections(pages["shmbrokerd.8"])["OPTIONS"], option))

    manual = sections(pages["shmbroker.1"])
    verbs = re.findall(r"^  ([a-z]+) {2,}", subprocess.run([tool, "--help"], capture_output=True, text=True,
                                                          check=True).stdout, re.MULTILINE)
    if len(verbs) < 7:
        problems.append(f"shmbroker --help: only the verbs {verbs} were found")
    differ("shmbroker(1)", options_of_help(tool), defined(manual["OPTIONS OF THE PROGRAM"], option))
    for verb in verbs:
        if verb.upper() not in manual:
            problems.append(f"shmbroker(1): the verb {verb} has no section")
            continue
        differ(f"shmbroker(1), {verb}", options_of_help(tool, verb) - COMMON, defined(manual[verb.upper()], option))
        if f"*shmbroker* *{verb}*" not in manual["SYNOPSIS"]:
            problems.append(f"shmbroker(1): the verb {verb} is not in the synopsis")
    everywhere = set().union(*(options_of_help(tool, verb) for verb in verbs)) & COMMON - {"-h", "--help"}
    differ("shmbroker(1), common options", everywhere, defined(manual["COMMON OPTIONS"], option))

    # The fields of the tables, and what each means, in the words of the table that the code has.
    field = r'\{"([a-z-]+)",\s*"[A-Z ]+",\s*"([^"]+)",\s*FieldKind::\w+,\s*(true|false)'
    described = r"^\*([a-z-]+)\*\n\t(.+)$"
    for source, section in (("tools/host_view.cpp", "OBJECTS OF THE HOST"), ("tools/verbs/map.cpp", "MAP")):
        known = {(name, f"{text[0].upper()}{text[1:]}.{' By default.' if default == 'true' else ''}")
                 for name, text, default in re.findall(field, (root / source).read_text())}
        if not known:
            problems.append(f"{source}: the table of fields was not found")
        told = {entry for entry in re.findall(described, manual[section], re.MULTILINE)
                if entry[0] not in ("held", "orphan", "stale", "idle", "unseen")}
        for name, text in sorted(known ^ told):
            where = f"{source} and not in the man page" if (name, text) in known else f"the man page and not in {source}"
            problems.append(f"shmbroker(1), {section}: the field {name} ({text}) is in {where}")
    schemas = "".join(path.read_text() for path in (root / "docs/schemas").glob("*.json"))
    differ("shmbroker(1), keys with exact bytes", set(re.findall(r'"([a-z]+_hex)"', schemas)),
           {name + "_hex" for name in re.findall(r"\*([a-z]+)\\_hex\*", manual["OBJECTS OF THE HOST"])})

    code = (root / "daemon/start/config.cpp").read_text()
    conf = sections(pages["shmbroker.conf.5"])
    top, limits = code.split("top_keys()", 1)[1].split("limit_keys()", 1)
    limits, overrides = limits.split("kOverrideKeys", 1)
    key = r'(?:\{|_key\()"([a-z_]+)"'
    keys = set(re.findall(key, top)), set(re.findall(key, limits.split("};", 1)[0]))
    if not all(keys):
        problems.append("daemon/start/config.cpp: the tables of keys were not found")
    differ("shmbroker.conf(5), KEYS", keys[0], defined(conf["KEYS"].replace(" | ", " "), r"\*([a-z_]+)\*"))
    listed, for_scopes = conf["LIMITS"].split("Tables *[limits.uid.NUMBER]*", 1)
    differ("shmbroker.conf(5), LIMITS", keys[1], defined(listed, r"\*([a-z_]+)\*"))
    scoped = set(re.findall(r'OverrideKey\{"([a-z_]+)"', overrides))
    differ("shmbroker.conf(5), overrides", scoped, set(re.findall(r"\*([a-z_]+)\*", for_scopes)))

    if shutil.which("scdoc"):
        for name, text in pages.items():
            made = subprocess.run(["scdoc"], input=text, capture_output=True, text=True)
            if made.returncode != 0 or f".TH \"{name.rsplit('.', 1)[0]}\"" not in made.stdout:
                problems.append(f"{name}: {made.stderr.strip()}")
    else:
        print("SKIPPED: formatting: no scdoc here")
    if problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
