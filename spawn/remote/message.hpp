// SPDX-License-Identifier: Apache-2.0
// The messages between workers of a world. Each is one message of a queue, in parts. The first part is a head with
// the function's name, the references and up to 1 KiB of bytes (kCopied). More bytes follow in a slot or a region. Then
// come the regions that the user sends. A peer may write anything. So everything is checked, and a message that does
// not add up is dropped. The message does not name its writer: the queue does, by the lane that the broker gave to it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "client/calls/remote_calls.hpp"
#include "client/queue/message.hpp"

namespace shmb::remote {

using client::RefId;

inline constexpr std::size_t kInline = 65536;     // SHMB_REMOTE_INLINE
inline constexpr std::size_t kCopied = 1024;      // up to so many bytes are in the message's own words, and are copied
inline constexpr std::size_t kMostBeside = 1024;  // regions, and references, of one message

enum class Kind : std::uint8_t {
  call = 1,  // run a function
  create,    // and keep what it gives
  accepted,  // the creation has reached the owner
  fetch,     // the bytes of a value
  type,      // the type of a value
  answer,
  failure,
  idle,   // to the leader of a shutdown: nothing is under way here
  round,  // from the leader: report again
  over,   // from the leader: nothing is under way anywhere
};

// Flags of a head. Beside: in the part behind it, a slot or a region.
inline constexpr std::uint8_t kBytesBeside = 1, kOnObject = 2;

struct WireReference {
  RefId id, fork;
  std::uint32_t owner = 0;
};

struct Head {
  Kind kind = Kind::call;
  std::uint8_t flags = 0;
  std::uint32_t from = 0, from_life = 0;  // not in the message
  std::uint32_t to_life = 0;              // the life of the receiver: a successor does not get the message
  std::uint64_t call = 0;                 // the caller's number for it, and its answer's
  std::int64_t deadline = 0;              // CLOCK_MONOTONIC, until when the caller waits; 0: for ever
  RefId reference;                        // create, accepted, fetch, type
  // For the shutdown (meeting.hpp). All three kinds have the phase and the round. `idle` also has the requests that
  // were sent and received so far, and the census of the workers.
  std::uint64_t phase = 0, round = 0, sent = 0, received = 0, census = 0;
};

// A failure of a call, as the caller gets it and as it travels.
struct Failure {
  Status status = Status::raised;
  std::int32_t rank = -1;
  std::string worker, type, text, trace;
  struct Cause {
    std::string type, text;
  };
  std::vector<Cause> causes{};  // what it was thrown from, the last one first
};
std::string pack_failure(const Failure& failure);
Failure unpack_failure(std::string_view bytes);
Failure failure_of(const Error& error);
Error error_of(const Failure& failure);

// How many slots with up to kInline bytes a worker holds of what it was sent. Bytes beyond the bound are copied: a
// worker that keeps its arguments and results does not stop others from sending.
class SlotBudget {
 public:
  explicit SlotBudget(std::uint32_t most) : most_(most) {}
  bool take() {
    if (held_.fetch_add(1, std::memory_order_relaxed) < most_) return true;
    give_back();
    return false;
  }
  void give_back() { held_.fetch_sub(1, std::memory_order_relaxed); }

 private:
  const std::uint32_t most_;
  std::atomic<std::uint32_t> held_ = 0;
};

// Bytes in a slot of the world's pool, held until this goes. A forked child has no hold, and gives none back.
class SlotBytes {
 public:
  SlotBytes() = default;
  // `budget`: one of it is taken already.
  SlotBytes(std::shared_ptr<client::Pool> pool, const client::Slot& slot, std::byte* data, std::uint64_t length,
            std::shared_ptr<SlotBudget> budget = nullptr)
      : pool_(std::move(pool)), budget_(std::move(budget)), slot_(slot), data_(data), length_(length) {}
  SlotBytes(SlotBytes&& other) noexcept
      : pool_(std::move(other.pool_)),
        budget_(std::move(other.budget_)),
        slot_(other.slot_),
        data_(other.data_),
        length_(other.length_) {}
  SlotBytes& operator=(SlotBytes&& other) noexcept {
    if (this == &other) return *this;
    reset();
    pool_ = std::move(other.pool_);
    budget_ = std::move(other.budget_);
    slot_ = other.slot_;
    data_ = other.data_;
    length_ = other.length_;
    return *this;
  }
  ~SlotBytes() { reset(); }

  explicit operator bool() const { return pool_ != nullptr; }
  std::byte* data() const { return data_; }
  std::string_view view() const { return {reinterpret_cast<const char*>(data_), length_}; }
  const client::Slot& slot() const { return slot_; }
  void reset() {
    if (const auto pool = std::exchange(pool_, nullptr)) (void)pool->release_now(slot_);
    if (const auto budget = std::exchange(budget_, nullptr)) budget->give_back();
  }

 private:
  std::shared_ptr<client::Pool> pool_;
  std::shared_ptr<SlotBudget> budget_;
  client::Slot slot_;
  std::byte* data_ = nullptr;
  std::uint64_t length_ = 0;
};

// A message to send. Everything is borrowed for the call that sends it.
struct Outgoing {
  Head head;
  std::string_view function, data;
  client::Region* bytes = nullptr;  // instead of data
  const SlotBytes* slot = nullptr;  // likewise
  std::uint64_t bytes_length = 0;
  std::vector<WireReference> references;
  std::vector<client::Region*> regions;
};
// `head` is filled and must outlive the parts, as the message must.
std::vector<client::OutPart> parts_of(const Outgoing& message, std::string& head);

struct Incoming {
  Head head;
  client::Message::Writer writer;
  std::string function, data;
  client::Region::Handle bytes;  // instead of data
  SlotBytes slot;                // likewise
  std::uint64_t bytes_length = 0;
  std::vector<WireReference> references;
  std::vector<client::Region::Handle> regions;
  std::optional<Error> broken;  // the head is whole, but not what came with it
};
// Takes what it needs out of `message`. Nothing: it is no message of a worker.
std::optional<Incoming> read_message(client::Message& message, const std::shared_ptr<SlotBudget>& budget);

}  // namespace shmb::remote
