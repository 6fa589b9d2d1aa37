// SPDX-License-Identifier: Apache-2.0
// Other ways of a message between two processes of one machine: a pipe, a POSIX message queue, a UNIX socket that keeps
// the borders of messages, Boost's message queue. The spinning forms ask again and again without blocking.
#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <limits.h>
#include <mqueue.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <vector>

#ifdef SHMB_HAVE_BOOST
#include <boost/interprocess/ipc/message_queue.hpp>
#endif

#include "tools/benchmarks/floors/hop_ways.hpp"

namespace shmb::bench {
namespace {

std::string own_name(const char* which) { return fmt::format("/shmbroker-bench-{}-{}", getpid(), which); }

class MqueueEnds {
 public:
  MqueueEnds(std::size_t bytes, bool asleep) : bytes_(bytes) {
    for (mqd_t& queue : queues_) {
      std::string name = own_name("mqueue");
      mq_attr shape{};
      shape.mq_maxmsg = 8;
      shape.mq_msgsize = static_cast<long>(bytes);
      queue = mq_open(name.c_str(), O_CREAT | O_EXCL | O_RDWR | (asleep ? 0 : O_NONBLOCK), 0600, &shape);
      must(queue, "mq_open");
      must(mq_unlink(name.c_str()), "mq_unlink");
    }
  }
  MqueueEnds(MqueueEnds&&) = delete;
  ~MqueueEnds() {
    for (mqd_t queue : queues_) mq_close(queue);
  }
  std::uint64_t enter(End end, std::uint64_t) {
    client_ = end == End::client;
    return 0;
  }
  void send(std::uint32_t number) {
    memcpy(bytes_.data(), &number, sizeof number);
    while (mq_send(queues_[client_ ? 0 : 1], bytes_.data(), bytes_.size(), 0) != 0)
      if (errno != EAGAIN && errno != EINTR) give_up("mq_send");
  }
  std::uint32_t receive() {
    while (mq_receive(queues_[client_ ? 1 : 0], bytes_.data(), bytes_.size(), nullptr) < 0)
      if (errno != EAGAIN && errno != EINTR) give_up("mq_receive");
    std::uint32_t number;
    memcpy(&number, bytes_.data(), sizeof number);
    return number;
  }

 private:
  std::vector<char> bytes_;
  mqd_t queues_[2];
  bool client_ = false;
};

// Up to PIPE_BUF bytes: the kernel writes those whole, and with one message under way it reads them whole.
class PipeEnds {
 public:
  PipeEnds(std::size_t bytes, bool asleep) : bytes_(bytes) {
    for (auto& pipe : pipes_) {
      int ends[2];
      must(pipe2(ends, O_CLOEXEC | (asleep ? 0 : O_NONBLOCK)), "pipe2");
      pipe[0] = Fd::adopt(ends[0]);
      pipe[1] = Fd::adopt(ends[1]);
    }
  }
  std::uint64_t enter(End end, std::uint64_t) {
    client_ = end == End::client;
    return 0;
  }
  void send(std::uint32_t number) {
    memcpy(bytes_.data(), &number, sizeof number);
    while (write(pipes_[client_ ? 0 : 1][1].get(), bytes_.data(), bytes_.size()) < 0)
      if (errno != EAGAIN && errno != EINTR) give_up("write to a pipe");
  }
  std::uint32_t receive() {
    ssize_t got;
    while ((got = read(pipes_[client_ ? 1 : 0][0].get(), bytes_.data(), bytes_.size())) < 0)
      if (errno != EAGAIN && errno != EINTR) give_up("read from a pipe");
    if (got != static_cast<ssize_t>(bytes_.size())) give_up("a pipe gave another length");
    std::uint32_t number;
    memcpy(&number, bytes_.data(), sizeof number);
    return number;
  }

 private:
  std::vector<char> bytes_;
  Fd pipes_[2][2];
  bool client_ = false;
};

class SeqpacketEnds {
 public:
  SeqpacketEnds(std::size_t bytes, bool asleep)
      : bytes_(bytes), pair_(Channel::make()), flags_(asleep ? 0 : MSG_DONTWAIT) {}
  std::uint64_t enter(End end, std::uint64_t) {
    socket_ = end == End::client ? pair_.ours.get() : pair_.theirs.get();
    return 0;
  }
  void send(std::uint32_t number) {
    memcpy(bytes_.data(), &number, sizeof number);
    while (::send(socket_, bytes_.data(), bytes_.size(), MSG_NOSIGNAL | flags_) < 0)
      if (errno != EAGAIN && errno != EINTR) give_up("send");
  }
  std::uint32_t receive() {
    ssize_t got;
    while ((got = recv(socket_, bytes_.data(), bytes_.size(), flags_)) < 0)
      if (errno != EAGAIN && errno != EINTR) give_up("recv");
    if (got == 0) give_up("the other end of a socket is gone");
    std::uint32_t number;
    memcpy(&number, bytes_.data(), sizeof number);
    return number;
  }

 private:
  std::vector<char> bytes_;
  Channel pair_;
  int flags_, socket_ = -1;
};

#ifdef SHMB_HAVE_BOOST
namespace bip = boost::interprocess;

class BoostEnds {
 public:
  BoostEnds(std::size_t bytes, bool asleep) : bytes_(bytes), asleep_(asleep) {
    for (auto& queue : queues_) {
      std::string name = own_name("boost");
      queue = std::make_unique<bip::message_queue>(bip::create_only, name.c_str(), 8, bytes);
      bip::message_queue::remove(name.c_str());
    }
  }
  std::uint64_t enter(End end, std::uint64_t) {
    client_ = end == End::client;
    return 0;
  }
  void send(std::uint32_t number) {
    memcpy(bytes_.data(), &number, sizeof number);
    queues_[client_ ? 0 : 1]->send(bytes_.data(), bytes_.size(), 0);
  }
  std::uint32_t receive() {
    auto& queue = *queues_[client_ ? 1 : 0];
    std::size_t got;
    unsigned priority;
    if (asleep_) queue.receive(bytes_.data(), bytes_.size(), got, priority);
    else
      while (!queue.try_receive(bytes_.data(), bytes_.size(), got, priority)) {
      }
    std::uint32_t number;
    memcpy(&number, bytes_.data(), sizeof number);
    return number;
  }

 private:
  std::vector<char> bytes_;
  std::unique_ptr<bip::message_queue> queues_[2];
  bool asleep_, client_ = false;
};
#endif

}  // namespace

bool posix_mqueue_takes(std::size_t bytes) {
  std::size_t most = 0;
  std::ifstream("/proc/sys/fs/mqueue/msgsize_max") >> most;
  return bytes <= most;
}
NamedWay posix_mqueue(std::size_t bytes, bool asleep) {
  return {"posix_mqueue", std::make_unique<WayOf<MqueueEnds>>(bytes, asleep)};
}
bool pipe_takes(std::size_t bytes) { return bytes <= PIPE_BUF; }
NamedWay bare_pipe(std::size_t bytes, bool asleep) {
  return {"pipe", std::make_unique<WayOf<PipeEnds>>(bytes, asleep)};
}
NamedWay unix_seqpacket(std::size_t bytes, bool asleep) {
  return {"unix_seqpacket", std::make_unique<WayOf<SeqpacketEnds>>(bytes, asleep)};
}
#ifdef SHMB_HAVE_BOOST
NamedWay boost_queue(std::size_t bytes, bool asleep) {
  return {"boost_message_queue", std::make_unique<WayOf<BoostEnds>>(bytes, asleep)};
}
#endif

}  // namespace shmb::bench
