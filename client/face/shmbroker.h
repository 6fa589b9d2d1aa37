/* SPDX-License-Identifier: Apache-2.0 */
/* The C face of shmbroker: shared memory owned by a broker, so that it goes when its users are gone.
 *
 * Rules that hold for every function:
 *  - It returns a status: SHMB_OK (0) or a code of shmb_status.h. A function that takes `shmb_error* error` fills it on
 *    failure with the same status, the numbers behind it and a sentence to print. NULL is allowed. Out-parameters are
 *    written only on success (batch calls: as documented). Nothing is printed, no signal is handled, no thread started.
 *  - Each function lists its errors. The common ones are not listed: INVALID (an argument), NO_MEMORY, SYSTEM, and
 *    FORKED where handles of the parent are not the child's. Calls to the broker also have DEADLINE, SESSION_LOST,
 *    PROTOCOL and LOCAL_ONLY (a local session).
 *  - Sizes and offsets are bytes, times are nanoseconds. `timeout_ns` is for the broker's answer, `wait_ns` for what
 *    other processes do. A duration has one meaning in every function. 0 (SHMB_DEFAULT_TIMEOUT) is the default that the
 *    function names. SHMB_FOREVER is no limit, SHMB_NO_WAIT is no wait. A number above 0 is the longest time. A
 *    function that names no default has SHMB_CALL_TIMEOUT.
 *  - SHMB_FOREVER is for waits for other processes. A call that waits only for the broker refuses it (SHMB_E_INVALID).
 *    With SHMB_NO_WAIT such a call sends its request and returns SHMB_E_DEADLINE unless the answer is there. Any other
 *    negative number is a deadline that has passed.
 *  - Thread-safe: all functions may be called on one session from any threads at once. A region handle must not be
 *    released or published while another thread uses that handle. A session must not be disconnected while another
 *    thread is in a call on it.
 *  - Fork-safe: in a forked child every handle stays usable. At its first call the child opens its own session and
 *    takes over its own leases (the parent may already be gone). Mappings are inherited by fork itself. Subscriptions,
 *    queued events and the event descriptor stay the parent's: the child asks for its own. Calls made between fork and
 *    exec in a child of a threaded process are as limited as malloc is.
 *  - Options structs start with `size`, set to sizeof. Newer programs run with older libraries if the fields that the
 *    library does not know are zero (else SHMB_E_TOO_NEW). NULL options mean all defaults. Unknown flags are refused.
 *  - Strings are UTF-8 or ASCII, terminated by NUL. Group and region names: 1 to 96 bytes of [A-Za-z0-9._-], no leading
 *    dot.
 *  - An address is "UID:GROUP/NAME", "GROUP/NAME" (own uid) or "NAME"; GROUP may be "@id". A NAME is looked up in the
 *    session's own group, and where that does not have it in the user's group, "shell-<uid>" (shmb_group_join_user).
 *  - A signal does not end a call, except in a thread that has asked for it with shmb_thread_interruptible.
 *  - A session is lost for good when the broker goes away (SHMB_E_SESSION_LOST), unless keepers start another one that
 *    goes on with it. Mappings stay valid, and calls that need the broker fail at once. The caller connects again when
 *    it likes.
 */
#ifndef SHMBROKER_H
#define SHMBROKER_H

#include <stddef.h>
#include <stdint.h>

#include "shmb_enums.h" /* the enumerations that the broker knows too, such as enum shmb_create_flag */
#include "shmb_status.h"

#if defined(__GNUC__)
#define SHMB_API __attribute__((visibility("default")))
#else
#define SHMB_API
#endif

#ifdef __cplusplus
#define SHMB_NOEXCEPT noexcept
extern "C" {
#else
#define SHMB_NOEXCEPT
#endif

#define SHMB_DEFAULT_TIMEOUT INT64_C(0)
#define SHMB_FOREVER INT64_C(-1)
#define SHMB_NO_WAIT INT64_C(-2)
#define SHMB_KEEP_UNTIL_RELEASED INT64_C(-1)

/* The defaults, in nanoseconds. */
#define SHMB_CALL_TIMEOUT INT64_C(5000000000)      /* an answer of the broker; a slot, a message, an event */
#define SHMB_NAME_WAIT SHMB_NO_WAIT                /* a name that does not exist yet: NOT_FOUND at once */
#define SHMB_GROUP_WAIT SHMB_FOREVER               /* the end of a group */
#define SHMB_TICKET_LIFETIME INT64_C(600000000000) /* 10 minutes */

#define SHMB_MAX_NAME 96       /* bytes of a group or region name, without NUL */
#define SHMB_TOKEN_TEXT 33     /* bytes that shmb_token_format writes, with NUL */
#define SHMB_VARIABLE_TEXT 130 /* bytes that shmb_group_variable writes at most, with NUL */

typedef struct shmb_session shmb_session; /* one connection to a broker, or a local session */
typedef struct shmb_region shmb_region;   /* one counted reference to a region, and the mapping */

/* Filled on failure. The fields from slot to asked name a limit: what is short (enum shmb_limit_slot), whose (enum
 * shmb_scope, scope_id) and by how much. They are 0 when no limit is the cause. */
typedef struct shmb_error {
  int32_t status;
  int32_t system_errno; /* behind SHMB_E_SYSTEM and some others, else 0 */
  uint32_t slot;
  uint32_t scope;
  uint64_t scope_id;
  uint64_t limit;
  uint64_t used;
  uint64_t asked;
  char sentence[512];
} shmb_error;

/** The library's version, "0.1.0". */
SHMB_API const char* shmb_version(void) SHMB_NOEXCEPT;
/** "not_found" for SHMB_E_NOT_FOUND; "unknown status" for a number that is none. Static storage. */
SHMB_API const char* shmb_status_name(int status) SHMB_NOEXCEPT;
/** "no such object, ..." for SHMB_E_NOT_FOUND: what the code means, without the facts of one case. Static storage. */
SHMB_API const char* shmb_status_text(int status) SHMB_NOEXCEPT;

/* Which names a sentence uses for what the caller may have to change. */
enum shmb_words {
  SHMB_WORDS_C = 0, /* those of this header: what every function gives */
  SHMB_WORDS_CXX,   /* those of shmbroker.hpp and its companions */
  SHMB_WORDS_SHELL, /* commands of `shmbroker`; where there is none, as SHMB_WORDS_CXX */
  SHMB_WORDS_PYTHON /* those of the package shmbroker; where there is none, as SHMB_WORDS_CXX */
};
/** For other faces than C, before they show an error: puts their names into the sentence. All else stays. A sentence
 * that gets too long is cut. Never fails; an unknown value of `words` and NULL change nothing. */
SHMB_API void shmb_error_words(shmb_error* error, uint32_t words) SHMB_NOEXCEPT;

/** Whether signals end the waits of the calling thread: 1 on, 0 off (what every thread begins with). Returns what it
 * was. Never fails. Where it is on, a signal handler that runs in the thread ends the wait of a call. The call returns
 * SHMB_E_INTERRUPTED, also if the handler was installed with SA_RESTART.
 *  - The call does what it does at its deadline. A message was not sent, a receive has taken nothing. A lease that
 *    comes late is given back. So it can be made again, with the time that is left. A call that hands out a count
 *    (shmb_queue_send_many) has done so many. One that gives up a handle has given it up.
 *  - A signal that comes while the call does not wait does not end it. A signal right before the wait is not seen, as
 *    with every system call.
 *  - Not ended: shmb_spawn, shmb_rank_finish, the remote calls except those that wait for others (shmb_remote_init,
 *    _serve, _wait, shmb_future_wait, shmb_reference_local), and the calls of shmbroker_cuda.h. They go on. */
SHMB_API int shmb_thread_interruptible(int on) SHMB_NOEXCEPT;

/* ------------------------------------------------------------------------------------------------ sessions */

enum shmb_connect_flag {
  SHMB_CONNECT_LOCAL_OK = 1 << 0,   /* no broker and none can be started: a local session instead of SHMB_E_NO_BROKER */
  SHMB_CONNECT_NO_START = 1 << 1,   /* never start a private broker */
  SHMB_CONNECT_ADMIN = 1 << 2,      /* the broker's admin socket (beside the ordinary one, named `admin`) */
  SHMB_CONNECT_LOCAL_ONLY = 1 << 3, /* a local session, without looking for a broker */
  SHMB_CONNECT_NO_GROUP = 1 << 4    /* ignore SHMBROKER_GROUP */
};

typedef struct shmb_connect_options {
  size_t size;
  const char* socket; /* path of the broker's socket; NULL: looked for. Never falls through to another broker */
  const char* group;  /* "<name>:<token>" to join; NULL: the variable SHMBROKER_GROUP, if set */
  const char*
      program;        /* how the session is called in `shmbroker list`, at most 64 bytes; NULL: the process' own name */
  uint32_t flags;     /* enum shmb_connect_flag */
  uint32_t reserved;  /* 0 */
  int64_t timeout_ns; /* for finding, starting and greeting the broker */
} shmb_connect_options;

/** Opens a session. The broker is looked for in this order. First options->socket or the variable SHMBROKER_SOCKET;
 * these two never fall through. Then /run/shmbroker/socket. Then the private broker of this uid:
 * $XDG_RUNTIME_DIR/shmbroker/socket or /tmp/shmbroker-<uid>/socket. Where another user has made that directory it is
 * /tmp/shmbroker-<uid>-<random>/socket. At last a private broker is started, under a lock (program: SHMBROKER_DAEMON,
 * beside the library, or the installed one). It inherits nothing of the caller and outlives it. The group is that of
 * options->group or SHMBROKER_GROUP, else an unnamed one of its own. Errors: NO_BROKER (with what was tried), VERSION,
 * LIMIT (sessions), NOT_FOUND (token), DEADLINE. */
SHMB_API int shmb_connect(const shmb_connect_options* options, shmb_session** session, shmb_error* error) SHMB_NOEXCEPT;

/** Ends the session and frees the handle. Region handles that are still open keep it alive until they are released too.
 * After that all leases are given back by the closing of the socket. A forked child that still uses its copy keeps the
 * leases (as an heir) until it closes or ends. NULL is allowed. */
SHMB_API void shmb_disconnect(shmb_session* session) SHMB_NOEXCEPT;

typedef struct shmb_session_info {
  size_t size;
  uint32_t mode;          /* enum shmb_mode */
  uint32_t started_by_us; /* 1: this connect started the private broker */
  uint32_t uid;           /* as the broker sees the caller */
  uint32_t broker_uid;
  uint32_t lost;     /* 1: the broker is gone, see SHMB_E_SESSION_LOST */
  uint32_t protocol; /* version in use */
  uint64_t epoch;    /* random number of the broker's life; 0: local */
  uint64_t session;  /* its id */
  uint64_t group;    /* its group's id; 0: unnamed group not made yet */
  uint64_t features; /* bits of the wire's feature flags in force */
  char socket[112];  /* path; empty: local */
  char broker[64];   /* the broker's version text */
  char how[512];     /* a sentence: how the broker was found, and what was passed over and why */
} shmb_session_info;

/** Fills in the facts that the library knows without asking the broker. A forked child's first call opens its
 * session, though. Set info->size first. Errors: the common ones. */
SHMB_API int shmb_session_get_info(shmb_session* session, shmb_session_info* info, shmb_error* error) SHMB_NOEXCEPT;

/** A round trip to the broker and back. Local sessions: SHMB_OK. Errors: the common ones. */
SHMB_API int shmb_ping(shmb_session* session, int64_t timeout_ns, shmb_error* error) SHMB_NOEXCEPT;

/* ------------------------------------------------------------------------------------------------ regions */

/* Identity of a region. Ids are never used twice within an epoch; `generation` counts re-creations under one name. */
typedef struct shmb_region_id {
  uint64_t epoch; /* of the broker that gave the id; 0 in a request: the one connected to */
  uint64_t id;
  uint32_t generation; /* 0 in a request: whichever */
  uint32_t reserved;   /* 0 */
} shmb_region_id;

typedef struct shmb_create_options {
  size_t size;
  const char* name;   /* NULL: unnamed */
  uint64_t group;     /* group id; 0: the session's own */
  int64_t keep_ns;    /* with KEEP_GIVEN: 0, or of a named region ns after the group's end, SHMB_KEEP_UNTIL_RELEASED */
  uint32_t flags;     /* enum shmb_create_flag */
  uint32_t rights;    /* enum shmb_right of this handle; 0: all */
  int64_t timeout_ns; /* of the broker's answer; populating takes as long as it takes */
  uint32_t numa_node; /* with ON_NODE: all memory comes from this NUMA node, for every process that touches it, and
                         all of it at create, also above 1 GiB. INVALID with NO_POPULATE or UNMAPPED, or without the
                         right to write. Such a region is not recycled */
  uint32_t reserved;  /* 0 */
} shmb_create_options;

/** Creates a region of `length` bytes (0 to 2^47 - 1) and maps it for reading and writing. Up to 1 GiB it puts memory
 * behind the region in the calling process. From 2 MiB up these are huge pages where they can be had, else 4 KiB pages
 * (region info says which). Over 1 GiB pages come at first touch; call shmb_region_populate for parts or all. Before
 * it asks the broker it compares the room of its cgroups and of the host with the length: NO_MEMORY names the cgroup.
 * No SIGBUS for want of memory follows. Recycled memory of the user is used, or given up, before it refuses. A region
 * of 0 bytes is a region like any other. It has one page of memory, an address and a descriptor, and its length is 0.
 * Errors: LIMIT, EXISTS, NO_MEMORY, NO_DESCRIPTORS, GROUP_ENDED, DENIED, SYSTEM (mmap). */
SHMB_API int shmb_create(shmb_session* session, uint64_t length, const shmb_create_options* options,
                         shmb_region** region, shmb_error* error) SHMB_NOEXCEPT;

typedef struct shmb_create_item {
  uint64_t length;
  const shmb_create_options* options; /* NULL: defaults; timeout_ns is ignored here */
} shmb_create_item;

/** Creates `count` regions in batches of up to 253. regions[i] is NULL where statuses[i] (may be NULL) is not SHMB_OK.
 * The elements do not depend on each other. Returns SHMB_OK if all succeeded, else the first failure, which `error`
 * describes. timeout_ns counts for each batch. */
SHMB_API int shmb_create_many(shmb_session* session, const shmb_create_item* items, size_t count, int64_t timeout_ns,
                              shmb_region** regions, int* statuses, shmb_error* error) SHMB_NOEXCEPT;

enum shmb_attach_flag {
  SHMB_ATTACH_UNMAPPED = 1 << 8,   /* not mapped; use shmb_region_map */
  SHMB_ATTACH_NO_POPULATE = 1 << 9 /* do not enter the existing pages into the page tables at once */
};

typedef struct shmb_attach_options {
  size_t size;
  uint32_t rights;    /* enum shmb_right; 0: read. With WRITE the mapping is writable */
  uint32_t flags;     /* enum shmb_attach_flag */
  int64_t wait_ns;    /* for a name not yet created, and for a writer that has not mapped the region yet (NOT_READY
                         without a wait). Default: SHMB_NAME_WAIT for a name, timeout_ns for a writer. SHMB_FOREVER
                         allowed */
  int64_t timeout_ns; /* of each answer of the broker */
} shmb_attach_options;

/** Takes a reference to an existing region and maps it: by address, by identity or by ticket. Errors: NOT_FOUND (also
 * where it exists but is none of the caller's business), DENIED, WRITE_CLOSED (read-only readers exist or it was
 * published), NOT_READY, STALE (by id: another generation; another epoch), DEADLINE, LIMIT (leases), NO_DESCRIPTORS,
 * GROUP_ENDED (while the call waited for a name, the group of that name ended). */
SHMB_API int shmb_attach(shmb_session* session, const char* address, const shmb_attach_options* options,
                         shmb_region** region, shmb_error* error) SHMB_NOEXCEPT;
SHMB_API int shmb_attach_id(shmb_session* session, const shmb_region_id* id, const shmb_attach_options* options,
                            shmb_region** region, shmb_error* error) SHMB_NOEXCEPT;
SHMB_API int shmb_attach_ticket(shmb_session* session, const uint8_t ticket[16], const shmb_attach_options* options,
                                shmb_region** region, shmb_error* error) SHMB_NOEXCEPT;

/* One element of shmb_attach_many: exactly one of the three pointers is set. */
typedef struct shmb_attach_item {
  const char* address;
  const shmb_region_id* id;
  const uint8_t* ticket; /* 16 bytes */
  uint32_t rights;       /* 0: read */
  uint32_t flags;        /* enum shmb_attach_flag */
} shmb_attach_item;

/** As shmb_create_many. Does not wait for names or writers: such elements get NOT_FOUND or NOT_READY. Errors: those
 * of shmb_attach, for each element. */
SHMB_API int shmb_attach_many(shmb_session* session, const shmb_attach_item* items, size_t count, int64_t timeout_ns,
                              shmb_region** regions, int* statuses, shmb_error* error) SHMB_NOEXCEPT;

/** Local sessions only: makes a region of a shared-memory descriptor (a memfd passed by other means). The descriptor is
 * duplicated; the caller keeps its own. rights: READ, or READ|WRITE. Errors: INVALID, UNSUPPORTED (with a broker). */
SHMB_API int shmb_adopt_fd(shmb_session* session, int fd, uint32_t rights, shmb_region** region,
                           shmb_error* error) SHMB_NOEXCEPT;

/** First byte of the mapping (writable if the handle has WRITE and is not published), or NULL when unmapped. */
SHMB_API void* shmb_region_data(const shmb_region* region) SHMB_NOEXCEPT;
/** Bytes asked for at creation; the mapping is at least that long. */
SHMB_API uint64_t shmb_region_length(const shmb_region* region) SHMB_NOEXCEPT;
SHMB_API shmb_region_id shmb_region_get_id(const shmb_region* region) SHMB_NOEXCEPT;

typedef struct shmb_region_info {
  size_t size;
  shmb_region_id id;
  uint64_t length;          /* asked for */
  uint64_t bytes;           /* rounded up to pages, at least one, charged */
  uint64_t group;           /* id of the group that holds it */
  uint64_t populated;       /* bytes this handle put memory behind */
  uint32_t rights;          /* of this handle */
  uint32_t state;           /* enum shmb_region_state, as this handle last heard; shmb_region_stat asks the broker */
  uint32_t page_kind;       /* enum shmb_page_kind */
  uint32_t flags;           /* enum shmb_region_flag */
  uint32_t recycled;        /* 1: the memory served this group before (and was zeroed, unless UNINITIALISED) */
  uint32_t descriptor_kept; /* 1: the handle holds its descriptor open (shmb_set_sharing_strategy; local sessions) */
} shmb_region_info;
/** Fills in the facts that the library knows without asking the broker. Set info->size first. Errors: the common
 * ones. */
SHMB_API int shmb_region_get_info(const shmb_region* region, shmb_region_info* info, shmb_error* error) SHMB_NOEXCEPT;
/** A further handle of the session that the region belongs to; shmb_disconnect frees it. Errors: the common ones. */
SHMB_API int shmb_region_session(const shmb_region* region, shmb_session** session, shmb_error* error) SHMB_NOEXCEPT;

enum shmb_access { SHMB_ACCESS_READ = 0, SHMB_ACCESS_READ_WRITE = 1 };

/** Maps a part of a region besides the mapping of the handle. `offset` is a multiple of 4096. offset + length is at
 * most the rounded size. Of a region of 0 bytes a part of 0 bytes is mapped, too. A descriptor is fetched from the
 * broker for it and closed again. The mapping belongs to the caller until shmb_region_unmap; release the handle only
 * afterwards. Errors: INVALID, DENIED, WRITE_CLOSED, SYSTEM. */
SHMB_API int shmb_region_map(shmb_region* region, uint64_t offset, uint64_t length, uint32_t access, void** address,
                             shmb_error* error) SHMB_NOEXCEPT;
SHMB_API int shmb_region_unmap(shmb_region* region, void* address, uint64_t length, shmb_error* error) SHMB_NOEXCEPT;

/** Puts memory behind a part of the handle's mapping (whole pages around it), with the checks of shmb_create. Where
 * there is no room it returns an error; no signal comes. On a read-only handle existing pages are mapped. Errors:
 * INVALID (outside of the region, or unmapped), NO_MEMORY (names the cgroup). */
SHMB_API int shmb_region_populate(shmb_region* region, uint64_t offset, uint64_t length,
                                  shmb_error* error) SHMB_NOEXCEPT;

/** A descriptor of the region, close-on-exec, owned by the caller; O_RDONLY unless the handle may write. It is
 * outside the books: memory it holds is not freed by the broker. The region is then never recycled. Errors: DENIED,
 * NO_DESCRIPTORS. */
SHMB_API int shmb_region_descriptor(shmb_region* region, int* fd, shmb_error* error) SHMB_NOEXCEPT;

/** Gives up writing for good, for everybody. The mapping is taken away, the broker seals the region, and it is mapped
 * again read-only. shmb_region_data may be another address. Errors: PINNED (this process has another handle of the
 * same mapping, out of a message, or has registered it with a GPU), STILL_MAPPED (a forked child or a part mapping
 * still maps it for writing: the region is mapped back as before and the call may be repeated), DENIED, INVALID,
 * NOT_READY (until timeout_ns another writer had not mapped the region yet: it is mapped back as before), DEADLINE:
 * the region is unmapped (shmb_region_data is NULL), and published once the broker serves the request, which
 * shmb_stat_id tells. shmb_publish again is the way on, in both cases: it maps the region for reading. */
SHMB_API int shmb_publish(shmb_region* region, int64_t timeout_ns, shmb_error* error) SHMB_NOEXCEPT;

enum shmb_release_flag {
  SHMB_RELEASE_NO_RECYCLE = 1 << 0, /* free the memory instead of keeping it ready for this group */
  SHMB_RELEASE_UNNAME = 1 << 1      /* take the region's name away too; needs right `release` */
};
/** Unmaps, gives the reference back and frees the handle, whatever is returned. Without UNNAME it does not wait for
 * the broker; DENIED, SESSION_LOST, DEADLINE: it keeps the name. A region goes with its last reference, ticket and
 * name. Errors: with UNNAME those named above; otherwise none. */
SHMB_API int shmb_release(shmb_region* region, uint32_t flags, shmb_error* error) SHMB_NOEXCEPT;

/** Takes the name of the region at `address` away; it goes with its last reference. Errors: NOT_FOUND, DENIED. */
SHMB_API int shmb_unname(shmb_session* session, const char* address, int64_t timeout_ns,
                         shmb_error* error) SHMB_NOEXCEPT;

typedef struct shmb_region_stat {
  size_t size;
  shmb_region_id id;
  uint64_t length, bytes;
  uint64_t touched; /* bytes that have memory behind them */
  uint64_t group;
  uint32_t owner_uid;
  uint32_t state;     /* enum shmb_region_state */
  uint32_t page_kind; /* enum shmb_page_kind */
  uint32_t flags;     /* enum shmb_region_flag */
  uint32_t holders;   /* sessions with a reference */
  uint32_t writers;   /* references with WRITE */
  uint32_t tickets;
  uint32_t creator_pid; /* 0: unknown */
  int64_t created_ns;   /* CLOCK_BOOTTIME */
  int64_t keep_ns;
  int64_t freed_at_ns; /* CLOCK_BOOTTIME when a running keep ends, else 0 */
  char group_name[SHMB_MAX_NAME + 1];
  char name[SHMB_MAX_NAME + 1];
} shmb_region_stat;
/** Asks the broker for the present state of a region. Set stat->size first. Local sessions: LOCAL_ONLY. Errors:
 * NOT_FOUND, DENIED, LOCAL_ONLY; by identity also STALE. */
SHMB_API int shmb_stat(shmb_session* session, const char* address, int64_t timeout_ns, shmb_region_stat* stat,
                       shmb_error* error) SHMB_NOEXCEPT;
SHMB_API int shmb_stat_id(shmb_session* session, const shmb_region_id* id, int64_t timeout_ns, shmb_region_stat* stat,
                          shmb_error* error) SHMB_NOEXCEPT;

/* ------------------------------------------------------------------------------------------------ strategies
 *
 * Sets what later handles keep besides their mapping. "file_system", the default: nothing; a descriptor is fetched from
 * the broker for the moment in which one is needed. "file_descriptor": the descriptor, as long as the process keeps
 * fewer than half of its limit of open files so (region info says which handle does). A further mapping then takes no
 * call to the broker and works without one. Under both the broker frees what its users leave. It belongs to the
 * process: forked children have it, and ranks get it through SHMBROKER_SHARING_STRATEGY, which is also what a process
 * begins with. */

/** All names, NULL-terminated. Static storage. */
SHMB_API const char* const* shmb_sharing_strategies(void) SHMB_NOEXCEPT;
/** INVALID where the variable names none; shmb_connect says so too. Static storage. Errors: INVALID. */
SHMB_API int shmb_sharing_strategy(const char** name, shmb_error* error) SHMB_NOEXCEPT;
/** INVALID for an unknown name; the sentence lists those there are. Errors: INVALID. */
SHMB_API int shmb_set_sharing_strategy(const char* name, shmb_error* error) SHMB_NOEXCEPT;

/* ------------------------------------------------------------------------------------------------ tickets */

/** Makes a token that gives `rights` to any process that shows it, also in other groups and of other users. `rights`:
 * at most the handle's own, which needs SHARE; 0: read. `uses`: attaches it allows, 0: one. `lifetime_ns`: default
 * SHMB_TICKET_LIFETIME. It holds the region, never its group. expires_ns (may be NULL) is CLOCK_BOOTTIME. It outlives
 * this session: use shmb_ticket_lend where its receiver does not. Errors: DENIED, LIMIT (tickets of the session, or of
 * its user), INVALID. */
SHMB_API int shmb_ticket_create(shmb_region* region, uint32_t rights, uint32_t uses, int64_t lifetime_ns,
                                int64_t timeout_ns, uint8_t ticket[16], int64_t* expires_ns,
                                shmb_error* error) SHMB_NOEXCEPT;
/** The same, for processes that do not outlive this one. It ends at the latest with the session that made it, or with
 * that session's process, also a killed one. Errors: those. lifetime_ns: default SHMB_TICKET_LIFETIME. */
SHMB_API int shmb_ticket_lend(shmb_region* region, uint32_t rights, uint32_t uses, int64_t lifetime_ns,
                              int64_t timeout_ns, uint8_t ticket[16], int64_t* expires_ns,
                              shmb_error* error) SHMB_NOEXCEPT;
/** Ends a ticket with the uses it has left; what was attached by it stays. For the session that made it, and for others
 * of its group. Errors: NOT_FOUND (also where it is used up, over, or not theirs). */
SHMB_API int shmb_ticket_revoke(shmb_session* session, const uint8_t ticket[16], int64_t timeout_ns,
                                shmb_error* error) SHMB_NOEXCEPT;
/** 16 bytes (ticket or group token) <-> 32 lower-case hex digits. parse: INVALID for anything else. */
SHMB_API void shmb_token_format(const uint8_t token[16], char text[SHMB_TOKEN_TEXT]) SHMB_NOEXCEPT;
SHMB_API int shmb_token_parse(const char* text, uint8_t token[16]) SHMB_NOEXCEPT;

/* ------------------------------------------------------------------------------------------------ groups */

typedef struct shmb_group {
  uint64_t id;
  uint8_t token[16]; /* admits any session that shows it, of any uid */
} shmb_group;

typedef struct shmb_group_options {
  size_t size;
  const char* name;     /* NULL: unnamed */
  uint64_t limit_bytes; /* 0: the broker's default */
  int64_t keep_ns;      /* default of its regions: 0, ns after its end, or SHMB_KEEP_UNTIL_RELEASED */
  uint32_t limit_regions;
  uint32_t flags; /* enum shmb_group_flag */
  int64_t timeout_ns;
} shmb_group_options;

/** Makes a group of the caller's uid. The session does not become a member by it; until somebody joins, it lives as
 * long as the session, or until shmb_group_leave. After DEADLINE a group that was made too late is given up at once.
 * With ADOPT_EXISTING it stays, because the session may have had it before. Asking again returns it. Errors: EXISTS,
 * LIMIT, INVALID. */
SHMB_API int shmb_group_create(shmb_session* session, const shmb_group_options* options, shmb_group* group,
                               shmb_error* error) SHMB_NOEXCEPT;

/** The session becomes a member of a group (and leaves the one it was in): by name ("GROUP", "@id", "UID:GROUP"; own
 * uid only) or by token. `id` may be NULL. Errors: NOT_FOUND, GROUP_ENDED, INVALID. After DEADLINE a group that was
 * joined too late is left again. The session is then in none, also if it was in another one before. Asking again is
 * fine: then the second answer counts. */
SHMB_API int shmb_group_join(shmb_session* session, const char* group, uint32_t flags, int64_t timeout_ns, uint64_t* id,
                             shmb_error* error) SHMB_NOEXCEPT;
SHMB_API int shmb_group_join_token(shmb_session* session, const uint8_t token[16], uint32_t flags, int64_t timeout_ns,
                                   uint64_t* id, shmb_error* error) SHMB_NOEXCEPT;
/** Writes the name of the user's group, "shell-<uid>" for the effective uid of this process, with NUL. Programs that
 * were started apart meet in that group. */
SHMB_API void shmb_user_group(char name[SHMB_MAX_NAME + 1]) SHMB_NOEXCEPT;
/** The session becomes a member of the user's group. Where there is no such group it is made. It keeps its regions for
 * 1 h after its last member has left. `shmbroker put` does the same. id may be NULL. Errors: LIMIT (groups),
 * GROUP_ENDED. */
SHMB_API int shmb_group_join_user(shmb_session* session, int64_t timeout_ns, uint64_t* id,
                                  shmb_error* error) SHMB_NOEXCEPT;
/** Leaves a group (0: the one the session is in); the next create makes an unnamed one. A group that the session
 * made and nobody has joined is given up. Errors: NOT_FOUND (it is in no such group). */
SHMB_API int shmb_group_leave(shmb_session* session, uint64_t group, int64_t timeout_ns,
                              shmb_error* error) SHMB_NOEXCEPT;

typedef struct shmb_group_ending {
  uint32_t members; /* members and heirs left */
  uint32_t regions; /* regions left */
  uint64_t bytes_freed;
} shmb_group_ending;
/** Ends a group. Its members leave it, its names go, and processes that still run lose what they share by them.
 * `group`: its id, or 0 with its name. `ending` may be NULL. Errors: NOT_FOUND, DENIED, BUSY (KEPT_ONLY, and it is
 * alive). */
SHMB_API int shmb_group_end(shmb_session* session, uint64_t group, const char* name, uint32_t flags, int64_t timeout_ns,
                            shmb_group_ending* ending, shmb_error* error) SHMB_NOEXCEPT;
/** Waits until a group (0: the session's own) has ended. wait_ns: default SHMB_GROUP_WAIT. Errors: NOT_FOUND, DEADLINE,
 * SESSION_LOST (the broker's end ends the wait). */
SHMB_API int shmb_group_wait(shmb_session* session, uint64_t group, int64_t wait_ns, shmb_error* error) SHMB_NOEXCEPT;
/** "<name>:<token>", the value of SHMBROKER_GROUP that makes a child a member. Errors: INVALID (a name that no group
 * can have). */
SHMB_API int shmb_group_variable(const char* name, const uint8_t token[16], char text[SHMB_VARIABLE_TEXT],
                                 shmb_error* error) SHMB_NOEXCEPT;

/* ------------------------------------------------------------------------------------------------ events */

typedef struct shmb_watch_options {
  size_t size;
  uint32_t kind;         /* enum shmb_watch_kind */
  uint32_t events;       /* bits wanted; 0: all of the kind */
  shmb_region_id region; /* kind REGION */
  uint64_t group;        /* kinds GROUP and RECLAIM: id; 0: own, or all */
  const char* address;   /* kind NAME: address; kind GROUP: the group's name instead of its id */
  int64_t timeout_ns;
} shmb_watch_options;

/** Subscribes. `watch` names the subscription in events and for shmb_unwatch; `state` (may be NULL) tells which of the
 * bits hold already. Such an event is not sent again. Errors: NOT_FOUND (for shmb_unwatch: no such subscription),
 * LIMIT (watches), INVALID. */
SHMB_API int shmb_watch(shmb_session* session, const shmb_watch_options* options, uint64_t* watch, uint32_t* state,
                        shmb_error* error) SHMB_NOEXCEPT;
SHMB_API int shmb_unwatch(shmb_session* session, uint64_t watch, int64_t timeout_ns, shmb_error* error) SHMB_NOEXCEPT;

typedef struct shmb_event {
  size_t size;
  uint32_t kind; /* enum shmb_event_kind */
  uint32_t how;  /* RECLAIM: enum shmb_death; GPU_STATE: enum shmb_gpu_state */
  uint64_t sequence;
  uint64_t watch;        /* the subscription; 0: none */
  shmb_region_id region; /* REGION_*, NAME_APPEARED, GPU_STATE */
  uint64_t group;        /* GROUP_ENDED, RECLAIM */
  uint64_t bytes;        /* GROUP_ENDED, RECLAIM: freed */
  uint64_t lost;         /* GAP: events dropped */
  uint32_t uid, pid;     /* of the process: RECLAIM: that left them; GPU_STATE: that died or reported */
  uint32_t regions;      /* RECLAIM: how many */
  int32_t code;          /* RECLAIM: exit status or signal; GPU_STATE: CUresult */
  char text[512];        /* NAME_APPEARED: the name; RECLAIM: the report's line; BROKER_AWAY: why */
} shmb_event;

/** A descriptor for poll or epoll: readable when shmb_next_event may have something, at times for nothing, and always
 * once the session is lost. It is the session's: never close, read or write it. Local sessions: UNSUPPORTED. Errors:
 * UNSUPPORTED. */
SHMB_API int shmb_event_descriptor(shmb_session* session, int* fd, shmb_error* error) SHMB_NOEXCEPT;
/** Takes the next event. wait_ns: SHMB_NO_WAIT and SHMB_FOREVER allowed. Set event->size first. Errors: DEADLINE (none
 * came), SESSION_LOST (a consumer of this session has had BROKER_AWAY: poll the descriptor no more). */
SHMB_API int shmb_next_event(shmb_session* session, int64_t wait_ns, shmb_event* event,
                             shmb_error* error) SHMB_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif

#include "shmbroker_pool.h"

#endif
