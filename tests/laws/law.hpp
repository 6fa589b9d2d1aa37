// SPDX-License-Identifier: Apache-2.0
// The common part of the laws' tests: a case that runs on each engine, and the broker's books as tables.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "client/session/views.hpp"
#include "tests/harness/child.hpp"
#include "tests/harness/raw_client.hpp"
#include "tests/harness/sanitizer.hpp"
#include "tests/harness/skip.hpp"
#include "tests/support/engines.hpp"
#include "tests/support/session.hpp"
#include "tests/support/until.hpp"

namespace laws {

using namespace support;
using harness::BrokerFixture;
using harness::BrokerOptions;
using harness::Child;
using harness::Gate;
using harness::RawClient;
using harness::RawPacket;
using namespace shmb;
using namespace shmb::client;

inline Deadline soon() { return Deadline::after(0); }
inline bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// The output of a shell command; empty where there is no such program.
inline std::string output_of(const std::string& command) {
  std::string text;
  FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return text;
  char buffer[4096];
  for (std::size_t size; (size = ::fread(buffer, 1, sizeof buffer, pipe)) > 0;) text.append(buffer, size);
  ::pclose(pipe);
  return text;
}

inline std::vector<RegionRow> regions(const std::shared_ptr<Session>& session) {
  return must(list_regions(*session, {}, soon())).rows;
}
inline std::vector<SessionRow> sessions(const std::shared_ptr<Session>& session) {
  return must(list_sessions(*session, {}, soon())).rows;
}
inline std::vector<LeaseRow> leases(const std::shared_ptr<Session>& session) {
  return must(list_leases(*session, {}, soon())).rows;
}
inline std::size_t sessions_in_state(const std::shared_ptr<Session>& session, std::uint32_t state) {
  std::size_t count = 0;
  for (const auto& row : sessions(session)) count += row.record.state == state;
  return count;
}

// A child's message to its parent: one byte.
class Line {
 public:
  Line() { REQUIRE(::pipe2(ends_, O_CLOEXEC) == 0); }
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;
  ~Line() {
    ::close(ends_[0]);
    ::close(ends_[1]);
  }
  void say(char byte) const { (void)!::write(ends_[1], &byte, 1); }
  char hear(int milliseconds = 30'000) const {
    char byte = 0;
    auto ready = sys::poll_readable(ends_[0], std::int64_t{milliseconds} * 1'000'000);
    return ready && *ready && ::read(ends_[0], &byte, 1) == 1 ? byte : '\0';
  }

 private:
  int ends_[2];
};

}  // namespace laws
