// SPDX-License-Identifier: Apache-2.0
// The common part of the end-to-end cases: a broker of each kind, real processes that use the library through its C++
// face, memory to exchange facts with them, and contents that can be checked.
#pragma once

#include <doctest/doctest.h>
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <new>
#include <span>
#include <string>
#include <type_traits>

#include "client/face/shmbroker.hpp"
#include "tests/harness/broker_fixture.hpp"
#include "tests/harness/child.hpp"
#include "tests/harness/injected.hpp"
#include "tests/harness/skip.hpp"
#include "tests/support/face.hpp"
#include "tests/support/shared.hpp"
#include "tests/support/until.hpp"

namespace e2e {

using harness::BrokerFixture;
using harness::BrokerOptions;
using harness::Child;
using harness::Gate;
using shmbroker::Keep;
using shmbroker::Region;
using shmbroker::RegionId;
using shmbroker::Rights;
using shmbroker::Session;
using shmbroker::Status;
using shmbroker::Ticket;
using shmbroker::Timeout;
using support::connect;
using support::eventually;
using support::sentence_of;
using support::Shared;
using support::status_of;

inline constexpr std::size_t KiB = 1024, MiB = 1024 * KiB;

[[noreturn]] void failed(const char* file, int line, const std::string& what);
// For processes of a test: throws, which ends an actor with status 1 and a line on stderr.
#define NEED(condition) ((condition) ? void() : ::e2e::failed(__FILE__, __LINE__, #condition))
#define NEED_STATUS(result, wanted)                                                 \
  do {                                                                              \
    const auto outcome_ = ::e2e::status_of(result);                                 \
    if (outcome_ != ::e2e::Status::wanted)                                          \
      ::e2e::failed(__FILE__, __LINE__, #result " is " + ::e2e::name_of(outcome_)); \
  } while (false)

std::string name_of(Status status);
// A forked process that runs `body` and ends with 0, or with 1 when it threw.
Child actor(const std::function<void()>& body);
Child actor_as(unsigned uid, const std::function<void()>& body);

// Bytes that depend on their place and on `seed`: nothing moved, doubled or left out goes unnoticed.
void fill(std::span<std::byte> bytes, std::uint64_t seed);
bool holds(std::span<const std::byte> bytes, std::uint64_t seed);
bool all_zero(std::span<const std::byte> bytes);

// A broker of one engine on one pretended kernel; this process and those it forks pretend the same.
class World {
 public:
  explicit World(const BrokerOptions& options);
  BrokerFixture& broker() { return broker_; }
  const std::string& socket() const { return broker_.socket(); }
  Session connect() const;
  bool kernel_is_before(int major, int minor) const;

 private:
  struct Version {
    int major = 0, minor = 0;
  };
  static Version version_of(const std::string& text);

  Version version_;
  harness::PretendedKernel kernel_;
  BrokerFixture broker_;
};
// Runs `body` with each World that the project promises.
void in_every_world(const std::function<void(World&)>& body, bool system = false);

}  // namespace e2e
