// SPDX-License-Identifier: Apache-2.0
// See log.hpp. stderr may be shared with whoever started us, so O_NONBLOCK, which belongs to the open file
// description, is not ours to set: poll(2) asks first, and a line is short enough (PIPE_BUF) to go whole or not at all.
#include "daemon/log.hpp"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "base/sys_process.hpp"

namespace shmb::daemon::log {
namespace {

constexpr std::size_t kLongestLine = 1024;
constexpr int kFaultsPerSecond = 5;

int threshold = info;
std::uint64_t lost_lines = 0;

struct FaultBudget {
  std::int64_t second = -1;
  int written = 0;
  std::uint64_t silent = 0;
} faults;

bool writable_now() {
  pollfd entry{STDERR_FILENO, POLLOUT, 0};
  return poll(&entry, 1, 0) == 1 && (entry.revents & POLLOUT) != 0;
}

void write_line(int priority, std::string_view text) {
  char out[kLongestLine];
  std::size_t at = 0;
  // The journal and most collectors read the priority from this prefix (sd-daemon(3)); a person does not want it.
  static const bool terminal = isatty(STDERR_FILENO) == 1;
  if (!terminal) at += static_cast<std::size_t>(std::snprintf(out, sizeof out, "<%d>", priority));
  for (char raw : text) {
    auto byte = static_cast<unsigned char>(raw);
    if (at + 6 > sizeof out) break;
    if (byte >= 0x20 && byte != 0x7f) {
      out[at++] = raw;
    } else {
      at += static_cast<std::size_t>(std::snprintf(out + at, 5, "\\x%02x", byte));
    }
  }
  out[at++] = '\n';
  if (!writable_now() || ::write(STDERR_FILENO, out, at) != static_cast<ssize_t>(at)) ++lost_lines;
}

}  // namespace

void set_threshold(int priority) { threshold = priority; }

bool enabled(int priority) { return priority <= threshold; }

void line(int priority, std::string_view text) {
  if (!enabled(priority)) return;
  if (lost_lines > 0 && writable_now()) {
    char told[64];
    int length =
        std::snprintf(told, sizeof told, "%llu log lines were lost", static_cast<unsigned long long>(lost_lines));
    lost_lines = 0;
    write_line(warning, std::string_view(told, static_cast<std::size_t>(length)));
  }
  write_line(priority, text);
}

void peer_fault(std::string_view text) {
  std::int64_t second = sys::now_monotonic() / 1'000'000'000;
  if (second != faults.second) {
    if (faults.silent > 0) {
      char told[80];
      int length = std::snprintf(told, sizeof told, "%llu more faults of peers were not logged",
                                 static_cast<unsigned long long>(faults.silent));
      line(notice, std::string_view(told, static_cast<std::size_t>(length)));
    }
    faults = {second, 0, 0};
  }
  if (faults.written >= kFaultsPerSecond) {
    ++faults.silent;
    return;
  }
  ++faults.written;
  line(notice, text);
}

}  // namespace shmb::daemon::log
