// SPDX-License-Identifier: Apache-2.0
// The queues of a world: each worker reads one, and writes to those of the others. Order holds between two workers
// only. Waiting ends with a message, with an event of the broker, or when somebody of this process asks for it.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/fd.hpp"
#include "client/queue.hpp"
#include "spawn/remote_message.hpp"

namespace shmb::remote {

class Inbox {
 public:
  // Worker 0 makes the pool; `pool` is 0 there, and what is to be told to the others is pool_id().
  static Result<std::unique_ptr<Inbox>> open(const std::shared_ptr<client::Session>& session, std::uint64_t group,
                                             std::uint64_t pool, std::uint32_t rank, std::uint32_t world_size,
                                             std::int64_t timeout);
  std::uint64_t pool_id() const { return pool_->id(); }
  Result<std::uint32_t> participants();  // workers that are in the pool

  // Room in the pool for so many bytes, to be sent. Nothing: there is none for so many, or none at the moment.
  // `timeout` is the broker's, where the pool has to grow for it.
  SlotBytes room_for(std::uint64_t bytes, std::int64_t timeout);

  // Waits at most `patience` nanoseconds for room. False: there is none yet. PEER_GONE: the reader there has gone; the
  // next call waits for the one that comes in its place.
  Result<bool> send(std::uint32_t to, std::span<const client::OutPart> parts, std::int64_t patience);
  // Takes what is there, waiting for the first until the deadline. `quiet`: nothing was there when it had to wait, so
  // that it is time to look at the broker's events. One thread at a time.
  struct Taken {
    std::vector<Incoming> messages;
    bool quiet = false;
    std::optional<client::RemoteEvent> told;  // by the broker, before whatever its session says next
  };
  Result<Taken> take(client::Deadline deadline);
  bool something_there();  // From any thread: whether a take would have a message.
  // From any thread: the take that runs, or the next one, does not wait. It costs a system call only if the take
  // sleeps.
  void interrupt();

 private:
  Inbox() = default;
  void be_patient(std::int64_t timeout);

  std::shared_ptr<client::Pool> pool_;
  std::uint32_t rank_ = 0;
  client::QueueSpec spec_;
  std::unique_ptr<client::Queue> own_;
  std::mutex opening_;
  std::vector<std::unique_ptr<client::Queue>> peers_;  // opened with the first message
  client::Message message_;
  std::shared_ptr<SlotBudget> budget_;
  Fd interrupt_, wait_;
  // A take sets the second before it looks at the first, and interrupt() does the reverse: one of them sees the other.
  std::atomic<bool> interrupted_ = false, asleep_ = false;
  bool spins_ = false;
  std::int64_t patience_ = 0;  // with the broker, for the words of a message that are not mapped yet
};

}  // namespace shmb::remote
