// SPDX-License-Identifier: Apache-2.0
// See log.hpp. Standard error may be shared with the process that started the broker. O_NONBLOCK belongs to the open
// file description, so the broker must not set it. poll(2) asks first. A line is short enough (PIPE_BUF) to be written
// whole or not at all.
#include "daemon/kit/log.hpp"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>

#include "base/sys_process.hpp"

namespace shmb::daemon::log {
namespace {

constexpr std::size_t kLongestLine = 1024;
constexpr int kFaultsPerSecond = 5;

int threshold = info;
Form form = Form::collector;
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

// "2026-11-23T05:38:17.042Z shmbrokerd[4123] notice: " or, for a collector, "<5>".
std::size_t write_head(char* out, std::size_t room, int priority) {
  if (form == Form::file) {
    static constexpr const char* kWords[] = {"error", "error", "error", "error", "warning", "notice", "info", "debug"};
    timespec now{};
    ::clock_gettime(CLOCK_REALTIME, &now);
    std::tm utc{};
    ::gmtime_r(&now.tv_sec, &utc);
    std::size_t at = std::strftime(out, room, "%Y-%m-%dT%H:%M:%S", &utc);
    at += static_cast<std::size_t>(std::snprintf(out + at, room - at,
                                                 ".%03ldZ shmbrokerd[%d] %s: ", now.tv_nsec / 1'000'000,
                                                 static_cast<int>(::getpid()), kWords[std::clamp(priority, 0, 7)]));
    return at;
  }
  // The journal and most collectors read the priority from this prefix (sd-daemon(3)). A person does not need it.
  static const bool terminal = isatty(STDERR_FILENO) == 1;
  return terminal ? 0 : static_cast<std::size_t>(std::snprintf(out, room, "<%d>", priority));
}

void write_line(int priority, std::string_view text) {
  char out[kLongestLine];
  std::size_t at = write_head(out, sizeof out, priority);
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

void set_form(Form wanted) { form = wanted; }

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

void failure(const std::string& text) { line(error, form == Form::file ? text : "shmbrokerd: " + text); }

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
