// SPDX-License-Identifier: Apache-2.0
// Messages on their way to other workers.
//
// There are two ways out. send() puts one message into the queue of its receiver. When that queue is full, send() waits
// for room until the message's deadline. Meanwhile it takes in arriving messages. So two workers that fill each other's
// queues both go on. post() leaves a small message for which no thread waits; flush() sends those that have room, and
// does not wait. The thread that leads sees the room, because it sleeps on these queues as well. `wanted_` names them,
// and has_room() reports the room to this class. Posted messages to one receiver keep their order.
// The bookings for a message that is not sent are given back.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string_view>

#include "spawn/remote/life.hpp"
#include "spawn/remote/memory.hpp"
#include "spawn/remote/monitor.hpp"
#include "spawn/remote/references.hpp"
#include "spawn/remote/roster.hpp"
#include "spawn/remote/stepper.hpp"

namespace shmb::remote {

class Sender {
 public:
  Sender(Monitor& monitor, const Life& life, const Roster& roster, References& references, const Memory& memory,
         Stepper& stepper)
      : monitor_(monitor), life_(life), roster_(roster), references_(references), memory_(memory), stepper_(stepper) {}

  // Without the lock. It returns when the message is in the queue of its receiver.
  Result<void> send(std::uint32_t to, const Head& head, std::string_view function, const Payload& payload);
  // The same for what is counted as a request: at shutdown as many must have arrived as were sent.
  Result<void> send_request(std::uint32_t to, const Head& head, std::string_view function, const Payload& payload);

  // All below with the lock.
  std::uint64_t requests() const { return requests_; }  // sent so far
  void post(std::uint32_t to, std::uint32_t life, const Head& head) { posted_.push_back({to, life, head}); }
  std::size_t posted() const { return posted_.size() + without_room_.size(); }
  bool idle() const { return posted_.empty() && without_room_.empty() && !flushing_; }
  void flush(Lock& lock);
  // When a post that failed for another reason than want of room is tried again, CLOCK_MONOTONIC. Nothing: there is
  // none.
  std::optional<std::int64_t> next_try() const { return failed_ != 0 ? std::optional(try_again_) : std::nullopt; }

  // For the thread that leads: a bit for each worker whose queue had no room, until some has been seen.
  std::uint64_t wanted() const { return wanted_; }
  void has_room(std::uint64_t roomy) { wanted_ &= ~roomy; }
  void looked() { sent_since_look_ = 0; }
  void worker_gone(std::uint32_t rank) { wanted_ &= ~(std::uint64_t{1} << rank); }

 private:
  struct Posted {
    std::uint32_t to = 0, life = 0;
    Head head;
  };
  Result<void> load(Outgoing& out, const Payload& payload, client::Region::Handle& bytes, SlotBytes& slot);
  SlotBytes await_slot(std::string_view bytes, std::int64_t deadline);
  Result<void> put(std::uint32_t to, const Head& head, std::span<const client::OutPart> parts);
  void look_while_sending(Lock& lock, Inbox& inbox);
  void retry_where_room();
  bool put_posted(Lock& lock, const Posted& message);
  void want_room(std::uint32_t to);

  Monitor& monitor_;
  const Life& life_;
  const Roster& roster_;
  References& references_;
  const Memory& memory_;
  Stepper& stepper_;
  std::uint64_t requests_ = 0;
  std::uint64_t wanted_ = 0;
  std::uint32_t sent_since_look_ = 0;  // messages, since this worker last took any in
  std::deque<Posted> posted_, without_room_;
  // A bit for each worker that without_room_ has something for. `failed_`: its send failed for another reason. Nothing
  // tells when that has passed, so it is tried again at `try_again_`.
  std::uint64_t full_ = 0, failed_ = 0;
  std::int64_t try_again_ = 0;
  bool flushing_ = false;
};

}  // namespace shmb::remote
