// SPDX-License-Identifier: Apache-2.0
// Messages per second through queues: one writer and one reader, many of either or both that share the messages, one
// writer whose readers each get all. The floor is a bare ring in shared memory between one writer and one reader; the
// peers carry the same messages between as many processes.
#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <mqueue.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>

#include <atomic>
#include <map>
#include <new>
#include <optional>
#include <string>

#ifdef SHMB_HAVE_BOOST
#include <boost/date_time/posix_time/posix_time_types.hpp>
#include <boost/interprocess/ipc/message_queue.hpp>
#endif

#include "tools/benchmarks/broker_process.hpp"
#include "tools/benchmarks/pool_library.hpp"
#include "tools/benchmarks/stream.hpp"

namespace shmb::bench {
namespace {

constexpr std::int64_t kPatience = 20'000'000;  // ns until a reader looks whether all is done

class LibraryEnd final : public StreamEnd {
 public:
  LibraryEnd(const std::string& socket, std::uint32_t kind, bool writer, std::uint64_t& pool) {
    if (pool == 0) pool_.emplace(socket, PoolShape{});
    else pool_.emplace(socket, pool);
    pool = pool_->id();
    QueueShape shape;
    shape.kind = kind;
    pool_->open(queue_, "stream", writer ? SHMB_QUEUE_WRITER : SHMB_QUEUE_READER, shape);
    message_ = pool_->message();
  }
  void send(std::uint64_t count) override {
    char bytes[kStreamBytes] = {};
    for (std::uint64_t i = 0; i < count; ++i) {
      memcpy(bytes, &i, sizeof i);
      pool_->send(queue_, bytes, sizeof bytes);
    }
  }
  void receive(const std::function<bool()>& taken) override {
    while (pool_->receive_by(queue_, message_, kPatience))
      if (taken()) return;
  }

 private:
  std::optional<PoolLibrary> pool_;
  shmb_queue* queue_ = nullptr;
  shmb_message* message_ = nullptr;
};

// A ring that only one writer and one reader can use: what the machine carries at most.
struct Ring {
  static constexpr std::uint64_t kCells = 256;
  alignas(128) std::atomic<std::uint64_t> head;
  alignas(128) std::atomic<std::uint64_t> tail;
  struct alignas(64) Cell {
    char bytes[kStreamBytes];
  };
  alignas(128) Cell cells[kCells];
};

Ring* shared_ring() {
  void* page = mmap(nullptr, sizeof(Ring), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) give_up("mmap");
  return new (page) Ring{};
}

void pause_a_little() {
  for (int i = 0; i < 16; ++i) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb" ::: "memory");
#endif
  }
}

class RingEnd final : public StreamEnd {
 public:
  explicit RingEnd(Ring* ring) : ring_(*ring) {}
  void send(std::uint64_t count) override {
    char bytes[kStreamBytes] = {};
    for (std::uint64_t i = 0; i < count; ++i) {
      memcpy(bytes, &i, sizeof i);
      while (at_ - seen_ == Ring::kCells)
        if ((seen_ = ring_.head.load(std::memory_order_acquire)) + Ring::kCells == at_) pause_a_little();
      memcpy(ring_.cells[at_ % Ring::kCells].bytes, bytes, sizeof bytes);
      ring_.tail.store(++at_, std::memory_order_release);
    }
  }
  void receive(const std::function<bool()>& taken) override {
    char bytes[kStreamBytes];
    for (;;) {
      while (at_ == seen_)
        if ((seen_ = ring_.tail.load(std::memory_order_acquire)) == at_) pause_a_little();
      memcpy(bytes, ring_.cells[at_ % Ring::kCells].bytes, sizeof bytes);
      asm volatile("" : : "r"(bytes) : "memory");
      ring_.head.store(++at_, std::memory_order_release);
      if (taken()) return;
    }
  }

 private:
  Ring& ring_;
  std::uint64_t at_ = 0, seen_ = 0;
};

class SeqpacketEnd final : public StreamEnd {
 public:
  SeqpacketEnd(const Channel& pair, bool writer) : socket_(writer ? pair.ours.get() : pair.theirs.get()) {
    timeval patience{0, kPatience / 1000};
    must(setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience), "SO_RCVTIMEO");
  }
  void send(std::uint64_t count) override {
    char bytes[kStreamBytes] = {};
    for (std::uint64_t i = 0; i < count; ++i)
      while (::send(socket_, bytes, sizeof bytes, MSG_NOSIGNAL) < 0)
        if (errno != EINTR) give_up("send");
  }
  void receive(const std::function<bool()>& taken) override {
    char bytes[kStreamBytes];
    while (recv(socket_, bytes, sizeof bytes, 0) == static_cast<ssize_t>(sizeof bytes))
      if (taken()) return;
  }

 private:
  int socket_;
};

class MqueueEnd final : public StreamEnd {
 public:
  explicit MqueueEnd(mqd_t queue) : queue_(queue) {}
  void send(std::uint64_t count) override {
    char bytes[kStreamBytes] = {};
    for (std::uint64_t i = 0; i < count; ++i)
      while (mq_send(queue_, bytes, sizeof bytes, 0) != 0)
        if (errno != EINTR) give_up("mq_send");
  }
  void receive(const std::function<bool()>& taken) override {
    char bytes[kStreamBytes];
    for (;;) {
      timespec until{};
      clock_gettime(CLOCK_REALTIME, &until);
      until.tv_nsec += kPatience;
      if (until.tv_nsec >= 1'000'000'000) until.tv_nsec -= 1'000'000'000, ++until.tv_sec;
      if (mq_timedreceive(queue_, bytes, sizeof bytes, nullptr, &until) < 0) return;
      if (taken()) return;
    }
  }

 private:
  mqd_t queue_;
};

mqd_t make_mqueue() {
  const std::string name = fmt::format("/shmbroker-bench-{}-stream", getpid());
  mq_attr shape{};
  shape.mq_maxmsg = 10;
  shape.mq_msgsize = kStreamBytes;
  const mqd_t queue = mq_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR, 0600, &shape);
  must(queue, "mq_open");
  must(mq_unlink(name.c_str()), "mq_unlink");
  return queue;
}

#ifdef SHMB_HAVE_BOOST
namespace bip = boost::interprocess;

class BoostEnd final : public StreamEnd {
 public:
  explicit BoostEnd(bip::message_queue& queue) : queue_(queue) {}
  void send(std::uint64_t count) override {
    char bytes[kStreamBytes] = {};
    for (std::uint64_t i = 0; i < count; ++i) queue_.send(bytes, sizeof bytes, 0);
  }
  void receive(const std::function<bool()>& taken) override {
    char bytes[kStreamBytes];
    std::size_t got;
    unsigned priority;
    for (;;) {
      const auto until =
          boost::posix_time::microsec_clock::universal_time() + boost::posix_time::microseconds(kPatience / 1000);
      if (!queue_.timed_receive(bytes, sizeof bytes, got, priority, until)) return;
      if (taken()) return;
    }
  }

 private:
  bip::message_queue& queue_;
};
#endif

struct Shape {
  const char* name;
  std::uint32_t kind;
  unsigned writers, readers;
};

void one_figure(Bench& bench, const BrokerProcess& broker, const Shape& shape) {
  const bool all_to_each = shape.kind == SHMB_QUEUE_BROADCAST;
  // Quick: as many as a slow machine sends in a moment.
  const auto count = static_cast<std::uint64_t>(bench.times(2'000'000, 4'000));
  Stream ours(shape.writers, shape.readers, all_to_each, [&](bool writer, std::uint64_t& token) {
    return std::make_unique<LibraryEnd>(broker.socket(), shape.kind, writer, token);
  });
  Ring* ring = shared_ring();
  Stream floor(1, 1, false, [&](bool, std::uint64_t&) { return std::make_unique<RingEnd>(ring); });
  Pair both = alternate(
      bench.times(5), [&] { return ours.per_second(count); },
      [&] { return floor.per_second(count * static_cast<std::uint64_t>(bench.times(10))); });
  munmap(ring, sizeof(Ring));
  Record record = make_record(fmt::format("messages.{}.{}-{}", shape.name, shape.writers, shape.readers), "k/s", both);
  record.engine = broker.engine();
  if (!all_to_each) {
    const Channel pair = Channel::make();
    const mqd_t queue = make_mqueue();
    auto peer = [&](const char* name, const Stream::Enter& enter) {
      Stream stream(shape.writers, shape.readers, false, enter);
      Samples rates;
      for (int i = 0; i < bench.times(3); ++i) rates.add(stream.per_second(std::max<std::uint64_t>(count / 20, 100)));
      record.peers[name] = rates.median();
    };
    peer("unix_seqpacket", [&](bool writer, std::uint64_t&) { return std::make_unique<SeqpacketEnd>(pair, writer); });
    peer("posix_mqueue", [&](bool, std::uint64_t&) { return std::make_unique<MqueueEnd>(queue); });
    mq_close(queue);
#ifdef SHMB_HAVE_BOOST
    const std::string name = fmt::format("/shmbroker-bench-{}-stream", getpid());
    bip::message_queue boost_queue(bip::create_only, name.c_str(), 256, kStreamBytes);
    bip::message_queue::remove(name.c_str());
    peer("boost_message_queue", [&](bool, std::uint64_t&) { return std::make_unique<BoostEnd>(boost_queue); });
#endif
  }
  bench.record(std::move(record));
}

}  // namespace

void run_messages(Bench& bench) {
  auto broker = BrokerProcess::start(bench.settings(), Core::any, bench.settings().engine);
  for (const Shape& shape : {Shape{"spsc", SHMB_QUEUE_SPSC, 1, 1}, Shape{"mpmc", SHMB_QUEUE_MPMC, 4, 1},
                             Shape{"mpmc", SHMB_QUEUE_MPMC, 1, 4}, Shape{"mpmc", SHMB_QUEUE_MPMC, 4, 4},
                             Shape{"broadcast", SHMB_QUEUE_BROADCAST, 1, 4}})
    one_figure(bench, broker, shape);
}

}  // namespace shmb::bench
