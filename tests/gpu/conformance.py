# SPDX-License-Identifier: Apache-2.0
"""The cases 51 to 69 of docs/conformance.md with real tensors, for regions.py: functions of two or three actors, and the
table of them. A duration that a scenario promises counts on a GPU and is only told on the fake, where it says nothing."""

import os
import time

from library import ACCESS_WRITE, FLOAT, INTEGER, MANY_WRITERS, NOT_FOUND, WRITING, Failure
from talk import N, Skip, end_of


def gone(t, what):
    try:
        t.session.take(what).release()
    except Failure as refused:
        return refused.status == NOT_FOUND
    return False


def c51_a(t):
    tensor, region = t.publish(t.count_up(), "x", WRITING | MANY_WRITERS)
    t.say("b", "x")
    t.hear()
    t.need(tensor.values() == t.count_up(9), "the parent does not see what the child wrote")


def c51_b(t):
    what = t.hear()
    first, one = t.take(what, ACCESS_WRITE)
    second, two = t.take(what, ACCESS_WRITE)
    one.set(t.count_up(9))
    t.tensors.sync()
    t.need(two.values() == t.count_up(9), "the same tensor twice is not the same memory")
    t.say("a")


def c52_a(t):
    for i in range(5):
        tensor, region = t.publish(t.count_up(i))
        t.say("b", region.ticket())
        region.release()
        del tensor
    t.hear()
    t.ends_as_programs_do = True


def c52_b(t):
    held = [t.take(t.hear()) for _ in range(5)]
    for i, (region, view) in enumerate(held):
        t.need(view.values() == t.count_up(i), f"tensor {i} changed")
    for region, view in held:
        view.end()
        region.release()
    t.ends_within("a", 1.0)
    t.say("a")


def c53_side(t, other, first):
    if not first:
        t.say(other)
    t.hear()  # both are there
    start = time.monotonic()
    if first:
        t.say(other)
    for i in range(100):
        if first:
            tensor, region = t.publish(t.count_up(i))
            t.say(other, region.ticket())
            t.hear()
            region.release()
        else:
            region, view = t.take(t.hear())
            t.need(view.values() == t.count_up(i), f"round {i}")
            view.end()
            region.release()
            t.say(other)
        time.sleep(0.01)
    t.within(start, 10, "all rounds")


def c54_a(t):
    for i in range(100):
        tensor = t.tensors.make([1000 * i + j for j in range(1000)], in_region=True)
        region, offset = t.session.of_torch(tensor.pointer)
        region.publish(f"m{i}", 0, [(f"t{j}", offset + 8 * j, 1, 64) for j in range(1000)] + [("x", offset, 1000, 64)])
        t.say("b", f"m{i}")
        t.hear()
        region.release(unname=True)


def c54_b(t):
    for i in range(100):
        region, view = t.take(t.hear())
        tensor, clone = t.publish(view.values(), f"f{i}")
        view.end()
        region.release()
        t.say("c", f"f{i}")
        t.hear()
        clone.release(unname=True)
        t.say("a")  # not before: its next word would be taken for the answer of c


def c54_c(t):
    total = 0
    for _ in range(100):
        region, view = t.take(t.hear())
        total += sum(view.values())
        view.end()
        region.release()
        t.say("b")
    t.need(total == 100_000 * 99_999 // 2, f"the sum is {total}")


def c55_a(t):
    """Five small tensors on two devices in turn, each in a block of its own: torch's would share one."""
    if t.tensors.devices < 2:
        raise Skip("one device only")
    held = []
    for i in range(5):
        device, count = i % 2, 4 * (i + 1)
        t.tensors.on(device)
        tensor = t.tensors.make(list(range(i, i + count)), in_region=True, device=device)
        region, offset = t.session.of_torch(tensor.pointer)
        held.append((region.publish(tensors=[("x", offset, count, 64)]), region, tensor, device))
        t.say("b", [i, count, held[-1][0]])
        t.hear()
    for what, region, tensor, device in held:
        t.tensors.on(device)
        region.release()
        t.tensors.forget(tensor, device)
    del tensor
    t.until(lambda: all(gone(t, what) for what, *_ in held), "what both have dropped is there still")


def c55_b(t):
    for _ in range(5):
        i, count, what = t.hear()
        t.tensors.on(i % 2)
        region, view = t.take(what)
        t.need(view.device == i % 2, f"tensor {i} is on device {view.device}")
        t.need(view.count == count, f"tensor {i} has {view.count} elements of {count}")
        t.need(sum(view.values()) == sum(range(i, i + count)), f"tensor {i} changed")
        view.end()
        region.release()
        t.say("a")


def c56_a(t):
    t.publish(t.count_up())  # from here on the library has used the driver
    pid = os.fork()
    if pid == 0:
        try:
            t.session.allocate(2 << 20)
        except Failure as refused:
            os._exit(0 if "does not survive a fork" in str(refused) else 1)
        os._exit(2)
    t.need(os.waitpid(pid, 0)[1] == 0, "the forked child was not told")
    t.publish(t.count_up())


def c57_a(t):
    """57 and 58: an int64 and a byte tensor in one block, at their own offsets, sent alternately."""
    tensor = t.tensors.make([1] * 64, in_region=True)
    region, offset = t.session.of_torch(tensor.pointer)
    listed = []
    for i in range(10):
        listed += [(f"i{i}", offset + 16 * i, 1, 64), (f"b{i}", offset + 16 * i + 8, 8, 8)]
    t.say("b", region.publish(tensors=listed))
    t.hear()


def c57_b(t):
    region = t.session.take(t.hear())
    for i in range(10):
        view = t.tensors.view(region, f"i{i}")
        t.need(view.values() == [1], f"i{i}")
        view.end()
        managed = region.dlpack(f"b{i}")
        t.need(managed.contents.tensor.bits == 8 and managed.contents.tensor.shape[0] == 8, f"b{i}")
        end_of(managed)
    t.say("a")


# Name, floating, a parameter, with a gradient. An integer has none.
LEAVES = (("leaf", True, False, True), ("plain", True, False, False), ("parameter", True, True, True),
          ("frozen", True, True, False), ("steps", False, True, False))  # fmt: skip


def c63_a(t):
    """Empty ones; 14: leaves and parameters are their data, no gradient and no hook is sent; 15: an integer one."""
    tensor = t.tensors.make([0] * N, in_region=True)
    region, offset = t.session.of_torch(tensor.pointer)
    listed = [("empty", offset, 0, 64), ("empty.2d", offset, (0, 5), 64)]
    leaves = []
    for i, (name, floating, parameter, gradient) in enumerate(LEAVES):
        listed.append((name, offset + 256 * i, (5, 5), 32 if floating else 64, FLOAT if floating else INTEGER))
        leaf = t.tensors.leaf(tensor, 256 * i, floating, parameter, gradient)
        leaf.set(list(range(1, 26)))
        if gradient:
            leaf.give_gradient(3.0)
        leaves.append((name, gradient, leaf))
    t.tensors.sync()
    region.publish("model", WRITING | MANY_WRITERS, listed)
    t.say("b", "model")
    t.hear()
    for _, _, leaf in leaves:
        leaf.set([100] + list(range(2, 26)))
    t.tensors.sync()
    t.say("b")
    t.hear()
    for name, gradient, leaf in leaves:
        t.need(leaf.values() == list(range(50, 75)), f"what B wrote is not in {name}")
        t.need(leaf.gradient() == ([3.0] * 25 if gradient else None), f"the gradient of {name} is not its maker's own")


def c63_b(t):
    region = t.session.take(t.hear(), ACCESS_WRITE)
    managed = region.dlpack("empty")
    t.need(managed.contents.tensor.dimensions == 1 and managed.contents.tensor.shape[0] == 0, "the shape is lost")
    end_of(managed)
    t.need(t.tensors.view(region, "empty.2d").count == 0, "an empty tensor has elements")
    leaves = []
    for name, _, parameter, gradient in LEAVES:
        leaf = t.tensors.leaf_of(t.tensors.view(region, name), parameter, gradient)
        t.need(leaf.is_a(parameter, gradient), f"{name} has another class here")
        t.need(leaf.gradient() is None and leaf.hooks() == 0, f"{name} came with a gradient, or with hooks")
        t.need(leaf.values() == list(range(1, 26)), f"{name} is something else here")
        leaves.append((name, gradient, leaf))
    t.say("a")
    t.hear()
    for name, gradient, leaf in leaves:
        t.need(leaf.values() == [100] + list(range(2, 26)), f"what A wrote later is not in {name}")
        if gradient:
            leaf.give_gradient(9.0)
        leaf.set(list(range(50, 75)))
    t.tensors.sync()
    t.say("a")


def c64_a(t):
    """torch calls every tensor of a device shared. Ours is shared, without a copy."""
    tensor, region = t.publish(t.count_up(64))
    again, _ = t.session.of_torch(tensor.pointer)
    t.need(again.id() == region.id(), "publishing made other memory of it")
    for what, one in (("born in a region", tensor), ("of the default allocator", t.tensors.make([1]))):
        answer = t.tensors.is_shared(one)
        t.need(answer in (True, None), f"is_shared is false of one {what}")
    t.fact("is_shared", "true" if answer else "there is no torch to be asked")
    t.say("b", region.id())
    t.hear()


def c64_b(t):
    region, view = t.take(t.hear())
    t.need(t.tensors.is_shared(view) in (True, None), "is_shared is false of what was received")
    t.need(view.values() == t.count_up(64), "B reads something else")
    view.end()
    t.say("a")


def c65_a(t):
    """The consumer is killed with the tensor: lent memory comes back."""
    tensor, freed = t.tensors.make(t.count_up()), []
    lease = t.session.lend(tensor.pointer, 8 * N, lambda: freed.append(True), [("x", 0, N, 64)])
    t.say("b", lease.id())
    t.hear()
    lease.retire()
    t.until(lambda: t.session.dispatch()[0] or freed, "the dead consumer's hold was never dropped")


def c65_b(t):
    held = t.take(t.hear())
    t.say("a")
    t.die()
    del held


def c66_a(t):
    """66 and 67: the producer is killed, the consumer goes on and hands the tensor to a third."""
    tensor, region = t.publish(t.count_up(66), "x")
    t.say("b")
    t.hear()
    t.die()


def c66_b(t):
    t.hear()
    region, view = t.take("x")
    t.say("a")
    t.need(t.hear() == "killed", "a word of the dead")
    t.need(view.values() == t.count_up(66), "the data went with their producer")
    t.say("c", region.ticket())
    t.hear()


def c66_c(t):
    region, view = t.take(t.hear())
    t.need(view.values() == t.count_up(66), "the third reads something else")
    t.say("b")


def c68_a(t):
    region = t.session.allocate(2 << 20)  # a tensor of torch's pool would hold it as long as torch does
    what = region.publish()
    region.ticket(200_000_000)
    region.release()
    t.until(lambda: gone(t, what), "a message that nobody reads holds the region")


def c69_a(t):
    tensor, region = t.publish(t.count_up(69), "x")
    again, view = t.take("x")
    t.need(view.values() == t.count_up(69), "what a process sent itself is something else")


CASES = {
    "51": ("a child writes through what it was sent", c51_a, c51_b),
    "52": ("five tensors, sent and dropped", c52_a, c52_b),
    "53": ("100 rounds between two", lambda t: c53_side(t, "b", True), lambda t: c53_side(t, "a", False)),
    "54": ("100,000 tensors through three processes", c54_a, c54_b, c54_c),
    "55": ("two devices", c55_a, c55_b),
    "56": ("a forked child", c56_a),
    "57": ("57 and 58: parts of one block", c57_a, c57_b),
    "63": ("63, 14, 15: empty tensors, leaves and parameters", c63_a, c63_b),
    "64": ("is_shared", c64_a, c64_b),
    "65": ("a killed consumer", c65_a, c65_b),
    "66": ("66 and 67: a killed producer, and handing on", c66_a, c66_b, c66_c),
    "68": ("a message that is never read", c68_a),
    "69": ("to itself", c69_a),
}
