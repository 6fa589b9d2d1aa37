// SPDX-License-Identifier: Apache-2.0
// See zeromq.hpp.
#include "tools/benchmarks/floors/zeromq.hpp"

#include <errno.h>
#include <fmt/format.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

#include <memory>
#include <string>
#include <vector>

namespace shmb::bench {
namespace {

// A socket and its context, made in the process that uses them. What it holds ends with the process.
class ZmqSocket {
 public:
  explicit ZmqSocket(int kind) : context_(zmq_ctx_new()), socket_(zmq_socket(context_, kind)) {
    if (socket_ == nullptr) give_up("zmq_socket");
  }
  ZmqSocket(ZmqSocket&&) = delete;
  ~ZmqSocket() {
    zmq_close(socket_);
    zmq_ctx_term(context_);
  }
  void bind(const std::string& name) { must(zmq_bind(socket_, name.c_str()), "zmq_bind"); }
  void connect(const std::string& name) { must(zmq_connect(socket_, name.c_str()), "zmq_connect"); }
  void wait_at_most(int ms) { must(zmq_setsockopt(socket_, ZMQ_RCVTIMEO, &ms, sizeof ms), "ZMQ_RCVTIMEO"); }
  void send(const void* bytes, std::size_t count) {
    while (zmq_send(socket_, bytes, count, 0) < 0)
      if (errno != EINTR) give_up("zmq_send");
  }
  bool receive(void* bytes, std::size_t count) {  // false: the time is over
    int got;
    while ((got = zmq_recv(socket_, bytes, count, 0)) < 0)
      if (errno == EAGAIN) return false;
      else if (errno != EINTR) give_up("zmq_recv");
    if (got != static_cast<int>(count)) give_up("ZeroMQ: a message of another length");
    return true;
  }

 private:
  void* context_;
  void* socket_;
};

// '@': a name of Linux that needs no file. `of`: the bench, so that two of them do not meet.
std::string name_of(pid_t of, const std::string& which) {
  return fmt::format("ipc://@shmbroker-bench-{}-{}", of, which);
}

class ZmqEnds {
 public:
  explicit ZmqEnds(std::size_t bytes) : bytes_(bytes), name_(name_of(getpid(), fmt::format("hop-{}", bytes))) {}
  std::uint64_t enter(End end, std::uint64_t) {
    socket_ = std::make_unique<ZmqSocket>(ZMQ_PAIR);
    if (end == End::client) socket_->bind(name_);
    else socket_->connect(name_);
    return 0;
  }
  void send(std::uint32_t number) {
    memcpy(bytes_.data(), &number, sizeof number);
    socket_->send(bytes_.data(), bytes_.size());
  }
  std::uint32_t receive() {
    socket_->receive(bytes_.data(), bytes_.size());
    std::uint32_t number;
    memcpy(&number, bytes_.data(), sizeof number);
    return number;
  }

 private:
  std::vector<char> bytes_;
  std::string name_;
  std::unique_ptr<ZmqSocket> socket_;
};

class ZmqStreamEnd final : public StreamEnd {
 public:
  // `writers`: how many have entered. Writers bind, readers connect to all.
  ZmqStreamEnd(pid_t bench, bool writer, std::uint64_t& writers, int patience_ms)
      : socket_(writer ? ZMQ_PUSH : ZMQ_PULL) {
    const auto name = [&](std::uint64_t number) { return name_of(bench, fmt::format("stream-{}", number)); };
    socket_.wait_at_most(patience_ms);
    if (writer) socket_.bind(name(writers++));
    else
      for (std::uint64_t i = 0; i < writers; ++i) socket_.connect(name(i));
  }
  void send(std::uint64_t count) override {
    const char bytes[kStreamBytes] = {};
    for (std::uint64_t i = 0; i < count; ++i) socket_.send(bytes, sizeof bytes);
  }
  void receive(const std::function<bool()>& taken) override {
    char bytes[kStreamBytes];
    while (socket_.receive(bytes, sizeof bytes))
      if (taken()) return;
  }

 private:
  ZmqSocket socket_;
};

}  // namespace

NamedWay zeromq_hop(std::size_t bytes) { return {"zeromq", std::make_unique<WayOf<ZmqEnds>>(bytes)}; }

Stream::Enter zeromq_stream(int patience_ms) {
  return [bench = getpid(), patience_ms](bool writer, std::uint64_t& writers) {
    return std::make_unique<ZmqStreamEnd>(bench, writer, writers, patience_ms);
  };
}

}  // namespace shmb::bench
