/* SPDX-License-Identifier: Apache-2.0 */
/* The C face of spawn: ranks of one function or command that end together, errors that arrive whole, and what ranks ask
 * of each other. The rules of shmbroker.h hold: statuses and sentences, options that begin with `size`, nanoseconds, no
 * thread, no signal handler, nothing printed.
 *
 * Between the caller and the ranks stand two small processes (guard and supervisor). They end all ranks, with
 * everything these started, when one rank fails. They also do when the caller ends, normally or not, or when one of the
 * two is killed.
 */
#ifndef SHMBROKER_SPAWN_H
#define SHMBROKER_SPAWN_H

#include "shmbroker.h"
#include "shmbroker_cause.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shmb_processes shmb_processes; /* a set of ranks, as its parent sees it */

/* The defaults of durations, in nanoseconds. */
#define SHMB_SPAWN_TIMEOUT INT64_C(30000000000)      /* until all ranks have been started */
#define SHMB_RANK_START_TIMEOUT INT64_C(10000000000) /* until a rank has reached shmb_rank_enter */
#define SHMB_RANK_VOLUNTARY SHMB_NO_WAIT             /* after a first failure, before SIGTERM */
#define SHMB_RANK_GRACE INT64_C(30000000000)         /* between SIGTERM and SIGKILL */
#define SHMB_JOIN_WAIT SHMB_FOREVER                  /* of shmb_processes_join */
#define SHMB_RANK_WAIT INT64_C(300000000000)         /* for other ranks */

enum shmb_start_method {
  SHMB_START_SPAWN = 0,  /* the program is executed again for each rank; main begins with shmb_rank_enter */
  SHMB_START_FORK,       /* copies of the calling process: no execution, but also no threads, and locks that other
                            threads held stay locked; not after CUDA was used */
  SHMB_START_FORKSERVER, /* the program is executed once, prepares itself, and is copied for each rank */
  SHMB_START_COMMAND     /* any command; it has no function to finish, success is exit status 0 */
};
enum shmb_spawn_flag {
  SHMB_SPAWN_NO_GROUP = 1 << 0, /* no group of the broker is made for the ranks, and no broker is needed */
  SHMB_SPAWN_DAEMON = 1 << 1    /* shmb_processes_free ends the ranks instead of waiting for them */
};
enum shmb_stdio {
  SHMB_STDIO_INHERIT = 0,
  SHMB_STDIO_NULL,  /* what ranks print is dropped */
  SHMB_STDIO_FILES, /* stdio_path.RANK.out and stdio_path.RANK.err, emptied first */
  SHMB_STDIO_PREFIX /* to the caller's output, each line after "[rank N] " */
};

typedef struct shmb_spawn_options {
  size_t size;
  uint32_t method; /* enum shmb_start_method */
  uint32_t flags;  /* enum shmb_spawn_flag */
  int32_t nprocs;  /* ranks on this host, 1 to 1024 */
  int32_t shards;  /* hosts with as many ranks each; 0: one */
  int32_t shard;   /* which of them this is, from 0: RANK is shard * nprocs + LOCAL_RANK */
  uint32_t stdio;  /* enum shmb_stdio */
  const char* stdio_path;
  const char* function;  /* not for COMMAND: its name, for the ranks to look up */
  const void* arguments; /* for it; opaque */
  uint64_t arguments_length;
  const char* const* command;     /* NULL-terminated: the command. NULL (not COMMAND): this program and its arguments */
  const char* program;            /* file to execute; NULL: command[0] along PATH, or this program's own file */
  const char* const* environment; /* NULL-terminated "NAME=value", besides the caller's; NULL: none */
  const char* directory;          /* where the ranks begin; NULL: here */
  const char* group;              /* the name of their group; NULL: made from the program */
  uint64_t group_limit_bytes;     /* 0: the broker's default */
  const char* socket;             /* the broker's; NULL: looked for */
  const char* master_addr;        /* MASTER_ADDR; NULL: 127.0.0.1 */
  uint32_t master_port;           /* MASTER_PORT; 0: a free one */
  uint32_t reserved;              /* 0 */
  int64_t voluntary_ns;           /* after the first failure the others may end by themselves so long; default:
                                     SHMB_RANK_VOLUNTARY */
  int64_t grace_ns;               /* between SIGTERM and SIGKILL; default: SHMB_RANK_GRACE; SHMB_NO_WAIT: none */
  int64_t start_timeout_ns;       /* to reach shmb_rank_enter; default: SHMB_RANK_START_TIMEOUT */
  int64_t timeout_ns;             /* until all ranks have been started; default: SHMB_SPAWN_TIMEOUT */
  int (*entry)(void* context);    /* FORK: runs in each rank; what it returns is the exit status */
  void* context;
} shmb_spawn_options;

/** Starts the ranks. They have RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, GROUP_RANK, NODE_RANK, MASTER_ADDR and
 * MASTER_PORT. They belong to a group of their own, which ends with the last of their processes. The child process
 * that the caller gets is reaped by shmb_processes_join or _free; a caller that reaps all its children itself harms
 * nothing. After an error nothing is left. Errors: INVALID, SYSTEM (a program that cannot be executed), LIMIT
 * (environment too large), NO_BROKER, EXISTS (the group's name), DEADLINE. */
SHMB_API int shmb_spawn(const shmb_spawn_options* options, shmb_processes** processes, shmb_error* error) SHMB_NOEXCEPT;

enum shmb_processes_state { SHMB_PROCESSES_RUNNING = 0, SHMB_PROCESSES_SUCCEEDED, SHMB_PROCESSES_FAILED };
/** Waits until all ranks have ended. wait_ns: default SHMB_JOIN_WAIT; SHMB_NO_WAIT: only looks. The outcome is computed
 * once: this tells the same for ever, to any thread. After SUCCEEDED or FAILED no process of the ranks is left.
 * voluntary_ns: as in the options, from now on; default: as it was. Errors: INVALID (voluntary_ns below 0, but for
 * SHMB_NO_WAIT). */
SHMB_API int shmb_processes_join(shmb_processes* processes, int64_t wait_ns, int64_t voluntary_ns, uint32_t* state,
                                 shmb_error* error) SHMB_NOEXCEPT;
/** SIGTERM, the grace and SIGKILL to all ranks, or SIGKILL at once. Does not wait. Errors: the common ones. */
SHMB_API int shmb_processes_end(shmb_processes* processes, uint32_t at_once, shmb_error* error) SHMB_NOEXCEPT;
/** Joins, or with SHMB_SPAWN_DAEMON ends the ranks, and frees the handle with all texts it has given. NULL is allowed.
 */
SHMB_API void shmb_processes_free(shmb_processes* processes) SHMB_NOEXCEPT;
/** A descriptor to poll: readable once the ranks have ended, and from then on; shmb_processes_join then does not wait
 * long. It belongs to the handle: never read or close it. Errors: UNSUPPORTED (before Linux 5.3). */
SHMB_API int shmb_processes_descriptor(shmb_processes* processes, int* descriptor, shmb_error* error) SHMB_NOEXCEPT;
/** The process numbers by local rank; `count` is nprocs, whatever the capacity. Errors: the common ones. */
SHMB_API int shmb_processes_pids(shmb_processes* processes, int32_t* pids, size_t capacity, size_t* count,
                                 shmb_error* error) SHMB_NOEXCEPT;
/** Gives the result that a local rank gave to shmb_rank_finish. NOT_FOUND before the end. Errors: NOT_FOUND. */
SHMB_API int shmb_processes_result(shmb_processes* processes, int32_t local_rank, const void** data, uint64_t* length,
                                   shmb_error* error) SHMB_NOEXCEPT;

/** The parent's session with the broker of its ranks, to take by it what their results name. It is a handle of its own,
 * to be given to shmb_disconnect. It is another one where the ranks have ended and lent nothing (shmb_rank_lend).
 * NOT_FOUND where they have no group, and the options named no socket; SESSION_LOST where another broker is in that
 * one's place. Errors: NOT_FOUND, SESSION_LOST, and those of shmb_connect. */
SHMB_API int shmb_processes_session(shmb_processes* processes, shmb_session** session, shmb_error* error) SHMB_NOEXCEPT;

enum shmb_failure_kind {
  SHMB_FAILURE_RAISED = 1,     /* shmb_rank_raise: type, text and trace are there */
  SHMB_FAILURE_EXITED,         /* exit code other than 0 */
  SHMB_FAILURE_SIGNALLED,      /* died of a signal */
  SHMB_FAILURE_UNFINISHED,     /* exit code 0, but its function was not through */
  SHMB_FAILURE_NEVER_STARTED,  /* did not reach shmb_rank_enter in time */
  SHMB_FAILURE_SUPERVISOR_LOST /* supervisor or guard was killed: rank is -1 */
};
typedef struct shmb_failure {
  size_t size;
  uint32_t kind; /* enum shmb_failure_kind */
  int32_t rank;
  int32_t pid;
  int32_t exit_code;    /* of a signal: its number, negative */
  int32_t signal;       /* 0: none */
  uint32_t core;        /* 1: memory was dumped */
  uint32_t ended_by_us; /* 1: by what another one's failure led to; no cause */
  uint32_t cut;         /* 1: the texts were longer than the 16 MiB that are carried */
  int64_t user_ns, system_ns;
  uint64_t max_rss_bytes;
  int64_t time_ns;     /* CLOCK_MONOTONIC of the throw, or of the end where nothing was thrown */
  const char* message; /* the sentence; all texts live as long as the handle */
  const char* type;
  const char* text;
  const char* trace;
  char signal_name[16];     /* "SIGABRT", "SIGRTMIN+3"; empty: no signal */
  const shmb_cause* causes; /* what it was thrown from, the last one first */
  size_t cause_count;
} shmb_failure;
/** Counts the failures: 0 while it runs, and after success. Number 0 is the cause: the first in time. A failure
 * that only echoes another rank's end comes after that one. */
SHMB_API size_t shmb_processes_failures(shmb_processes* processes) SHMB_NOEXCEPT;
/** Set failure->size first. Errors: NOT_FOUND (no failure of that number). */
SHMB_API int shmb_processes_failure(shmb_processes* processes, size_t number, shmb_failure* failure,
                                    shmb_error* error) SHMB_NOEXCEPT;
/** The sentence of torch.multiprocessing for a failure of these values ("process 0 terminated with signal SIGABRT"),
 * for programs that look for its words. `message` says the same as "rank 0 ...". Allocated: shmb_bytes_free. Errors:
 * the common ones. */
SHMB_API int shmb_failure_message(const shmb_failure* failure, char** message, shmb_error* error) SHMB_NOEXCEPT;

/* ------------------------------------------------------------------------------------------------ in a rank */

typedef struct shmb_rank_info {
  size_t size;
  int32_t rank, local_rank, world_size, local_world_size, shard;
  uint32_t reserved;
  const char* function;  /* "": a command */
  const void* arguments; /* for as long as the process lives */
  uint64_t arguments_length;
} shmb_rank_info;

/** The first call of main: whether this process is a rank. It takes what says so out of the environment, so that
 * programs started by this one are none. In the fork server it calls `preload` (may be NULL) and returns in the ranks
 * alone: up to here the program has no thread. Errors: NOT_FOUND (no rank), PEER_GONE (nobody waits any more). */
SHMB_API int shmb_rank_enter(void (*preload)(void), shmb_rank_info* info, shmb_error* error) SHMB_NOEXCEPT;
/** The function has returned; the result goes to the parent. Then exit with 0. Errors: NOT_FOUND (this process is no
 * rank), LIMIT (over 16 MiB), PEER_GONE. */
SHMB_API int shmb_rank_finish(const void* result, uint64_t length, shmb_error* error) SHMB_NOEXCEPT;
/** As shmb_ticket_create, for a region that is part of the result. The ticket ends at the latest with the parent's
 * shmb_processes, or with the parent, also a killed one. `lifetime_ns`: default: as long as that, 7 days at most.
 * Where the ranks have no group, or the broker was started again since, it is an ordinary ticket with the default
 * SHMB_TICKET_LIFETIME. Errors: those of shmb_ticket_create, NOT_FOUND (this process is no rank). */
SHMB_API int shmb_rank_lend(shmb_region* region, uint32_t rights, uint32_t uses, int64_t lifetime_ns,
                            int64_t timeout_ns, uint8_t ticket[16], int64_t* expires_ns,
                            shmb_error* error) SHMB_NOEXCEPT;
/** It has failed. Then exit with something else than 0. Over 16 MiB the beginnings are cut off, and that is told.
 * Errors: NOT_FOUND (this process is no rank), PEER_GONE. */
SHMB_API int shmb_rank_raise(const char* type, const char* text, const char* trace, shmb_error* error) SHMB_NOEXCEPT;

/* The same with what it was thrown from. */
typedef struct shmb_raised {
  size_t size;
  const char* type; /* NULL, here and below: empty */
  const char* text;
  const char* trace;
  const shmb_cause* causes; /* the last one first; SHMB_MOST_CAUSES with 512 KiB of text are carried */
  size_t cause_count;
} shmb_raised;
/** As shmb_rank_raise, with the causes. Errors: those of shmb_rank_raise. */
SHMB_API int shmb_rank_raise_from(const shmb_raised* raised, shmb_error* error) SHMB_NOEXCEPT;
/** For languages that unwind: an exception is on its way that nothing in the function catches. The failure counts
 * from now on, so that nothing that the unwinding does can look like the earlier one. shmb_rank_raise follows. Does
 * not wait. Errors: NOT_FOUND (this process is no rank). */
SHMB_API int shmb_rank_throwing(const char* type, shmb_error* error) SHMB_NOEXCEPT;
/** For faces in C++, texts for shmb_rank_raise. The first is a type as its source has it, from its mangled name. Of a
 * type that std::throw_with_nested has made it is the one that it was given. The second is a stack of return
 * addresses, one line for each frame from the one that threw on. Frames of std, of the C library and of this one are
 * left out, and the frame that returns to `bottom` with all above it. Allocated: shmb_bytes_free. Errors: the common
 * ones. */
SHMB_API int shmb_type_text(const char* mangled, char** text, shmb_error* error) SHMB_NOEXCEPT;
SHMB_API int shmb_stack_text(void* const* frames, size_t count, const void* bottom, char** text,
                             shmb_error* error) SHMB_NOEXCEPT;

/** The following is between the ranks of one shmb_spawn, on one host. Commands may use it too, one process of each. Any
 * thread may call. wait_ns: default SHMB_RANK_WAIT; SHMB_FOREVER and SHMB_NO_WAIT are refused (INVALID).
 * PEER_GONE with the number of the rank where one has died or ended before it came. Names and keys: up to 1 KiB. What
 * comes back is allocated: shmb_bytes_free. */
SHMB_API void shmb_bytes_free(void* bytes) SHMB_NOEXCEPT;
/** All ranks call it, and none returns before all have. The n-th call of each rank under one name belongs together.
 * Errors: DEADLINE, PEER_GONE, NOT_FOUND (this process is no rank). */
SHMB_API int shmb_rank_barrier(const char* name, int64_t wait_ns, shmb_error* error) SHMB_NOEXCEPT;
/** Everybody calls it and gets the root's value, up to 1 MiB. `root` is a local rank; only the root's bytes count.
 * Errors: those of shmb_rank_barrier, LIMIT. */
SHMB_API int shmb_rank_broadcast(const char* name, int32_t root, const void* value, uint64_t length, int64_t wait_ns,
                                 void** data, uint64_t* data_length, shmb_error* error) SHMB_NOEXCEPT;
/** Everybody gets all values by local rank: `offsets` has local_world_size + 1 places in `data`. All together 16 MiB.
 * Errors: those of shmb_rank_barrier, LIMIT. */
SHMB_API int shmb_rank_all_gather(const char* name, const void* value, uint64_t length, int64_t wait_ns, void** data,
                                  uint64_t** offsets, shmb_error* error) SHMB_NOEXCEPT;

/** A store of small values: up to 1 MiB each, 64 MiB in all. get: NOT_FOUND. wait: until somebody has set it. Errors:
 * NOT_FOUND, LIMIT, DEADLINE, PEER_GONE (the supervisor has ended). */
SHMB_API int shmb_rank_set(const char* key, const void* value, uint64_t length, shmb_error* error) SHMB_NOEXCEPT;
SHMB_API int shmb_rank_get(const char* key, void** data, uint64_t* length, shmb_error* error) SHMB_NOEXCEPT;
SHMB_API int shmb_rank_wait(const char* key, int64_t wait_ns, void** data, uint64_t* length,
                            shmb_error* error) SHMB_NOEXCEPT;
/** Sets it where it has the expected value (an absent key has the empty one); gives the value that it has then.
 * Errors: LIMIT, PEER_GONE. */
SHMB_API int shmb_rank_compare_exchange(const char* key, const void* expected, uint64_t expected_length,
                                        const void* desired, uint64_t desired_length, void** data, uint64_t* length,
                                        shmb_error* error) SHMB_NOEXCEPT;
/** `existed` may be NULL. Errors: PEER_GONE. */
SHMB_API int shmb_rank_delete(const char* key, uint32_t* existed, shmb_error* error) SHMB_NOEXCEPT;
/** Adds to the decimal number there (0 where there is none), gives the sum. Errors: INVALID (the value there is no
 * number, or the sum has no room), PEER_GONE. */
SHMB_API int shmb_rank_add(const char* key, int64_t amount, int64_t* sum, shmb_error* error) SHMB_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif
