# SPDX-License-Identifier: Apache-2.0
"""A DataLoader whose workers use the broker: all start methods, limits, little room in /dev/shm, workers that die."""
import os
import shutil
import subprocess

import pytest
from torch_world import METHODS, installed, program, run_file, torch, until, used  # noqa: F401

TWO_FOUR = """
import os, sys
import shmbroker, shmbroker.torch
shmbroker.torch.install(name=NAME)
import torch
from torch.utils.data import DataLoader, Dataset

class Images(Dataset):
    def __init__(self, count, size):
        self.count, self.size = count, size
    def __len__(self):
        return self.count
    def __getitem__(self, index):
        return torch.full((self.size,), float(index)), index
"""


def script(name, text):
    return TWO_FOUR.replace("NAME", repr(name)) + text


@pytest.mark.parametrize("method", METHODS)
def test_batches_are_right_and_shared_over_two_epochs_of_persistent_workers(broker, method):
    done = program(script(None, f"""
if __name__ == '__main__':
    import multiprocessing
    multiprocessing.set_forkserver_preload(['torch'])
    loader = DataLoader(Images(64, 5000), batch_size=8, num_workers=2, persistent_workers=True,
                        multiprocessing_context='{method}')
    for epoch in range(2):
        seen = []
        for batch, index in loader:
            assert batch.shape == (8, 5000) and batch.is_shared() and index.is_shared()
            assert batch[:, 0].equal(index.float()) and batch[:, -1].equal(index.float())
            seen += index.tolist()
        assert seen == list(range(64))
    print('ok')
"""))
    assert done.stdout == "ok\n", done.stderr


def test_a_limit_reaches_the_training_script_with_what_to_change(broker):
    done = program(script("train-7", f"""
if __name__ == '__main__':
    import subprocess
    subprocess.run(['{os.environ.get("SHMBROKER_TOOL", "")}', 'limit', 'train-7', '48M'], check=True, capture_output=True)
    held = []
    try:
        for batch in DataLoader(Images(400, 1 << 20), batch_size=4, num_workers=2, prefetch_factor=8):
            held.append(batch)
    except shmbroker.OutOfShared as error:
        print(error)
"""))
    for part in ("bytes of group 'train-7'", "asked 16.0 MiB", "of 48.0 MiB", "DataLoader worker", "prefetch_factor",
                 "raise the group's limit: `shmbroker limit train-7 "):
        assert part in done.stdout, done.stdout + done.stderr


def test_a_batch_that_cannot_be_sent_is_an_error_of_the_script_and_not_a_wait(broker):
    done = program(script(None, """
class Odd(Images):
    def __getitem__(self, index):
        return (lambda: 1)
if __name__ == '__main__':
    try:
        next(iter(DataLoader(Odd(4, 1), batch_size=None, num_workers=1)))
    except Exception as error:
        print('pickle' in str(error), 'DataLoader worker process 0' in str(error))
"""))
    assert done.stdout == "True True\n", done.stderr


def test_a_worker_that_is_killed_in_collate_is_told_and_nothing_is_left(broker):
    before = used()[1]
    done = program(script(None, """
import signal
def collate(samples):
    if samples[0][1] == 8:
        os.kill(os.getpid(), signal.SIGKILL)
    return torch.utils.data.default_collate(samples)
if __name__ == '__main__':
    try:
        for batch, index in DataLoader(Images(64, 5000), batch_size=4, num_workers=2, collate_fn=collate):
            assert batch[:, 0].equal(index.float())
    except RuntimeError as error:
        print('killed by signal' in str(error) or 'exited unexpectedly' in str(error))
"""))
    assert done.stdout == "True\n", done.stderr
    assert until(lambda: used()[1] <= before, 30), used()


def test_more_workers_than_a_queue_takes_share_a_pipe(broker):
    done = program(script(None, """
if __name__ == '__main__':
    import shmbroker.torch.multiprocessing as ours
    ours._CROWD = 2
    loader = DataLoader(Images(64, 5000), batch_size=4, num_workers=3)
    total = sum(index.sum().item() for batch, index in loader if batch.is_shared())
    from multiprocessing import queues
    print(total, isinstance(iter(loader)._worker_result_queue, queues.Queue))
"""))
    assert done.stdout == f"{sum(range(64))} True\n", done.stderr


def test_a_batch_that_the_thread_of_a_shared_pipe_cannot_send_is_told_too(private):
    done = program(script(None, """
import signal
import shmbroker.torch.multiprocessing
def last(batch):
    if batch[0][1] == 4:
        os.kill(shmbroker.status().pid, signal.SIGKILL)
    return torch.ones(100000)
if __name__ == '__main__':
    shmbroker.torch.multiprocessing._CROWD = 0
    try:
        print(sum(1 for _ in DataLoader(Images(8, 10), batch_size=4, num_workers=1, collate_fn=last)))
    except shmbroker.SessionLost as error:
        print('new DataLoader' in str(error))
"""))
    assert done.stdout == "True\n", (done.stdout, done.stderr)


def test_a_gibibyte_of_batches_passes_where_dev_shm_has_64_mib(broker):
    unshare = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]
    mount = ["sh", "-c", 'mount -t tmpfs -o size=64M none /dev/shm && exec "$@"', "sh"]
    if shutil.which("unshare") is None or subprocess.run([*unshare, *mount, "true"], capture_output=True).returncode:
        pytest.skip("this host lets no process mount a tmpfs in a mount namespace of its own")
    done = program(script(None, """
if __name__ == '__main__':
    held = []
    for batch, index in DataLoader(Images(128, 2 << 20), batch_size=4, num_workers=2, prefetch_factor=4):
        assert batch[0, 0] == index[0]
        held = (held + [batch])[-4:]
    print('ok', os.statvfs('/dev/shm').f_blocks * 4096 >> 20)
"""), before=[*unshare, *mount])
    assert done.stdout == "ok 64\n", done.stderr


@pytest.mark.parametrize("method", METHODS)
def test_a_loader_made_after_the_death_of_a_broker_works_beside_the_iterator_of_an_earlier_one(private, method):
    done = program(script(None, f"""
if __name__ == '__main__':
    import multiprocessing, signal
    multiprocessing.set_forkserver_preload(['torch'])
    def loader(persistent=False):
        return DataLoader(Images(64, 5000), batch_size=8, num_workers=2, persistent_workers=persistent,
                          multiprocessing_context='{method}')
    old, lasting = iter(loader()), loader(True)
    next(old)
    print(sum(1 for _ in lasting))
    workers = old._workers + lasting._iterator._workers
    os.kill(shmbroker.status().pid, signal.SIGKILL)
    for named in old, lasting:
        try:
            for batch in named:
                pass
        except shmbroker.SessionLost as error:
            print('lost' if 'new DataLoader' in str(error) else error)
    print(sum(1 for _ in loader()))
    for worker in workers:
        worker.join(20)
    print([worker.exitcode for worker in workers])
    print(sum(1 for _ in loader(True)))
"""))
    assert done.stdout == "8\nlost\nlost\n8\n[0, 0, 0, 0]\n8\n", (done.stdout, done.stderr)


def test_an_error_of_the_thread_that_pins_memory_is_told_as_the_death_of_the_broker_where_it_is_that(private):
    # That thread runs beside CUDA alone, so stock's error is raised here.
    done = program(script(None, """
import signal
import shmbroker.torch.multiprocessing
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter as Iterator
def stock(self):
    raise RuntimeError('Pin memory thread exited unexpectedly')
if __name__ == '__main__':
    get = shmbroker.torch.multiprocessing._get_data(stock)
    batches = iter(DataLoader(Images(64, 10), batch_size=4, num_workers=1))
    assert Iterator._get_data.__module__ == 'shmbroker.torch.multiprocessing'
    for _ in range(2):
        try:
            get(batches)
        except (shmbroker.SessionLost, RuntimeError) as error:
            print(type(error).__name__, 'new DataLoader' in str(error))
        try:
            os.kill(shmbroker.status().pid, signal.SIGKILL)
            next(batches), next(batches), next(batches), next(batches)
        except (shmbroker.SessionLost, shmbroker.NoBroker):
            pass
"""))
    assert done.stdout == "RuntimeError False\nSessionLost True\n", (done.stdout, done.stderr)


def test_many_batches_leave_no_growth_and_no_manager(broker):
    done = program(script(None, """
import psutil
from shmbroker import views
import torch.multiprocessing as mp
mp.set_sharing_strategy('file_system')
def state():
    me = psutil.Process()
    return len(os.listdir('/proc/self/fd')), len(me.children(True)), me.memory_info().rss - me.memory_info().shared
if __name__ == '__main__':
    count = int(os.environ.get('SHMBROKER_BATCHES', 1500))
    loader = DataLoader(Images(count * 2, 600), batch_size=2, num_workers=2)
    bytes_before = None
    for number, (batch, index) in enumerate(loader):
        if number == 300:
            before, held = state(), sum(one.bytes for one in views.list().regions)
        assert batch[0, 0] == index[0]
    del batch, index
    after, holds = state(), sum(one.bytes for one in views.list().regions)
    assert after[0] <= before[0] + 4 and after[1] <= before[1], (before, after)
    assert after[2] - before[2] < 8 << 20, (before, after)
    assert holds - held < 8 << 20, (held, holds)
    managers = []
    for one in psutil.process_iter():
        try:
            if one.name().startswith('torch_shm_man'):
                managers += [one.pid] * (one.environ().get('SHMBROKER_SOCKET') == os.environ['SHMBROKER_SOCKET'])
        except psutil.Error:
            pass
    print('ok', bool(managers))
"""), timeout=280)
    assert done.stdout == "ok False\n", done.stderr


def test_ctrl_c_twice_leaves_nothing(broker):
    import signal
    import sys
    import tempfile
    import time
    before = used()[1]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "train.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(script(None, """
if __name__ == '__main__':
    for batch, index in DataLoader(Images(1 << 20, 50000), batch_size=4, num_workers=2):
        print('batch', flush=True)
"""))
        process = subprocess.Popen([sys.executable, path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                   start_new_session=True)
        for _ in range(5):
            process.stdout.readline()
        for _ in range(2):
            try:
                os.killpg(process.pid, signal.SIGINT)
            except ProcessLookupError:
                break
            time.sleep(0.1)
        process.stdout.close()
        assert process.wait(60) != 0
    assert until(lambda: used()[1] <= before, 30), used()
    assert until(lambda: not _members(process.pid), 30)


def _members(group):
    return subprocess.run(["pgrep", "-g", str(group)], capture_output=True, text=True).stdout.split()


def test_the_example_learns_the_same_with_and_without_the_broker(broker):
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples", "torch",
                        "dataloader_training.py")
    told = [run_file(path, *more) for more in ((), ("--stock",))]
    assert [one.returncode for one in told] == [0, 0], told
    assert told[0].stdout == told[1].stdout and "batches shared: True" in told[0].stdout
    assert int(told[0].stdout.splitlines()[-1].split()[2]) > 480, told[0].stdout
