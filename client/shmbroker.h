/* SPDX-License-Identifier: Apache-2.0 */
/* The C face of shmbroker: shared memory owned by a broker, so that it goes when its users are gone.
 *
 * Rules that hold for every function:
 *  - It returns a status: SHMB_OK (0) or a code of shmb_status.h. A function that takes `shmb_error* error` fills it on
 *    failure with the same status, the numbers behind it and a sentence to print; NULL is allowed. Out-parameters are
 *    written only on success (batch calls: as documented). Nothing is printed, no signal is handled, no thread started.
 *  - Sizes and offsets are bytes, times are nanoseconds. Durations: SHMB_DEFAULT_TIMEOUT (0) is 5 s; SHMB_FOREVER is
 *    accepted only where the function says so, which is where it waits for others: a call to the broker has a deadline,
 *    or is refused (SHMB_E_INVALID); SHMB_NO_WAIT asks without waiting, where the function says so.
 *  - Thread-safe: all functions may be called on one session from any threads at once. A region handle must not be
 *    released or published while another thread uses that handle; a session must not be disconnected while another
 *    thread is in a call on it.
 *  - Fork-safe: in a forked child every handle stays usable. At its first call the child opens its own session and
 * takes over its own leases (the parent may already be gone); mappings are inherited by fork itself. Subscriptions,
 * queued events and the event descriptor stay the parent's: the child asks for its own. Calls made between fork and
 * exec in a child of a threaded process are as limited as malloc is.
 *  - Options structs start with `size`, set to sizeof: newer programs run with older libraries if the fields that the
 *    library does not know are zero (else SHMB_E_TOO_NEW). NULL options mean all defaults. Unknown flags are refused.
 *  - Strings are UTF-8 or ASCII, terminated by NUL. Group and region names: 1 to 96 bytes of [A-Za-z0-9._-], no
 *    leading dot.
 *  - An address is "UID:GROUP/NAME", "GROUP/NAME" (own uid) or "NAME" (the session's own group); GROUP may be "@id".
 *  - A session is lost for good when the broker goes away (SHMB_E_SESSION_LOST): mappings stay valid, calls that need
 *    the broker fail at once, and the caller connects again when it likes.
 */
#ifndef SHMBROKER_H
#define SHMBROKER_H

#include <stddef.h>
#include <stdint.h>

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

#define SHMB_MAX_NAME 96       /* bytes of a group or region name, without NUL */
#define SHMB_TOKEN_TEXT 33     /* bytes that shmb_token_format writes, with NUL */
#define SHMB_VARIABLE_TEXT 130 /* bytes that shmb_group_variable writes at most, with NUL */

typedef struct shmb_session shmb_session; /* one connection to a broker, or a local session */
typedef struct shmb_region shmb_region;   /* one counted reference to a region, with its mapping */

/* Filled on failure. slot, scope and the four numbers name a limit: what is short (enum shmb_limit_slot), whose
 * (enum shmb_scope, scope_id), by how much; all 0 when no limit is the cause. */
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

enum shmb_limit_slot {
  SHMB_SLOT_NONE = 0,
  SHMB_SLOT_BYTES,
  SHMB_SLOT_REGIONS,
  SHMB_SLOT_LEASES,
  SHMB_SLOT_SESSIONS,
  SHMB_SLOT_GROUPS,
  SHMB_SLOT_TICKETS,
  SHMB_SLOT_NAMES,
  SHMB_SLOT_WATCHES,
  SHMB_SLOT_DESCRIPTORS,
  SHMB_SLOT_KEEP,
  SHMB_SLOT_MESSAGE,
  SHMB_SLOT_MEMORY,
  SHMB_SLOT_PARTICIPANTS, /* of a pool, as the next five */
  SHMB_SLOT_QUEUES,
  SHMB_SLOT_LANES,
  SHMB_SLOT_LANE_BYTES,
  SHMB_SLOT_SEGMENTS,
  SHMB_SLOT_SLOTS,
  SHMB_SLOT_WORLDS,
  SHMB_SLOT_REFERENCES,
  SHMB_SLOT_GPU_BYTES,
  SHMB_SLOT_GPU_DESCRIPTORS,
  SHMB_SLOT_LIFETIME
};
enum shmb_scope {
  SHMB_SCOPE_NONE = 0,
  SHMB_SCOPE_HOST,
  SHMB_SCOPE_UID,
  SHMB_SCOPE_GROUP,
  SHMB_SCOPE_SESSION,
  SHMB_SCOPE_PROCESS,
  SHMB_SCOPE_CGROUP,
  SHMB_SCOPE_POOL,
  SHMB_SCOPE_WATCHED
};
enum shmb_mode { SHMB_MODE_LOCAL = 0, SHMB_MODE_SYSTEM, SHMB_MODE_PRIVATE };
enum shmb_page_kind {
  SHMB_PAGES_UNKNOWN = 0,
  SHMB_PAGES_SMALL,
  SHMB_PAGES_HUGE,
  SHMB_PAGES_MIXED,
  SHMB_PAGES_UNPOPULATED
};
enum shmb_region_state {
  SHMB_REGION_NONE = 0,
  SHMB_REGION_CREATED,
  SHMB_REGION_READY,
  SHMB_REGION_WRITE_CLOSED,
  SHMB_REGION_PUBLISHED,
  SHMB_REGION_FREEING,
  SHMB_REGION_CACHED
};
enum shmb_right {
  SHMB_RIGHT_READ = 1 << 0,    /* map for reading */
  SHMB_RIGHT_WRITE = 1 << 1,   /* map for writing */
  SHMB_RIGHT_SHARE = 1 << 2,   /* make tickets */
  SHMB_RIGHT_RELEASE = 1 << 3, /* take the name away, replace */
  SHMB_RIGHT_ALL = 15
};

/* The library's version, "0.1.0". */
SHMB_API const char* shmb_version(void) SHMB_NOEXCEPT;
/* "not_found" for SHMB_E_NOT_FOUND; "unknown status" for a number that is none. Static storage. */
SHMB_API const char* shmb_status_name(int status) SHMB_NOEXCEPT;
/* "no such object, ..." for SHMB_E_NOT_FOUND: what the code means, without the facts of one case. Static storage. */
SHMB_API const char* shmb_status_text(int status) SHMB_NOEXCEPT;

/* Which names a sentence uses for what the caller may have to change. */
enum shmb_words {
  SHMB_WORDS_C = 0, /* those of this header: what every function gives */
  SHMB_WORDS_CXX,   /* those of shmbroker.hpp and its companions */
  SHMB_WORDS_SHELL  /* commands of `shmbroker`; where there is none, as SHMB_WORDS_CXX */
};
/* For other faces than C, before they show an error: puts their names into the sentence. All else stays. A sentence
 * that gets too long is cut. Never fails; an unknown value of `words` and NULL change nothing. */
SHMB_API void shmb_error_words(shmb_error* error, uint32_t words) SHMB_NOEXCEPT;

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
  int64_t timeout_ns; /* over finding, starting and greeting the broker */
} shmb_connect_options;

/* Opens a session. The broker is looked for in this order: options->socket; the variable SHMBROKER_SOCKET (these two
 * never fall through); /run/shmbroker/socket; the private broker of this uid ($XDG_RUNTIME_DIR/shmbroker/socket, or
 * /tmp/shmbroker-<uid>/socket, or, where another user has made that directory, /tmp/shmbroker-<uid>-<random>/socket); a
 * private broker is started (program: SHMBROKER_DAEMON, beside the library, or the installed one), under a lock. It
 * inherits nothing of the caller and outlives it. The group is that of options->group or SHMBROKER_GROUP, else an own
 * unnamed one. Errors: NO_BROKER (with what was tried), VERSION, LIMIT (sessions), NOT_FOUND (token), DEADLINE. */
SHMB_API int shmb_connect(const shmb_connect_options* options, shmb_session** session, shmb_error* error) SHMB_NOEXCEPT;

/* Ends the session and frees the handle. Region handles that are still open keep it alive until they are released
 * too; after that all leases are given back by the closing of the socket. A forked child that still uses its copy
 * keeps the leases (as an heir) until it closes or ends. NULL is allowed. */
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

/* What the library knows without asking the broker (a forked child's first call opens its session, though). Set
 * info->size first. */
SHMB_API int shmb_session_get_info(shmb_session* session, shmb_session_info* info, shmb_error* error) SHMB_NOEXCEPT;

/* A round trip to the broker and back. Local sessions: SHMB_OK. */
SHMB_API int shmb_ping(shmb_session* session, int64_t timeout_ns, shmb_error* error) SHMB_NOEXCEPT;

/* ------------------------------------------------------------------------------------------------ regions */

/* Identity of a region. Ids are never used twice within an epoch; `generation` counts re-creations under one name. */
typedef struct shmb_region_id {
  uint64_t epoch; /* of the broker that gave the id; 0 in a request: the one connected to */
  uint64_t id;
  uint32_t generation; /* 0 in a request: whichever */
  uint32_t reserved;   /* 0 */
} shmb_region_id;

enum shmb_create_flag {
  SHMB_CREATE_MANY_WRITERS = 1 << 0,    /* any number of writers for ever; read-only is then no boundary (`ro*`) */
  SHMB_CREATE_REPLACE = 1 << 1,         /* take the name over: generation + 1; needs the old region's right `release` */
  SHMB_CREATE_UNINITIALISED = 1 << 2,   /* contents may be what this group wrote before (never another's); else zeros */
  SHMB_CREATE_NO_RECYCLE = 1 << 3,      /* fresh memory, and not kept for reuse afterwards */
  SHMB_CREATE_KEEP_GIVEN = 1 << 4,      /* keep_ns counts; else the group's default */
  SHMB_CREATE_NAME_AT_PUBLISH = 1 << 5, /* name, keep and REPLACE count from shmb_publish on, in one step: until then
                                         the region has no name, and goes with its last handle; who has the name keeps
                                         it. The generation is numbered at create: two at once may get the same one */
  SHMB_CREATE_HEAP = 1 << 7,            /* a mark: its contents are, or will be, a heap (shmbroker/heap.hpp) */
  SHMB_CREATE_NO_POPULATE = 1 << 8,     /* no memory behind it yet: pages come at first touch (refused under
                                           vm.overcommit_memory=2, where that could be a SIGBUS) */
  SHMB_CREATE_SMALL_PAGES = 1 << 9,     /* 4 KiB pages also where huge pages could be had */
  SHMB_CREATE_UNMAPPED = 1 << 10        /* not mapped; use shmb_region_map for parts. Not populated either */
};

typedef struct shmb_create_options {
  size_t size;
  const char* name;   /* NULL: unnamed */
  uint64_t group;     /* group id; 0: the session's own */
  int64_t keep_ns;    /* with KEEP_GIVEN: 0, ns after the group's end, or SHMB_KEEP_UNTIL_RELEASED */
  uint32_t flags;     /* enum shmb_create_flag */
  uint32_t rights;    /* enum shmb_right of this handle; 0: all */
  int64_t timeout_ns; /* of the broker's answer; populating takes as long as it takes */
} shmb_create_options;

/* Creates a region of `length` bytes (1 to 2^47 - 1), maps it for reading and writing and, up to 1 GiB, puts memory
 * behind it in the calling process: huge pages from 2 MiB up where they can be had, 4 KiB pages else (region info says
 * which). Over 1 GiB pages come at first touch; call shmb_region_populate for parts or all. Before it asks the broker
 * it compares the room of its cgroups and of the host with the length: NO_MEMORY names the cgroup. No SIGBUS for want
 * of memory follows. Recycled memory of the user is used, or given up, before it refuses. Errors: LIMIT, EXISTS,
 * NO_MEMORY, NO_DESCRIPTORS, GROUP_ENDED, DENIED, SYSTEM (mmap). */
SHMB_API int shmb_create(shmb_session* session, uint64_t length, const shmb_create_options* options,
                         shmb_region** region, shmb_error* error) SHMB_NOEXCEPT;

typedef struct shmb_create_item {
  uint64_t length;
  const shmb_create_options* options; /* NULL: defaults; timeout_ns is ignored here */
} shmb_create_item;

/* Creates `count` regions in batches of up to 253. regions[i] is NULL where statuses[i] (may be NULL) is not SHMB_OK;
 * the elements do not depend on each other. Returns SHMB_OK if all succeeded, else the first failure, which `error`
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
  int64_t wait_ns;    /* how long to wait for a name not yet created, and for a region whose writer has not mapped it
                         yet; 0: no wait for a name, the default time-out for a writer; SHMB_FOREVER allowed */
  int64_t timeout_ns; /* of each answer of the broker */
} shmb_attach_options;

/* Takes a reference to an existing region and maps it: by address, by identity or by ticket. Errors: NOT_FOUND (also
 * where it exists but is none of the caller's business), DENIED, WRITE_CLOSED (read-only readers exist or it was
 * published), NOT_READY, STALE (by id: another generation; another epoch), DEADLINE, LIMIT (leases), NO_DESCRIPTORS. */
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

/* As shmb_create_many. Does not wait for names or writers: such elements get NOT_FOUND or NOT_READY. */
SHMB_API int shmb_attach_many(shmb_session* session, const shmb_attach_item* items, size_t count, int64_t timeout_ns,
                              shmb_region** regions, int* statuses, shmb_error* error) SHMB_NOEXCEPT;

/* Local sessions only: makes a region of a shared-memory descriptor (a memfd passed by other means). The descriptor is
 * duplicated; the caller keeps its own. rights: READ, or READ|WRITE. Errors: INVALID, UNSUPPORTED (with a broker). */
SHMB_API int shmb_adopt_fd(shmb_session* session, int fd, uint32_t rights, shmb_region** region,
                           shmb_error* error) SHMB_NOEXCEPT;

/* First byte of the mapping (writable if the handle has WRITE and is not published), or NULL when unmapped. */
SHMB_API void* shmb_region_data(const shmb_region* region) SHMB_NOEXCEPT;
/* Bytes asked for at creation; the mapping is at least that long. */
SHMB_API uint64_t shmb_region_length(const shmb_region* region) SHMB_NOEXCEPT;
SHMB_API shmb_region_id shmb_region_get_id(const shmb_region* region) SHMB_NOEXCEPT;

typedef struct shmb_region_info {
  size_t size;
  shmb_region_id id;
  uint64_t length;          /* asked for */
  uint64_t bytes;           /* rounded, charged */
  uint64_t group;           /* id of the group that holds it */
  uint64_t populated;       /* bytes this handle put memory behind */
  uint32_t rights;          /* of this handle */
  uint32_t state;           /* enum shmb_region_state, as this handle last heard; shmb_region_stat asks the broker */
  uint32_t page_kind;       /* enum shmb_page_kind */
  uint32_t flags;           /* enum shmb_region_flag */
  uint32_t recycled;        /* 1: the memory served this group before (and was zeroed, unless UNINITIALISED) */
  uint32_t descriptor_kept; /* 1: the handle holds its descriptor open (shmb_set_sharing_strategy; local sessions) */
} shmb_region_info;
enum shmb_region_flag {
  SHMB_REGION_FLAG_MANY_WRITERS = 1 << 0,
  SHMB_REGION_FLAG_NAMED = 1 << 1,
  SHMB_REGION_FLAG_KEPT = 1 << 2,
  SHMB_REGION_FLAG_RECYCLED = 1 << 3,
  SHMB_REGION_FLAG_WRITE_OPEN = 1 << 4,
  SHMB_REGION_FLAG_HEAP = 1 << 6 /* made with SHMB_CREATE_HEAP */
};
/* What the library knows, without asking. Set info->size first. */
SHMB_API int shmb_region_get_info(const shmb_region* region, shmb_region_info* info, shmb_error* error) SHMB_NOEXCEPT;
/* A further handle of the session that the region belongs to; shmb_disconnect frees it. */
SHMB_API int shmb_region_session(const shmb_region* region, shmb_session** session, shmb_error* error) SHMB_NOEXCEPT;

enum shmb_access { SHMB_ACCESS_READ = 0, SHMB_ACCESS_READ_WRITE = 1 };

/* Maps a part of a region besides the mapping of the handle. `offset` is a multiple of 4096; offset + length is at
 * most the rounded size. A descriptor is fetched from the broker for it and closed again. The mapping belongs to the
 * caller until shmb_region_unmap; release the handle only afterwards. Errors: INVALID, DENIED, WRITE_CLOSED, SYSTEM. */
SHMB_API int shmb_region_map(shmb_region* region, uint64_t offset, uint64_t length, uint32_t access, void** address,
                             shmb_error* error) SHMB_NOEXCEPT;
SHMB_API int shmb_region_unmap(shmb_region* region, void* address, uint64_t length, shmb_error* error) SHMB_NOEXCEPT;

/* Puts memory behind a part of the handle's mapping (whole pages around it), with the checks of shmb_create: an error
 * instead of a signal where there is no room. On a read-only handle existing pages are mapped. */
SHMB_API int shmb_region_populate(shmb_region* region, uint64_t offset, uint64_t length,
                                  shmb_error* error) SHMB_NOEXCEPT;

/* A descriptor of the region, close-on-exec, owned by the caller; O_RDONLY unless the handle may write. It is outside
 * the books: memory it holds is not freed by the broker. The region is then never recycled. */
SHMB_API int shmb_region_descriptor(shmb_region* region, int* fd, shmb_error* error) SHMB_NOEXCEPT;

/* Gives up writing for good, for everybody: the mapping is taken away, the broker seals the region, and it is mapped
 * again read-only: shmb_region_data may be another address. Errors: STILL_MAPPED (a forked child or a part mapping
 * still maps it for writing: the region is mapped back as before and the call may be repeated), DENIED, INVALID,
 * NOT_READY (until timeout_ns another writer had not mapped the region yet: it is mapped back as before),
 * DEADLINE: the region is unmapped (shmb_region_data is NULL), and published once the broker serves the request, which
 * shmb_stat_id tells. shmb_publish again is the way on, in both cases: it maps the region for reading. */
SHMB_API int shmb_publish(shmb_region* region, int64_t timeout_ns, shmb_error* error) SHMB_NOEXCEPT;

enum shmb_release_flag {
  SHMB_RELEASE_NO_RECYCLE = 1 << 0, /* free the memory instead of keeping it ready for this group */
  SHMB_RELEASE_UNNAME = 1 << 1      /* take the region's name away too; needs right `release` */
};
/* Unmaps, gives the reference back and frees the handle, whatever is returned. Without UNNAME it does not wait for the
 * broker; DENIED, SESSION_LOST, DEADLINE: it keeps the name. A region goes with its last reference, ticket and name. */
SHMB_API int shmb_release(shmb_region* region, uint32_t flags, shmb_error* error) SHMB_NOEXCEPT;

/* Takes the name of the region at `address` away; it goes with its last reference. Errors: NOT_FOUND, DENIED. */
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
/* What the broker's books say now. Set stat->size first. Local sessions: LOCAL_ONLY. */
SHMB_API int shmb_stat(shmb_session* session, const char* address, int64_t timeout_ns, shmb_region_stat* stat,
                       shmb_error* error) SHMB_NOEXCEPT;
SHMB_API int shmb_stat_id(shmb_session* session, const shmb_region_id* id, int64_t timeout_ns, shmb_region_stat* stat,
                          shmb_error* error) SHMB_NOEXCEPT;

/* ------------------------------------------------------------------------------------------------ strategies
 *
 * What handles that are made from now on keep besides their mapping. "file_system", the default: nothing; a descriptor
 * is fetched from the broker for the moment in which one is needed. "file_descriptor": the descriptor, as long as the
 * process keeps fewer than half of its limit of open files so (region info says which handle does); a further mapping
 * then takes no call to the broker and works without one. Under both the broker frees what its users leave. It belongs
 * to the process: forked children have it, and ranks get it through SHMBROKER_SHARING_STRATEGY, which is also what a
 * process begins with. */

/* All names, NULL-terminated. Static storage. */
SHMB_API const char* const* shmb_sharing_strategies(void) SHMB_NOEXCEPT;
/* INVALID where the variable names none; shmb_connect says so too. Static storage. */
SHMB_API int shmb_sharing_strategy(const char** name, shmb_error* error) SHMB_NOEXCEPT;
/* INVALID for an unknown name; the sentence lists those there are. */
SHMB_API int shmb_set_sharing_strategy(const char* name, shmb_error* error) SHMB_NOEXCEPT;

/* ------------------------------------------------------------------------------------------------ tickets */

/* Makes a token that gives `rights` (at most the handle's own; needs SHARE; 0: read) to whoever shows it, also in other
 * groups and to other users. uses: attaches it allows, 0: one. lifetime_ns: 0: 10 minutes. It holds the region, never
 * its group. expires_ns (may be NULL) is CLOCK_BOOTTIME. Errors: DENIED, LIMIT (tickets), INVALID. */
SHMB_API int shmb_ticket_create(shmb_region* region, uint32_t rights, uint32_t uses, int64_t lifetime_ns,
                                int64_t timeout_ns, uint8_t ticket[16], int64_t* expires_ns,
                                shmb_error* error) SHMB_NOEXCEPT;
/* The same, and it ends at the latest with the session that made it, or with that session's process, also a killed one:
 * for processes that do not outlive it. Errors: those, and TOO_NEW from a broker that does not know it. */
SHMB_API int shmb_ticket_lend(shmb_region* region, uint32_t rights, uint32_t uses, int64_t lifetime_ns,
                              int64_t timeout_ns, uint8_t ticket[16], int64_t* expires_ns,
                              shmb_error* error) SHMB_NOEXCEPT;
/* Ends a ticket with the uses it has left; what was attached by it stays. For the session that made it, and for others
 * of its group. Errors: NOT_FOUND (also where it is used up, over, or not theirs). */
SHMB_API int shmb_ticket_revoke(shmb_session* session, const uint8_t ticket[16], int64_t timeout_ns,
                                shmb_error* error) SHMB_NOEXCEPT;
/* 16 bytes (ticket or group token) <-> 32 lower-case hex digits. parse: INVALID for anything else. */
SHMB_API void shmb_token_format(const uint8_t token[16], char text[SHMB_TOKEN_TEXT]) SHMB_NOEXCEPT;
SHMB_API int shmb_token_parse(const char* text, uint8_t token[16]) SHMB_NOEXCEPT;

/* ------------------------------------------------------------------------------------------------ groups */

typedef struct shmb_group {
  uint64_t id;
  uint8_t token[16]; /* admits any session that shows it, of any uid */
} shmb_group;

enum shmb_group_flag {
  SHMB_GROUP_SUPERVISED = 1 << 0, /* ends only when a supervisor has reported the process tree gone, or all are lost */
  SHMB_GROUP_ADOPT_EXISTING = 1 << 1 /* a live group of that name and uid is taken instead of refused */
};
typedef struct shmb_group_options {
  size_t size;
  const char* name;     /* NULL: unnamed */
  uint64_t limit_bytes; /* 0: the broker's default */
  int64_t keep_ns;      /* default of its regions: 0, ns after its end, or SHMB_KEEP_UNTIL_RELEASED */
  uint32_t limit_regions;
  uint32_t flags; /* enum shmb_group_flag */
  int64_t timeout_ns;
} shmb_group_options;

/* Makes a group of the caller's uid. The session does not become a member by it; until somebody joins, it lives as long
 * as the session, or until shmb_group_leave. After DEADLINE a group that was made too late is given up at once; with
 * ADOPT_EXISTING it stays, because the session may have had it before: asking again returns it. Errors: EXISTS, LIMIT,
 * INVALID. */
SHMB_API int shmb_group_create(shmb_session* session, const shmb_group_options* options, shmb_group* group,
                               shmb_error* error) SHMB_NOEXCEPT;

enum shmb_join_flag { SHMB_JOIN_SUPERVISOR = 1 << 0 }; /* a role: it watches the group, without being a member */

/* The session becomes a member of a group (and leaves the one it was in): by name ("GROUP", "@id", "UID:GROUP"; own uid
 * only) or by token. id may be NULL. Errors: NOT_FOUND, GROUP_ENDED, INVALID. After DEADLINE a group that was joined
 * too late is left again; the session is then in none, also if it was in another one before. Asking again is fine: then
 * the second answer counts. */
SHMB_API int shmb_group_join(shmb_session* session, const char* group, uint32_t flags, int64_t timeout_ns, uint64_t* id,
                             shmb_error* error) SHMB_NOEXCEPT;
SHMB_API int shmb_group_join_token(shmb_session* session, const uint8_t token[16], uint32_t flags, int64_t timeout_ns,
                                   uint64_t* id, shmb_error* error) SHMB_NOEXCEPT;
/* Leaves a group (0: the one the session is in); the next create makes an own unnamed one. A group that the session
 * made and nobody has joined is given up. */
SHMB_API int shmb_group_leave(shmb_session* session, uint64_t group, int64_t timeout_ns,
                              shmb_error* error) SHMB_NOEXCEPT;

enum shmb_end_flag {
  SHMB_END_TREE_GONE = 1 << 0,    /* supervisors: the process tree has ended */
  SHMB_END_RELEASE_KEPT = 1 << 1, /* free what it keeps */
  SHMB_END_KEPT_ONLY = 1 << 2 /* only if it has ended already: a live group is BUSY, and `error` names its members */
};
typedef struct shmb_group_ending {
  uint32_t members; /* members and heirs left */
  uint32_t regions; /* regions left */
  uint64_t bytes_freed;
} shmb_group_ending;
/* Ends a group: its members leave it, its names go, and processes that still run lose what they share by them. group:
 * its id, or 0 with its name. ending may be NULL. Errors: NOT_FOUND, DENIED, BUSY (KEPT_ONLY, and it is alive). */
SHMB_API int shmb_group_end(shmb_session* session, uint64_t group, const char* name, uint32_t flags, int64_t timeout_ns,
                            shmb_group_ending* ending, shmb_error* error) SHMB_NOEXCEPT;
/* Waits until a group (0: the session's own) has ended. wait_ns: SHMB_FOREVER allowed. Errors: NOT_FOUND, DEADLINE,
 * SESSION_LOST (the broker's end ends the wait). */
SHMB_API int shmb_group_wait(shmb_session* session, uint64_t group, int64_t wait_ns, shmb_error* error) SHMB_NOEXCEPT;
/* "<name>:<token>", the value of SHMBROKER_GROUP that makes a child a member. */
SHMB_API int shmb_group_variable(const char* name, const uint8_t token[16], char text[SHMB_VARIABLE_TEXT],
                                 shmb_error* error) SHMB_NOEXCEPT;

/* ------------------------------------------------------------------------------------------------ events */

enum shmb_watch_kind {
  SHMB_WATCH_REGION = 1,
  SHMB_WATCH_NAME = 2,
  SHMB_WATCH_GROUP = 3,
  SHMB_WATCH_RECLAIM = 4 /* what was freed of the dead: group, or 0 for all of the own uid */
};
enum shmb_event_bit {
  SHMB_EVENT_BIT_READY = 1 << 0,
  SHMB_EVENT_BIT_PUBLISHED = 1 << 1,
  SHMB_EVENT_BIT_GONE = 1 << 2,
  SHMB_EVENT_BIT_APPEARED = 1 << 3,
  SHMB_EVENT_BIT_ENDED = 1 << 4,
  SHMB_EVENT_BIT_RECLAIM = 1 << 5,
  SHMB_EVENT_BIT_GPU = 1 << 6 /* state of a GPU region */
};
typedef struct shmb_watch_options {
  size_t size;
  uint32_t kind;         /* enum shmb_watch_kind */
  uint32_t events;       /* bits wanted; 0: all of the kind */
  shmb_region_id region; /* kind REGION */
  uint64_t group;        /* kinds GROUP and RECLAIM: id; 0: own, or all */
  const char* address;   /* kind NAME: address; kind GROUP: the group's name instead of its id */
  int64_t timeout_ns;
} shmb_watch_options;

/* Subscribes. `watch` names the subscription in events and for shmb_unwatch; `state` (may be NULL) tells which of the
 * bits hold already: such an event is not sent again. Errors: NOT_FOUND, LIMIT (watches), INVALID. */
SHMB_API int shmb_watch(shmb_session* session, const shmb_watch_options* options, uint64_t* watch, uint32_t* state,
                        shmb_error* error) SHMB_NOEXCEPT;
SHMB_API int shmb_unwatch(shmb_session* session, uint64_t watch, int64_t timeout_ns, shmb_error* error) SHMB_NOEXCEPT;

enum shmb_event_kind {
  SHMB_EVENT_REGION_READY = 1,
  SHMB_EVENT_REGION_PUBLISHED,
  SHMB_EVENT_REGION_GONE,
  SHMB_EVENT_NAME_APPEARED,
  SHMB_EVENT_GROUP_ENDED,
  SHMB_EVENT_RECLAIM,
  SHMB_EVENT_GAP,           /* events were dropped, because too many were unread: look again at what you watch */
  SHMB_EVENT_BROKER_AWAY,   /* made by the library, once: the session is lost */
  SHMB_EVENT_GPU_STATE = 24 /* a GPU region: `how` is enum shmb_gpu_state, `code` the driver's result behind it */
};
enum shmb_death { SHMB_DEATH_UNKNOWN = 0, SHMB_DEATH_EXITED, SHMB_DEATH_KILLED, SHMB_DEATH_DISCONNECTED };
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
  uint32_t uid, pid;     /* RECLAIM: who left them; GPU_STATE: pid of who died or reported */
  uint32_t regions;      /* RECLAIM: how many */
  int32_t code;          /* RECLAIM: exit status or signal; GPU_STATE: CUresult */
  char text[512];        /* NAME_APPEARED: the name; RECLAIM: the report's line; BROKER_AWAY: why */
} shmb_event;

/* A descriptor to put into poll, select or epoll: readable when shmb_next_event may have something. It belongs to the
 * session: never close, read or write it. Spurious wake-ups happen. Local sessions: UNSUPPORTED. */
SHMB_API int shmb_event_descriptor(shmb_session* session, int* fd, shmb_error* error) SHMB_NOEXCEPT;
/* Takes the next event. wait_ns: SHMB_NO_WAIT and SHMB_FOREVER allowed. Set event->size first. Errors: DEADLINE (none
 * came), SESSION_LOST (after BROKER_AWAY has been delivered). */
SHMB_API int shmb_next_event(shmb_session* session, int64_t wait_ns, shmb_event* event,
                             shmb_error* error) SHMB_NOEXCEPT;

/* ------------------------------------------------------------------------------------------------ pools
 *
 * A pool is memory cut into slots, and queues beside it, shared by up to 64 processes. Slots and messages change hands
 * without a system call, and a process may be killed at any instruction: what it held is free again, what it sent
 * arrives. A session joins a pool once, further opens of it in the same session give further handles. A forked child
 * joins on its own at its first call: slots of the parent are not the child's (SHMB_E_FORKED).
 *
 * `wait_ns` of everything below: SHMB_DEFAULT_TIMEOUT is 5 s, SHMB_FOREVER and SHMB_NO_WAIT are allowed, another
 * negative number is a deadline that has passed: one look, then SHMB_E_DEADLINE. Pools need a broker (LOCAL_ONLY).
 *
 * A pool ends with its group, or with its broker: calls then answer GROUP_ENDED or SESSION_LOST. BROKEN is for shared
 * words that no participant could have written that keeps to the rules.
 *
 * shmb_slot, shmb_size_class, shmb_part and shmb_outgoing lie in arrays, and the classes of shmb_pool_info end it:
 * these never grow. A field called `reserved` must be 0 (TOO_NEW). */

typedef struct shmb_pool shmb_pool;           /* this process in one pool */
typedef struct shmb_queue shmb_queue;         /* own ends of one queue */
typedef struct shmb_message shmb_message;     /* a received message; made once and used again and again */
typedef struct shmb_queue_set shmb_queue_set; /* several queues to wait on */

#define SHMB_MAX_SIZE_CLASSES 16

typedef struct shmb_size_class {
  uint64_t slot_size;   /* bytes that a user may write */
  uint32_t slots;       /* made at once, at least 1 */
  uint32_t slots_limit; /* with those added later, when all are in use; 0: no more than `slots` */
} shmb_size_class;

enum shmb_pool_flag {
  SHMB_POOL_KEEP_GIVEN = 1 << 0,  /* keep_ns counts; else the group's default */
  SHMB_POOL_SMALL_PAGES = 1 << 1, /* 4 KiB pages also where huge pages could be had */
  SHMB_POOL_NO_POPULATE = 1 << 2, /* memory comes at first touch, not at creation */
  SHMB_POOL_REPLACE = 1 << 3      /* a pool that has the name loses it; its participants go on with it */
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
  uint32_t lanes;                 /* 0: 64. One for each pair of line queue ends, one for each other writer */
  uint32_t queues;                /* 0: 16 */
  uint64_t lane_bytes; /* memory of all lanes; 0: 1 MiB. With the slots' words (64 bytes each) at most 16 MiB */
  int64_t timeout_ns;  /* of each answer of the broker */
} shmb_pool_options;

/* Makes a pool, joins it, and puts memory behind its slots. Errors: INVALID (a size of 0 or over the limits), EXISTS,
 * LIMIT, NO_MEMORY, LOCAL_ONLY, GROUP_ENDED. */
SHMB_API int shmb_pool_create(shmb_session* session, const shmb_pool_options* options, shmb_pool** pool,
                              shmb_error* error) SHMB_NOEXCEPT;

typedef struct shmb_pool_open_options {
  size_t size;
  uint64_t id;        /* with address NULL: the pool's id */
  uint32_t read_only; /* 1: maps slots for reading, opens no writer, takes no slots, never adds memory */
  uint32_t reserved;  /* 0 */
  int64_t wait_ns;    /* how long to wait for a name that is not there; SHMB_DEFAULT_TIMEOUT (0): no wait for it */
  int64_t timeout_ns; /* of each answer of the broker */
} shmb_pool_open_options;

/* Joins a pool by its address, as the broker reads that now; one in the making is waited for up to timeout_ns, and one
 * that this session is in already gives one more handle.
 * Errors: NOT_FOUND, DEADLINE (also where another thread of the process makes it, and still adds its memory after
 * timeout_ns and wait_ns), LIMIT (64 participants), DENIED, BUSY (this session has it open read-only, and may not write
 * through another handle), LOCAL_ONLY. */
SHMB_API int shmb_pool_open(shmb_session* session, const char* address, const shmb_pool_open_options* options,
                            shmb_pool** pool, shmb_error* error) SHMB_NOEXCEPT;

/* Frees the handle. With the last handle and the last queue of this process in the pool, it leaves: slots that it
 * holds are given back, what it sent and nobody has read yet stays for its readers. NULL is allowed. */
SHMB_API void shmb_pool_close(shmb_pool* pool) SHMB_NOEXCEPT;

/* Its name is free at once: nobody else can open it by name, and a new pool may have that name. The pool goes with its
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
SHMB_API uint64_t shmb_pool_id(const shmb_pool* pool) SHMB_NOEXCEPT; /* also of each slot in it; 0: NULL */
/* Reads shared memory only. Set info->size first. */
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

/* Takes a free slot for `length` bytes, to be written by this process alone; where all are in use and the class may
 * grow, memory is added. Contents are what was written there before. Errors: FULL (NO_WAIT), DEADLINE, INVALID
 * (larger than every class: use shmb_create and send the region), DENIED (read-only), BROKEN. */
SHMB_API int shmb_slot_acquire(shmb_pool* pool, uint64_t length, int64_t wait_ns, shmb_slot* slot,
                               shmb_error* error) SHMB_NOEXCEPT;
/* One more reference of this process, and one less. With the last one the slot is free again, unless others, or
 * messages under way, hold it. Errors: INVALID (of another pool), STALE (other generation, not held any more),
 * FORKED. */
SHMB_API int shmb_slot_retain(shmb_pool* pool, const shmb_slot* slot, shmb_error* error) SHMB_NOEXCEPT;
SHMB_API int shmb_slot_release(shmb_pool* pool, const shmb_slot* slot, shmb_error* error) SHMB_NOEXCEPT;

/* ------------------------------------------------------------------------------------------------ queues */

enum shmb_queue_kind {
  SHMB_QUEUE_AS_IS = 0, /* whatever it is: with OPEN_ONLY, or for a reader, which then waits for the queue */
  SHMB_QUEUE_LINE,      /* one writer, one reader */
  SHMB_QUEUE_CLAIM,     /* many writers, many readers, each message to one of them; order is kept per writer */
  SHMB_QUEUE_BROADCAST  /* one writer, many readers, each sees each message from its opening on */
};
enum shmb_queue_role { SHMB_QUEUE_READER = 1 << 0, SHMB_QUEUE_WRITER = 1 << 1 };
enum shmb_queue_flag {
  SHMB_QUEUE_DROP_OLDEST = 1 << 0,   /* broadcast: the writer never waits; slow readers lose messages and count them */
  SHMB_QUEUE_EXPIRING = 1 << 1,      /* messages may have a lifetime (8 of the inline bytes are used for it) */
  SHMB_QUEUE_AT_LEAST_ONCE = 1 << 2, /* claim: a message is done when the reader says so; if it dies first, another one
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
  int64_t spin_ns;       /* looks so long before it sleeps; 0: 20 us, unless that was for nothing the last times;
                            SHMB_NO_WAIT: sleeps at once */
  int64_t wait_ns;       /* with OPEN_ONLY: how long to wait for the queue; SHMB_DEFAULT_TIMEOUT (0): not at all. A
                            reader AS_IS without OPEN_ONLY waits as well; 0: as long as timeout_ns */
  int64_t timeout_ns;    /* of each answer of the broker */
} shmb_queue_options;

/* Opens own ends of a queue of a pool, and makes the queue where there is none of that name: either side may come
 * first, and come back. A reader that names no kind makes none: it takes the queue that is there, or comes before the
 * deadline. A closed queue is opened by a reader alone, if it is a claim queue with messages left. One handle for each
 * end in a process; its threads share it. Errors: INVALID (cells), EXISTS (settings differ: the sentence says which),
 * BUSY (a second writer of a line or broadcast queue, a second reader of a line queue, or this process has that end
 * open), DENIED (read-only participant), LIMIT, NOT_FOUND, CLOSED, DEADLINE (no queue came). */
SHMB_API int shmb_queue_open(shmb_pool* pool, const char* name, const shmb_queue_options* options, shmb_queue** queue,
                             shmb_error* error) SHMB_NOEXCEPT;
/* The same in a pool of its own without slots, of the queue's name, which is made or joined; `address` as for pools.
 * Messages: inline bytes, regions, and lists of them. */
SHMB_API int shmb_queue_open_alone(shmb_session* session, const char* address, const shmb_queue_options* options,
                                   shmb_queue** queue, shmb_error* error) SHMB_NOEXCEPT;

enum shmb_queue_close_flag {
  SHMB_QUEUE_CLOSE_ALL = 1 << 0,   /* for everybody: sends answer CLOSED, receives CLOSED after the last message; of an
                                    * AT_LEAST_ONCE queue once no other reader has one in hand, which may come back */
  SHMB_QUEUE_CLOSE_REMOVE = 1 << 1 /* and its name is free at once */
};
/* Closes own ends and frees the handle, whatever is returned. What was sent stays for its readers. NULL is allowed. No
 * other thread may be in a call with this handle, or use a message that is borrowed from it; SHMB_QUEUE_CLOSE_ALL by
 * another one, or shmb_queue_shutdown, ends their waits. */
SHMB_API int shmb_queue_close(shmb_queue* queue, uint32_t flags, shmb_error* error) SHMB_NOEXCEPT;
/* Ends the queue for everybody (flags: CLOSE_REMOVE besides) and keeps the handle, to drain it. */
SHMB_API int shmb_queue_shutdown(shmb_queue* queue, uint32_t flags, shmb_error* error) SHMB_NOEXCEPT;
/* Waits until everything that this handle has sent was taken by its readers, who may have gone since. Errors: DEADLINE,
 * FULL (NO_WAIT), PEER_GONE (nobody is left to take it, or one died). */
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
/* Reads shared memory only. Set info->size first. */
SHMB_API int shmb_queue_get_info(shmb_queue* queue, shmb_queue_info* info, shmb_error* error) SHMB_NOEXCEPT;

enum shmb_part_kind { SHMB_PART_BYTES = 1, SHMB_PART_SLOT, SHMB_PART_REGION };
/* A part of a message, for sending and as received. */
typedef struct shmb_part {
  uint32_t kind;       /* enum shmb_part_kind */
  uint32_t rights;     /* REGION: enum shmb_right that the receiver maps it with; 0: read */
  const void* data;    /* BYTES: what to send. Received: where it is; NULL where status is not SHMB_OK */
  uint64_t length;     /* SLOT, REGION: bytes of it that count; 0 in a request: all (slot.length, the region) */
  uint64_t offset;     /* SLOT, REGION: where they begin */
  shmb_slot slot;      /* SLOT. Received: which one; to send it on, take it with shmb_message_take_slot */
  shmb_region* region; /* REGION, for sending; NULL in received parts, see shmb_message_take_region */
  shmb_region_id id;   /* REGION, received */
  int32_t status;      /* received: why a region could not be attached, or a slot not be mapped */
  uint32_t reserved;   /* 0 */
} shmb_part;

typedef struct shmb_outgoing {
  const shmb_part* parts; /* any mix; the message arrives as a whole or not at all */
  size_t count;           /* at most 65,536; 20,000 are as good as one */
  uint64_t type;          /* the application's number, given to the receiver */
  int64_t lifetime_ns;    /* queues with EXPIRING: it is dropped when nobody took it by then; 0: never. What it holds
                             comes back with the next call of its sender that waits or needs room, or of a reader */
} shmb_outgoing;

/* Sending. With SHMB_OK the message arrives even if this process is killed at its next instruction. Up to inline_bytes
 * travel in the queue itself, larger bytes are copied into a slot of the pool. A list is copied into a slot, and so is
 * one part of bytes; what no slot can hold goes into a new region, which is slow (shmb_queue_info counts them). A sent
 * slot stays held by this process too, until it releases it; it must not be written any more. No system call unless a
 * reader sleeps or a region is sent for the first time. Errors: FULL (NO_WAIT), DEADLINE, CLOSED (if that happened
 * during the call, readers of a line or broadcast queue may have the message all the same), PEER_GONE (below), DENIED
 * (the handle is no writer), INVALID (too large, a part of another pool), STALE, BROKEN, SESSION_LOST.
 *
 * PEER_GONE is told once for each event, then the handle goes on: to a sender when the last reader has died or left, or
 * one has died while it waited for room; to a receiver when a writer has died, or the last one has left, after all that
 * it sent has been delivered. system_errno: EOWNERDEAD if a writer died. Nothing was sent or received
 * then; call again to wait for newcomers. */
SHMB_API int shmb_queue_send(shmb_queue* queue, const void* data, uint64_t length, int64_t wait_ns,
                             shmb_error* error) SHMB_NOEXCEPT;
SHMB_API int shmb_queue_send_slot(shmb_queue* queue, const shmb_slot* slot, int64_t wait_ns,
                                  shmb_error* error) SHMB_NOEXCEPT;
SHMB_API int shmb_queue_send_message(shmb_queue* queue, const shmb_outgoing* message, int64_t wait_ns,
                                     shmb_error* error) SHMB_NOEXCEPT;
/* In order; `sent` (may be NULL) is always written. wait_ns is for all of them together. Readers that sleep are woken
 * once, for all messages between two waits. Like a single send, it tells CLOSED for what was overtaken by a close. */
SHMB_API int shmb_queue_send_many(shmb_queue* queue, const shmb_outgoing* messages, size_t count, int64_t wait_ns,
                                  size_t* sent, shmb_error* error) SHMB_NOEXCEPT;

SHMB_API int shmb_message_new(shmb_message** message, shmb_error* error) SHMB_NOEXCEPT;
/* What it still holds is given back, as by shmb_message_done. NULL is allowed. */
SHMB_API void shmb_message_free(shmb_message* message) SHMB_NOEXCEPT;

enum shmb_receive_flag {
  SHMB_RECEIVE_KEEP = 1 << 0 /* own references to all parts: valid until shmb_message_done, however long */
};
/* Takes the next message. Without KEEP it is borrowed, in place and at no cost: valid until shmb_message_done, or the
 * next receive on this queue, which says done for it; until then its writer has one cell less. On claim queues without
 * AT_LEAST_ONCE its slots are held by this process and its cell is free at once, so that nobody else gets a message
 * that this process has, also when it dies. Regions in it are attached. Drop-oldest queues always keep. `message` is
 * emptied first. Only claim queues may be received from by several threads at once, with KEEP. On AT_LEAST_ONCE queues
 * a message stays borrowed, whatever is asked for, until shmb_message_done: closing the queue before gives it back and
 * empties it. A slot or a region in a list that cannot be mapped now (no descriptor is free, the broker does not
 * answer) arrives as a part with its status, and the others arrive; where the whole message is one slot, or its list is
 * in one, the receive fails with that status and takes nothing: call again. A list in a region that this process may
 * not attach arrives as one region part with its status. Errors: EMPTY (NO_WAIT), DEADLINE, CLOSED (and nothing left),
 * PEER_GONE, DENIED (the handle is no reader), BUSY (AT_LEAST_ONCE: the message before is not done), BROKEN (a
 * participant has written impossible words: a message that cannot be is gone, and the next call reads what is behind
 * it; where the words of a writer's lane itself are impossible this handle hears no more from that writer),
 * GROUP_ENDED, SESSION_LOST (also after seconds without a message where the broker is gone: nobody would tell of the
 * dead). One thread at a time uses a message, and what is borrowed is done before another thread receives through the
 * same handle. */
SHMB_API int shmb_queue_receive(shmb_queue* queue, shmb_message* message, uint32_t flags, int64_t wait_ns,
                                shmb_error* error) SHMB_NOEXCEPT;
/* Waits for one and takes all that are there, up to `capacity`, kept, and then wakes who waited for room. `count` is
 * always written. */
SHMB_API int shmb_queue_receive_many(shmb_queue* queue, shmb_message* const* messages, size_t capacity, int64_t wait_ns,
                                     size_t* count, shmb_error* error) SHMB_NOEXCEPT;
/* Through with it: the slots and regions go back, a borrowed message's cell too. The handle may be used again. */
SHMB_API int shmb_message_done(shmb_message* message, shmb_error* error) SHMB_NOEXCEPT;
/* AT_LEAST_ONCE: not done, another reader shall have it. */
SHMB_API int shmb_message_give_back(shmb_message* message, shmb_error* error) SHMB_NOEXCEPT;
/* Makes a borrowed message a kept one. One of an AT_LEAST_ONCE queue stays as it is. */
SHMB_API int shmb_message_keep(shmb_message* message, shmb_error* error) SHMB_NOEXCEPT;

SHMB_API size_t shmb_message_count(const shmb_message* message) SHMB_NOEXCEPT;  /* parts */
SHMB_API uint64_t shmb_message_type(const shmb_message* message) SHMB_NOEXCEPT; /* the sender's number, else 0 */
/* The first part, which is the whole message if it is no list. */
SHMB_API const void* shmb_message_data(const shmb_message* message) SHMB_NOEXCEPT;
SHMB_API uint64_t shmb_message_length(const shmb_message* message) SHMB_NOEXCEPT;
SHMB_API int shmb_message_part(const shmb_message* message, size_t number, shmb_part* part,
                               shmb_error* error) SHMB_NOEXCEPT;
/* Moves an own reference out of the message, so that it outlives it: release it with shmb_slot_release, shmb_release. A
 * slot taken out may be sent on. */
SHMB_API int shmb_message_take_slot(shmb_message* message, size_t number, shmb_slot* slot,
                                    shmb_error* error) SHMB_NOEXCEPT;
SHMB_API int shmb_message_take_region(shmb_message* message, size_t number, shmb_region** region,
                                      shmb_error* error) SHMB_NOEXCEPT;

/* ------------------------------------------------------------------------------------------------ waiting */

/* Descriptors for poll, epoll, asyncio: readable when a receive may have something to tell. Then receive with NO_WAIT
 * until it answers EMPTY, which arms it again. It belongs to the handle: never close, read or write it. Spurious
 * wake-ups happen. The first call must be followed by a receive that answers EMPTY, too. */
SHMB_API int shmb_queue_descriptor(shmb_queue* queue, int* fd, shmb_error* error) SHMB_NOEXCEPT;

/* Several queues, of one or several pools and sessions, for one thread at a time to wait on. A queue handle must be
 * removed before it is closed. Adding and removing make the set's descriptor readable: then wait until EMPTY. */
SHMB_API int shmb_queue_set_new(shmb_queue_set** set, shmb_error* error) SHMB_NOEXCEPT;
SHMB_API void shmb_queue_set_free(shmb_queue_set* set) SHMB_NOEXCEPT;
SHMB_API int shmb_queue_set_add(shmb_queue_set* set, shmb_queue* queue, void* tag, shmb_error* error) SHMB_NOEXCEPT;
SHMB_API int shmb_queue_set_remove(shmb_queue_set* set, shmb_queue* queue, shmb_error* error) SHMB_NOEXCEPT;
/* Which queue has something to tell: a message, or CLOSED or PEER_GONE; its turn comes last next time. `tag` (may be
 * NULL) is that of shmb_queue_set_add. Nothing is taken: another consumer of a claim queue may be faster, and a
 * borrowed message stays valid. Errors: EMPTY (NO_WAIT), DEADLINE, INVALID (an empty set). */
SHMB_API int shmb_queue_set_wait(shmb_queue_set* set, int64_t wait_ns, shmb_queue** queue, void** tag,
                                 shmb_error* error) SHMB_NOEXCEPT;
/* As shmb_queue_descriptor; a shmb_queue_set_wait that answers EMPTY arms it. */
SHMB_API int shmb_queue_set_descriptor(shmb_queue_set* set, int* fd, shmb_error* error) SHMB_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif
