/* SPDX-License-Identifier: Apache-2.0 */
/* The C face of GPU memory: regions on a CUDA device that the broker names, counts and frees like those of the host.
 * They outlive their maker and go when the last user is gone. The rules of shmbroker.h hold: statuses and sentences,
 * options that begin with `size`, nanoseconds, no thread, no signal handler, nothing printed.
 *
 *  - No cuda.h is needed here, and no libcuda to link or to start: the driver is loaded at the first call. Where it
 *    cannot be, every function that needs it answers NO_DRIVER, STUB_DRIVER, DRIVER_TOO_OLD or NO_DEVICE and the rest
 *    of the library works. A device pointer is a number (CUdeviceptr), a stream is a void* (CUstream, cudaStream_t).
 *  - A failure of the driver names the function, its CUresult and the region. After a sticky error (an illegal address,
 *    an assertion in a kernel) the calls that need the driver answer CONTEXT_POISONED. Handles can still be released,
 *    and the broker is told.
 *  - CUDA does not survive fork: a forked child gets FORKED_CHILD from everything here and may only release its
 *    handles. Start processes that use the GPU with spawn.
 *  - Devices are named by UUID, which is that of the MIG instance under MIG; ordinals differ between processes.
 *  - Read-only is a guard against accidents (the driver is asked to refuse the store), and who holds a region may map
 *    it again. The right to import it is what bounds others.
 *  - Work on the device that uses a region must have been enqueued before its user releases it. The library waits for
 *    the device before it takes a mapping away.
 *  - Waiting for the device has a deadline, after which nothing has changed and the call can be made again. The driver
 *    has none: it is asked again and again what became of the work, which it can be from CUDA 12.5 on. On an older one
 *    (SHMB_GPU_DEVICE_BOUNDED_WAITS is not set) those calls wait as long as it takes.
 *  - While a stream of the process is captured into a graph, only handles may end: calls that ask the device answer
 *    BUSY and may spoil the capture.
 */
#ifndef SHMBROKER_CUDA_H
#define SHMBROKER_CUDA_H

#include "shmbroker.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shmb_gpu_region shmb_gpu_region;     /* one counted reference to a GPU region, with its mapping */
typedef struct shmb_gpu_lease shmb_gpu_lease;       /* memory of cudaMalloc, lent to others under the broker's count */
typedef struct shmb_gpu_timeline shmb_gpu_timeline; /* counters on which streams of several processes meet */
typedef struct shmb_gpu_pin shmb_gpu_pin;           /* a region of the host, registered with the driver */
struct DLManagedTensor;                             /* dlpack.h, before version 1 */
struct DLManagedTensorVersioned;                    /* dlpack.h, version 1 */

typedef uint64_t shmb_gpu_pointer; /* CUdeviceptr */
typedef void* shmb_gpu_stream;     /* CUstream; NULL: the default stream */

#define SHMB_GPU_ANY_DEVICE (-1)

/* The defaults of durations, in nanoseconds. */
#define SHMB_GPU_DEVICE_TIMEOUT INT64_C(60000000000) /* for a device, which does the caller's own work */
#define SHMB_GPU_RETRY SHMB_NO_WAIT                  /* after OUT_OF_MEMORY */

/* ------------------------------------------------------------------------------------------------ devices */

enum shmb_gpu_device_flag {
  SHMB_GPU_DEVICE_VMM = 1 << 0,           /* regions can be made and shared */
  SHMB_GPU_DEVICE_RDMA = 1 << 1,          /* SHMB_GPU_ALLOCATE_RDMA is possible */
  SHMB_GPU_DEVICE_MEMORY_OPS_64 = 1 << 2, /* timelines */
  SHMB_GPU_DEVICE_READ_ONLY_PIN = 1 << 3, /* read-only regions of the host can be pinned */
  SHMB_GPU_DEVICE_DMA_BUF = 1 << 4,       /* shmb_gpu_dma_buf */
  SHMB_GPU_DEVICE_MIG = 1 << 5,           /* a MIG instance */
  SHMB_GPU_DEVICE_BOUNDED_WAITS = 1 << 6  /* what waits for the device keeps its deadline: CUDA 12.5 */
};
/* Lies in arrays: never grows. */
typedef struct shmb_gpu_device {
  uint8_t uuid[16];
  uint64_t bytes;       /* of memory */
  uint64_t granularity; /* sizes of regions are rounded up to it */
  int32_t ordinal;      /* in this process */
  uint32_t flags;       /* enum shmb_gpu_device_flag */
  char name[96];
  char pci[24];
} shmb_gpu_device;
/** The devices that this process may use. `count` gets how many there are, also where `capacity` is smaller. Errors:
 * NO_DRIVER, STUB_DRIVER, DRIVER_TOO_OLD, NO_DEVICE, FORKED_CHILD. */
SHMB_API int shmb_gpu_devices(shmb_gpu_device* devices, size_t capacity, size_t* count,
                              shmb_error* error) SHMB_NOEXCEPT;
/** The driver's version as cuDriverGetVersion tells it (13000 for 13.0). Same errors. Errors: those of
 * shmb_gpu_devices. */
SHMB_API int shmb_gpu_driver_version(int32_t* version, shmb_error* error) SHMB_NOEXCEPT;

/* ------------------------------------------------------------------------------------------------ regions */

enum shmb_gpu_allocate_flag {
  SHMB_GPU_ALLOCATE_RDMA = 1 << 0,         /* for network cards (dma-buf); NOT_SUPPORTED where the device cannot */
  SHMB_GPU_ALLOCATE_UNINITIALISED = 1 << 1 /* not zeroed: may hold what others wrote before */
};
typedef struct shmb_gpu_allocate_options {
  size_t size;
  const uint8_t* uuid;  /* 16 bytes: the device; NULL: by ordinal */
  int32_t device;       /* ordinal, with uuid NULL; SHMB_GPU_ANY_DEVICE: that of the current context, else the first */
  uint32_t flags;       /* enum shmb_gpu_allocate_flag */
  uint64_t chunk_bytes; /* 0: one allocation of the driver; else several, none larger (2 GiB is needed on WSL2) */
  int64_t retry_ns;     /* OUT_OF_MEMORY is tried again so long, in case others free; default: SHMB_GPU_RETRY */
  int64_t timeout_ns;   /* of zeroing, in a stream of its own; default: SHMB_GPU_DEVICE_TIMEOUT */
} shmb_gpu_allocate_options;

/** Memory on a device, mapped for reading and writing there, zeroed. Nobody else knows of it until shmb_gpu_publish; it
 * goes with the handle, or the process, until then. NULL options: the device of the current context, else the first.
 * Where memory is short and released regions wait for the device to be through with them, it waits up to 5 s for those.
 * Errors: DEADLINE, those of shmb_gpu_devices, DEVICE_NOT_FOUND (that UUID is not among the visible ones),
 * NOT_SUPPORTED, OUT_OF_MEMORY, INVALID, CONTEXT_POISONED, DEVICE_LOST, MPS. */
SHMB_API int shmb_gpu_allocate(shmb_session* session, uint64_t length, const shmb_gpu_allocate_options* options,
                               shmb_gpu_region** region, shmb_error* error) SHMB_NOEXCEPT;

/** A region over memory that another allocator made with cuMemCreate (expandable segments of PyTorch, JAX): `pointer`
 * to `pointer + length`, any part. The allocations around it are shared whole, and shmb_gpu_region_info tells the
 * offset. The other allocator keeps its mapping and frees it when it likes; the memory stays while the region does.
 * Errors: NOT_EXPORTABLE (made without a handle for descriptors, or by cudaMalloc: use shmb_gpu_lend), INVALID. */
SHMB_API int shmb_gpu_adopt(shmb_session* session, shmb_gpu_pointer pointer, uint64_t length, shmb_gpu_region** region,
                            shmb_error* error) SHMB_NOEXCEPT;

/* One tensor in a region: what DLPack says of it. Lies in arrays: never grows. */
typedef struct shmb_gpu_tensor {
  const char* name;       /* 1 to 255 bytes of UTF-8 */
  const int64_t* shape;   /* `dimensions` numbers */
  const int64_t* strides; /* in elements; NULL: rows follow each other */
  uint64_t offset;        /* of its first element, in bytes from the region's begin */
  uint32_t dimensions;    /* at most 32; 0: one element */
  uint8_t type_code;      /* DLDataTypeCode: 0 int, 1 uint, 2 float, 4 bfloat, 5 complex, 6 bool, ... */
  uint8_t type_bits;      /* of one lane */
  uint16_t type_lanes;    /* 1, unless it is a vector type */
} shmb_gpu_tensor;

enum shmb_gpu_sync {
  /* Waits for all that was enqueued on the device before, in its primary context. PyTorch, JAX and the CUDA runtime
   * know no other. Of contexts of its own a program knows when they are done. */
  SHMB_GPU_SYNC_DEVICE = 0,
  SHMB_GPU_SYNC_STREAM, /* waits for one stream, of a primary context */
  SHMB_GPU_SYNC_NONE    /* the caller knows that the contents are there, or uses a timeline */
};
enum shmb_gpu_publish_flag {
  SHMB_GPU_PUBLISH_KEEP_GIVEN = 1 << 0, /* keep_ns counts; else the group's default */
  SHMB_GPU_PUBLISH_REPLACE = 1 << 1,    /* take the name over: generation + 1 */
  /* This handle goes on writing, until shmb_gpu_written; if its process dies before that, the region is `poisoned`.
   * Without it nobody writes from now on, and every import is read-only. The region outlives its maker as it is. */
  SHMB_GPU_PUBLISH_WRITING = 1 << 2,
  SHMB_GPU_PUBLISH_MANY_WRITERS = 1 << 3, /* with WRITING: importers may write too, under the same rule */
  /* This handle's mapping becomes read-only when the writing is over. Otherwise it stays as it is. No kernel may use it
   * in that moment: the driver may take it away to change it. Where the driver refuses, the region is published all the
   * same, with SHMB_GPU_NOTE_NOT_CLOSED. */
  SHMB_GPU_PUBLISH_CLOSE_OWN = 1 << 4
};
typedef struct shmb_gpu_publish_options {
  size_t size;
  const char* name;               /* NULL: unnamed */
  uint64_t group;                 /* group id; 0: the session's own */
  int64_t keep_ns;                /* with KEEP_GIVEN: 0, ns after the group's end, or SHMB_KEEP_UNTIL_RELEASED */
  uint32_t flags;                 /* enum shmb_gpu_publish_flag */
  uint32_t sync;                  /* enum shmb_gpu_sync */
  shmb_gpu_stream stream;         /* SYNC_STREAM */
  const shmb_gpu_tensor* tensors; /* what is in it, for importers; copied */
  size_t tensor_count;            /* at most 65,536 */
  int64_t timeout_ns; /* of the whole call; default: SHMB_GPU_DEVICE_TIMEOUT, then SHMB_CALL_TIMEOUT for the broker */
} shmb_gpu_publish_options;

/** Gives the region to the broker, which holds its memory from now on. It lives while a handle of any process, a ticket
 * or its name does. Then others may import it. Errors: EXISTS, LIMIT (gpu_bytes, regions, descriptors), INVALID (a
 * tensor that does not fit, with its name), NOT_EXPORTABLE, DEVICE_NOT_PINNED (the broker cannot keep the device
 * initialised: the sentence says what to change), BAD_FD, UNSUPPORTED (a broker without GPU regions), LOCAL_ONLY,
 * DEADLINE (the device is not through: the region is as it was; or the broker has not answered: it may have it all the
 * same), BUSY (another thread is at it; a stream is being captured into a graph).
 */
SHMB_API int shmb_gpu_publish(shmb_gpu_region* region, const shmb_gpu_publish_options* options,
                              shmb_error* error) SHMB_NOEXCEPT;

/** The writing is over. Waits as `sync` says and tells the broker, so that a death does not poison it any more. The
 * mapping stays as it is, unless CLOSE_OWN was given to publish. `timeout_ns` is as for publish. Errors: DENIED (not a
 * writer), INVALID (not published, asleep), DEADLINE and BUSY as for publish: this handle is a writer still, and can
 * say it again. */
SHMB_API int shmb_gpu_written(shmb_gpu_region* region, uint32_t sync, shmb_gpu_stream stream, int64_t timeout_ns,
                              shmb_error* error) SHMB_NOEXCEPT;

typedef struct shmb_gpu_publish_item {
  shmb_gpu_region* region;
  const shmb_gpu_publish_options* options; /* NULL: defaults; timeout_ns is ignored here */
} shmb_gpu_publish_item;
/** Publishes `count` regions of one session in as few requests as descriptors allow (126 each), after one wait for each
 * device. The elements do not depend on each other; statuses (may be NULL) tells of each. Returns SHMB_OK if all
 * succeeded, else the first failure, which `error` describes. */
SHMB_API int shmb_gpu_publish_many(const shmb_gpu_publish_item* items, size_t count, int64_t timeout_ns, int* statuses,
                                   shmb_error* error) SHMB_NOEXCEPT;

/* One tensor of a set. Lies in arrays: never grows. */
typedef struct shmb_gpu_set_tensor {
  uint64_t region;        /* number of its region in the set, from 0 */
  shmb_gpu_tensor tensor; /* its offset counts from that region's begin */
} shmb_gpu_set_tensor;
typedef struct shmb_gpu_set_options {
  size_t size;
  const shmb_gpu_set_tensor* tensors; /* copied */
  size_t tensor_count;                /* at most 65,536 */
  uint64_t group;                     /* group id; 0: the session's own */
  int64_t keep_ns;                    /* with KEEP_GIVEN */
  uint32_t flags;                     /* SHMB_GPU_PUBLISH_KEEP_GIVEN, SHMB_GPU_PUBLISH_REPLACE */
  uint32_t sync;                      /* enum shmb_gpu_sync */
  shmb_gpu_stream stream;             /* SYNC_STREAM */
  int64_t timeout_ns;                 /* as for publish */
} shmb_gpu_set_options;
/** Publishes many regions of one device at once, such as the blocks of a memory pool that a model was loaded through.
 * The set is one region of the broker: a reader imports it by its name and has all of one generation, with the tensors
 * of all regions, mapped one behind the other. It has the generation before, or NOT_FOUND, until all is there. `name`
 * may be NULL. The regions stay the caller's: they need not be published themselves, and the memory stays while the set
 * does. The set is charged for all of them. `set` is a handle without a mapping. Errors: those of shmb_gpu_publish, and
 * INVALID (a region of another session or device; asleep; still written; twice in the list; a tensor that reaches
 * beyond its region, with its name; a region's number that the set does not have), NOT_EXPORTABLE (lent memory), and
 * those of shmb_gpu_devices. */
SHMB_API int shmb_gpu_publish_set(shmb_session* session, const char* name, shmb_gpu_region* const* regions,
                                  size_t count, const shmb_gpu_set_options* options, shmb_gpu_region** set,
                                  shmb_error* error) SHMB_NOEXCEPT;

enum shmb_gpu_import_flag {
  SHMB_GPU_IMPORT_SHARE = 1 << 0 /* the lease carries SHARE: tickets can be made of it, to hand the region on */
};
typedef struct shmb_gpu_import_options {
  size_t size;
  uint32_t access;        /* enum shmb_access */
  uint32_t flags;         /* enum shmb_gpu_import_flag */
  const int32_t* devices; /* ordinals that shall reach it; NULL: the device of the current context, else its own */
  size_t device_count;
  shmb_gpu_pointer at; /* the address it shall have; 0: any. INVALID where that is not free */
  int64_t wait_ns;     /* for a name that does not exist yet; default: SHMB_NAME_WAIT. SHMB_FOREVER allowed */
  int64_t timeout_ns;  /* of each answer of the broker */
} shmb_gpu_import_options;

/** Takes a reference to a published region, or to lent memory, and maps it: by address, by identity, by ticket. Errors:
 * NOT_FOUND, DENIED, GENERATION_MISMATCH, STALE (another epoch), DEADLINE, NOT_READY (its publisher is still sending
 * descriptors), WRITE_CLOSED (READ_WRITE of a region published without MANY_WRITERS), REGION_POISONED (READ_WRITE after
 * a writer died: reading is possible), REGION_INVALID, DETACHED, PRODUCER_DEAD (lent memory whose owner is gone, or
 * wants it back), OTHER_KIND (memory of the host: use shmb_attach), DEVICE_NOT_VISIBLE (its GPU is hidden from this
 * process and none of `devices` is its peer), DIFFERENT_MIG_INSTANCE, BAD_FD (the driver does not take what was
 * published for memory; others may try), TOO_SMALL (it is shorter than its publisher said), OUT_OF_MEMORY,
 * NOT_PERMITTED, CONTEXT_POISONED, DEVICE_LOST, MPS, and those of shmb_gpu_devices. */
SHMB_API int shmb_gpu_import(shmb_session* session, const char* address, const shmb_gpu_import_options* options,
                             shmb_gpu_region** region, shmb_error* error) SHMB_NOEXCEPT;
SHMB_API int shmb_gpu_import_id(shmb_session* session, const shmb_region_id* id, const shmb_gpu_import_options* options,
                                shmb_gpu_region** region, shmb_error* error) SHMB_NOEXCEPT;
SHMB_API int shmb_gpu_import_ticket(shmb_session* session, const uint8_t ticket[16],
                                    const shmb_gpu_import_options* options, shmb_gpu_region** region,
                                    shmb_error* error) SHMB_NOEXCEPT;

/* One element of shmb_gpu_import_many: exactly one of the first three pointers is set. */
typedef struct shmb_gpu_import_item {
  const char* address;
  const shmb_region_id* id;
  const uint8_t* ticket;                  /* 16 bytes */
  const shmb_gpu_import_options* options; /* NULL: defaults; wait_ns and timeout_ns are ignored here */
} shmb_gpu_import_item;
/** As shmb_gpu_publish_many; regions[i] is NULL where it failed. Does not wait for names. Errors: those of
 * shmb_gpu_import, for each element. */
SHMB_API int shmb_gpu_import_many(shmb_session* session, const shmb_gpu_import_item* items, size_t count,
                                  int64_t timeout_ns, shmb_gpu_region** regions, int* statuses,
                                  shmb_error* error) SHMB_NOEXCEPT;

enum shmb_gpu_note {
  SHMB_GPU_NOTE_NOT_CLOSED = 1 << 0 /* CLOSE_OWN was asked: the mapping is another allocator's, or the driver refused */
};
enum shmb_gpu_kind { SHMB_GPU_VMM = 1, SHMB_GPU_ADOPTED, SHMB_GPU_LENT };
typedef struct shmb_gpu_region_info {
  size_t size;
  shmb_region_id id;        /* all 0: not published */
  shmb_gpu_pointer pointer; /* where its first byte is in this process; 0: asleep */
  uint64_t length;          /* asked for */
  uint64_t bytes;           /* rounded, charged */
  uint64_t offset;          /* adopted: where `pointer` lies in `bytes` */
  uint8_t uuid[16];         /* of the device that has the memory */
  int32_t device;           /* its ordinal here; SHMB_GPU_ANY_DEVICE: not visible */
  uint32_t kind;            /* enum shmb_gpu_kind */
  uint32_t access;          /* enum shmb_access: of this mapping */
  uint32_t state;           /* enum shmb_gpu_state, as last heard: shmb_dispatch reads what has come since */
  int32_t cu_result;        /* what made it `invalid` or `device lost`, else 0 */
  uint32_t chunks;          /* allocations of the driver */
  uint32_t asleep;          /* 1: shmb_gpu_sleep */
  uint32_t notes;           /* enum shmb_gpu_note */
  size_t tensor_count;
} shmb_gpu_region_info;
/** The library's facts, without a request. Set info->size first. Errors: the common ones. */
SHMB_API int shmb_gpu_region_get_info(const shmb_gpu_region* region, shmb_gpu_region_info* info,
                                      shmb_error* error) SHMB_NOEXCEPT;
SHMB_API shmb_gpu_pointer shmb_gpu_region_pointer(const shmb_gpu_region* region) SHMB_NOEXCEPT;
SHMB_API uint64_t shmb_gpu_region_length(const shmb_gpu_region* region) SHMB_NOEXCEPT;
SHMB_API shmb_region_id shmb_gpu_region_get_id(const shmb_gpu_region* region) SHMB_NOEXCEPT;

/** One tensor of its manifest. The pointers in `tensor` are good while the handle lives. Errors: NOT_FOUND. */
SHMB_API int shmb_gpu_region_tensor(const shmb_gpu_region* region, size_t number, shmb_gpu_tensor* tensor,
                                    shmb_error* error) SHMB_NOEXCEPT;
SHMB_API int shmb_gpu_region_find_tensor(const shmb_gpu_region* region, const char* name, shmb_gpu_tensor* tensor,
                                         shmb_error* error) SHMB_NOEXCEPT;

/** A DLPack tensor (version 1.0) over memory of the region, which stays mapped until the tensor's deleter is called,
 * also after the handle was released. `data` is the address of its first element; `byte_offset` is 0. The tensor is
 * flagged read-only where the mapping is. PyTorch ignores that flag: a store there ruins the process' context. Errors:
 * INVALID (does not lie in the region; asleep). */
SHMB_API int shmb_gpu_dlpack(const shmb_gpu_region* region, const shmb_gpu_tensor* tensor,
                             struct DLManagedTensorVersioned** managed, shmb_error* error) SHMB_NOEXCEPT;
/** The same in the form before version 1, for receivers that know no other: PyTorch before 2.9 takes no capsule named
 * dltensor_versioned. Errors: those of shmb_gpu_dlpack, DENIED (the mapping is read-only, which this form cannot
 * say). */
SHMB_API int shmb_gpu_dlpack_unversioned(const shmb_gpu_region* region, const shmb_gpu_tensor* tensor,
                                         struct DLManagedTensor** managed, shmb_error* error) SHMB_NOEXCEPT;

/** A copy of the region on the same device, writable and known to no other process; its tensors lie where they lie in
 * the region. `timeout_ns`: default SHMB_GPU_DEVICE_TIMEOUT. Errors: those of shmb_gpu_allocate, INVALID (asleep),
 * BUSY, DEADLINE. */
SHMB_API int shmb_gpu_copy(const shmb_gpu_region* region, int64_t timeout_ns, shmb_gpu_region** copy,
                           shmb_error* error) SHMB_NOEXCEPT;

/** Takes the mapping away and keeps its addresses, so that other memory of this process can use the device. On a
 * published region the memory stays at the broker. Of one that is not, only the mapping goes. A call of shmb_gpu_wake
 * maps it again at the same address. Sleeping waits for the device first, as SYNC_DEVICE does, by default for
 * SHMB_GPU_DEVICE_TIMEOUT. Errors: INVALID (asleep, not asleep, lent memory), BUSY (a DLPack tensor of it lives; as
 * for publish), DEADLINE (the device is not through: the region is awake), and for wake those of shmb_gpu_import. */
SHMB_API int shmb_gpu_sleep(shmb_gpu_region* region, int64_t timeout_ns, shmb_error* error) SHMB_NOEXCEPT;
SHMB_API int shmb_gpu_wake(shmb_gpu_region* region, int64_t timeout_ns, shmb_error* error) SHMB_NOEXCEPT;

/** Makes a token, as shmb_ticket_create does. Each process that shows it may import the region, also in other groups
 * and of other users. `rights`: SHMB_RIGHT_READ, or with WRITE; 0: read. `lifetime_ns`: default SHMB_TICKET_LIFETIME.
 * Errors: INVALID (not published, or lent memory), DENIED, LIMIT. */
SHMB_API int shmb_gpu_ticket_create(shmb_gpu_region* region, uint32_t rights, uint32_t uses, int64_t lifetime_ns,
                                    int64_t timeout_ns, uint8_t ticket[16], int64_t* expires_ns,
                                    shmb_error* error) SHMB_NOEXCEPT;

/** A dma-buf of a part, close-on-exec, owned by the caller, for network cards. Offset and length are multiples of 4096.
 * Errors: NOT_SUPPORTED (the device has none; the region was allocated without SHMB_GPU_ALLOCATE_RDMA), INVALID. */
SHMB_API int shmb_gpu_dma_buf(shmb_gpu_region* region, uint64_t offset, uint64_t length, int* fd,
                              shmb_error* error) SHMB_NOEXCEPT;

/** Waits for the device, takes the mapping away, gives the reference back and frees the handle, whatever is returned.
 * The wait is that of SYNC_DEVICE, and nothing is lost by its end. With DEADLINE (or BUSY, for a stream under capture)
 * the region keeps its mapping and its reference until the device is through. It goes at the next call of this part
 * that may ask the device: allocate, import, publish, release, lend, retire, shmb_disconnect, or shmb_dispatch, which
 * counts it. Work that never ends, such as a stream that waits for a value that nobody signals, keeps it until the
 * process ends. So does a driver that refuses to take the mapping away. Work in a context that the program made itself
 * is not asked for. `flags`: SHMB_RELEASE_UNNAME takes the name away too. NULL is allowed. Errors: DEADLINE, BUSY, and
 * with UNNAME those of shmb_release. */
SHMB_API int shmb_gpu_release(shmb_gpu_region* region, uint32_t flags, int64_t timeout_ns,
                              shmb_error* error) SHMB_NOEXCEPT;
/** The same for destructors and finalisers, which run at any time, also while a stream is captured into a graph: the
 * handle is gone, and the driver is asked nothing. The region goes later, as after DEADLINE. So does one whose last
 * reference goes with a DLPack tensor or by shmb_torch_free. */
SHMB_API void shmb_gpu_release_later(shmb_gpu_region* region) SHMB_NOEXCEPT;

/* ------------------------------------------------------------------------------------------------ lent memory */

/* Called when the broker says that nobody holds the memory any more: now it may be freed. On the thread that is in
 * shmb_dispatch, or at the end of a call that may wait for the device as cudaFree does. These are shmb_gpu_allocate,
 * lend, retire, release and shmb_torch_alloc. It is never called in a call of timelines or pins. Must not call
 * this library, nor throw. */
typedef void (*shmb_gpu_free_function)(void* context, shmb_gpu_pointer pointer);

typedef struct shmb_gpu_lend_options {
  size_t size;
  const char* name;
  uint64_t group;
  uint32_t flags; /* SHMB_GPU_PUBLISH_REPLACE, WRITING and MANY_WRITERS */
  uint32_t sync;  /* enum shmb_gpu_sync */
  shmb_gpu_stream stream;
  const shmb_gpu_tensor* tensors;
  size_t tensor_count;
  shmb_gpu_free_function free; /* NULL: nothing is called */
  void* context;
  int64_t timeout_ns; /* as for publish */
} shmb_gpu_lend_options;

/** Lends memory that was made by cudaMalloc (or cuMemAlloc) and stays the caller's: others import it until it is
 * retired. It ends with this process; importers then learn PRODUCER_DEAD. The driver shows importers the whole
 * allocation around it, and opens it in their device's primary context. Errors: NOT_EXPORTABLE (of a memory pool,
 * managed, or made by cuMemCreate: use shmb_gpu_adopt for the last), INVALID (no device memory; reaches over the end of
 * its allocation), EXISTS, LIMIT. */
SHMB_API int shmb_gpu_lend(shmb_session* session, shmb_gpu_pointer pointer, uint64_t length,
                           const shmb_gpu_lend_options* options, shmb_gpu_lease** lease,
                           shmb_error* error) SHMB_NOEXCEPT;
SHMB_API shmb_region_id shmb_gpu_lease_get_id(const shmb_gpu_lease* lease) SHMB_NOEXCEPT;
/** Nobody new gets it, its name is free, and the handle is gone, whatever is returned. `free` is called as soon as the
 * last importer has let go: perhaps in this call, else in shmb_dispatch or a later call that frees. If the session is
 * lost it is called when the library learns that, because nobody counts any more. Importers keep their mapping. The
 * driver keeps the pages for them, as seen so far, but does not promise it. NULL is allowed. Errors: the common ones;
 * the handle is gone all the same. */
SHMB_API int shmb_gpu_retire(shmb_gpu_lease* lease, shmb_error* error) SHMB_NOEXCEPT;
/** The same without waiting for the broker's answer, as a destructor wants it. `free` is called in shmb_dispatch or a
 * later call that frees, never in this one. */
SHMB_API void shmb_gpu_retire_later(shmb_gpu_lease* lease) SHMB_NOEXCEPT;

/** Reads what the broker has sent and brings the states of regions up to date. Calls the `free` of lent memory that
 * nobody holds any more, and ends released regions that devices are through with. Put shmb_event_descriptor into the
 * program's poll set and call it when that is readable, or now and then. Waits for no device. `done` (may be NULL):
 * how many were freed or ended. `waiting` (may be NULL): how many retired and released ones still wait. Errors:
 * SESSION_LOST. */
SHMB_API int shmb_dispatch(shmb_session* session, size_t* done, size_t* waiting, shmb_error* error) SHMB_NOEXCEPT;

/* ------------------------------------------------------------------------------------------------ PyTorch */

/** The pair for torch.cuda.memory.CUDAPluggableAllocator, to be used in a torch.cuda.MemPool. Memory that torch
 * allocates there lies in regions that are not published yet, made for network cards where the device has such memory.
 * `alloc` returns NULL where it fails, which torch reports as out of memory. Then shmb_torch_last_error says why.
 * `free` does what shmb_gpu_release_later does: the memory goes with a later `alloc` or shmb_dispatch, and an `alloc`
 * that finds no memory waits for it. An `alloc` for a stream under capture asks the device nothing. Errors: what the
 * last shmb_torch_alloc of this thread failed with. */
SHMB_API void* shmb_torch_alloc(ptrdiff_t bytes, int device, void* stream) SHMB_NOEXCEPT;
SHMB_API void shmb_torch_free(void* pointer, ptrdiff_t bytes, int device, void* stream) SHMB_NOEXCEPT;
SHMB_API int shmb_torch_last_error(shmb_error* error) SHMB_NOEXCEPT; /* of this thread; SHMB_OK: none */
/** A handle to the region that shmb_torch_alloc made around `pointer`, to publish it. `offset` (may be NULL) is where
 * the pointer lies in it. A program's torch may free its part at any time: the memory stays while the handle or the
 * region does. Errors: NOT_FOUND (made by another allocator: use shmb_gpu_adopt or shmb_gpu_lend). */
SHMB_API int shmb_torch_region(shmb_session* session, const void* pointer, shmb_gpu_region** region, uint64_t* offset,
                               shmb_error* error) SHMB_NOEXCEPT;

/* ------------------------------------------------------------------------------------------------ timelines */

/* Experimental, until a GPU has answered: these calls may change.
 *
 * Counters on which streams and threads of several processes meet. Its maker, the producer, lets a stream write a value
 * behind its work (signal); others make their streams (wait) or threads (wait_host) wait for it. Values only grow, and
 * are compared cyclically. When the producer dies or closes it the broker satisfies every waiter. So look at
 * shmb_gpu_timeline_look after a stream has passed a wait, before its results are believed. */
typedef struct shmb_gpu_timeline_options {
  size_t size;
  const char* name; /* NULL: unnamed */
  uint64_t group;
  int64_t keep_ns; /* with KEEP_GIVEN */
  uint32_t flags;  /* SHMB_GPU_PUBLISH_KEEP_GIVEN, SHMB_GPU_PUBLISH_REPLACE */
  uint32_t words;  /* 1 to 1,024, each in a cache line of its own; 0: one */
  int64_t timeout_ns;
} shmb_gpu_timeline_options;
/** Needs no GPU: what is signalled and waited for by the host alone works without. Errors: those of shmb_create,
 * LOCAL_ONLY, UNSUPPORTED (a broker without GPU memory). */
SHMB_API int shmb_gpu_timeline_create(shmb_session* session, const shmb_gpu_timeline_options* options,
                                      shmb_gpu_timeline** timeline, shmb_error* error) SHMB_NOEXCEPT;
/** Of the attach options rights and flags are not used. Errors: those of shmb_attach, INVALID (no timeline). */
SHMB_API int shmb_gpu_timeline_open(shmb_session* session, const char* address, const shmb_attach_options* options,
                                    shmb_gpu_timeline** timeline, shmb_error* error) SHMB_NOEXCEPT;
SHMB_API int shmb_gpu_timeline_open_id(shmb_session* session, const shmb_region_id* id,
                                       const shmb_attach_options* options, shmb_gpu_timeline** timeline,
                                       shmb_error* error) SHMB_NOEXCEPT;
SHMB_API shmb_region_id shmb_gpu_timeline_get_id(const shmb_gpu_timeline* timeline) SHMB_NOEXCEPT;

/** Enqueues the write of `value` into word `word` behind what is in the stream, and tells the others that it is coming.
 * Errors: INVALID (not greater than the last, or by 2^61 or more; a stream of a context that is no device's primary
 * one), DENIED (this handle was opened, not created), NOT_SUPPORTED (no 64-bit stream operations), BUSY (a stream under
 * capture), CONTEXT_POISONED, those of shmb_gpu_devices. */
SHMB_API int shmb_gpu_timeline_signal(shmb_gpu_timeline* timeline, uint32_t word, uint64_t value,
                                      shmb_gpu_stream stream, shmb_error* error) SHMB_NOEXCEPT;
/** Makes the stream wait until the word has reached `value`. If the producer has not enqueued that signal yet, this
 * thread first waits for it, at most timeout_ns. A stream that waits for a signal that nobody has enqueued could block
 * the device for ever. Errors: DEADLINE, PRODUCER_DEAD, DEVICE_LOST, and those of signal. */
SHMB_API int shmb_gpu_timeline_wait(shmb_gpu_timeline* timeline, uint32_t word, uint64_t value, shmb_gpu_stream stream,
                                    int64_t timeout_ns, shmb_error* error) SHMB_NOEXCEPT;
/** Waits on the host, without the driver. Errors: DEADLINE, PRODUCER_DEAD, DEVICE_LOST, INVALID. */
SHMB_API int shmb_gpu_timeline_wait_host(const shmb_gpu_timeline* timeline, uint32_t word, uint64_t value,
                                         int64_t timeout_ns, shmb_error* error) SHMB_NOEXCEPT;

typedef struct shmb_gpu_timeline_state {
  size_t size;
  uint64_t counter;   /* reached; where its producer left it, once that is gone */
  uint64_t announced; /* the highest value whose signal is enqueued */
  uint32_t status;    /* SHMB_OK, SHMB_E_PRODUCER_DEAD (died or closed it), SHMB_E_DEVICE_LOST */
  uint32_t words;
} shmb_gpu_timeline_state;
/** Set state->size first. Errors: INVALID (no such word). */
SHMB_API int shmb_gpu_timeline_look(const shmb_gpu_timeline* timeline, uint32_t word, shmb_gpu_timeline_state* state,
                                    shmb_error* error) SHMB_NOEXCEPT;
/** Waits up to 5 s for streams that still use it. One that does so even then keeps the words' pages in this process
 * until its end. Closing by the producer releases every waiter. NULL is allowed. Errors: the common ones; the handle is
 * gone all the same. */
SHMB_API int shmb_gpu_timeline_close(shmb_gpu_timeline* timeline, shmb_error* error) SHMB_NOEXCEPT;

/* ------------------------------------------------------------------------------------------------ pinned regions */

/** Registers a mapped region of the host with the driver, so that devices reach it at `pointer` and copies from and to
 * it need no staging. It is read-only where it is mapped so. Others report about a second for each GB: once, and not
 * for each message. While it is pinned the region cannot be published (PINNED) and is never recycled. A release leaves
 * its mapping and its lease to the pin, and both go with the last one. Several pins of one handle are one
 * registration. Errors: INVALID (not mapped), NOT_SUPPORTED (read-only memory on a device that cannot),
 * ALREADY_REGISTERED (by somebody else in this process), OUT_OF_MEMORY, NOT_PERMITTED, CONTEXT_POISONED, those of
 * shmb_gpu_devices. */
SHMB_API int shmb_gpu_pin_region(shmb_region* region, int64_t timeout_ns, shmb_gpu_pin** pin,
                                 shmb_error* error) SHMB_NOEXCEPT;
SHMB_API shmb_gpu_pointer shmb_gpu_pin_pointer(const shmb_gpu_pin* pin) SHMB_NOEXCEPT;
SHMB_API int shmb_gpu_unpin(shmb_gpu_pin* pin, shmb_error* error) SHMB_NOEXCEPT; /* NULL is allowed */

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif
