/* SPDX-License-Identifier: Apache-2.0 */
/* The C face of ranks, from a program in C alone: it starts ranks of itself, which ask each other everything there is
 * to ask; a rank that fails; calls that cannot be. It prints a fault with its line, and ends with 1. Without a broker.
 */
#include <signal.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include "spawn/face/shmbroker_spawn.h"

#define MUST(condition)                                                                \
  do {                                                                                 \
    if (!(condition)) {                                                                \
      fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, e.sentence); \
      exit(1);                                                                         \
    }                                                                                  \
  } while (0)

static int same(const void* data, uint64_t length, const char* text) {
  return length == strlen(text) && memcmp(data, text, length) == 0;
}

static volatile sig_atomic_t rung = 0;
static void note(int signal) {
  (void)signal;
  rung = 1;
}
/* A signal each 2 ms, until it is told to stop: one may come before the process waits. */
static void ring(int on) {
  const struct itimerval each = {{0, on ? 2000 : 0}, {0, on ? 2000 : 0}};
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = note;
  action.sa_flags = SA_RESTART;
  sigaction(SIGALRM, &action, NULL);
  setitimer(ITIMER_REAL, &each, NULL);
  shmb_thread_interruptible(on);
}

static int meet(const shmb_rank_info* me) {
  shmb_error e = {0};
  void* data = NULL;
  uint64_t* offsets = NULL;
  uint64_t length = 0;
  int64_t sum = 0;
  uint32_t existed = 9;
  const char mine[2] = {(char)('a' + me->rank), 0};
  MUST(same(me->arguments, me->arguments_length, "5 bytes"));
  MUST(shmb_rank_barrier("begin", 0, &e) == SHMB_OK);
  MUST(shmb_rank_broadcast(NULL, 1, mine, 1, 0, &data, &length, &e) == SHMB_OK);
  MUST(same(data, length, "b"));
  shmb_bytes_free(data);
  MUST(shmb_rank_all_gather(NULL, mine, 1, 0, &data, &offsets, &e) == SHMB_OK);
  MUST(offsets[0] == 0 && offsets[1] == 1 && offsets[2] == 2 && memcmp(data, "ab", 2) == 0);
  shmb_bytes_free(data);
  shmb_bytes_free(offsets);
  MUST(shmb_rank_get("absent", &data, &length, &e) == SHMB_E_NOT_FOUND);
  if (me->rank == 0) MUST(shmb_rank_set("key", "value", 5, &e) == SHMB_OK);
  MUST(shmb_rank_wait("key", 0, &data, &length, &e) == SHMB_OK);
  MUST(same(data, length, "value"));
  shmb_bytes_free(data);
  /* Both are there until the next barrier, so it is the deadline that ends the wait. */
  MUST(shmb_rank_wait("never", 20000000, &data, &length, &e) == SHMB_E_DEADLINE);
  /* A signal ends it too, and the rank may wait again. Nobody has come to this barrier twice. */
  ring(1);
  MUST(shmb_rank_wait("never", 100000000000, &data, &length, &e) == SHMB_E_INTERRUPTED);
  if (me->rank == 0) {
    MUST(shmb_rank_barrier("late", 100000000000, &e) == SHMB_E_INTERRUPTED);
    ring(0);
    MUST(shmb_rank_set("rung", "", 0, &e) == SHMB_OK);
    MUST(shmb_rank_barrier("late", 0, &e) == SHMB_OK);
  } else {
    ring(0);
    MUST(shmb_rank_wait("rung", 0, &data, &length, &e) == SHMB_OK);
    shmb_bytes_free(data);
    MUST(shmb_rank_barrier("late", 0, &e) == SHMB_OK);
  }
  MUST(shmb_rank_add("sum", me->rank + 1, &sum, &e) == SHMB_OK);
  MUST(shmb_rank_barrier(NULL, 0, &e) == SHMB_OK);
  MUST(shmb_rank_add("sum", 0, &sum, &e) == SHMB_OK && sum == 3);
  MUST(shmb_rank_compare_exchange("leader", NULL, 0, mine, 1, &data, &length, &e) == SHMB_OK);
  MUST(length == 1);
  shmb_bytes_free(data);
  MUST(shmb_rank_barrier(NULL, 0, &e) == SHMB_OK);
  if (me->rank == 0) {
    MUST(shmb_rank_delete("key", &existed, &e) == SHMB_OK && existed == 1);
    MUST(shmb_rank_delete("key", &existed, &e) == SHMB_OK && existed == 0);
  }
  MUST(shmb_rank_barrier(NULL, -7, &e) == SHMB_E_INVALID);
  MUST(shmb_rank_all_gather(NULL, mine, 1, 0, NULL, NULL, &e) == SHMB_E_INVALID);
  MUST(shmb_rank_finish(mine, 1, &e) == SHMB_OK);
  return 0;
}

static int act(const shmb_rank_info* me) {
  if (strcmp(me->function, "meet") == 0) return meet(me);
  if (me->rank == 1) {
    (void)shmb_rank_raise("OwnType", "the words of it", "at a place", NULL);
    return 3;
  }
  for (;;) pause(); /* until it is ended */
}

static shmb_spawn_options options_of(uint32_t method, const char* function) {
  shmb_spawn_options options;
  memset(&options, 0, sizeof options);
  options.size = sizeof options;
  options.method = method;
  options.flags = SHMB_SPAWN_NO_GROUP;
  options.nprocs = 2;
  options.function = function;
  options.arguments = "5 bytes";
  options.arguments_length = 7;
  options.start_timeout_ns = 60000000000;
  return options;
}

static void succeed(uint32_t method) {
  shmb_error e = {0};
  shmb_spawn_options options = options_of(method, "meet");
  shmb_processes* ranks = NULL;
  uint32_t state = 9;
  int32_t pids[2] = {0, 0};
  size_t count = 0;
  const void* data = NULL;
  uint64_t length = 0;
  MUST(shmb_spawn(&options, &ranks, &e) == SHMB_OK);
  MUST(shmb_processes_pids(ranks, pids, 2, &count, &e) == SHMB_OK && count == 2 && pids[0] > 0 && pids[1] > 0);
  int descriptor = -1;
  MUST(shmb_processes_descriptor(ranks, &descriptor, &e) == SHMB_OK);
  struct pollfd end = {descriptor, POLLIN, 0};
  MUST(poll(&end, 1, -1) == 1 && end.revents != 0);
  MUST(shmb_processes_join(ranks, SHMB_FOREVER, 0, &state, &e) == SHMB_OK && state == SHMB_PROCESSES_SUCCEEDED);
  MUST(shmb_processes_failures(ranks) == 0);
  MUST(shmb_processes_result(ranks, 1, &data, &length, &e) == SHMB_OK && same(data, length, "b"));
  MUST(shmb_processes_result(ranks, 2, &data, &length, &e) == SHMB_E_INVALID);
  shmb_processes_free(ranks);
}

static void fail(uint32_t method) {
  shmb_error e = {0};
  shmb_spawn_options options = options_of(method, "fail");
  shmb_processes* ranks = NULL;
  shmb_failure failure;
  uint32_t state = 9;
  char* message = NULL;
  MUST(shmb_spawn(&options, &ranks, &e) == SHMB_OK);
  MUST(shmb_processes_join(ranks, SHMB_FOREVER, 0, &state, &e) == SHMB_OK && state == SHMB_PROCESSES_FAILED);
  MUST(shmb_processes_failures(ranks) == 2);
  memset(&failure, 0, sizeof failure);
  failure.size = sizeof failure;
  MUST(shmb_processes_failure(ranks, 0, &failure, &e) == SHMB_OK);
  MUST(failure.kind == SHMB_FAILURE_RAISED && failure.rank == 1 && failure.exit_code == 3 && !failure.ended_by_us);
  MUST(strcmp(failure.type, "OwnType") == 0 && strcmp(failure.text, "the words of it") == 0);
  MUST(strcmp(failure.trace, "at a place") == 0);
  MUST(strcmp(failure.message, "rank 1 failed: OwnType: the words of it\nat a place\nOwnType: the words of it") == 0);
  MUST(shmb_failure_message(&failure, &message, &e) == SHMB_OK);
  MUST(strncmp(message, "\n\n-- Process 1 terminated with the following error:\n", 52) == 0);
  MUST(strstr(message, "OwnType: the words of it") != NULL);
  shmb_bytes_free(message);
  MUST(shmb_processes_failure(ranks, 1, &failure, &e) == SHMB_OK);
  MUST(failure.rank == 0 && failure.ended_by_us == 1);
  MUST(shmb_processes_failure(ranks, 2, &failure, &e) == SHMB_E_NOT_FOUND);
  shmb_processes_free(ranks);
}

static void end(uint32_t method) {
  shmb_error e = {0};
  shmb_spawn_options options = options_of(method, "fail");
  shmb_processes* ranks = NULL;
  uint32_t state = 9;
  const char* const command[] = {"sleep", "100000", NULL};
  options.method = SHMB_START_COMMAND;
  options.function = NULL;
  options.command = command;
  MUST(shmb_spawn(&options, &ranks, &e) == SHMB_OK);
  MUST(shmb_processes_join(ranks, SHMB_NO_WAIT, 0, &state, &e) == SHMB_OK && state == SHMB_PROCESSES_RUNNING);
  MUST(shmb_processes_join(ranks, SHMB_NO_WAIT, SHMB_FOREVER, &state, &e) == SHMB_E_INVALID);
  MUST(shmb_processes_join(ranks, SHMB_NO_WAIT, SHMB_NO_WAIT, &state, &e) == SHMB_OK);
  MUST(shmb_processes_join(ranks, 1, 1000, &state, &e) == SHMB_OK && state == SHMB_PROCESSES_RUNNING);
  MUST(shmb_processes_result(ranks, 0, NULL, NULL, &e) == SHMB_E_NOT_FOUND);
  ring(1);
  MUST(shmb_processes_join(ranks, SHMB_FOREVER, 0, &state, &e) == SHMB_E_INTERRUPTED);
  ring(0);
  MUST(shmb_processes_end(ranks, method == SHMB_START_SPAWN, &e) == SHMB_OK);
  MUST(shmb_processes_join(ranks, SHMB_FOREVER, 0, &state, &e) == SHMB_OK && state == SHMB_PROCESSES_FAILED);
  shmb_processes_free(ranks);
}

static void refuse(void) {
  shmb_error e = {0};
  shmb_spawn_options options = options_of(SHMB_START_SPAWN, "meet");
  shmb_processes* ranks = NULL;
  MUST(shmb_spawn(NULL, &ranks, &e) == SHMB_E_INVALID);
  MUST(shmb_spawn(&options, NULL, &e) == SHMB_E_INVALID);
  options.method = 9;
  MUST(shmb_spawn(&options, &ranks, &e) == SHMB_E_INVALID && e.sentence[0] != 0);
  options = options_of(SHMB_START_SPAWN, "meet");
  options.flags |= 1U << 30;
  MUST(shmb_spawn(&options, &ranks, &e) == SHMB_E_UNKNOWN_FLAGS);
  options = options_of(SHMB_START_SPAWN, "meet");
  options.stdio = 9;
  MUST(shmb_spawn(&options, &ranks, &e) == SHMB_E_INVALID);
  options = options_of(SHMB_START_SPAWN, "meet");
  options.master_port = 65536;
  MUST(shmb_spawn(&options, &ranks, &e) == SHMB_E_INVALID);
  options = options_of(SHMB_START_SPAWN, "meet");
  options.timeout_ns = SHMB_FOREVER;
  MUST(shmb_spawn(&options, &ranks, &e) == SHMB_E_INVALID);
  options = options_of(SHMB_START_SPAWN, "meet");
  options.grace_ns = SHMB_FOREVER;
  MUST(shmb_spawn(&options, &ranks, &e) == SHMB_E_INVALID);
  options = options_of(SHMB_START_SPAWN, "meet");
  options.voluntary_ns = SHMB_FOREVER;
  MUST(shmb_spawn(&options, &ranks, &e) == SHMB_E_INVALID);
  options = options_of(SHMB_START_SPAWN, "meet");
  options.start_timeout_ns = SHMB_NO_WAIT;
  MUST(shmb_spawn(&options, &ranks, &e) == SHMB_E_INVALID);
  options = options_of(SHMB_START_SPAWN, NULL);
  MUST(shmb_spawn(&options, &ranks, &e) == SHMB_E_INVALID);
  options = options_of(SHMB_START_FORK, "meet");
  MUST(shmb_spawn(&options, &ranks, &e) == SHMB_E_INVALID); /* and no entry */
  MUST(shmb_processes_join(NULL, 0, 0, NULL, &e) == SHMB_E_INVALID);
  MUST(shmb_processes_descriptor(NULL, NULL, &e) == SHMB_E_INVALID);
  MUST(shmb_processes_failures(NULL) == 0);
  shmb_processes_free(NULL);
  MUST(shmb_rank_barrier(NULL, 0, &e) == SHMB_E_NOT_FOUND);
  MUST(shmb_rank_finish(NULL, 0, &e) == SHMB_E_NOT_FOUND);
  MUST(shmb_rank_lend(NULL, 0, 1, 0, 0, NULL, NULL, &e) == SHMB_E_NOT_FOUND);
  MUST(shmb_processes_session(NULL, NULL, &e) == SHMB_E_INVALID);
}

static int forked(void* context) {
  shmb_rank_info me;
  (void)context;
  memset(&me, 0, sizeof me);
  me.size = sizeof me;
  return shmb_rank_enter(NULL, &me, NULL) == SHMB_OK ? act(&me) : 9;
}

int main(void) {
  shmb_error e = {0};
  shmb_rank_info me;
  shmb_spawn_options options;
  shmb_processes* ranks = NULL;
  uint32_t state = 9;
  memset(&me, 0, sizeof me);
  me.size = sizeof me;
  if (shmb_rank_enter(NULL, &me, NULL) == SHMB_OK) return act(&me);
  refuse();
  succeed(SHMB_START_SPAWN);
  succeed(SHMB_START_FORKSERVER);
  fail(SHMB_START_SPAWN);
  fail(SHMB_START_FORKSERVER);
  end(SHMB_START_SPAWN);
  end(SHMB_START_FORKSERVER);
  options = options_of(SHMB_START_FORK, "meet");
  options.entry = forked;
  MUST(shmb_spawn(&options, &ranks, &e) == SHMB_OK);
  MUST(shmb_processes_join(ranks, 0, 0, &state, &e) == SHMB_OK && state == SHMB_PROCESSES_SUCCEEDED);
  shmb_processes_free(ranks);
  return 0;
}
