// SPDX-License-Identifier: Apache-2.0
// The load: a closed loop over many connections, one packet outstanding on each, the same for a broker and for a bare
// server.
#pragma once

#include <sys/types.h>

#include <span>

#include "proto/codec.hpp"

namespace shmb::bench {

struct LoadResult {
  double per_second = 0;
  double p50_us = 0, p99_us = 0;
  double server_cpu_us = 0;  // per message
};

// Sends `request` on every socket, again after each reply, for `seconds`. Descriptors that come are closed at once.
// A reply with a status other than 0 ends the bench when `checked` (a bare server's bytes are no header).
LoadResult run_load(std::span<const int> sockets, wire::Bytes request, bool descriptor, bool checked, double seconds,
                    pid_t server);

}  // namespace shmb::bench
