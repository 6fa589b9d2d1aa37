/* SPDX-License-Identifier: Apache-2.0 */
/* The C face of remote: a world of up to 64 workers on one host. They call functions in each other and hold references
 * to values that live in another one. Arguments and results are opaque bytes, with regions and references beside them.
 * The rules of shmbroker.h hold: statuses and sentences, options that begin with `size`, nanoseconds, nothing printed,
 * and no thread unless `threads` asks for it.
 *
 * A reference is booked at the broker from its creation on. A user that dies or lets go is out of the books at once. An
 * owner that dies ends the waits of all users. The fate of a reference is decided once, for every waiter.
 *
 * With `threads` 0 the threads that wait in this process run the calls of others. They do so in shmb_remote_serve, and
 * while they wait for a future, a reference or the end of the world. A call that waits runs others meanwhile, on its
 * own stack.
 *
 * `timeout_ns` of calls: the default is the worker's own (shmb_remote_set_timeout, SHMB_REMOTE_CALL_TIMEOUT at first),
 * SHMB_FOREVER is no limit, SHMB_NO_WAIT is refused (INVALID). A deadline that has passed is final: what comes later is
 * dropped. Any thread may call; not in a forked child, which has no world (FORKED) and may join one of its own.
 */
#ifndef SHMBROKER_REMOTE_H
#define SHMBROKER_REMOTE_H

#include "shmbroker.h"
#include "shmbroker_cause.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct shmb_remote shmb_remote;       /* this process as a worker of one world */
typedef struct shmb_request shmb_request;     /* what another worker asks, until it is answered */
typedef struct shmb_content shmb_content;     /* what has arrived: bytes, regions, references */
typedef struct shmb_future shmb_future;       /* the outcome of a call, some time */
typedef struct shmb_reference shmb_reference; /* one reference to a value; at its owner or elsewhere */

/* The defaults of durations, in nanoseconds. */
#define SHMB_REMOTE_INIT_TIMEOUT INT64_C(60000000000)      /* until all workers have joined */
#define SHMB_REMOTE_CALL_TIMEOUT INT64_C(60000000000)      /* of a call, until shmb_remote_set_timeout */
#define SHMB_REMOTE_SHUTDOWN_TIMEOUT INT64_C(300000000000) /* until all workers have shut down */
#define SHMB_REMOTE_SERVE_WAIT SHMB_FOREVER                /* of shmb_remote_serve */
#define SHMB_REMOTE_WAIT INT64_C(300000000000)             /* of shmb_remote_wait */
#define SHMB_FUTURE_WAIT SHMB_FOREVER                      /* of shmb_future_wait: the call has a limit of its own */

#define SHMB_MAX_WORKERS 64
#define SHMB_MAX_WORKER_NAME 127 /* bytes of a worker's name, without NUL */
#define SHMB_REMOTE_INLINE                                                                    \
  65536 /* bytes up to which they are copied; more of them travel as shared memory, which the \
           receiver has mapped */

/* The data to send. Bytes are copied into memory that is shared before the call that takes them returns. Regions are of
 * the worker's broker and are leased to the message, which needs no ticket. The receiver maps the same memory, to write
 * where the handle may. References become references of the receiver, whatever becomes of the sender's. */
typedef struct shmb_payload {
  const void* data;
  uint64_t length;
  shmb_region* const* regions;
  size_t region_count;
  shmb_reference* const* references;
  size_t reference_count;
} shmb_payload;

/** Content belongs to the future, request or reference that gave it. Its bytes lie as long as that one, in this
 * process: a forked child copies those of a call while its parent has them. Above SHMB_REMOTE_INLINE they are the
 * shared memory itself, not a copy. One thread at a time uses it. */
SHMB_API const void* shmb_content_data(const shmb_content* content) SHMB_NOEXCEPT;
SHMB_API uint64_t shmb_content_length(const shmb_content* content) SHMB_NOEXCEPT;
SHMB_API uint32_t shmb_content_mapped(const shmb_content* content) SHMB_NOEXCEPT; /* 1: they are the shared memory */
SHMB_API size_t shmb_content_regions(const shmb_content* content) SHMB_NOEXCEPT;
SHMB_API size_t shmb_content_references(const shmb_content* content) SHMB_NOEXCEPT;
/** Each can be taken once (of a value, shmb_reference_local, as often as one likes), and outlives the content. Errors:
 * NOT_FOUND (there is none of that number, or it was taken). */
SHMB_API int shmb_content_take_region(shmb_content* content, size_t number, shmb_region** region,
                                      shmb_error* error) SHMB_NOEXCEPT;
SHMB_API int shmb_content_take_reference(shmb_content* content, size_t number, shmb_reference** reference,
                                         shmb_error* error) SHMB_NOEXCEPT;

/* Why a call failed. RAISED: the function did, with type, text and trace as its worker told. NO_FUNCTION: its worker
 * has none of that name. Texts live as long as the object that gave them. */
typedef struct shmb_remote_failure {
  size_t size;
  int32_t status;
  int32_t rank; /* where; -1: nowhere in particular */
  const char* worker;
  const char* type;
  const char* text;
  const char* trace;
  const shmb_cause*
      causes; /* what it was thrown from, the last one first; of one to be sent at most SHMB_MOST_CAUSES */
  size_t cause_count;
} shmb_remote_failure;

/* ------------------------------------------------------------------------------------------------ the world */

enum shmb_request_kind {
  SHMB_REQUEST_CALL = 1, /* run a function: its result is answered */
  SHMB_REQUEST_CREATE,   /* run it and keep what it gives: the value of a reference */
  SHMB_REQUEST_FETCH     /* answer with the bytes of an object that shmb_request_answer_object gave */
};

typedef struct shmb_remote_options {
  size_t size;
  const char* name;        /* of this worker: 1 to 127 bytes of [A-Za-z0-9._:-] */
  const char* address;     /* HOST:PORT, where HOST is this host; NULL: the variables MASTER_ADDR and MASTER_PORT */
  int32_t rank;            /* below 0: the variable RANK */
  int32_t world_size;      /* 0: the variable WORLD_SIZE */
  uint32_t threads;        /* that serve, at most 256 */
  uint32_t reserved;       /* 0 */
  const char* socket;      /* the broker's; NULL: looked for */
  int64_t timeout_ns;      /* until all workers have come; default: SHMB_REMOTE_INIT_TIMEOUT */
  int64_t call_timeout_ns; /* of calls that name none; default: SHMB_REMOTE_CALL_TIMEOUT. SHMB_FOREVER allowed */
  /* Runs what is asked, and answers it, at once or later, from any thread. One that has no function of the name fails
   * it as NO_FUNCTION, as a worker without a handler (NULL) fails every request. */
  void (*request)(void* context, shmb_request* request);
  /* An object of shmb_request_answer_object or shmb_remote_own has no reference any more. */
  void (*drop)(void* context, void* object);
  void* context;
} shmb_remote_options;

/** Joins the world at an address, which all workers name alike, and returns when all have joined. The world is known by
 * user and port; processes of different programs and sessions find each other by it. A session of the broker is opened
 * for it. In a world that runs, a process with the name and the rank of a worker that died takes its place. Calls to
 * that worker go to it from then on. Those under way, and references to what the dead one owned, have failed. Errors:
 * INVALID (name, rank, size, an address that is not this host), EXISTS (rank or name are there already), WORLD_TAKEN
 * (it runs, and the place is not free), NOT_READY (the process whose place it is has not ended), WORKER_GONE (one died
 * while it was waited for), DEADLINE (says who is missing), LIMIT, LOCAL_ONLY, NO_BROKER. With threads, `request` may
 * be called before this has returned, by workers that have come sooner. */
SHMB_API int shmb_remote_init(const shmb_remote_options* options, shmb_remote** remote,
                              shmb_error* error) SHMB_NOEXCEPT;

typedef struct shmb_remote_shutdown_options {
  size_t size;
  uint32_t local;           /* 1: at once, without regard to the others */
  uint32_t keep_references; /* 1: references of this worker are not given up first: those still held are leaks */
  uint32_t report_leaks;    /* 1: leaks are an error (LEAKING) */
  uint32_t reserved;        /* 0 */
  int64_t timeout_ns;       /* default: SHMB_REMOTE_SHUTDOWN_TIMEOUT */
} shmb_remote_shutdown_options;
/** Ends the work of this worker. Graceful: serves until all workers have come here and no call is under way anywhere;
 * workers that have died are not waited for. Then it leaves the world, also after an error. `leaks` (may be NULL):
 * references of others to values here that were left. Errors: DEADLINE (says who has not come), LEAKING, SESSION_LOST,
 * CLOSED (it was shut down before). */
SHMB_API int shmb_remote_shutdown(shmb_remote* remote, const shmb_remote_shutdown_options* options, uint32_t* leaks,
                                  shmb_error* error) SHMB_NOEXCEPT;
/** Shuts down locally where that was not done, ends the threads, and frees the handle. Futures and references may
 * outlive it. A thread that still runs a call after 1 s is left behind and ends when that returns: `context` must be
 * there until then. Not from within a request. NULL is allowed. */
SHMB_API void shmb_remote_free(shmb_remote* remote) SHMB_NOEXCEPT;

typedef struct shmb_worker {
  size_t size;
  int32_t rank;
  uint32_t state; /* enum shmb_worker_state */
  char name[SHMB_MAX_WORKER_NAME + 1];
  uint32_t life; /* another one when another process has taken its place */
} shmb_worker;
/** The rank of this worker, and the number of workers in its world. Never fails. */
SHMB_API int32_t shmb_remote_rank(const shmb_remote* remote) SHMB_NOEXCEPT;
SHMB_API int32_t shmb_remote_world_size(const shmb_remote* remote) SHMB_NOEXCEPT;
/** By rank, or, with a name, by that. Set worker->size first. Errors: NOT_FOUND. timeout_ns: that of later calls that
 * name none; default: SHMB_REMOTE_CALL_TIMEOUT. Errors: INVALID (SHMB_NO_WAIT). */
SHMB_API int shmb_remote_worker(shmb_remote* remote, int32_t rank, const char* name, shmb_worker* worker,
                                shmb_error* error) SHMB_NOEXCEPT;
SHMB_API int shmb_remote_set_timeout(shmb_remote* remote, int64_t timeout_ns, shmb_error* error) SHMB_NOEXCEPT;
SHMB_API int64_t shmb_remote_get_timeout(shmb_remote* remote) SHMB_NOEXCEPT;

typedef struct shmb_remote_counters {
  size_t size;
  uint64_t owned;         /* values here that others may hold references to */
  uint64_t users;         /* references to them in the books, those under way among them */
  uint64_t held;          /* references of this worker to values elsewhere or here, in the books */
  uint64_t pending_calls; /* of this worker, not answered */
  uint64_t waiting;       /* requests that nobody runs yet */
  uint64_t running;
} shmb_remote_counters;
/** Asks the broker for `users`. Set counters->size first. Errors: the common ones, CLOSED. */
SHMB_API int shmb_remote_get_counters(shmb_remote* remote, shmb_remote_counters* counters,
                                      shmb_error* error) SHMB_NOEXCEPT;

/** Runs what others ask until the time is over (SHMB_OK) or this worker was shut down (CLOSED). wait_ns: default
 * SHMB_REMOTE_SERVE_WAIT; SHMB_NO_WAIT: only what is there. Errors: CLOSED, SESSION_LOST. */
SHMB_API int shmb_remote_serve(shmb_remote* remote, int64_t wait_ns, shmb_error* error) SHMB_NOEXCEPT;
/** Waits until `done` says so, serving as all waits do. It is asked after anything has happened, and after
 * shmb_remote_notify. wait_ns: default SHMB_REMOTE_WAIT; SHMB_FOREVER and SHMB_NO_WAIT allowed. Errors: DEADLINE,
 * CLOSED, SESSION_LOST. */
SHMB_API int shmb_remote_wait(shmb_remote* remote, int (*done)(void* context), void* context, int64_t wait_ns,
                              shmb_error* error) SHMB_NOEXCEPT;
SHMB_API void shmb_remote_notify(shmb_remote* remote) SHMB_NOEXCEPT;

/** A region of the world's group, to be sent as part of a payload. Errors: those of shmb_create, CLOSED. */
SHMB_API int shmb_remote_region(shmb_remote* remote, uint64_t length, shmb_region** region,
                                shmb_error* error) SHMB_NOEXCEPT;
/** The worker's own session, as a handle that is freed by shmb_disconnect. Errors: CLOSED. */
SHMB_API int shmb_remote_session(shmb_remote* remote, shmb_session** session, shmb_error* error) SHMB_NOEXCEPT;

/* ------------------------------------------------------------------------------------------------ calls */

enum shmb_call_flag { SHMB_CALL_ON_OBJECT = 1 << 0 };
/** Calls a function at a worker, this one among them. With SHMB_CALL_ON_OBJECT the first reference of the payload is
 * owned by that worker, and the call is run when its value is there. Where that failed, so does the call. Errors:
 * NOT_FOUND (no such worker), WORKER_GONE, OWNER_GONE, CLOSED (after shutdown), LIMIT, INVALID, DEADLINE (nothing was
 * sent). */
SHMB_API int shmb_remote_call(shmb_remote* remote, int32_t to, const char* function, const shmb_payload* payload,
                              uint32_t flags, int64_t timeout_ns, shmb_future** future,
                              shmb_error* error) SHMB_NOEXCEPT;

enum shmb_future_state { SHMB_FUTURE_PENDING = 0, SHMB_FUTURE_DONE, SHMB_FUTURE_FAILED };
/** Without waiting. */
SHMB_API uint32_t shmb_future_get_state(shmb_future* future) SHMB_NOEXCEPT;
/** wait_ns: default SHMB_FUTURE_WAIT, which is as long as the call may take; SHMB_NO_WAIT allowed. `content` belongs to
 * the future. Errors: DEADLINE (of this wait or, final, of the call), RAISED, NO_FUNCTION, WORKER_GONE, OWNER_GONE,
 * CLOSED, SESSION_LOST; with shmb_future_failure in full. */
SHMB_API int shmb_future_wait(shmb_future* future, int64_t wait_ns, shmb_content** content,
                              shmb_error* error) SHMB_NOEXCEPT;
/** Errors: NOT_FOUND (it has not failed). Set failure->size first. */
SHMB_API int shmb_future_failure(shmb_future* future, shmb_remote_failure* failure, shmb_error* error) SHMB_NOEXCEPT;
/** Calls `then` once, when it is no more pending: at once, or from whoever serves. Errors: the common ones. */
SHMB_API int shmb_future_then(shmb_future* future, void (*then)(void* context, shmb_future* future), void* context,
                              shmb_error* error) SHMB_NOEXCEPT;
/** One more handle to the same. */
SHMB_API shmb_future* shmb_future_share(shmb_future* future) SHMB_NOEXCEPT;
SHMB_API void shmb_future_free(shmb_future* future) SHMB_NOEXCEPT;

/** A request, as the handler gets it: each is answered once, by one of the three below, which frees it. */
SHMB_API uint32_t shmb_request_get_kind(const shmb_request* request) SHMB_NOEXCEPT;
SHMB_API int32_t shmb_request_from(const shmb_request* request) SHMB_NOEXCEPT; /* rank */
SHMB_API const char* shmb_request_function(const shmb_request* request) SHMB_NOEXCEPT;
SHMB_API shmb_content* shmb_request_content(shmb_request* request) SHMB_NOEXCEPT;
SHMB_API void* shmb_request_object(const shmb_request* request) SHMB_NOEXCEPT; /* FETCH */
/** The result. Of a CREATE: the value is these bytes. Errors leave the asking worker with a failure of the same text.
 * Errors: INVALID (of a FETCH, or an answer that is no payload), LIMIT, and those of the payload. */
SHMB_API int shmb_request_answer(shmb_request* request, const shmb_payload* payload, shmb_error* error) SHMB_NOEXCEPT;
/** Of a CREATE: the value is an object of this process. `type` is what shmb_reference_type tells. Errors: INVALID (no
 * CREATE). */
SHMB_API int shmb_request_answer_object(shmb_request* request, void* object, const char* type,
                                        shmb_error* error) SHMB_NOEXCEPT;
/** rank and worker of the failure are filled in here. Errors: the common ones. */
SHMB_API int shmb_request_fail(shmb_request* request, const shmb_remote_failure* failure,
                               shmb_error* error) SHMB_NOEXCEPT;

/* ------------------------------------------------------------------------------------------------ references */

/** Runs a function at a worker and gives a reference to what it gives, without waiting for it. The deadline of the
 * creation is final for all who wait for the value, in all workers. flags: enum shmb_call_flag. Errors: those of
 * shmb_remote_call. */
SHMB_API int shmb_remote_create(shmb_remote* remote, int32_t to, const char* function, const shmb_payload* payload,
                                uint32_t flags, int64_t timeout_ns, shmb_reference** reference,
                                shmb_error* error) SHMB_NOEXCEPT;
/** A reference to an object of this process, not known to the broker until it is sent. Errors: CLOSED. */
SHMB_API int shmb_remote_own(shmb_remote* remote, void* object, const char* type, shmb_reference** reference,
                             shmb_error* error) SHMB_NOEXCEPT;

enum shmb_reference_state { SHMB_REFERENCE_REGISTERED = 1, SHMB_REFERENCE_READY, SHMB_REFERENCE_FAILED };
typedef struct shmb_reference_info {
  size_t size;
  uint64_t number, fork; /* both count from 1 in the worker that made them; 0: not in the books */
  int32_t creator, fork_creator;
  int32_t owner;
  uint32_t is_owner;
  uint32_t confirmed; /* the owner knows of it */
  uint32_t state;     /* enum shmb_reference_state, as this worker knows it */
  char owner_name[SHMB_MAX_WORKER_NAME + 1];
} shmb_reference_info;
/** Set info->size first. Errors: the common ones. */
SHMB_API int shmb_reference_get_info(shmb_reference* reference, shmb_reference_info* info,
                                     shmb_error* error) SHMB_NOEXCEPT;
/** The value's bytes from its owner; waits there until it is made. Each fetch is a new one. Errors: OWNER_GONE, CLOSED
 * (after shutdown), RAISED or DEADLINE (the creation failed). */
SHMB_API int shmb_reference_fetch(shmb_reference* reference, int64_t timeout_ns, shmb_future** future,
                                  shmb_error* error) SHMB_NOEXCEPT;
/** At the owner: the value itself, an object or content. Both are there until shutdown, as long as there is a reference
 * here. Beside a shutdown no other thread may use them. Waits until it is made; wait_ns: the default is that of calls,
 * SHMB_FOREVER and SHMB_NO_WAIT are allowed. Errors: INVALID (elsewhere), RAISED, DEADLINE. */
SHMB_API int shmb_reference_local(shmb_reference* reference, int64_t wait_ns, void** object, shmb_content** content,
                                  shmb_error* error) SHMB_NOEXCEPT;
/** When the value is made, or could not be. Of a reference that was not created by this handle: NOT_FOUND. Errors:
 * NOT_FOUND. */
SHMB_API int shmb_reference_created(shmb_reference* reference, shmb_future** future, shmb_error* error) SHMB_NOEXCEPT;
/** The value's type as text. Asked for once, the same future ever after. Errors: those of shmb_reference_fetch. */
SHMB_API int shmb_reference_type(shmb_reference* reference, int64_t timeout_ns, shmb_future** future,
                                 shmb_error* error) SHMB_NOEXCEPT;
/** Why its value could not be made. Errors: NOT_FOUND (this worker knows of no failure). Set failure->size first. */
SHMB_API int shmb_reference_failure(shmb_reference* reference, shmb_remote_failure* failure,
                                    shmb_error* error) SHMB_NOEXCEPT;
SHMB_API void shmb_reference_free(shmb_reference* reference) SHMB_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif
