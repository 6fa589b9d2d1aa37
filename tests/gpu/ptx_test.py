#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The kernels of kernels.hpp, which no compiler here ever sees, are assembled for some architecture. Only with the option
gpu_kernels. Usage: ptx_test.py PTXAS KERNELS_HPP"""
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ptxas, header = sys.argv[1:]
text = re.search(r'R"ptx\((.*?)\)ptx"', Path(header).read_text(), re.DOTALL)
if text is None or text.group(1).count(".entry") < 7:
    sys.exit(f"{header} has no kernels as this test knows them")
with tempfile.TemporaryDirectory() as folder:
    source = Path(folder) / "kernels.ptx"
    source.write_text(text.group(1))
    for architecture in ("sm_80", "sm_90"):
        done = subprocess.run([ptxas, f"-arch={architecture}", "-o", str(Path(folder) / "kernels.cubin"), str(source)],
                              capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{architecture}: {done.stderr}")
        source.with_suffix(".broken").write_text(text.group(1).replace("st.global.u64", "st.nowhere.u64"))
        if subprocess.run([ptxas, f"-arch={architecture}", "-o", str(Path(folder) / "x"),
                           str(source.with_suffix(".broken"))], capture_output=True).returncode == 0:
            sys.exit("a broken kernel is assembled too: this test sees nothing")
