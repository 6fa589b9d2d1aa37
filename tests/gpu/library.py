# SPDX-License-Identifier: Apache-2.0
"""The library's GPU functions for the tests that run with torch: thin ctypes over the C face, and tensors of two kinds,
torch's where torch is, else plain driver memory, so that the same cases can be tried on the fake driver. Nothing here
is a Python face for users."""

import ctypes as c
import gc
import os

ACCESS_READ, ACCESS_WRITE = 0, 1
REPLACE, WRITING, MANY_WRITERS = 2, 4, 8
CONNECT_NO_START, CONNECT_NO_GROUP = 2, 16
UNNAME, IMPORT_SHARE = 2, 1
NOT_FOUND, DEADLINE, NOT_SUPPORTED, PRODUCER_DEAD = 6, 20, 47, 58
SECOND = 10**9
INTEGER, FLOAT = 0, 2  # DLPack's codes of types


class Failure(Exception):
    def __init__(self, call, status, sentence):
        super().__init__(f"{call}: {status}: {sentence}")
        self.status = status


class Error(c.Structure):
    _fields_ = [("status", c.c_int32), ("system_errno", c.c_int32), ("slot", c.c_uint32), ("scope", c.c_uint32),
                ("numbers", c.c_uint64 * 4), ("sentence", c.c_char * 512)]  # fmt: skip


class ConnectOptions(c.Structure):
    _fields_ = [("size", c.c_size_t), ("socket", c.c_char_p), ("group", c.c_char_p), ("program", c.c_char_p),
                ("flags", c.c_uint32), ("reserved", c.c_uint32), ("timeout_ns", c.c_int64)]  # fmt: skip


class Group(c.Structure):
    _fields_ = [("id", c.c_uint64), ("token", c.c_uint8 * 16)]


class RegionId(c.Structure):
    _fields_ = [("epoch", c.c_uint64), ("id", c.c_uint64), ("generation", c.c_uint32), ("reserved", c.c_uint32)]


class Tensor(c.Structure):
    _fields_ = [("name", c.c_char_p), ("shape", c.POINTER(c.c_int64)), ("strides", c.POINTER(c.c_int64)),
                ("offset", c.c_uint64), ("dimensions", c.c_uint32), ("type_code", c.c_uint8), ("type_bits", c.c_uint8),
                ("type_lanes", c.c_uint16)]  # fmt: skip


class PublishOptions(c.Structure):
    _fields_ = [("size", c.c_size_t), ("name", c.c_char_p), ("group", c.c_uint64), ("keep_ns", c.c_int64),
                ("flags", c.c_uint32), ("sync", c.c_uint32), ("stream", c.c_void_p), ("tensors", c.POINTER(Tensor)),
                ("tensor_count", c.c_size_t), ("timeout_ns", c.c_int64)]  # fmt: skip


class SetTensor(c.Structure):
    _fields_ = [("region", c.c_uint64), ("tensor", Tensor)]


class SetOptions(c.Structure):
    _fields_ = [("size", c.c_size_t), ("tensors", c.POINTER(SetTensor)), ("tensor_count", c.c_size_t),
                ("group", c.c_uint64), ("keep_ns", c.c_int64), ("flags", c.c_uint32), ("sync", c.c_uint32),
                ("stream", c.c_void_p), ("timeout_ns", c.c_int64)]  # fmt: skip


class AllocateOptions(c.Structure):
    _fields_ = [("size", c.c_size_t), ("uuid", c.c_void_p), ("device", c.c_int32), ("flags", c.c_uint32),
                ("chunk_bytes", c.c_uint64), ("retry_ns", c.c_int64), ("timeout_ns", c.c_int64)]  # fmt: skip


class CreateOptions(c.Structure):
    _fields_ = [("size", c.c_size_t), ("name", c.c_char_p), ("group", c.c_uint64), ("keep_ns", c.c_int64),
                ("flags", c.c_uint32), ("rights", c.c_uint32), ("timeout_ns", c.c_int64)]  # fmt: skip


class TimelineOptions(c.Structure):
    _fields_ = [("size", c.c_size_t), ("name", c.c_char_p), ("group", c.c_uint64), ("keep_ns", c.c_int64),
                ("flags", c.c_uint32), ("words", c.c_uint32), ("timeout_ns", c.c_int64)]  # fmt: skip


class TimelineState(c.Structure):
    _fields_ = [("size", c.c_size_t), ("counter", c.c_uint64), ("announced", c.c_uint64), ("status", c.c_uint32),
                ("words", c.c_uint32)]  # fmt: skip


class ImportOptions(c.Structure):
    _fields_ = [("size", c.c_size_t), ("access", c.c_uint32), ("flags", c.c_uint32), ("devices", c.c_void_p),
                ("device_count", c.c_size_t), ("at", c.c_uint64), ("wait_ns", c.c_int64),
                ("timeout_ns", c.c_int64)]  # fmt: skip


FREE = c.CFUNCTYPE(None, c.c_void_p, c.c_uint64)


class LendOptions(c.Structure):
    _fields_ = [("size", c.c_size_t), ("name", c.c_char_p), ("group", c.c_uint64), ("flags", c.c_uint32),
                ("sync", c.c_uint32), ("stream", c.c_void_p), ("tensors", c.POINTER(Tensor)),
                ("tensor_count", c.c_size_t), ("free", FREE), ("context", c.c_void_p),
                ("timeout_ns", c.c_int64)]  # fmt: skip


class DlTensor(c.Structure):
    _fields_ = [("data", c.c_void_p), ("device_type", c.c_int32), ("device_id", c.c_int32), ("dimensions", c.c_int32),
                ("code", c.c_uint8), ("bits", c.c_uint8), ("lanes", c.c_uint16), ("shape", c.POINTER(c.c_int64)),
                ("strides", c.POINTER(c.c_int64)), ("offset", c.c_uint64)]  # fmt: skip


class DlManaged(c.Structure):
    _fields_ = [("major", c.c_uint32), ("minor", c.c_uint32), ("context", c.c_void_p),
                ("deleter", c.CFUNCTYPE(None, c.c_void_p)), ("flags", c.c_uint64), ("tensor", DlTensor)]  # fmt: skip


_library = None


def library():
    global _library
    if _library is None:
        _library = c.CDLL(os.environ["REGIONS_LIBRARY"])
        _library.shmb_torch_alloc.restype = c.c_void_p
        _library.shmb_gpu_region_pointer.restype = c.c_uint64
        _library.shmb_gpu_pin_pointer.restype = c.c_uint64
        _library.shmb_region_data.restype = c.c_void_p
        _library.shmb_gpu_region_get_id.restype = RegionId
        _library.shmb_gpu_lease_get_id.restype = RegionId
    return _library


def call(name, *arguments):
    error = Error()
    status = getattr(library(), name)(*arguments, c.byref(error))
    if status != 0:
        raise Failure(name, status, error.sentence.decode())


_driver = None


def drive(name, *arguments):
    """A call of the driver's own, in the context that is current."""
    global _driver
    if _driver is None:
        _driver = c.CDLL("libcuda.so.1")
    code = getattr(_driver, name)(*arguments)
    if code != 0:
        raise Failure(name, code, "the driver's own code")


def on_device(ordinal):
    """Its primary context is current from now on."""
    context = c.c_void_p()
    drive("cuDevicePrimaryCtxRetain", c.byref(context), c.c_int(ordinal))
    drive("cuCtxSetCurrent", context)


def hold_up(stream):
    """The stream waits for what never comes, as long as the process lives, or until `let_go` gets the answer."""
    never = c.c_uint64()
    drive("cuMemAlloc_v2", c.byref(never), c.c_size_t(8))
    drive("cuMemcpyHtoD_v2", never, bytes(8), c.c_size_t(8))
    drive("cuStreamWaitValue64_v2", c.c_void_p(stream), never, c.c_uint64(1), c.c_uint(0))
    return never


def let_go(word):
    drive("cuMemcpyHtoD_v2", word, (1).to_bytes(8, "little"), c.c_size_t(8))


def driver_version():
    version = c.c_int32()
    call("shmb_gpu_driver_version", c.byref(version))
    return version.value


def sized(kind, **fields):
    return kind(c.sizeof(kind), **fields)


def tensors_of(listed):
    """[(name, offset, count or shape, bits)], integers unless a code follows, as the C face wants it; the second value
    keeps what it points to."""
    array, kept = (Tensor * len(listed))(), []
    for place, (name, offset, extent, bits, *code) in zip(array, listed):
        extent = extent if isinstance(extent, tuple) else (extent,)
        shape = (c.c_int64 * len(extent))(*extent)
        kept.append(shape)
        place.name, place.shape, place.offset, place.dimensions = name.encode(), shape, offset, len(extent)
        place.type_code, place.type_bits, place.type_lanes = code[0] if code else INTEGER, bits, 1
    return array, kept


class Session:
    def __init__(self, token=None):
        options = sized(ConnectOptions, socket=os.environ["REGIONS_SOCKET"].encode(),
                        flags=CONNECT_NO_START | CONNECT_NO_GROUP)  # fmt: skip
        self.raw = c.c_void_p()
        call("shmb_connect", c.byref(options), c.byref(self.raw))
        if token is not None:
            joined = c.c_uint64()
            bytes_ = (c.c_uint8 * 16).from_buffer_copy(bytes.fromhex(token))
            call("shmb_group_join_token", self.raw, bytes_, 0, c.c_int64(0), c.byref(joined))

    def make_group(self):
        group = Group()
        call("shmb_group_create", self.raw, None, c.byref(group))
        return bytes(group.token).hex()

    def allocate(self, length, device=-1):
        # Memory that was released before may still be on its way back.
        options, region = sized(AllocateOptions, device=device, retry_ns=60 * SECOND), c.c_void_p()
        call("shmb_gpu_allocate", self.raw, c.c_uint64(length), c.byref(options), c.byref(region))
        return Region(region)

    def adopt(self, pointer, length):
        region = c.c_void_p()
        call("shmb_gpu_adopt", self.raw, c.c_uint64(pointer), c.c_uint64(length), c.byref(region))
        return Region(region)

    def of_torch(self, pointer):
        region, offset = c.c_void_p(), c.c_uint64()
        call("shmb_torch_region", self.raw, c.c_void_p(pointer), c.byref(region), c.byref(offset))
        return Region(region), offset.value

    def take(self, what, access=ACCESS_READ):
        """By name, by identity ([id, generation]) or by ticket (32 hexadecimal digits behind "ticket:"), which gives what
        it carries: the right to hand on is asked for with the others."""
        by_ticket = isinstance(what, str) and what.startswith("ticket:")
        flags = 0 if by_ticket else IMPORT_SHARE
        options, region = sized(ImportOptions, access=access, flags=flags, wait_ns=60 * SECOND), c.c_void_p()
        if isinstance(what, list):
            id_ = RegionId(0, what[0], what[1], 0)
            call("shmb_gpu_import_id", self.raw, c.byref(id_), c.byref(options), c.byref(region))
        elif by_ticket:
            ticket = (c.c_uint8 * 16).from_buffer_copy(bytes.fromhex(what[7:]))
            call("shmb_gpu_import_ticket", self.raw, ticket, c.byref(options), c.byref(region))
        else:
            call("shmb_gpu_import", self.raw, what.encode(), c.byref(options), c.byref(region))
        return Region(region)

    def publish_set(self, name, regions, tensors, flags=0):
        """Tensors are [(number of the region, name, offset, count, bits)]."""
        listed, kept = tensors_of([one[1:] for one in tensors])
        array = (SetTensor * len(tensors))(*[SetTensor(one[0], tensor) for one, tensor in zip(tensors, listed)])
        handles = (c.c_void_p * len(regions))(*[region.raw for region in regions])
        options = sized(SetOptions, tensors=array, tensor_count=len(tensors), flags=flags)
        made = c.c_void_p()
        call("shmb_gpu_publish_set", self.raw, name.encode(), handles, c.c_size_t(len(regions)), c.byref(options),
             c.byref(made))  # fmt: skip
        return Region(made)

    def lend(self, pointer, length, free, tensors=()):
        array, kept = tensors_of(tensors)
        lease = c.c_void_p()
        callback = FREE(lambda context, freed: free())
        options = sized(LendOptions, tensors=array, tensor_count=len(tensors), free=callback)
        call("shmb_gpu_lend", self.raw, c.c_uint64(pointer), c.c_uint64(length), c.byref(options), c.byref(lease))
        return Lease(lease, callback)

    def create(self, name, length):
        options, region = sized(CreateOptions, name=name.encode()), c.c_void_p()
        call("shmb_create", self.raw, c.c_uint64(length), c.byref(options), c.byref(region))
        return HostRegion(region)

    def attach(self, name):
        region = c.c_void_p()
        call("shmb_attach", self.raw, name.encode(), None, c.byref(region))
        return HostRegion(region)

    def make_timeline(self, name):
        options, timeline = sized(TimelineOptions, name=name.encode()), c.c_void_p()
        call("shmb_gpu_timeline_create", self.raw, c.byref(options), c.byref(timeline))
        return Timeline(timeline)

    def open_timeline(self, name):
        timeline = c.c_void_p()
        call("shmb_gpu_timeline_open", self.raw, name.encode(), None, c.byref(timeline))
        return Timeline(timeline)

    def dispatch(self):
        done, waiting = c.c_size_t(), c.c_size_t()
        call("shmb_dispatch", self.raw, c.byref(done), c.byref(waiting))
        return done.value, waiting.value


class Lease:
    def __init__(self, raw, callback):
        self.raw, self.callback = raw, callback

    def id(self):
        id_ = library().shmb_gpu_lease_get_id(self.raw)
        return [id_.id, id_.generation]

    def retire(self):
        call("shmb_gpu_retire", self.raw)


class Region:
    def __init__(self, raw):
        self.raw = raw

    def publish(self, name=None, flags=0, tensors=()):
        array, kept = tensors_of(tensors)
        options = sized(PublishOptions, name=name.encode() if name else None, flags=flags, tensors=array,
                        tensor_count=len(tensors))  # fmt: skip
        call("shmb_gpu_publish", self.raw, c.byref(options))
        return self.id()

    def id(self):
        id_ = library().shmb_gpu_region_get_id(self.raw)
        return [id_.id, id_.generation]

    def pointer(self):
        return library().shmb_gpu_region_pointer(self.raw)

    def ticket(self, lifetime_ns=0):
        token = (c.c_uint8 * 16)()
        call("shmb_gpu_ticket_create", self.raw, 0, 1, c.c_int64(lifetime_ns), c.c_int64(0), token, None)
        return "ticket:" + bytes(token).hex()

    def dlpack(self, name):
        """A DLManagedTensorVersioned*, which the caller gives on or ends."""
        tensor, managed = Tensor(), c.POINTER(DlManaged)()
        call("shmb_gpu_region_find_tensor", self.raw, name.encode(), c.byref(tensor))
        call("shmb_gpu_dlpack", self.raw, c.byref(tensor), c.byref(managed))
        return managed

    def sleep(self, timeout_ns=0):
        call("shmb_gpu_sleep", self.raw, c.c_int64(timeout_ns))

    def wake(self):
        call("shmb_gpu_wake", self.raw, c.c_int64(0))

    def release(self, unname=False):
        raw, self.raw = self.raw, None
        if raw:
            call("shmb_gpu_release", raw, UNNAME if unname else 0, c.c_int64(0))


class HostRegion:
    """Memory of the host, as the broker gives it, and registered with the driver."""

    def __init__(self, raw):
        self.raw, self.pin = raw, c.c_void_p()

    def data(self):
        return library().shmb_region_data(self.raw)

    def register(self):
        call("shmb_gpu_pin_region", self.raw, c.c_int64(60 * SECOND), c.byref(self.pin))
        return library().shmb_gpu_pin_pointer(self.pin)

    def end(self):
        call("shmb_gpu_unpin", self.pin)
        call("shmb_release", self.raw, c.c_uint32(0))


class Timeline:
    def __init__(self, raw):
        self.raw = raw

    def signal(self, value, stream):
        call("shmb_gpu_timeline_signal", self.raw, c.c_uint32(0), c.c_uint64(value), c.c_void_p(stream))

    def wait(self, value, stream):
        call("shmb_gpu_timeline_wait", self.raw, c.c_uint32(0), c.c_uint64(value), c.c_void_p(stream),
             c.c_int64(60 * SECOND))  # fmt: skip

    def wait_host(self, value):
        call("shmb_gpu_timeline_wait_host", self.raw, c.c_uint32(0), c.c_uint64(value), c.c_int64(60 * SECOND))

    def status(self):
        state = sized(TimelineState)
        call("shmb_gpu_timeline_look", self.raw, c.c_uint32(0), c.byref(state))
        return state.status

    def close(self):
        call("shmb_gpu_timeline_close", self.raw)


class PlainTensors:
    """Driver memory and copies: what the cases need of a tensor, without torch."""

    name = "plain driver memory"

    def __init__(self):
        drive("cuInit", c.c_uint(0))
        on_device(0)
        count = c.c_int()
        drive("cuDeviceGetCount", c.byref(count))
        self.devices = count.value
        self.held = 0

    def on(self, device):
        on_device(device)

    def make(self, values, in_region=False, device=0):
        size = 8 * len(values)
        if in_region:
            pointer = library().shmb_torch_alloc(c.c_ssize_t(size), device, None)
        else:
            base = c.c_uint64()
            drive("cuMemAlloc_v2", c.byref(base), c.c_size_t(size))
            pointer = base.value
            self.held += size
        tensor = PlainTensor(pointer, len(values))
        tensor.set(values)
        return tensor

    def drop(self, tensor):
        drive("cuMemFree_v2", c.c_uint64(tensor.pointer))
        self.held -= 8 * tensor.count

    def forget(self, tensor, device):
        """One that is born in a region: its allocator gives it up."""
        library().shmb_torch_free(c.c_void_p(tensor.pointer), c.c_ssize_t(8 * tensor.count), device, None)

    def allocated(self):
        return self.held

    def is_shared(self, tensor):
        return None  # memory of the driver has nobody to ask

    def view(self, region, name):
        managed = region.dlpack(name)
        tensor = managed.contents.tensor
        count = 1
        for i in range(tensor.dimensions):
            count *= tensor.shape[i]
        kind = c.c_float if tensor.code == FLOAT else c.c_int64
        return PlainTensor(tensor.data + tensor.offset, count, managed, kind, tensor.device_id)

    def leaf(self, tensor, offset, floating, parameter, gradient):
        """A 5 x 5 part of a tensor, as a leaf of a graph of gradients or as a parameter of a model: here memory."""
        return PlainTensor(tensor.pointer + offset, 25, kind=c.c_float if floating else c.c_int64)

    def leaf_of(self, view, parameter, gradient):
        return view

    def stream(self):
        stream = c.c_void_p()
        drive("cuStreamCreate", c.byref(stream), c.c_uint(1))
        return stream.value

    def set_on(self, stream, tensor, value):
        """Every byte, behind what is in the stream."""
        drive("cuMemsetD8Async", c.c_uint64(tensor.pointer), c.c_ubyte(value), c.c_size_t(8 * tensor.count),
                  c.c_void_p(stream))  # fmt: skip

    def finish(self, stream):
        drive("cuStreamSynchronize", c.c_void_p(stream))

    def sync(self):
        drive("cuCtxSynchronize")


class PlainTensor:
    def __init__(self, pointer, count, managed=None, kind=c.c_int64, device=0):
        self.pointer, self.count, self.managed, self.kind, self.device = pointer, count, managed, kind, device
        self.gradient_memory = None

    def values(self):
        host = (self.kind * self.count)()
        drive("cuMemcpyDtoH_v2", host, c.c_uint64(self.pointer), c.c_size_t(c.sizeof(host)))
        return list(host)

    def set(self, values):
        host = (self.kind * self.count)(*values)
        drive("cuMemcpyHtoD_v2", c.c_uint64(self.pointer), host, c.c_size_t(c.sizeof(host)))

    def is_a(self, parameter, gradient):
        return True

    def hooks(self):
        return 0

    def give_gradient(self, value):
        """Memory of its own beside the leaf's."""
        at = c.c_uint64()
        drive("cuMemAlloc_v2", c.byref(at), c.c_size_t(4 * self.count))
        self.gradient_memory = PlainTensor(at.value, self.count, kind=c.c_float)
        self.gradient_memory.set([value] * self.count)

    def gradient(self):
        return self.gradient_memory.values() if self.gradient_memory else None

    def end(self):
        if self.managed is not None:
            self.managed.contents.deleter(c.cast(self.managed, c.c_void_p))
            self.managed = None


class TorchTensors:
    name = "torch"

    def __init__(self):
        import torch

        self.torch = torch
        if not torch.cuda.is_available():
            raise ImportError("torch sees no GPU")
        torch.zeros(1, device="cuda")
        self.devices = torch.cuda.device_count()
        self.allocator, self.pools = None, []
        self.streams = []

    def on(self, device):
        self.torch.cuda.set_device(device)
        self.torch.zeros(1, device="cuda")

    def make(self, values, in_region=False, device=0):
        if not in_region:
            return TorchTensor(self.torch.tensor(values, dtype=self.torch.int64, device="cuda"))
        if self.allocator is None:
            path = os.environ["REGIONS_LIBRARY"]
            self.allocator = self.torch.cuda.memory.CUDAPluggableAllocator(path, "shmb_torch_alloc", "shmb_torch_free")
        # A pool for each: torch puts small tensors of one pool into one block, which is one region.
        with self.torch.cuda.device(device):
            self.pools.append(self.torch.cuda.MemPool(self.allocator.allocator()))
            with self.torch.cuda.use_mem_pool(self.pools[-1]):
                tensor = self.torch.empty(len(values), dtype=self.torch.int64, device="cuda")
        made = TorchTensor(tensor)
        made.set(values)
        self.sync()
        return made

    def drop(self, tensor):
        tensor.tensor = None

    def forget(self, tensor, device):
        tensor.tensor = None
        self.pools.clear()  # a pool gives its blocks back when it ends
        gc.collect()
        self.torch.cuda.empty_cache()

    def allocated(self):
        return self.torch.cuda.memory_allocated()

    def is_shared(self, tensor):
        return tensor.tensor.is_shared()

    def leaf(self, tensor, offset, floating, parameter, gradient):
        part = tensor.tensor[offset // 8 : offset // 8 + 25]
        if floating:
            part = part.view(self.torch.float32)[:25]
        return self.leaf_of(TorchTensor(part.view(5, 5)), parameter, gradient)

    def leaf_of(self, view, parameter, gradient):
        kept = view.tensor.detach()
        made = self.torch.nn.Parameter(kept, requires_grad=gradient) if parameter else kept.requires_grad_(gradient)
        return TorchTensor(made)

    def view(self, region, name):
        managed = region.dlpack(name)
        make = c.pythonapi.PyCapsule_New
        make.restype, make.argtypes = c.py_object, [c.c_void_p, c.c_char_p, c.c_void_p]
        capsule = make(c.cast(managed, c.c_void_p), b"dltensor_versioned", None)
        return TorchTensor(self.torch.from_dlpack(capsule))

    def stream(self):
        self.streams.append(self.torch.cuda.Stream())
        return self.streams[-1].cuda_stream

    def set_on(self, stream, tensor, value):
        with self.torch.cuda.stream(self.torch.cuda.ExternalStream(stream)):
            tensor.tensor.view(self.torch.uint8).fill_(value)

    def finish(self, stream):
        self.torch.cuda.ExternalStream(stream).synchronize()

    def sync(self):
        self.torch.cuda.synchronize()


class TorchTensor:
    def __init__(self, tensor):
        self.tensor = tensor
        self.pointer, self.count, self.device = tensor.data_ptr(), tensor.numel(), tensor.get_device()

    def values(self):
        return self.tensor.detach().cpu().flatten().tolist()

    def set(self, values):
        data = self.tensor.detach()
        data.copy_(data.new_tensor(values).view(data.shape))

    def is_a(self, parameter, gradient):
        """A leaf of the right class, whoever made it."""
        name = type(self.tensor).__name__
        right = name == ("Parameter" if parameter else "Tensor")
        return right and self.tensor.is_leaf and self.tensor.requires_grad == gradient

    def hooks(self):
        return len(self.tensor._backward_hooks or ())

    def give_gradient(self, value):
        self.tensor.grad = self.tensor.detach().new_full(self.tensor.shape, value)
        self.tensor.register_hook(lambda gradient: gradient)  # which nobody could send

    def gradient(self):
        return None if self.tensor.grad is None else self.tensor.grad.cpu().flatten().tolist()

    def end(self):
        self.tensor = None
