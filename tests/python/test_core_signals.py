# SPDX-License-Identifier: Apache-2.0
"""Signals end waits: KeyboardInterrupt at once, others after their handler has run, with the time that is left."""
import pytest

WAITS = {
    "receive": "queue.receive(None)",
    "receive_many": "queue.receive_many(2, None)",
    "acquire": "held = [pool.acquire(10), pool.acquire(10)]; pool.acquire(10, timeout=None)",
    "send": "[queue.send(b'x', None) for _ in range(10)]",
    "attach": "session.create(1); session.attach('never', wait=None)",
    "next_event": "session.next_event(timeout=None)",
    "wait_group": "session.create(1); session.wait_group(timeout=None)",
    "drain": "queue.send(b'x'); queue.drain(None)",
}


@pytest.mark.parametrize("wait", WAITS)
def test_a_keyboard_interrupt_ends_a_wait(python, wait):
    out = python(f"""
import os, signal, threading, shmbroker
session = shmbroker.connect(group="")
pool = session.create_pool([(4096, 2)])
queue = pool.queue("q", kind="mpmc", cells=2)
main = threading.main_thread().ident
threading.Timer(0.3, lambda: signal.pthread_kill(main, signal.SIGINT)).start()
try:
    {WAITS[wait]}
except KeyboardInterrupt:
    print("interrupted")
assert bytes(queue.receive(0)) == b"x" if "{wait}" in ("send", "drain") else True
session.ping()
""")
    assert "interrupted" in out


def test_a_wait_goes_on_after_a_handler_that_returns(python):
    out = python("""
import signal, threading, shmbroker
handled = []
signal.signal(signal.SIGUSR1, lambda *_: handled.append(1))
queue = shmbroker.connect(group="").queue("q", kind="mpmc")
main = threading.main_thread().ident
threading.Timer(0.1, lambda: signal.pthread_kill(main, signal.SIGUSR1)).start()
threading.Timer(0.4, lambda: queue.send(b"came")).start()
print(bytes(queue.receive(60)), handled)
""")
    assert "b'came' [1]" in out


def test_a_handler_may_close_what_is_waited_for_and_may_raise(python):
    out = python("""
import signal, threading, shmbroker
queue = shmbroker.connect(group="").queue("q", kind="mpmc")
signal.signal(signal.SIGUSR1, lambda *_: queue.close())
main = threading.main_thread().ident
threading.Timer(0.2, lambda: signal.pthread_kill(main, signal.SIGUSR1)).start()
try:
    queue.receive(None)
except shmbroker.Closed as closed:
    print(closed, queue.closed)
""")
    assert "a signal handler has closed it" in out and "True" in out


def test_a_fork_in_a_handler_in_the_middle_of_a_wait_is_told_in_the_child(python):
    out = python("""
import os, signal, sys, threading, shmbroker
queue = shmbroker.connect(group="").queue("q", kind="mpmc")
children = []
def fork(*_):
    child = os.fork()
    if child != 0: children.append(child)
signal.signal(signal.SIGUSR1, fork)
main = threading.main_thread().ident
threading.Timer(0.2, lambda: signal.pthread_kill(main, signal.SIGUSR1)).start()
threading.Timer(0.8, lambda: queue.send(b"for the parent")).start()
try:
    print(bytes(queue.receive(30)))
except shmbroker.Forked as error:
    print("child:", error, flush=True)
    os._exit(3)
assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 3
""")
    assert "for the parent" in out and "child:" in out
