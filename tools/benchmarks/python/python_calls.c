/* SPDX-License-Identifier: Apache-2.0 */
/* The C side of the figures python.core: the same calls as python_calls.py makes through `_core`, at the same broker and in
 * the same process, so that both sides have the same memory map, caches and library. The session is this side's own. Each
 * function answers with the microseconds of one call. */
#include <shmbroker.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define EXPORTED __attribute__((visibility("default")))

enum { BATCH = 128 };

static shmb_session* session;
static shmb_queue* queue;
static shmb_message* messages[BATCH];
static shmb_region_id id;

static void must(int status, const char* what, const shmb_error* error) {
  if (status == SHMB_OK) return;
  fprintf(stderr, "python_calls: %s: %s\n", what, error->sentence);
  exit(1);
}

static double microseconds(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

EXPORTED void python_calls_open(const char* socket) {
  shmb_error error;
  shmb_connect_options where;
  memset(&where, 0, sizeof where);
  where.size = sizeof where;
  where.socket = socket;
  must(shmb_connect(&where, &session, &error), "connect", &error);
  const shmb_size_class slots = {4096, 4, 0};
  shmb_pool_options pooled;
  memset(&pooled, 0, sizeof pooled);
  pooled.size = sizeof pooled;
  pooled.classes = &slots;
  pooled.class_count = 1;
  shmb_pool* pool = NULL;
  must(shmb_pool_create(session, &pooled, &pool, &error), "pool", &error);
  shmb_queue_options opened;
  memset(&opened, 0, sizeof opened);
  opened.size = sizeof opened;
  opened.kind = SHMB_QUEUE_SPSC;
  opened.role = SHMB_QUEUE_READER | SHMB_QUEUE_WRITER;
  opened.cells = 2 * BATCH;
  must(shmb_queue_open(pool, "calls", &opened, &queue, &error), "queue", &error);
  for (int i = 0; i < BATCH; ++i) must(shmb_message_new(&messages[i], &error), "message", &error);
  shmb_region* region = NULL;
  must(shmb_create(session, 4096, NULL, &region, &error), "create", &error);
  id = shmb_region_get_id(region);
}

EXPORTED double python_calls_send(long count) {
  shmb_error error;
  char bytes[56] = {0};
  double took = 0;
  for (long round = 0; round < count; ++round) {
    const double begin = microseconds(CLOCK_MONOTONIC);
    for (int i = 0; i < BATCH; ++i) must(shmb_queue_send(queue, bytes, sizeof bytes, SHMB_NO_WAIT, &error), "send", &error);
    took += microseconds(CLOCK_MONOTONIC) - begin;
    size_t got = 0;
    must(shmb_queue_receive_many(queue, messages, BATCH, SHMB_NO_WAIT, &got, &error), "receive", &error);
    for (size_t i = 0; i < got; ++i) must(shmb_message_done(messages[i], &error), "done", &error);
  }
  return took / (double)count / BATCH;
}

EXPORTED double python_calls_attach(long count) {
  shmb_error error;
  shmb_attach_options options;
  memset(&options, 0, sizeof options);
  options.size = sizeof options;
  options.rights = SHMB_RIGHT_READ | SHMB_RIGHT_WRITE;
  const double begin = microseconds(CLOCK_PROCESS_CPUTIME_ID);
  for (long i = 0; i < count; ++i) {
    shmb_region* region = NULL;
    must(shmb_attach_id(session, &id, &options, &region, &error), "attach", &error);
    must(shmb_release(region, 0, &error), "release", &error);
  }
  return (microseconds(CLOCK_PROCESS_CPUTIME_ID) - begin) / (double)count;
}
