# SPDX-License-Identifier: Apache-2.0
"""SharedMemory and ShareableList: what the standard library's tests do not ask (test_shared_memory_stdlib.py runs those).

Programs that were started apart meet by name, arrays keep their memory, and close() refuses while anything uses it.
"""
import gc
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys

import numpy
import pytest

import shmbroker
from shmbroker import ShareableList, SharedMemory

pytestmark = pytest.mark.usefixtures("broker")


@pytest.fixture
def name(request):
    """A name of its own for the test, free again afterwards."""
    it = f"t{os.getpid()}.{request.node.name.split('[')[0][-60:]}"
    yield it
    try:
        SharedMemory(it).unlink()
    except FileNotFoundError:
        pass


def test_a_program_started_apart_finds_the_memory_by_its_name(name, python):
    ours = SharedMemory(name, create=True, size=100)
    ours.buf[:5] = b"hello"
    assert python("import sys, shmbroker; shm = shmbroker.SharedMemory(sys.argv[1]); print(bytes(shm.buf[:5])); "
                  "shm.buf[:3] = b'JEL'", name) == "b'hello'\n"
    assert bytes(ours.buf[:5]) == b"JELlo"


def test_an_attaching_program_that_exits_destroys_nothing(name, python):
    """The fault of the standard library's tracker: python/cpython#82300."""
    ours = SharedMemory(name, create=True, size=100)
    for _ in range(3):
        assert python("import sys, shmbroker; shmbroker.SharedMemory(sys.argv[1])", name) == ""
    assert SharedMemory(name).size == ours.size


def test_no_process_is_started_beside_the_broker(python):
    code = """if 1:
        import os, psutil, sys
        from shmbroker import SharedMemory
        shm = SharedMemory(create=True, size=100)
        SharedMemory(shm.name).close()
        shm.unlink()
        print(len(psutil.Process().children()), 'multiprocessing.resource_tracker' in sys.modules)"""
    assert python(code) == "0 False\n"


def test_what_the_creator_leaves_keeps_its_bytes_under_its_name(name, python):
    python("import sys, shmbroker; shmbroker.SharedMemory(sys.argv[1], create=True, size=9).buf[:4] = b'left'", name)
    left = SharedMemory(name)
    assert bytes(left.buf[:4]) == b"left"
    left.unlink()
    with pytest.raises(FileNotFoundError):
        SharedMemory(name)


def test_the_memory_is_freed_by_unlink_and_the_last_close(name):
    with shmbroker.connect() as session:
        first, second = SharedMemory(name, create=True, size=100), SharedMemory(name)
        identity = first._region.id
        first.unlink()
        first.close()
        second.buf[0] = 1
        assert session.stat(identity).holders == 1
        second.close()
        with pytest.raises((shmbroker.NotFound, shmbroker.Stale)):
            session.stat(identity)


def test_memory_that_is_used_again_is_zero(name):
    size = 1 << 20
    for _ in range(3):
        block = SharedMemory(name, create=True, size=size)
        assert bytes(block.buf) == bytes(size)
        block.buf[:] = b"\xff" * size
        other = SharedMemory(name)
        other.close()
        block.close()
        block.unlink()
    again = [region for region in shmbroker.list().regions if region.length == size and region.state == "cached"]
    assert len(again) == 1  # one and the same memory served them all


def test_a_region_of_the_broker_and_a_shared_memory_are_the_same_object(name):
    ours = SharedMemory(name, create=True, size=100)
    with shmbroker.connect() as session, session.open(name) as region:
        ours.buf[:2] = b"ok"
        assert bytes(region)[:2] == b"ok" and region.readonly


def test_a_reader_of_another_program_leaves_writing_open(name, python):
    ours = SharedMemory(name, create=True, size=100)
    python("import sys, shmbroker; shmbroker.connect().open(sys.argv[1])", name)
    SharedMemory(name).buf[0] = 7
    assert ours.buf[0] == 7


@pytest.mark.parametrize("form", ["view", "slice", "cast", "asarray", "frombuffer", "ndarray"])
def test_close_refuses_while_the_memory_is_used(form):
    shm = SharedMemory(create=True, size=64)
    user = {"view": lambda: memoryview(shm.buf), "slice": lambda: shm.buf[3:], "cast": lambda: shm.buf.cast("d"),
            "asarray": lambda: numpy.asarray(shm.buf), "frombuffer": lambda: numpy.frombuffer(shm.buf, "u1"),
            "ndarray": lambda: numpy.ndarray((8,), "f8", shm.buf)}[form]()
    with pytest.raises(BufferError):
        shm.close()
    shm.buf[0] = 5  # as it was
    assert bytes(user)[-1] == 0
    del user
    shm.close()
    assert shm.buf is None
    shm.close()
    shm.unlink()


@pytest.mark.parametrize("form", ["asarray", "ndarray"])
def test_an_array_outlives_the_object(form, name, python):
    code = """if 1:
        import gc, sys, numpy, shmbroker
        shm = shmbroker.SharedMemory(sys.argv[1], create=True, size=1 << 20)
        made = {"asarray": numpy.asarray, "ndarray": lambda b: numpy.ndarray((1 << 17,), "f8", b)}[sys.argv[2]](shm.buf)
        shm.unlink()
        del shm
        gc.collect()
        made[:] = 3
        print(int(made[-1]))"""
    assert python(code, name, form) == "3\n"


def test_an_object_in_a_cycle_or_a_module_global_is_no_trouble_at_exit(python):
    code = """if 1:
        import numpy, shmbroker
        class Holder: pass
        a, b = Holder(), Holder()
        a.other, b.other, a.shm = b, a, shmbroker.SharedMemory(create=True, size=100)
        kept = numpy.asarray(a.shm.buf)
        a.shm.unlink()
        shm = shmbroker.SharedMemory(create=True, size=100)
        shm.unlink()
        view = shm.buf[3:]"""
    assert python(code) == ""


@pytest.mark.parametrize("size, error", [(0, ValueError), (-1, ValueError), (1.5, TypeError), ("1", TypeError),
                                         (1 << 46, MemoryError), (1 << 60, ValueError), (1 << 80, ValueError)])
def test_a_bad_size_is_refused_and_leaves_no_name(size, error, name):
    with pytest.raises(error):
        SharedMemory(name, create=True, size=size)
    with pytest.raises(FileNotFoundError):
        SharedMemory(name)


@pytest.mark.parametrize("bad", ["", "/", "a/b", "a\0b"])
def test_a_name_that_posix_refuses_is_refused(bad):
    with pytest.raises(ValueError):
        SharedMemory(bad, create=True, size=10)
    with pytest.raises(ValueError):
        SharedMemory(bad)


@pytest.mark.parametrize("odd", ["/slash", "with space", "colon:1", "größe", ".hidden", "x" * 200, "\udcff"])
def test_a_name_that_only_posix_takes_works_too(odd, python):
    shm = SharedMemory(odd, create=True, size=10)
    try:
        assert shm.name == odd
        shm.buf[0] = 9
        assert SharedMemory(odd).buf[0] == 9
        assert pickle.loads(pickle.dumps(shm)).buf[0] == 9
        with pytest.raises(FileExistsError):
            SharedMemory(odd, create=True, size=10)
    finally:
        shm.unlink()
    with pytest.raises(FileNotFoundError):
        SharedMemory(odd)


@pytest.mark.parametrize("options, sentence", [
    ({"name": 5, "create": True, "size": 1}, "name is a str or None, not 'int'"), ({"name": []}, "not 'list'"),
    ({"name": b"x"}, "not 'bytes'"), ({"create": True, "size": None}, "size is an int, not 'NoneType'"),
    ({"create": True, "size": "1"}, "size is an int, not 'str'"), ({"create": True, "size": 1.5}, "not 'float'")])
def test_an_argument_of_a_wrong_type_is_named(options, sentence):
    with pytest.raises(TypeError, match=sentence):
        SharedMemory(**options)


def test_track_is_accepted_as_python_3_13_has_it(name):
    shm = SharedMemory(name, create=True, size=10, track=False)
    assert SharedMemory(name, track=True).size == 10
    shm.unlink()
    with pytest.raises(FileNotFoundError):
        shm.unlink()


def _in_child(shm, listed):
    shm.buf[0] += 1
    listed[0] = "from the child"


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_get_it_as_an_argument(method, name):
    context = multiprocessing.get_context(method)
    shm, listed = SharedMemory(name, create=True, size=10), ShareableList(["x" * 20, 1])
    child = context.Process(target=_in_child, args=(shm, listed))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert shm.buf[0] == 1 and listed[0] == "from the child"
    listed.shm.unlink()


def test_a_forked_child_uses_what_it_inherits_and_its_exit_takes_nothing(name):
    shm = SharedMemory(name, create=True, size=10)
    child = os.fork()
    if child == 0:
        shm.buf[1] = 5
        SharedMemory(name).buf[2] = 6
        shm.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert bytes(shm.buf[1:3]) == b"\5\6"
    assert SharedMemory(name).buf[1] == 5


def test_a_new_broker_is_used_when_the_old_one_was_killed(broker, name):
    shm = SharedMemory(name, create=True, size=10)
    shm.buf[0] = 3
    broker.kill()
    broker.start()
    assert shm.buf[0] == 3  # a mapping stays
    with pytest.raises(FileNotFoundError):
        SharedMemory(name)
    again = SharedMemory(name, create=True, size=10)
    assert SharedMemory(name).size == again.size
    shm.close()


def test_the_group_of_the_environment_has_the_names(name, python):
    with shmbroker.connect(group="") as session:
        group = session.create_group("job" + str(os.getpid()))
        variable = shmbroker.group_variable(group.name, group.token)
        code = "import sys, shmbroker; print(shmbroker.SharedMemory(sys.argv[1], create=True, size=3)._region.stat().group_name)"
        assert python(code, name, SHMBROKER_GROUP=variable) == group.name + "\n"
        with pytest.raises(FileNotFoundError):
            SharedMemory(name)


def test_a_list_keeps_text_of_several_bytes_a_character():
    """The standard library of 3.11 counts characters and cuts such text."""
    listed = ShareableList(["é" * 8, "日本語" * 5, b"\xff" * 16])
    assert list(listed) == ["é" * 8, "日本語" * 5, b"\xff" * 16]
    listed.shm.unlink()


def test_a_value_that_cannot_be_packed_leaves_the_item(name):
    listed = ShareableList([1, "text", None], name=name)
    for bad, error in (([], KeyError), (1 << 70, Exception), ("x" * 9, ValueError)):
        with pytest.raises(error):
            listed[0] = bad
        assert listed[0] == 1
    with pytest.raises(IndexError):
        listed[-4]
    with pytest.raises(IndexError):
        listed[-4] = 1
    with pytest.raises(KeyError):
        ShareableList([{}])
    opened = ShareableList(name=name)
    opened[0] = 2.5
    assert list(listed) == [2.5, "text", None] and len(opened) == 3


def test_a_list_of_the_standard_library_has_the_same_bytes():
    from multiprocessing import shared_memory
    items = ["howdy", b"HoWdY", -273.154, 100, None, True, 42]
    ours, theirs = ShareableList(items), shared_memory.ShareableList(items)
    try:
        assert bytes(ours.shm.buf) == bytes(theirs.shm.buf)[:ours.shm.size]
        assert ours.format == theirs.format
    finally:
        ours.shm.unlink()
        theirs.shm.close()
        theirs.shm.unlink()


def test_a_killed_holder_leaves_only_what_the_keep_says(name):
    code = "import sys, shmbroker; shm = shmbroker.SharedMemory(sys.argv[1]); print(1, flush=True); sys.stdin.read()"
    shm = SharedMemory(name, create=True, size=1 << 20)
    holders = [subprocess.Popen([sys.executable, "-c", code, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
               for _ in range(3)]
    for holder in holders:
        assert holder.stdout.readline() == b"1\n"
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        holder.stdin.close()
        holder.stdout.close()
    shm.unlink()
    identity = shm._region.id
    del shm
    gc.collect()
    with shmbroker.connect() as session, pytest.raises((shmbroker.NotFound, shmbroker.Stale)):
        session.stat(identity)
