# SPDX-License-Identifier: Apache-2.0
"""The functions that child processes of the test_torch_*.py run: importable by name for spawn and forkserver."""
import os
import signal
import time

import torch


def fill_each(tasks, done):
    """Overwrites the first tensor of each list."""
    while (tensors := tasks.get()) is not None:
        tensors[0].fill_(4)
        total = tensors[1].sum().item()
        del tensors
        done.put(total)


def send_each_twice(queue, told, count):
    for _ in range(count):
        tensor = torch.ones(5, 5)
        queue.put(tensor)
        queue.put(tensor)
        told.get()


def own_and_send_some(queue, count, sent):
    owned = [torch.full((1 << 18,), float(number)).share_memory_() for number in range(count)]
    for one in owned[:sent]:
        queue.put(one)
    queue.put("all are shared")
    time.sleep(1000)


def send_and_end(queue, shape):
    queue.put(torch.full(shape, 7.0))


def send_and_die(queue, shape):
    queue.put(torch.full(shape, 7.0))
    os.kill(os.getpid(), signal.SIGKILL)


def plus_three(tensor):
    tensor += 3


def add_one(tensor):
    tensor.fill_(4)
    return tensor + 1


def facts(tasks, told):
    """Reports how a tensor looks where it arrives."""
    while (got := tasks.get()) is not None:
        told.put((type(got).__name__, got.requires_grad, got.grad is None, len(got._backward_hooks or ()), got.is_shared()))
        del got


def echo(tasks, results):
    while True:
        got = tasks.get()
        if got is None:
            return
        results.put(got)
        del got


def hold_and_wait(queue, told, count):
    held = [queue.get() for _ in range(count)]
    told.put(len(held))
    time.sleep(1000)


def sum_each(tasks, sums):
    """Has dropped a tensor when it tells its sum."""
    while (got := tasks.get()) is not None:
        total = got.sum().item()
        del got
        sums.put(total)


def installed(told):
    import shmbroker.torch
    from shmbroker.mp import place
    fresh = torch.ones(3).share_memory_()
    told.put((shmbroker.torch.installed(), fresh.is_shared(), torch.multiprocessing.Queue.__module__,
              place.home(ask=False)[0].info().group))


def receive_over_pipe(connection, told):
    got = connection.recv()
    told.put(got.sum().item())


class Marked(torch.Tensor):
    """A subclass with an attribute."""


def send_over_pipe_and_die(connection):
    connection.send([torch.full((4,), 7.0), torch.full((1 << 20,), 7.0)])
    os.kill(os.getpid(), signal.SIGKILL)


def receive_one_and_wait(connection, told):
    held = connection.recv()
    told.put(held[0].item())
    time.sleep(1000)


def uninstall_and_answer(tasks, results):
    import shmbroker.torch
    shmbroker.torch.uninstall()
    got = tasks.get()
    got.fill_(7)
    results.put(torch.full((4,), 8.0))


def produce_for_ever(queue, number):
    count = 0
    while True:
        queue.put((number, count, torch.full((300, 300), float(count % 100))))
        count += 1
        time.sleep(0.002)  # readers find the queue empty now and then, and give back the lanes of the dead


def consume_for_ever(queue, counts, number):
    while True:
        _, count, tensor = queue.get()
        assert tensor[0, 0] == count % 100 and tensor[-1, -1] == count % 100
        counts[number] += 1
