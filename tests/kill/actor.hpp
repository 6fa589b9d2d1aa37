// SPDX-License-Identifier: Apache-2.0
// A process that dies at its k-th step. The library of the test build calls a hook before and after each atomic step;
// the hook counts in memory that the parent sees, and ends the process where the parent said. The count until
// then is exact: a hook behind a step is called if and only if the step was done.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "tests/support/pools.hpp"

namespace kill_tests {

using namespace support;
using namespace shmb;
using namespace shmb::client;
using harness::BrokerFixture;
using harness::Child;

inline constexpr unsigned kSteps = static_cast<unsigned>(Step::Z7_done) + 1;
inline constexpr std::uint64_t kMostTraced = 8192;
std::string name_of(unsigned step);

// Filled by the actor, read by the parent after its death (and the other way round before its start).
struct Actor {
  std::uint64_t target;  // dies at this hook, 0: never
  bool stops;            // SIGSTOP instead of SIGKILL
  std::atomic<bool> counting, ready, go;
  std::atomic<std::uint64_t> passed;  // hooks since begin()
  std::atomic<std::uint32_t> asked, answered;
  std::array<std::uint32_t, kSteps> count;  // of each hook, from the start on
  pid_t pid;
  std::uint32_t index, life;         // in the pool, once joined; kNone before
  std::uint32_t sent, confirmed;     // sends begun and returned
  std::uint32_t shown;               // messages that a receive has given to it
  std::atomic<std::uint32_t> heard;  // messages a listener got
  std::array<std::uint64_t, 65536> heard_ids;
  std::array<std::uint16_t, kMostTraced> trace;

  std::uint32_t hits(Step step) const { return count[static_cast<unsigned>(step)]; }
  std::uint32_t published() const { return hits(Step::S2_done) + hits(Step::K3_done) + hits(Step::W4_done); }
  std::uint32_t taken() const { return hits(Step::R4_done) + hits(Step::C6_done) + hits(Step::Q5_done); }
};

// Memory that processes forked later share.
class SharedActor {
 public:
  SharedActor();
  ~SharedActor();
  SharedActor(const SharedActor&) = delete;
  SharedActor& operator=(const SharedActor&) = delete;
  Actor* operator->() const { return actor_; }
  Actor& operator*() const { return *actor_; }
  void clear() const;

 private:
  Actor* actor_;
};

// The actor's own side. A failure there ends it with a sentence on stderr.
class Self {
 public:
  Self(Actor& actor, const std::string& socket, std::uint64_t group);
  void join();  // session and pool
  std::unique_ptr<Queue> open(const QueueSpec& spec);

  void begin();                          // from here on steps are counted
  void end();                            // no more
  void ask(std::uint32_t number);        // the parent does what was agreed on
  void ask_later(std::uint32_t number);  // and this process goes on meanwhile
  void wait_for_go();
  // Once, when `step` is reached for the n-th time from now on.
  void at(Step step, std::function<void()> action, unsigned nth = 1);
  void wait_asleep(std::uint32_t participant);  // until that peer sleeps

  Slot fresh_slot(std::uint64_t id, std::uint64_t length = 0);
  void send_inline(Queue& queue, std::uint64_t id, std::int64_t wait = 0);
  void send_slot(Queue& queue, std::uint64_t id, std::int64_t wait = 0);  // acquires, fills, sends, releases
  void send(Queue& queue, const Slot& slot, std::int64_t wait = 0);
  void send_parts(Queue& queue, std::span<const OutPart> parts, std::int64_t wait = 0);
  std::uint64_t receive(Queue& queue, Message& message, bool keep, std::int64_t wait = 0);  // checks it: its id

  Actor& actor;
  std::shared_ptr<Session> session;
  std::shared_ptr<Pool> pool;

 private:
  std::string socket_;
  std::uint64_t group_;
};

template <class T>
T need(Result<T> result, const char* what) {
  if (!result) {
    std::fprintf(stderr, "an actor's %s failed: %s\n", what, result.error().sentence.c_str());
    throw 1;
  }
  return std::move(*result);
}
inline void need(Result<void> result, const char* what) {
  if (result) return;
  std::fprintf(stderr, "an actor's %s failed: %s\n", what, result.error().sentence.c_str());
  throw 1;
}
inline void need(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "not so in an actor: %s\n", what);
  throw 1;
}

// Contents that tell which message they are, and whether any byte of it is another's.
inline constexpr std::size_t kInline = 48, kSlot = 256;
void fill(std::span<std::byte> to, std::uint64_t id);
inline constexpr std::uint64_t kTorn = ~std::uint64_t{0};
std::uint64_t id_in(std::span<const std::byte> from);
// Of a list: every part is filled with part_id(id, number).
inline std::uint64_t part_id(std::uint64_t id, std::size_t part) { return id | std::uint64_t{part} << 48; }
std::uint64_t id_of(const Message& message);

}  // namespace kill_tests
