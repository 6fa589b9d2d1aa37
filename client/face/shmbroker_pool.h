/* SPDX-License-Identifier: Apache-2.0 */
/* Pools of slots and queues between processes. shmbroker.h includes this file: no program has to. The rules of that
 * header on errors, deadlines, threads and forks hold here too. */
#ifndef SHMBROKER_POOL_H
#define SHMBROKER_POOL_H

#include "shmbroker.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------------------------ pools
 *
 * A pool is memory cut into slots, and queues beside it, shared by up to 64 processes. Slots and messages change hands
 * without a system call, and a process may be killed at any instruction. Then all that it held is free again, and all
 * that it sent arrives. A session joins a pool once, further opens of it in the same session give further handles. A
 * forked child joins on its own at its first call: slots of the parent are not the child's (SHMB_E_FORKED).
 *
 * `wait_ns` of everything below: the default is SHMB_CALL_TIMEOUT, SHMB_FOREVER and SHMB_NO_WAIT are allowed. With
 * SHMB_NO_WAIT the status is FULL or EMPTY, not DEADLINE. Pools need a broker (LOCAL_ONLY).
 *
 * A pool ends with its group, or with its broker: calls then answer GROUP_ENDED or SESSION_LOST. BROKEN is for shared
 * words that no participant could have written that keeps to the rules.
 *
 * shmb_slot, shmb_size_class, shmb_part and shmb_outgoing lie in arrays, and the classes of shmb_pool_info end it:
 * these never grow. A field called `reserved` must be 0 (TOO_NEW). A request ignores the fields that are described as
 * those of received parts. */

typedef struct shmb_pool shmb_pool;           /* this process in one pool */
typedef struct shmb_queue shmb_queue;         /* own ends of one queue */
typedef struct shmb_message shmb_message;     /* a received message; made once and used again and again */
typedef struct shmb_queue_set shmb_queue_set; /* several queues to wait on */

#define SHMB_MAX_SIZE_CLASSES 16
#define SHMB_QUEUE_SPIN INT64_C(20000)     /* default of spin_ns */
#define SHMB_MESSAGE_LIFETIME SHMB_FOREVER /* default of lifetime_ns */

typedef struct shmb_size_class {
  uint64_t slot_size;   /* bytes that a user may write */
  uint32_t slots;       /* made at once, at least 1 */
  uint32_t slots_limit; /* with those added later, when all are in use; 0: no more than `slots` */
} shmb_size_class;

enum shmb_pool_flag {
  SHMB_POOL_KEEP_GIVEN = 1 << 0,       /* keep_ns counts; else the group's default */
  SHMB_POOL_SMALL_PAGES = 1 << 1,      /* 4 KiB pages also where huge pages could be had */
  SHMB_POOL_NO_POPULATE = 1 << 2,      /* memory comes at first touch, not at creation */
  SHMB_POOL_REPLACE = 1 << 3,          /* a pool that has the name loses it; its participants go on with it */
  SHMB_POOL_NAME_WITH_HOLDERS = 1 << 4 /* the pool and its name go with the last participant, however it ended, also in
                                          a group that lives on. Not with KEEP_GIVEN */
};
typedef struct shmb_pool_options {
  size_t size;
  const char* name;               /* NULL: unnamed; opened by its id then */
  const shmb_size_class* classes; /* NULL: no slots, queues only. Several: a request gets a slot of the smallest class
                                     that is large enough */
  uint32_t class_count;           /* at most SHMB_MAX_SIZE_CLASSES */
  uint32_t flags;                 /* enum shmb_pool_flag */
  uint64_t group;                 /* group id; 0: the session's own */
  int64_t keep_ns;                /* with KEEP_GIVEN, as for regions */
  uint32_t lanes;                 /* 0: 64. One for each pair of spsc queue ends, one for each other writer */
  uint32_t queues;                /* 0: 16 */
  uint64_t lane_bytes; /* memory of all lanes; 0: 1 MiB. With the slots' words (64 bytes each) at most 16 MiB */
  int64_t timeout_ns;  /* of each answer of the broker */
} shmb_pool_options;

/** Makes a pool, joins it, and puts memory behind its slots. Errors: INVALID (a size of 0 or over the limits), EXISTS,
 * LIMIT, NO_MEMORY, LOCAL_ONLY, GROUP_ENDED. */
SHMB_API int shmb_pool_create(shmb_session* session, const shmb_pool_options* options, shmb_pool** pool,
                              shmb_error* error) SHMB_NOEXCEPT;

typedef struct shmb_pool_open_options {
  size_t size;
  uint64_t id;        /* with address NULL: the pool's id */
  uint32_t read_only; /* 1: maps slots for reading, opens no writer, takes no slots, never adds memory */
  uint32_t reserved;  /* 0 */
  int64_t wait_ns;    /* for a name that does not exist yet; default: SHMB_NAME_WAIT. SHMB_FOREVER allowed */
  int64_t timeout_ns; /* of each answer of the broker */
} shmb_pool_open_options;

/** Joins a pool by its address, as the broker reads that now. One in the making is waited for up to timeout_ns. One
 * that this session is in already gives one more handle. Errors: NOT_FOUND, DEADLINE (also where another thread of the
 * process makes it, and still adds its memory after timeout_ns and wait_ns), LIMIT (64 participants), DENIED, BUSY
 * (this session has it open read-only, and may not write through another handle), GROUP_ENDED (while the call waited
 * for the name), LOCAL_ONLY. */
SHMB_API int shmb_pool_open(shmb_session* session, const char* address, const shmb_pool_open_options* options,
                            shmb_pool** pool, shmb_error* error) SHMB_NOEXCEPT;

/** Frees the handle. With the last handle and the last queue of this process in the pool, it leaves. Slots that it
 * holds are given back. Messages that it sent and nobody has read yet stay for their readers. NULL is allowed. */
SHMB_API void shmb_pool_close(shmb_pool* pool) SHMB_NOEXCEPT;

/** Its name is free at once: nobody else can open it by name, and a new pool may have that name. The pool goes with its
 * last participant; this handle and all others go on. Without it a pool with a name lives as long as its group. Errors:
 * DENIED (opened read-only). */
SHMB_API int shmb_pool_remove(shmb_pool* pool, shmb_error* error) SHMB_NOEXCEPT;

typedef struct shmb_pool_info {
  size_t size;
  uint64_t id;
  uint64_t group;
  uint64_t bytes;        /* of all segments */
  uint32_t participant;  /* own index, 0 to 63 */
  uint32_t participants; /* live ones */
  uint32_t slots;        /* there are */
  uint32_t slots_limit;  /* there may be */
  uint32_t slots_used;   /* somebody holds */
  uint32_t slots_own;    /* this process holds, idle ones that it keeps at hand among them */
  uint32_t slots_high;   /* most used at once that this process has seen: when it asked, or found none free */
  uint32_t segments;
  uint32_t queues; /* there are */
  uint32_t queues_limit;
  uint32_t lanes; /* in use */
  uint32_t lanes_limit;
  uint32_t class_count;
  uint32_t read_only;
  uint32_t broken; /* 1: the broker found something impossible in the shared words */
  uint32_t reserved;
  struct shmb_size_class_info {
    uint64_t slot_size;
    uint32_t slots, slots_used;
  } classes[SHMB_MAX_SIZE_CLASSES];
} shmb_pool_info;
/** The pool's id, which each of its slots names too; 0 for NULL. Never fails. */
SHMB_API uint64_t shmb_pool_id(const shmb_pool* pool) SHMB_NOEXCEPT; /* also of each slot in it; 0: NULL */
/** Reads shared memory only. Set info->size first. Errors: the common ones. */
SHMB_API int shmb_pool_get_info(shmb_pool* pool, shmb_pool_info* info, shmb_error* error) SHMB_NOEXCEPT;

/* A slot as this process holds it. A plain struct: copy it, keep it where you like; every call checks it. */
typedef struct shmb_slot {
  void* data;          /* writable until it was sent; for slots out of messages, and read-only participants, not */
  uint64_t size;       /* bytes there is room for */
  uint64_t length;     /* bytes in use; set to what was asked for, change it before sending */
  uint64_t pool;       /* id */
  uint64_t stamp;      /* of this process in the pool */
  uint32_t index;      /* number of the slot */
  uint32_t generation; /* of the slot: + 1 at each acquire */
} shmb_slot;

/** Takes a free slot for `length` bytes, to be written by this process alone. Where all are in use and the class may
 * grow, memory is added. Contents are what was written there before. Errors: FULL (NO_WAIT), DEADLINE, INVALID (larger
 * than every class: use shmb_create and send the region), DENIED (read-only), BROKEN. */
SHMB_API int shmb_slot_acquire(shmb_pool* pool, uint64_t length, int64_t wait_ns, shmb_slot* slot,
                               shmb_error* error) SHMB_NOEXCEPT;
/** One more reference of this process, and one less. With the last one the slot is free again, unless others, or
 * messages under way, hold it. Errors: INVALID (of another pool), STALE (other generation, not held any more),
 * FORKED. */
SHMB_API int shmb_slot_retain(shmb_pool* pool, const shmb_slot* slot, shmb_error* error) SHMB_NOEXCEPT;
SHMB_API int shmb_slot_release(shmb_pool* pool, const shmb_slot* slot, shmb_error* error) SHMB_NOEXCEPT;

/* ------------------------------------------------------------------------------------------------ queues */

enum shmb_queue_kind {
  SHMB_QUEUE_AS_IS = 0, /* whatever it is: with OPEN_ONLY, or for a reader, which then waits for the queue */
  SHMB_QUEUE_SPSC,      /* one writer, one reader */
  SHMB_QUEUE_MPMC,      /* many writers, many readers, each message to one of them; order is kept per writer */
  SHMB_QUEUE_BROADCAST  /* one writer, many readers, each sees each message from its opening on */
};
enum shmb_queue_role { SHMB_QUEUE_READER = 1 << 0, SHMB_QUEUE_WRITER = 1 << 1 };
enum shmb_queue_flag {
  SHMB_QUEUE_DROP_OLDEST = 1 << 0,   /* broadcast: the writer never waits; slow readers lose messages and count them */
  SHMB_QUEUE_EXPIRING = 1 << 1,      /* messages may have a lifetime (8 of the inline bytes are used for it) */
  SHMB_QUEUE_AT_LEAST_ONCE = 1 << 2, /* mpmc: a message is done when the reader says so; if it dies first, another one
                                        gets it. A reader has one such message at a time. Without this flag a message
                                        goes to at most one application */
  SHMB_QUEUE_CREATE_ONLY = 1 << 3,   /* EXISTS where there is one of that name */
  SHMB_QUEUE_OPEN_ONLY = 1 << 4      /* NOT_FOUND where there is none */
};
typedef struct shmb_queue_options {
  size_t size;
  uint32_t kind;         /* enum shmb_queue_kind */
  uint32_t role;         /* enum shmb_queue_role, one or both */
  uint32_t flags;        /* enum shmb_queue_flag */
  uint32_t cells;        /* messages under way for each lane, a power of two, 2 to 65536; 0: the queue's, or 256 */
  uint32_t inline_bytes; /* 56 or 120: larger messages go into slots; 0: the queue's, or 56 */
  uint32_t reserved;     /* 0 */
  int64_t spin_ns;       /* looks so long before it sleeps. Default: SHMB_QUEUE_SPIN, less if that was for nothing the
                            last times; SHMB_NO_WAIT: sleeps at once */
  int64_t wait_ns;       /* with OPEN_ONLY: for a queue that does not exist yet; default: SHMB_NAME_WAIT. A reader AS_IS
                            without OPEN_ONLY waits as well; default: timeout_ns. SHMB_FOREVER allowed */
  int64_t timeout_ns;    /* of each answer of the broker */
} shmb_queue_options;

/** Opens own ends of a queue of a pool, and makes the queue where there is none of that name. Either side may come
 * first, and come back. A reader that names no kind makes none: it takes the queue that is there, or comes before the
 * deadline. A closed queue is opened by a reader alone, if it is an mpmc queue with messages left. One handle for each
 * end in a process; its threads share it. Errors: INVALID (cells), EXISTS (settings differ: the sentence says which),
 * BUSY (a second writer of an spsc or broadcast queue, a second reader of an spsc queue, or this process has that end
 * open), DENIED (read-only participant), LIMIT, NOT_FOUND, CLOSED, DEADLINE (no queue came). */
SHMB_API int shmb_queue_open(shmb_pool* pool, const char* name, const shmb_queue_options* options, shmb_queue** queue,
                             shmb_error* error) SHMB_NOEXCEPT;
/** The same in a pool of its own without slots, of the queue's name, which is made or joined; `address` as for pools.
 * Messages: inline bytes, regions, and lists of them. Errors: those of shmb_queue_open and shmb_pool_open. */
SHMB_API int shmb_queue_open_alone(shmb_session* session, const char* address, const shmb_queue_options* options,
                                   shmb_queue** queue, shmb_error* error) SHMB_NOEXCEPT;

enum shmb_queue_close_flag {
  SHMB_QUEUE_CLOSE_ALL = 1 << 0,   /* for everybody: sends answer CLOSED, receives CLOSED after the last message. Of an
                                    * AT_LEAST_ONCE queue once no other reader has one in hand, which may come back */
  SHMB_QUEUE_CLOSE_REMOVE = 1 << 1 /* and its name is free at once */
};
/** Closes own ends and frees the handle, whatever is returned. Messages that were sent stay for their readers. NULL is
 * allowed. No other thread may be in a call with this handle, or use a message that is borrowed from it.
 * SHMB_QUEUE_CLOSE_ALL by another one, or shmb_queue_shutdown, ends their waits. Errors: the common ones; the handle
 * is gone all the same. */
SHMB_API int shmb_queue_close(shmb_queue* queue, uint32_t flags, shmb_error* error) SHMB_NOEXCEPT;
/** Ends the queue for everybody (flags: CLOSE_REMOVE besides) and keeps the handle, to drain it. Errors: DENIED
 * (read-only participant). */
SHMB_API int shmb_queue_shutdown(shmb_queue* queue, uint32_t flags, shmb_error* error) SHMB_NOEXCEPT;
/** Waits until everything that this handle has sent was taken by its readers, who may have gone since. Errors:
 * DEADLINE, FULL (NO_WAIT), PEER_GONE (nobody is left to take it, or one died). */
SHMB_API int shmb_queue_drain(shmb_queue* queue, int64_t wait_ns, shmb_error* error) SHMB_NOEXCEPT;

typedef struct shmb_queue_info {
  size_t size;
  uint32_t kind, role, flags, cells, inline_bytes;
  uint32_t readers, writers; /* ends open, own ones among them */
  uint32_t closed;           /* 1: for everybody */
  uint32_t lanes;            /* of this handle */
  uint32_t deaths;           /* ends that died, ever */
  uint64_t depth; /* reader: messages there for it. Writer: messages not taken yet (broadcast: by the slowest) */
  uint64_t lost;  /* broadcast reader: messages overwritten before it saw them */
  uint64_t sent, received; /* by this handle */
  uint64_t expired;        /* messages whose lifetime had passed, seen by this handle */
  uint64_t pool;           /* id */
  char name[SHMB_MAX_NAME + 1];
  uint64_t in_regions; /* sent by this handle, each in a new region: no slot of the pool was large enough. Slow */
} shmb_queue_info;
/** Reads shared memory only. Set info->size first. Errors: the common ones. */
SHMB_API int shmb_queue_get_info(shmb_queue* queue, shmb_queue_info* info, shmb_error* error) SHMB_NOEXCEPT;

enum shmb_part_kind { SHMB_PART_BYTES = 1, SHMB_PART_SLOT, SHMB_PART_REGION };
/* A part of a message, for sending and as received. */
typedef struct shmb_part {
  uint32_t kind;       /* enum shmb_part_kind */
  uint32_t rights;     /* REGION: enum shmb_right that the receiver maps it with; 0: read. Received: those that it is
                          mapped with, which are those of all parts with the same mapping together.
                          SLOT: with SHMB_RIGHT_WRITE the sender tells that it uses the slot no more, and that the
                          receiver may write to it. Received: what the sender has told */
  const void* data;    /* BYTES: what to send. Received: where it is; NULL where status is not SHMB_OK */
  uint64_t length;     /* SLOT, REGION: bytes of it that count; 0 in a request: all (slot.length, the region) */
  uint64_t offset;     /* SLOT, REGION: where they begin */
  shmb_slot slot;      /* SLOT. Received: which one; to send it on, take it with shmb_message_take_slot */
  shmb_region* region; /* REGION, for sending; NULL in received parts, see shmb_message_take_region */
  shmb_region_id id;   /* REGION, received */
  int32_t status;      /* received: why a region could not be attached, or a slot not be mapped */
  uint32_t same_as; /* REGION, received: the number of the first part of the message with the same mapping; the part's
                       own number where that is it, or where it has no mapping */
} shmb_part;

typedef struct shmb_outgoing {
  const shmb_part* parts; /* any mix; the message arrives as a whole or not at all */
  size_t count;           /* at most 65,536; 20,000 are as good as one */
  uint64_t type;          /* the application's number, given to the receiver */
  int64_t lifetime_ns;    /* queues with EXPIRING: discarded if no reader took it by then. Default:
                             SHMB_MESSAGE_LIFETIME. All it holds comes back with the next call of its sender that
                             waits or needs room, or of a reader */
} shmb_outgoing;

/** Sending. With SHMB_OK the message arrives even if this process is killed at its next instruction. Up to inline_bytes
 * travel in the queue itself, larger bytes are copied into a slot of the pool. A list is copied into a slot, and so is
 * one part of bytes. A list that no slot can hold goes into a new region, which is slow (shmb_queue_info counts them).
 * A sent slot stays held by this process too, until it releases it; it must not be written any more. No system call
 * unless a reader sleeps or a region is sent for the first time. Errors: FULL (NO_WAIT), DEADLINE, CLOSED (if that
 * happened during the call, readers of an spsc or broadcast queue may have the message all the same), PEER_GONE
 * (below), DENIED (the handle is no writer), INVALID (too large, a part of another pool), STALE, BROKEN, SESSION_LOST.
 *
 * PEER_GONE is told once for each event, then the handle goes on. A sender gets it when the last reader has died or
 * left, or one has died while it waited for room. A receiver gets it when a writer has died, or the last one has left,
 * after all its messages were delivered. `system_errno`: EOWNERDEAD if a writer died. Nothing was sent or received
 * then; call again to wait for newcomers. */
SHMB_API int shmb_queue_send(shmb_queue* queue, const void* data, uint64_t length, int64_t wait_ns,
                             shmb_error* error) SHMB_NOEXCEPT;
SHMB_API int shmb_queue_send_slot(shmb_queue* queue, const shmb_slot* slot, int64_t wait_ns,
                                  shmb_error* error) SHMB_NOEXCEPT;
SHMB_API int shmb_queue_send_message(shmb_queue* queue, const shmb_outgoing* message, int64_t wait_ns,
                                     shmb_error* error) SHMB_NOEXCEPT;
/** In order; `sent` (may be NULL) is always written. wait_ns is for all of them together. Readers that sleep are
 * woken once, for all messages between two waits. Like a single send, it tells CLOSED for what was overtaken by a
 * close. Errors: those of shmb_queue_send. */
SHMB_API int shmb_queue_send_many(shmb_queue* queue, const shmb_outgoing* messages, size_t count, int64_t wait_ns,
                                  size_t* sent, shmb_error* error) SHMB_NOEXCEPT;

/** Makes a message to receive into. It has nothing yet. Errors: the common ones. */
SHMB_API int shmb_message_new(shmb_message** message, shmb_error* error) SHMB_NOEXCEPT;
/** It is done with first, as by shmb_message_done, also one of an AT_LEAST_ONCE queue. NULL is allowed. */
SHMB_API void shmb_message_free(shmb_message* message) SHMB_NOEXCEPT;

enum shmb_receive_flag {
  SHMB_RECEIVE_KEEP = 1 << 0 /* own references to all parts: valid until shmb_message_done, however long */
};
/** Takes the next message. Without KEEP it is borrowed, in place and at no cost. It is valid until shmb_message_done,
 * or the next receive on this queue, which says done for it. Until then its writer has one cell less. On mpmc queues
 * without AT_LEAST_ONCE its slots are held by this process and its cell is free at once. So no other process gets a
 * message that this process has, also when it dies. Regions in it are attached. Drop-oldest queues always keep.
 * `message` is emptied first. Only mpmc queues may be received from by several threads at once, with KEEP. On
 * AT_LEAST_ONCE queues a message stays borrowed, whatever is asked for, until shmb_message_done: closing the queue
 * before gives it back and empties it. A slot or a region in a list that cannot be mapped now (no descriptor is free,
 * the broker does not answer) arrives as a part with its status, and the others arrive. Where the whole message is one
 * slot, or its list is in one, the receive fails with that status and takes nothing. Then call again. A list in a
 * region that this process may not attach arrives as one region part with its status. Errors: EMPTY (NO_WAIT),
 * DEADLINE, CLOSED (and nothing left), PEER_GONE, DENIED (the handle is no reader), BUSY (AT_LEAST_ONCE: the message
 * before is not done), BROKEN (a participant has written impossible words: a message that cannot be is gone, and the
 * next call reads what is behind it; where the words of a writer's lane itself are impossible this handle hears no
 * more from that writer), GROUP_ENDED, SESSION_LOST (also after seconds without a message where the broker is gone:
 * nobody would tell of the dead). One thread at a time uses a message, and what is borrowed is done before another
 * thread receives through the same handle. */
SHMB_API int shmb_queue_receive(shmb_queue* queue, shmb_message* message, uint32_t flags, int64_t wait_ns,
                                shmb_error* error) SHMB_NOEXCEPT;
/** Waits for one and takes all that are there, up to `capacity`, kept, and then wakes who waited for room. `count` is
 * always written. Errors: those of shmb_queue_receive. */
SHMB_API int shmb_queue_receive_many(shmb_queue* queue, shmb_message* const* messages, size_t capacity, int64_t wait_ns,
                                     size_t* count, shmb_error* error) SHMB_NOEXCEPT;
/** Through with it: the slots and regions go back, a borrowed message's cell too. The handle may be used again.
 * Errors: FORKED (the parent received it). */
SHMB_API int shmb_message_done(shmb_message* message, shmb_error* error) SHMB_NOEXCEPT;
/** AT_LEAST_ONCE: not done, another reader shall have it. Errors: INVALID (no message of an AT_LEAST_ONCE queue),
 * FORKED. */
SHMB_API int shmb_message_give_back(shmb_message* message, shmb_error* error) SHMB_NOEXCEPT;
/** Makes a borrowed message a kept one. One of an AT_LEAST_ONCE queue stays as it is. Errors: FORKED, and those of
 * attaching its regions. */
SHMB_API int shmb_message_keep(shmb_message* message, shmb_error* error) SHMB_NOEXCEPT;

/** The number of its parts; 0: it is empty. Never fails. */
SHMB_API size_t shmb_message_count(const shmb_message* message) SHMB_NOEXCEPT; /* parts */
/** The number that its sender gave it, else 0. Never fails. */
SHMB_API uint64_t shmb_message_type(const shmb_message* message) SHMB_NOEXCEPT; /* the sender's number, else 0 */
/** The first part, which is the whole message if it is no list. Errors: NOT_FOUND (no part of that number). */
SHMB_API const void* shmb_message_data(const shmb_message* message) SHMB_NOEXCEPT;
SHMB_API uint64_t shmb_message_length(const shmb_message* message) SHMB_NOEXCEPT;
SHMB_API int shmb_message_part(const shmb_message* message, size_t number, shmb_part* part,
                               shmb_error* error) SHMB_NOEXCEPT;
/** Takes a reference of its own out of the message. It outlives it: release it with shmb_slot_release, shmb_release.
 * A slot taken out may be sent on. A region that comes in several parts of one message is attached once. Its parts
 * have one lease and one mapping. The handles taken out of them are handles of that mapping, equal in data and
 * identity. Each is released on its own, in any order, from any thread; lease and mapping go with the last one. While
 * there is another one, in the message or out of it, shmb_publish answers PINNED. The mapping has the rights of all
 * these parts together; where this process may not have them all, each part is attached with its own. Errors: INVALID
 * (no part of that number and kind), the part's own status, FORKED. */
SHMB_API int shmb_message_take_slot(shmb_message* message, size_t number, shmb_slot* slot,
                                    shmb_error* error) SHMB_NOEXCEPT;
SHMB_API int shmb_message_take_region(shmb_message* message, size_t number, shmb_region** region,
                                      shmb_error* error) SHMB_NOEXCEPT;

/* ------------------------------------------------------------------------------------------------ waiting */

/** Descriptors for poll, epoll, asyncio: readable when a receive may have something to tell. Then receive with
 * NO_WAIT until it answers EMPTY, which arms it again. It belongs to the handle: never close, read or write it.
 * Spurious wake-ups happen. The first call must be followed by a receive that answers EMPTY, too. Once the broker is
 * gone, receives answer SESSION_LOST in place of EMPTY. Errors: NO_DESCRIPTORS, LIMIT. */
SHMB_API int shmb_queue_descriptor(shmb_queue* queue, int* fd, shmb_error* error) SHMB_NOEXCEPT;

/** Several queues, of one or several pools and sessions, for one thread at a time to wait on. A queue handle must be
 * removed before it is closed. Adding and removing make the set's descriptor readable: then wait until EMPTY.
 * Errors: the common ones. */
SHMB_API int shmb_queue_set_new(shmb_queue_set** set, shmb_error* error) SHMB_NOEXCEPT;
SHMB_API void shmb_queue_set_free(shmb_queue_set* set) SHMB_NOEXCEPT;
SHMB_API int shmb_queue_set_add(shmb_queue_set* set, shmb_queue* queue, void* tag, shmb_error* error) SHMB_NOEXCEPT;
SHMB_API int shmb_queue_set_remove(shmb_queue_set* set, shmb_queue* queue, shmb_error* error) SHMB_NOEXCEPT;
/** Which queue has something to tell: a message, or CLOSED or PEER_GONE; its turn comes last next time. `tag` (may be
 * NULL) is that of shmb_queue_set_add. Nothing is taken: another consumer of an mpmc queue may be faster, and a
 * borrowed message stays valid. Errors: EMPTY (NO_WAIT), DEADLINE, INVALID (an empty set). */
SHMB_API int shmb_queue_set_wait(shmb_queue_set* set, int64_t wait_ns, shmb_queue** queue, void** tag,
                                 shmb_error* error) SHMB_NOEXCEPT;
/** As shmb_queue_descriptor; a shmb_queue_set_wait that answers EMPTY arms it. Errors: NO_DESCRIPTORS, LIMIT. */
SHMB_API int shmb_queue_set_descriptor(shmb_queue_set* set, int* fd, shmb_error* error) SHMB_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif
