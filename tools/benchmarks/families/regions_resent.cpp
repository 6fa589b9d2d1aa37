// SPDX-License-Identifier: Apache-2.0
// A region of 1 MiB sent to another process again and again, which looks at its first word each time: to be read, whose
// mapping the receiver keeps, and to be written, which it maps anew. Against the same message without the region.
#include <string.h>

#include "tools/benchmarks/floors/bare_memory.hpp"
#include "tools/benchmarks/floors/hop_ways.hpp"
#include "tools/benchmarks/kit/pool_library.hpp"

namespace shmb::bench {
namespace {

enum class Carried { nothing, to_read, to_write };

class RegionEnds {
 public:
  RegionEnds(const std::string& socket, Carried carried) : socket_(socket), carried_(carried) {
    queue_.spin_ns = kSpinForEver;
    queue_.inline_bytes = 120;
  }
  std::uint64_t enter(End end, std::uint64_t from_client) {
    const bool client = end == End::client;
    if (client) pool_ = std::make_unique<PoolLibrary>(socket_, PoolShape{});
    else pool_ = std::make_unique<PoolLibrary>(socket_, from_client);
    pool_->open(out_, client ? "there" : "back", SHMB_QUEUE_WRITER, queue_);
    pool_->open(in_, client ? "back" : "there", SHMB_QUEUE_READER, queue_);
    message_ = pool_->message();
    parts_[0].kind = SHMB_PART_BYTES;
    parts_[0].data = bytes_;
    parts_[0].length = sizeof bytes_;
    if (carried_ != Carried::nothing) {
      parts_[1].kind = SHMB_PART_REGION;
      parts_[1].region = pool_->region(1 * MiB);
      parts_[1].rights = SHMB_RIGHT_READ | (carried_ == Carried::to_write ? unsigned{SHMB_RIGHT_WRITE} : 0U);
    } else {
      parts_[1] = parts_[0];
    }
    return pool_->id();
  }
  void send(std::uint32_t number) {
    memcpy(bytes_, &number, sizeof number);
    pool_->send_message(out_, {parts_, 2, 0, 0});
  }
  std::uint32_t receive() {
    pool_->receive(in_, message_);
    shmb_part part;
    if (shmb_message_part(message_, 1, &part, nullptr) != SHMB_OK || part.status != SHMB_OK) wrong_answer();
    seen_ += *static_cast<const volatile unsigned char*>(part.data);
    std::uint32_t number;
    memcpy(&number, shmb_message_data(message_), sizeof number);
    return number;
  }

 private:
  std::string socket_;
  Carried carried_;
  QueueShape queue_;
  std::unique_ptr<PoolLibrary> pool_;
  shmb_queue *out_ = nullptr, *in_ = nullptr;
  shmb_message* message_ = nullptr;
  shmb_part parts_[2] = {};
  char bytes_[8] = {};
  std::uint64_t seen_ = 0;
};

NamedWay way(const char* name, const std::string& socket, Carried carried) {
  return {name, std::make_unique<WayOf<RegionEnds>>(socket, carried)};
}

}  // namespace

void run_regions_resent(Bench& bench) {
  auto broker = BrokerProcess::start(bench.settings(), Core::any, bench.settings().engine);
  record_hop(bench, broker,
             {.name = "regions_resent.1MiB",
              .way = way("to be read", broker.socket(), Carried::to_read),
              .floor = way("nothing", broker.socket(), Carried::nothing),
              .beside = way("to be written", broker.socket(), Carried::to_write),
              .in_each = 200,
              .timed_ones = 500,
              .beside_part = 4,
              .target = value_at_most(1)});
}

}  // namespace shmb::bench
