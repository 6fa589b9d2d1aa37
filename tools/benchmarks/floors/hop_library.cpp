// SPDX-License-Identifier: Apache-2.0
// The library's queues as ways of ping_pong.hpp. A slot's message is what an application does: a slot is taken,
// written, sent and given back; the reader has it in place until it receives the next one.
#include <string.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "tools/benchmarks/floors/bare_memory.hpp"
#include "tools/benchmarks/floors/hop_ways.hpp"
#include "tools/benchmarks/kit/pool_library.hpp"

namespace shmb::bench {
namespace {

std::int64_t spin_of(bool asleep) { return asleep ? std::int64_t{SHMB_NO_WAIT} : kSpinForEver; }

class Pair {
 public:
  Pair(const std::string& socket, const PoolShape& shape, std::int64_t spin, std::uint32_t kind = SHMB_QUEUE_SPSC)
      : socket_(socket), shape_(shape) {
    queue_.kind = kind;
    queue_.spin_ns = spin;
  }
  std::uint64_t enter(End end, std::uint64_t from_client) {
    bool client = end == End::client;
    if (client) pool_ = std::make_unique<PoolLibrary>(socket_, shape_);
    else pool_ = std::make_unique<PoolLibrary>(socket_, from_client);
    pool_->open(out, client ? "there" : "back", SHMB_QUEUE_WRITER, queue_);
    pool_->open(in, client ? "back" : "there", SHMB_QUEUE_READER, queue_);
    message = pool_->message();
    return pool_->id();
  }
  PoolLibrary& pool() { return *pool_; }
  shmb_queue *out = nullptr, *in = nullptr;
  shmb_message* message = nullptr;

 private:
  std::string socket_;
  PoolShape shape_;
  QueueShape queue_;
  std::unique_ptr<PoolLibrary> pool_;
};

class InlineEnds {
 public:
  InlineEnds(const std::string& socket, std::int64_t spin) : pair_(socket, {}, spin) {}
  std::uint64_t enter(End end, std::uint64_t from_client) { return pair_.enter(end, from_client); }
  void send(std::uint32_t number) {
    memcpy(bytes_, &number, sizeof number);
    pair_.pool().send(pair_.out, bytes_, sizeof bytes_);
  }
  std::uint32_t receive() {
    pair_.pool().receive(pair_.in, pair_.message);
    std::uint32_t number;
    memcpy(&number, shmb_message_data(pair_.message), sizeof number);
    return number;
  }

 private:
  Pair pair_;
  char bytes_[56] = {};
};

// As many slots as an application has: few of the large ones. Each end has at most two under way: the one that the
// other end reads, and the next.
std::uint32_t slots_of(std::size_t bytes) {
  return static_cast<std::uint32_t>(std::clamp<std::size_t>(1536 * MiB / bytes, 6, 64));
}

class SlotEnds {
 public:
  SlotEnds(const std::string& socket, std::size_t bytes, bool asleep, std::uint32_t kind)
      : bytes_(bytes), slots_(slots_of(bytes)), pair_(socket, {bytes, slots_, 0}, spin_of(asleep), kind) {}
  std::uint64_t enter(End end, std::uint64_t from_client) {
    std::uint64_t id = pair_.enter(end, from_client);
    if (end == End::server) return id;
    std::vector<shmb_slot> all;
    while (all.size() < slots_) {
      all.push_back(pair_.pool().acquire(bytes_));
      memset(all.back().data, 0x41, bytes_);
    }
    for (const shmb_slot& slot : all) pair_.pool().release(slot);
    return id;
  }
  void send(std::uint32_t number) {
    shmb_slot slot = pair_.pool().acquire(bytes_);
    memcpy(slot.data, &number, sizeof number);
    pair_.pool().send_slot(pair_.out, slot);
    pair_.pool().release(slot);
  }
  std::uint32_t receive() {
    pair_.pool().receive(pair_.in, pair_.message);
    if (shmb_message_length(pair_.message) != bytes_) wrong_answer();
    std::uint32_t number;
    memcpy(&number, shmb_message_data(pair_.message), sizeof number);
    return number;
  }

 private:
  std::size_t bytes_;
  std::uint32_t slots_;
  Pair pair_;
};

}  // namespace

NamedWay inline_hop(const std::string& socket, bool asleep) {
  return {"shmbroker", std::make_unique<WayOf<InlineEnds>>(socket, spin_of(asleep))};
}

NamedWay usual_hop(const std::string& socket) {
  return {"shmbroker", std::make_unique<WayOf<InlineEnds>>(socket, std::int64_t{0})};
}

NamedWay slot_hop(const std::string& socket, std::size_t bytes, bool asleep) {
  return {"shmbroker", std::make_unique<WayOf<SlotEnds>>(socket, bytes, asleep, SHMB_QUEUE_SPSC)};
}

NamedWay claim_hop(const std::string& socket, std::size_t bytes, bool asleep) {
  return {"shmbroker", std::make_unique<WayOf<SlotEnds>>(socket, bytes, asleep, SHMB_QUEUE_MPMC)};
}

}  // namespace shmb::bench
