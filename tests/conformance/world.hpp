// SPDX-License-Identifier: Apache-2.0
// The common part of the scenarios: a broker, a session and a pool of this process, and processes beside it. Around
// each stands the check of scenarios 1 and 2: when world and processes are gone the broker's books are empty, and the
// harness finds no descriptor, mapping or process that was not there before.
#pragma once

#include <doctest/doctest.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <thread>

#include "client/session/views.hpp"
#include "spawn/face/spawn.hpp"
#include "tests/conformance/tensor.hpp"
#include "tests/harness/broker_fixture.hpp"
#include "tests/support/face.hpp"
#include "tests/support/session.hpp"
#include "tests/support/until.hpp"

namespace conformance {

using shmbroker::Pool;
using shmbroker::Queue;
using shmbroker::QueueKind;
using shmbroker::Role;
using shmbroker::Session;
using shmbroker::SpawnOptions;
using shmbroker::StartMethod;
using shmbroker::Status;
using support::eventually;

inline constexpr StartMethod kStartMethods[] = {StartMethod::spawn, StartMethod::fork, StartMethod::forkserver};
inline const char* text_of(StartMethod method) {
  return method == StartMethod::spawn ? "spawn" : method == StartMethod::fork ? "fork" : "forkserver";
}

// This process' strategy, for as long as it lives.
struct Under {
  explicit Under(const std::string& strategy) { shmbroker::set_sharing_strategy(strategy); }
  Under(const Under&) = delete;
  Under& operator=(const Under&) = delete;
  ~Under() { shmbroker::set_sharing_strategy("file_system"); }
};
// Both, one after the other.
#define EACH_STRATEGY(name)                                       \
  for (const std::string& name : shmbroker::sharing_strategies()) \
    if (const conformance::Under under_##name(name); true)

// One process that runs `function`; it is in a group of its own.
inline SpawnOptions process_of(const harness::BrokerFixture& broker, StartMethod method, int count = 1) {
  ::setenv("SHMBROKER_SPAWNER", SHMB_TEST_SPAWNER, 1);
  SpawnOptions options;
  options.start_method = method;
  options.nprocs = count;
  options.join = false;
  options.socket = broker.socket();
  options.program = SHMB_TEST_PEERS;
  options.command = {"peers"};
  options.start_timeout = std::chrono::seconds(60);
  options.timeout = std::chrono::seconds(120);
  options.grace = std::chrono::milliseconds(100);
  return options;
}

struct World {
  explicit World(const harness::BrokerFixture& broker)
      : session(support::connect(broker.socket())),
        // Each message under way that has several parts takes a slot for their list.
        pool(Pool::create(session, {.classes = {{.slot_size = 1024, .slots = 256}}})),
        out(pool.open_queue("to", Role::writer, {.kind = QueueKind::mpmc})),
        in(pool.open_queue("from", Role::reader, {.kind = QueueKind::mpmc})) {}
  Session session;
  Pool pool;
  Queue out, in;
  Place place() const { return {session, pool}; }
  void put(const std::vector<Tensor>& tensors, std::uint64_t type = 0) const {
    conformance::put(place(), out, tensors, type);
  }
  // A message of a peer that is no tensor.
  std::string word() const {
    shmbroker::Message message;
    in.receive(message, std::chrono::seconds(60));
    std::string text(message.text());
    message.done();
    return text;
  }
};

// How many regions of just this length the broker has.
class Observer {
 public:
  explicit Observer(const harness::BrokerFixture& broker) : session_(support::open(broker)) {}
  std::size_t regions(std::uint64_t length) const {
    shmb::client::Selection all;
    all.all_groups = true;
    const auto listing = support::must(shmb::client::list_regions(*session_, all, shmb::client::Deadline::after(0)));
    std::size_t count = 0;
    for (const auto& row : listing.rows)
      count += row.record.length == length && row.record.state != SHMBW_REGION_STATE_CACHED;
    return count;
  }
  bool soon_has(std::size_t count, std::uint64_t length) const {
    return eventually([&] { return regions(length) == count; });
  }

 private:
  std::shared_ptr<shmb::client::Session> session_;
};

}  // namespace conformance
