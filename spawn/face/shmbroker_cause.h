/* SPDX-License-Identifier: Apache-2.0 */
/* One exception of a chain, as ranks and workers report it. */
#ifndef SHMBROKER_CAUSE_H
#define SHMBROKER_CAUSE_H

#ifdef __cplusplus
extern "C" {
#endif

/* The cause of an exception: the type and the text of the one that was caught. Both end with NUL, and neither is NULL.
 * A chain is an array of them: number 0 is what the reported exception was made from, the last one came first.
 */
typedef struct shmb_cause {
  const char* type;
  const char* text;
} shmb_cause;

enum { SHMB_MOST_CAUSES = 64 }; /* of one chain; more are left out, the oldest first */

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif
