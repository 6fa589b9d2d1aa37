/* SPDX-License-Identifier: Apache-2.0 */
/* A plain C11 program on the shared library: nothing of C++ and nothing of the tests is in it, so it proves that the
 * header is C, that the library exports what the header declares, and that a process made by exec needs no more.
 *   c_peer write GROUP NAME BYTES    creates, fills, prints "ID GENERATION TICKET", waits for its standard input's end
 *   c_peer read ADDRESS BYTES        attaches by address and checks
 *   c_peer ticket TICKET BYTES       attaches by ticket and checks
 *   c_peer hold COUNT BYTES          creates COUNT regions in its group, prints "held", waits to be killed */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <shmbroker.h>

static int fail(const char* what, const shmb_error* error) {
  fprintf(stderr, "c_peer: %s: %s\n", what, error->sentence);
  return 1;
}

static unsigned char pattern(size_t at) { return (unsigned char)(at * 31 + (at >> 12) + 7); }

static int check(shmb_region* region, size_t length) {
  const unsigned char* data = shmb_region_data(region);
  if (data == NULL || shmb_region_length(region) != length) return 1;
  for (size_t at = 0; at < length; ++at)
    if (data[at] != pattern(at)) return 1;
  shmb_region_info info = {.size = sizeof info};
  if (shmb_region_get_info(region, &info, NULL) != SHMB_OK || info.rights != SHMB_RIGHT_READ) return 1;
  return shmb_release(region, 0, NULL) != SHMB_OK;
}

static int write_one(shmb_session* session, const char* group, const char* name, size_t length) {
  shmb_error error;
  shmb_group_options wanted = {.size = sizeof wanted, .name = group};
  shmb_group made;
  if (shmb_group_create(session, &wanted, &made, &error) != SHMB_OK) return fail("group_create", &error);
  if (shmb_group_join_token(session, made.token, 0, 0, NULL, &error) != SHMB_OK) return fail("group_join", &error);
  shmb_create_options options = {.size = sizeof options, .name = name};
  shmb_region* region = NULL;
  if (shmb_create(session, length, &options, &region, &error) != SHMB_OK) return fail("create", &error);
  unsigned char* data = shmb_region_data(region);
  for (size_t at = 0; at < length; ++at) data[at] = pattern(at);
  uint8_t ticket[16];
  char text[SHMB_TOKEN_TEXT];
  if (shmb_ticket_create(region, SHMB_RIGHT_READ, 1, 0, 0, ticket, NULL, &error) != SHMB_OK)
    return fail("ticket_create", &error);
  shmb_token_format(ticket, text);
  const shmb_region_id id = shmb_region_get_id(region);
  printf("%llu %u %s\n", (unsigned long long)id.id, id.generation, text);
  fflush(stdout);
  char byte;
  while (read(0, &byte, 1) > 0) {
  }
  if (shmb_publish(region, 0, &error) != SHMB_OK) return fail("publish", &error);
  if (shmb_release(region, SHMB_RELEASE_UNNAME, &error) != SHMB_OK) return fail("release", &error);
  shmb_disconnect(session);
  return 0;
}

static int hold(shmb_session* session, int count, size_t length) {
  shmb_error error;
  for (int i = 0; i < count; ++i) {
    shmb_region* region = NULL;
    if (shmb_create(session, length, NULL, &region, &error) != SHMB_OK) return fail("create", &error);
    memset(shmb_region_data(region), 1, length);
  }
  puts("held");
  fflush(stdout);
  for (;;) pause();
}

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  shmb_error error;
  shmb_session* session = NULL;
  const size_t length = strtoull(argv[argc - 1], NULL, 10);
  if (shmb_connect(NULL, &session, &error) != SHMB_OK) return fail("connect", &error);
  if (strcmp(argv[1], "write") == 0 && argc == 5) return write_one(session, argv[2], argv[3], length);
  if (strcmp(argv[1], "hold") == 0) return hold(session, atoi(argv[2]), length);
  shmb_region* region = NULL;
  int status = SHMB_E_INVALID;
  uint8_t ticket[16];
  if (strcmp(argv[1], "read") == 0) status = shmb_attach(session, argv[2], NULL, &region, &error);
  else if (strcmp(argv[1], "ticket") == 0 && shmb_token_parse(argv[2], ticket) == SHMB_OK)
    status = shmb_attach_ticket(session, ticket, NULL, &region, &error);
  if (status != SHMB_OK) return fail("attach", &error);
  if (check(region, length) != 0) {
    fputs("c_peer: the contents are not what was written\n", stderr);
    return 1;
  }
  shmb_disconnect(session);
  return 0;
}
