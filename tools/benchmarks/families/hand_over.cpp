// SPDX-License-Identifier: Apache-2.0
// Large messages filled and handed over, four under way: the reader holds three and gives the oldest back when the
// next one comes, so that no slot is filled again at once. Against filling one mapped buffer of huge pages again and
// again; beside it as many such buffers in turn, which is what a cache sees of the slots.
#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "tools/benchmarks/floors/bare_memory.hpp"
#include "tools/benchmarks/kit/broker_process.hpp"
#include "tools/benchmarks/kit/crew.hpp"
#include "tools/benchmarks/kit/pool_library.hpp"

namespace shmb::bench {
namespace {

constexpr std::uint32_t kUnderWay = 4, kSlots = kUnderWay + 1;

struct Command {
  enum What : std::uint32_t { enter, messages, one_buffer, buffers_in_turn } what;
  std::uint32_t count;
  std::uint64_t pool;
};

class Writer {
 public:
  Writer(const std::string& socket, std::size_t bytes) : socket_(socket), bytes_(bytes) {}
  void serve(int channel) {
    for (;;) {
      const auto command = hear<Command>(channel);
      if (command.what == Command::enter) tell(channel, begin());
      else tell(channel, run(command));
    }
  }

 private:
  std::uint64_t begin() {
    // Every buffer of both sides exists, and was written, before anything is timed.
    for (std::uint32_t i = 0; i < kSlots; ++i) {
      buffers_.push_back(BareMap::map(bare_region(bytes_).get(), bytes_, true));
      populate(buffers_.back());
      fill(buffers_.back().data(), bytes_, 0);
    }
    pool_.emplace(socket_, PoolShape{bytes_, kSlots, 0});
    QueueShape shape;
    shape.cells = kUnderWay;
    pool_->open(queue_, "frames", SHMB_QUEUE_WRITER, shape);
    std::vector<shmb_slot> all;
    for (std::uint32_t i = 0; i < kSlots; ++i) {
      all.push_back(pool_->acquire(bytes_));
      fill(static_cast<std::byte*>(all.back().data), bytes_, 0);
    }
    for (const shmb_slot& slot : all) pool_->release(slot);
    return pool_->id();
  }
  double run(const Command& command) {
    const double took = timed([&] {
      for (std::uint32_t i = 0; i < command.count; ++i) {
        ++seed_;
        if (command.what == Command::messages) {
          const shmb_slot slot = pool_->acquire(bytes_);
          fill(static_cast<std::byte*>(slot.data), bytes_, seed_);
          pool_->send_slot(queue_, slot);
          pool_->release(slot);
        } else {
          const std::size_t which = command.what == Command::one_buffer ? 0 : i % buffers_.size();
          fill(buffers_[which].data(), bytes_, seed_);
          asm volatile("" : : "r"(buffers_[which].data()) : "memory");
        }
      }
    });
    return static_cast<double>(bytes_) * command.count / took / 1e3;
  }

  std::string socket_;
  std::size_t bytes_;
  std::vector<BareMap> buffers_;
  std::optional<PoolLibrary> pool_;
  shmb_queue* queue_ = nullptr;
  int seed_ = 0;
};

void read_messages(const std::string& socket, std::size_t bytes, int channel) {
  auto command = hear<Command>(channel);
  PoolLibrary pool(socket, command.pool);
  shmb_queue* queue = nullptr;
  QueueShape shape;
  shape.cells = kUnderWay;
  pool.open(queue, "frames", SHMB_QUEUE_READER, shape);
  std::array<shmb_message*, kUnderWay - 1> held;
  for (auto& message : held) message = pool.message();
  tell(channel, pool.id());
  for (std::size_t next = 0;;) {
    command = hear<Command>(channel);
    for (std::uint32_t i = 0; i < command.count; ++i, ++next) {
      // Emptied first: the oldest goes back, then the next is waited for.
      shmb_message* message = held[next % held.size()];
      pool.receive(queue, message, SHMB_RECEIVE_KEEP);
      const auto* data = static_cast<const std::byte*>(shmb_message_data(message));
      if (shmb_message_length(message) != bytes || data[0] != data[bytes - 1])
        give_up("a message is not what was sent");
    }
    tell(channel, pool.id());
  }
}

}  // namespace

void run_hand_over(Bench& bench) {
  auto broker = BrokerProcess::start(bench.settings(), Core::any, bench.settings().engine);
  for (std::size_t bytes : sizes(bench, {1 * MiB, 16 * MiB, 64 * MiB, 256 * MiB})) {
    if (bench.settings().quick && bytes > 16 * MiB) continue;
    Crew crew;
    crew.add(Core::client, [&](int socket) { Writer(broker.socket(), bytes).serve(socket); });
    crew.add(Core::server, [&](int socket) { read_messages(broker.socket(), bytes, socket); });
    crew.tell(0, Command{Command::enter, 0, 0});
    const auto pool = crew.hear<std::uint64_t>(0);
    crew.tell(1, Command{Command::enter, 0, pool});
    crew.hear<std::uint64_t>(1);
    const auto count =
        static_cast<std::uint32_t>(std::max<std::size_t>(kSlots * 2, bench.settings().quick ? 0 : 2 * GiB / bytes));
    auto run = [&](Command::What what) {
      if (what == Command::messages) crew.tell(1, Command{what, count, 0});
      crew.tell(0, Command{what, count, 0});
      const auto rate = crew.hear<double>(0);
      if (what == Command::messages) crew.hear<std::uint64_t>(1);
      return rate;
    };
    run(Command::messages);
    Samples in_turn;
    Pair both = alternate(
        bench.times(7), [&] { return run(Command::messages); },
        [&] {
          in_turn.add(run(Command::buffers_in_turn));
          return run(Command::one_buffer);
        });
    Record record =
        make_record("hand_over." + size_text(bytes), "GB/s", both, bytes >= 64 * MiB ? ratio_at_least(0.9) : Target{});
    record.engine = broker.engine();
    record.peers = {{"as_many_buffers_in_turn", in_turn.median()}};
    bench.record(std::move(record));
  }
}

}  // namespace shmb::bench
