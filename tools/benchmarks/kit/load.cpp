// SPDX-License-Identifier: Apache-2.0
// See load.hpp.
#include "tools/benchmarks/kit/load.hpp"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <vector>

#include "tools/benchmarks/kit/process.hpp"
#include "tools/benchmarks/kit/samples.hpp"

namespace shmb::bench {
namespace {

class Loop {
 public:
  Loop(std::span<const int> sockets, wire::Bytes request, bool descriptor, bool checked)
      : sockets_(sockets), request_(request), descriptor_(descriptor), checked_(checked), sent_(sockets.size()) {
    loop_ = Fd::adopt(must(epoll_create1(EPOLL_CLOEXEC), "epoll_create1"));
    for (std::size_t i = 0; i < sockets.size(); ++i) {
      epoll_event event{};
      event.events = EPOLLIN;
      event.data.u64 = i;
      must(epoll_ctl(loop_.get(), EPOLL_CTL_ADD, sockets[i], &event), "epoll_ctl");
    }
  }

  void run(double seconds) {
    began_ = now_us();
    double until = began_ + seconds * 1e6;
    for (std::size_t i = 0; i < sockets_.size(); ++i) send_one(i);
    if (sockets_.size() == 1) {
      // One client alone blocks in recvmsg, as a real one does: epoll would add a call to each round trip.
      while (receive_one(0) < until) send_one(0);
    } else {
      std::array<epoll_event, 256> ready;
      for (std::size_t outstanding = sockets_.size(); outstanding > 0;) {
        int count = epoll_wait(loop_.get(), ready.data(), ready.size(), -1);
        for (int k = 0; k < count; ++k) {
          std::size_t i = ready[static_cast<std::size_t>(k)].data.u64;
          if (receive_one(i) < until) send_one(i);
          else --outstanding;
        }
      }
    }
    took_ = now_us() - began_;
  }

  double took() const { return took_; }
  const Samples& latencies() const { return latencies_; }

 private:
  void send_one(std::size_t i) {
    sent_[i] = now_us();
    if (send(sockets_[i], request_.data(), request_.size(), MSG_NOSIGNAL) == -1) give_up("send");
  }

  double receive_one(std::size_t i) {
    iovec part{buffer_.data(), buffer_.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (descriptor_) {
      message.msg_control = control;
      message.msg_controllen = sizeof control;
    }
    ssize_t got = recvmsg(sockets_[i], &message, MSG_CMSG_CLOEXEC);
    if (got <= 0) give_up("the server closed a connection of the load");
    if (descriptor_) {
      cmsghdr* head = CMSG_FIRSTHDR(&message);
      errno = 0;
      if (head == nullptr) give_up("a reply without its descriptor");
      int fd;
      memcpy(&fd, CMSG_DATA(head), sizeof fd);
      close(fd);
    }
    if (checked_) {
      shmbw_header head;
      shmbw_outcome outcome;
      memcpy(&head, buffer_.data(), sizeof head);
      memcpy(&outcome, buffer_.data() + sizeof head + sizeof(shmbw_batch), sizeof outcome);
      errno = 0;
      if (head.status != 0 || outcome.status != 0) give_up("the broker refused a request of the load");
    }
    double now = now_us();
    latencies_.add(now - sent_[i]);
    return now;
  }

  std::span<const int> sockets_;
  wire::Bytes request_;
  bool descriptor_, checked_;
  std::vector<double> sent_;
  std::array<std::byte, 4096> buffer_;
  Samples latencies_;
  Fd loop_;
  double began_ = 0, took_ = 0;
};

}  // namespace

LoadResult run_load(std::span<const int> sockets, wire::Bytes request, bool descriptor, bool checked, double seconds,
                    pid_t server) {
  Loop loop(sockets, request, descriptor, checked);
  double cpu = process_cpu_us(server);
  loop.run(seconds);
  cpu = process_cpu_us(server) - cpu;
  auto messages = static_cast<double>(loop.latencies().size());
  return {messages / loop.took() * 1e6, loop.latencies().percentile(0.5), loop.latencies().percentile(0.99),
          cpu / messages};
}

}  // namespace shmb::bench
