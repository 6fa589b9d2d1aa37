// SPDX-License-Identifier: Apache-2.0
// Messages per second through queues: one writer and one reader, one message or 32 at a call; many of either or both
// that share the messages; one writer whose readers each get all. The floor is a bare ring in shared memory: between
// one writer and one reader, or with as many readers for a broadcast. The peers carry the same messages between as many
// processes, moodycamel's queue between as many threads.
#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <mqueue.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string>
#include <vector>

#ifdef SHMB_HAVE_BOOST
#include <boost/date_time/posix_time/posix_time_types.hpp>
#include <boost/interprocess/ipc/message_queue.hpp>
#endif

#include "tools/benchmarks/floors/stream_rings.hpp"
#include "tools/benchmarks/floors/zeromq.hpp"
#include "tools/benchmarks/kit/broker_process.hpp"
#include "tools/benchmarks/kit/pool_library.hpp"

namespace shmb::bench {
namespace {

constexpr std::int64_t kPatience = 20'000'000;  // ns until a reader looks whether all is done

class LibraryEnd final : public StreamEnd {
 public:
  LibraryEnd(const std::string& socket, std::uint32_t kind, std::size_t at_a_time, bool writer, std::uint64_t& pool)
      : at_a_time_(at_a_time) {
    if (pool == 0) pool_.emplace(socket, PoolShape{});
    else pool_.emplace(socket, pool);
    pool = pool_->id();
    QueueShape shape;
    shape.kind = kind;
    pool_->open(queue_, "stream", writer ? SHMB_QUEUE_WRITER : SHMB_QUEUE_READER, shape);
    while (messages_.size() < at_a_time) messages_.push_back(pool_->message());
  }
  void send(std::uint64_t count) override {
    if (at_a_time_ > 1) return send_many(count);
    char bytes[kStreamBytes] = {};
    for (std::uint64_t i = 0; i < count; ++i) {
      memcpy(bytes, &i, sizeof i);
      pool_->send(queue_, bytes, sizeof bytes);
    }
  }
  void receive(const std::function<bool()>& taken) override {
    if (at_a_time_ > 1) {
      while (const std::size_t count = pool_->receive_many_by(queue_, messages_.data(), messages_.size(), kPatience))
        for (std::size_t i = 0; i < count; ++i)
          if (taken()) return;
      return;
    }
    while (pool_->receive_by(queue_, messages_[0], kPatience))
      if (taken()) return;
  }

 private:
  void send_many(std::uint64_t count) {
    std::vector<std::array<char, kStreamBytes>> bytes(at_a_time_);
    std::vector<shmb_part> parts(at_a_time_);
    std::vector<shmb_outgoing> messages(at_a_time_);
    for (std::size_t i = 0; i < at_a_time_; ++i) {
      parts[i].kind = SHMB_PART_BYTES;
      parts[i].data = bytes[i].data();
      parts[i].length = kStreamBytes;
      messages[i].parts = &parts[i];
      messages[i].count = 1;
    }
    for (std::uint64_t sent = 0; sent < count;) {
      const std::size_t now = std::min<std::size_t>(at_a_time_, count - sent);
      for (std::size_t i = 0; i < now; ++i, ++sent) memcpy(bytes[i].data(), &sent, sizeof sent);
      pool_->send_many(queue_, messages.data(), now);
    }
  }
  std::size_t at_a_time_;
  std::optional<PoolLibrary> pool_;
  shmb_queue* queue_ = nullptr;
  std::vector<shmb_message*> messages_;
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

// Messages of 56 bytes are written and read whole, so none is torn between readers.
class PipeEnd final : public StreamEnd {
 public:
  explicit PipeEnd(const Fd (&ends)[2]) : out_(ends[1].get()), in_(ends[0].get()) {}
  void send(std::uint64_t count) override {
    char bytes[kStreamBytes] = {};
    for (std::uint64_t i = 0; i < count; ++i)
      while (write(out_, bytes, sizeof bytes) < 0)
        if (errno != EINTR) give_up("write to a pipe");
  }
  void receive(const std::function<bool()>& taken) override {
    char bytes[kStreamBytes];
    pollfd more{in_, POLLIN, 0};
    for (;;) {
      if (read(in_, bytes, sizeof bytes) == static_cast<ssize_t>(sizeof bytes)) {
        if (taken()) return;
      } else if (poll(&more, 1, static_cast<int>(kPatience / 1'000'000)) == 0) {
        return;
      }
    }
  }

 private:
  int out_, in_;
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
  std::size_t at_a_time = 1;
};

void one_figure(Bench& bench, const BrokerProcess& broker, const Shape& shape) {
  const bool all_to_each = shape.kind == SHMB_QUEUE_BROADCAST;
  // Quick: as many as a slow machine sends in a moment.
  const auto count = static_cast<std::uint64_t>(bench.times(2'000'000, 4'000));
  auto library = [&](std::size_t at_a_time) {
    return [&broker, &shape, at_a_time](bool writer, std::uint64_t& token) {
      return std::make_unique<LibraryEnd>(broker.socket(), shape.kind, at_a_time, writer, token);
    };
  };
  Stream ours(shape.writers, shape.readers, all_to_each, library(shape.at_a_time));
  const Shared<Ring> ring, batched_ring;
  const Shared<BroadcastRing> broadcast_ring;
  Stream floor(1, all_to_each ? shape.readers : 1, all_to_each, [&](bool writer, std::uint64_t&) {
    return all_to_each ? broadcast_ring_end(*broadcast_ring, writer) : ring_end(*ring, 1);
  });
  // The sides that are compared take turns, so that a slow second disturbs all.
  std::map<std::string, Samples> beside;
  std::optional<Stream> one_by_one, batched;
  if (shape.at_a_time > 1) {
    one_by_one.emplace(shape.writers, shape.readers, all_to_each, library(1));
    batched.emplace(1, 1, false, [&](bool, std::uint64_t&) { return ring_end(*batched_ring, shape.at_a_time); });
  }
  const std::uint64_t floor_count = count * static_cast<std::uint64_t>(bench.times(all_to_each ? 1 : 10));
  Pair both = alternate(
      bench.times(5), [&] { return ours.per_second(count); },
      [&] {
        if (one_by_one) beside["one_at_a_time"].add(one_by_one->per_second(count));
        if (batched) beside[fmt::format("ring_{}_at_a_time", shape.at_a_time)].add(batched->per_second(floor_count));
#ifdef SHMB_HAVE_MOODYCAMEL
        if (shape.kind == SHMB_QUEUE_MPMC)
          beside["moodycamel_threads"].add(moodycamel_per_second(shape.writers, shape.readers, count));
#endif
        return floor.per_second(floor_count);
      });
  const std::string how = shape.at_a_time > 1 ? fmt::format(".{}_at_a_time", shape.at_a_time) : "";
  Record record =
      make_record(fmt::format("messages.{}.{}-{}{}", shape.name, shape.writers, shape.readers, how), "k/s", both);
  for (const auto& [name, rates] : beside) record.peers[name] = rates.median();
  record.engine = broker.engine();
  if (!all_to_each && shape.at_a_time == 1) {
    const Channel pair = Channel::make();
    const mqd_t queue = make_mqueue();
    auto peer = [&](const char* name, const Stream::Enter& enter) {
      Stream stream(shape.writers, shape.readers, false, enter);
      Samples rates;
      for (int i = 0; i < bench.times(3); ++i) rates.add(stream.per_second(std::max<std::uint64_t>(count / 20, 100)));
      record.peers[name] = rates.median();
    };
    peer("unix_seqpacket", [&](bool writer, std::uint64_t&) { return std::make_unique<SeqpacketEnd>(pair, writer); });
    int ends[2];
    must(pipe2(ends, O_CLOEXEC), "pipe2");
    const Fd pipe[2] = {Fd::adopt(ends[0]), Fd::adopt(ends[1])};
    must(fcntl(ends[0], F_SETFL, O_NONBLOCK), "O_NONBLOCK");
    peer("pipe", [&](bool, std::uint64_t&) { return std::make_unique<PipeEnd>(pipe); });
    peer("posix_mqueue", [&](bool, std::uint64_t&) { return std::make_unique<MqueueEnd>(queue); });
    mq_close(queue);
#ifdef SHMB_HAVE_BOOST
    const std::string name = fmt::format("/shmbroker-bench-{}-stream", getpid());
    bip::message_queue boost_queue(bip::create_only, name.c_str(), 256, kStreamBytes);
    bip::message_queue::remove(name.c_str());
    peer("boost_message_queue", [&](bool, std::uint64_t&) { return std::make_unique<BoostEnd>(boost_queue); });
#endif
#ifdef SHMB_HAVE_ZEROMQ
    peer("zeromq", zeromq_stream(kPatience / 1'000'000));
#endif
  }
  bench.record(std::move(record));
}

}  // namespace

void run_messages(Bench& bench) {
  auto broker = BrokerProcess::start(bench.settings(), Core::any, bench.settings().engine);
  for (const Shape& shape :
       {Shape{"spsc", SHMB_QUEUE_SPSC, 1, 1}, Shape{"spsc", SHMB_QUEUE_SPSC, 1, 1, 32},
        Shape{"mpmc", SHMB_QUEUE_MPMC, 1, 1}, Shape{"mpmc", SHMB_QUEUE_MPMC, 4, 1},
        Shape{"mpmc", SHMB_QUEUE_MPMC, 1, 4}, Shape{"mpmc", SHMB_QUEUE_MPMC, 2, 2},
        Shape{"mpmc", SHMB_QUEUE_MPMC, 4, 4}, Shape{"broadcast", SHMB_QUEUE_BROADCAST, 1, 1},
        Shape{"broadcast", SHMB_QUEUE_BROADCAST, 1, 4}, Shape{"broadcast", SHMB_QUEUE_BROADCAST, 1, 16}})
    one_figure(bench, broker, shape);
}

}  // namespace shmb::bench
