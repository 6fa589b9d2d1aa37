// SPDX-License-Identifier: Apache-2.0
// The queues of a world, as one worker sees them: it reads one, and writes to those of the others.
//
// Messages keep their order between two workers only. One thread takes messages, and sleeps in take(). Four things end
// the sleep: a message, room in a queue that had none, an event of the broker, and interrupt(). Any thread sends, and
// never waits in it. take() sets `asleep_` before it looks at `interrupted_`, and interrupt() does the reverse. So one
// of them always sees the other, and interrupting a thread that does not sleep costs no system call.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/fd.hpp"
#include "client/queue/queue_set.hpp"
#include "spawn/remote/message.hpp"

namespace shmb::remote {

class Inbox {
 public:
  // `pool` 0: this worker makes the pool, and tells the others its pool_id(). `timeout`, in ns, is for requests to the
  // broker.
  static Result<std::unique_ptr<Inbox>> open(const std::shared_ptr<client::Session>& session, std::uint64_t group,
                                             std::uint64_t pool, std::uint32_t rank, std::uint32_t world_size,
                                             std::int64_t timeout);
  std::uint64_t pool_id() const { return pool_->id(); }
  std::uint32_t cells() const { return spec_.cells; }  // of the queue from one worker to another
  Result<std::uint32_t> participants();                // workers that are in the pool

  // A slot for so many bytes that are to be sent. Empty: no slot is so large, or none is free. `timeout` is for the
  // broker, if the pool has to grow.
  SlotBytes room_for(std::uint64_t bytes, std::int64_t timeout);

  // Never waits for room. False: there is none, or the reader there has gone: take() tells when to try again.
  Result<bool> send(std::uint32_t to, std::span<const client::OutPart> parts);
  // Takes the messages that are there, and waits for the first one until the deadline. `wanted`: a bit for each worker
  // whose queue had no room; room there ends the wait, too. `quiet`: no message was there when it had to wait, so it is
  // time to look at the broker's events. One thread at a time.
  //
  // Before it sleeps it looks for a while without a pause, up to twice as long as the last wait. If calls come one
  // after another, to sleep and to wake takes longer than a call.
  struct Taken {
    std::vector<Incoming> messages;
    bool quiet = false;
    std::uint64_t roomy = 0;                  // of those wanted: a send is worth a try
    std::optional<client::RemoteEvent> told;  // by the broker, before the next event of its session
  };
  Result<Taken> take(client::Deadline deadline, std::uint64_t wanted, bool may_spin = true);
  bool something_there();  // from any thread: whether a take would have a message
  // From any thread: the take that runs, or the next one, does not wait. It costs a system call only if the take
  // sleeps.
  void interrupt();

 private:
  Inbox() = default;
  void be_patient(std::int64_t timeout);
  std::uint64_t room_there(std::uint64_t wanted);

  std::shared_ptr<client::Pool> pool_;
  std::uint32_t rank_ = 0;
  client::QueueSpec spec_;
  std::unique_ptr<client::Queue> own_;
  struct Peer {
    std::unique_ptr<client::Queue> queue;           // opened with the first message
    std::atomic<client::Queue*> opened = nullptr;   // the same
    std::atomic<std::uint32_t> had_no_lane_at = 0;  // the pool's change word when the queue could not be opened
  };
  std::mutex opening_;
  std::array<Peer, pool::kParticipants> peers_;
  client::Message message_;
  std::shared_ptr<SlotBudget> budget_;
  client::QueueSet set_;  // a take sleeps on it: our queue, and those of others that are to have room
  Fd interrupt_, wait_;
  std::atomic<bool> interrupted_ = false, asleep_ = false;
  bool spins_ = false;
  std::int64_t spin_ = 0;      // how long the next take looks for a message before it sleeps
  std::int64_t patience_ = 0;  // with the broker, for the words of a message that are not mapped yet
};

}  // namespace shmb::remote
