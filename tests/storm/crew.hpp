// SPDX-License-Identifier: Apache-2.0
// Two ordinary users of a pool, in every kind of queue and form of message, both ways. Left alone they require that all
// is right; beside a vandal they take whatever comes, look at every byte of it, and only have to stay alive and come
// back from each call.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "client/queue/message.hpp"

namespace storm {

// Reads every byte of the message. Returns the fault in its place; "" where each part lies within what it names.
std::string stretch_fault(shmb::client::Pool& pool, const shmb::client::Message& message);

// For answers of the broker: clients without a processor for seconds are not what these tests are about.
inline constexpr std::int64_t kAnswer = 60'000'000'000;

struct Progress {
  std::atomic<std::uint64_t> beats, delivered, refused, broken;
  std::atomic<std::uint32_t> doing;  // the line of the call
};

struct CrewShared {
  std::atomic<std::uint32_t> stop, failed;
  Progress member[2];
  char wrong[512];
  void fail(const std::string& what) {
    std::uint32_t none = 0;
    if (failed.compare_exchange_strong(none, 1)) what.copy(wrong, sizeof wrong - 1);
  }
};

struct CrewPlace {
  std::string socket;
  std::uint64_t group = 0, pool = 0;
  bool trusting = true;  // false: nobody else writes there, so all must be right
};

int serve(CrewShared& shared, const CrewPlace& place, std::uint32_t member, std::uint64_t seed);

}  // namespace storm
