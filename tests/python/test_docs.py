# SPDX-License-Identifier: Apache-2.0
"""The code of docs/python.md and the programs of examples/python run, and print what they should."""
import os
import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.usefixtures("broker")
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TOLD = {
    "Regions": "[0.5 0.5] True\n",
    "Pools and queues": "[7 7 7]\n",
    "Ranks of a function": "[30, 30, 30]\n1 ValueError no data\n",
    "Errors": "not_found | ",
}


def sections():
    with open(os.path.join(ROOT, "docs", "python.md"), encoding="utf-8") as file:
        text = file.read()
    for part in re.split(r"^## ", text, flags=re.M)[1:]:
        for code in re.findall(r"^```python\n(.*?)^```", part, flags=re.M | re.S):
            yield part.splitlines()[0], code


def run(program, *arguments):
    done = subprocess.run([sys.executable, program, *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("title, code", sections(), ids=lambda value: value.splitlines()[0][:20])
def test_the_code_of_the_page_runs(tmp_path, title, code):
    program = tmp_path / "program.py"
    program.write_text(code)
    told = run(str(program))
    assert TOLD.get(title, "") in told


def example(name, *arguments):
    return run(os.path.join(ROOT, "examples", "python", name), *arguments)


def test_the_second_job_finds_the_cache_of_the_first():
    program = os.path.join(ROOT, "examples", "python", "shared_cache.py")
    first = subprocess.Popen([sys.executable, program, "--seconds", "600"], stdout=subprocess.PIPE, text=True)
    assert first.stdout.readline() == "loaded sum of a row: 2331833500 writable: False\n"
    assert example("shared_cache.py") == "found sum of a row: 2331833500 writable: False\n"
    first.kill()
    first.communicate()
    # The name goes with its last holder, which the broker sees at once or a moment later.
    while not example("shared_cache.py").startswith("loaded"):
        pass


def test_the_asyncio_consumer_gets_every_message():
    assert example("asyncio_consumer.py").startswith("1000 messages, the last one is 'message 999'")


def test_the_frame_pipeline_loses_no_frame():
    assert example("frame_pipeline.py") == "200 frames sent, 200 seen by 2 workers\n"


def test_regions_take_no_descriptors():
    told = example("many_regions.py").splitlines()
    assert told[0].endswith("Too many open files") and told[1] == "shmbroker: 5000 blocks"
