// SPDX-License-Identifier: Apache-2.0
// This worker's place in its world: which world, which rank, which life. It is written while the worker joins, before
// any other thread can have the worker, and only read from then on. So it needs no lock.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "client/session/session.hpp"
#include "spawn/face/shmbroker_remote.h"

namespace shmb::remote {

class Agent;

// A busy machine can keep an answer of the broker back for longer than the 5 s of a single request. A worker waits for
// it as long as a call waits by default.
constexpr std::int64_t kBrokerTime = 60'000'000'000;
inline client::Deadline broker_deadline() { return client::Deadline::after(kBrokerTime); }

struct Place {
  std::weak_ptr<Agent> agent;  // for the handles of users, each of which keeps the worker alive
  std::shared_ptr<client::Session> session;
  std::uint64_t world = 0, group = 0;
  std::uint32_t rank = 0, life = 0, size = 0;
  std::string address;

  // The broker's own reason, where it gives one, is reported instead (join.hpp).
  Error world_ended() const {
    return {Status::group_ended, 0, {}, "the group of the world at " + address + " has ended, and the world with it"};
  }
};

}  // namespace shmb::remote
