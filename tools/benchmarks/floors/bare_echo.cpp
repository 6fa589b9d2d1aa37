// SPDX-License-Identifier: Apache-2.0
// See bare_echo.hpp.
#include "tools/benchmarks/floors/bare_echo.hpp"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <deque>
#include <vector>

#ifdef SHMB_HAVE_URING
#include <liburing.h>
#endif

#include "tools/benchmarks/floors/bare_memory.hpp"
#include "tools/benchmarks/kit/wire_session.hpp"

namespace shmb::bench {
namespace {

// One prepared answer for everybody: the same bytes, the same descriptor.
class Answer {
 public:
  Answer(std::size_t size, bool descriptor) : bytes_(size) {
    part_ = {bytes_.data(), bytes_.size()};
    message_.msg_iov = &part_;
    message_.msg_iovlen = 1;
    if (!descriptor) return;
    region_ = bare_region(4 * KiB);
    message_.msg_control = control_.data();
    message_.msg_controllen = control_.size();
    cmsghdr* head = CMSG_FIRSTHDR(&message_);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    int fd = region_.get();
    memcpy(CMSG_DATA(head), &fd, sizeof fd);
  }
  Answer(Answer&&) = delete;
  const msghdr* message() const { return &message_; }

 private:
  std::vector<std::byte> bytes_;
  iovec part_{};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control_{};
  msghdr message_{};
  Fd region_;
};

[[noreturn]] void serve_epoll(int listener, const Answer& answer) {
  int loop = must(epoll_create1(EPOLL_CLOEXEC), "epoll_create1");
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = listener;
  must(epoll_ctl(loop, EPOLL_CTL_ADD, listener, &event), "epoll_ctl");
  std::array<epoll_event, 256> ready;
  std::array<std::byte, 4096> buffer;
  for (;;) {
    int count = epoll_wait(loop, ready.data(), ready.size(), -1);
    for (int i = 0; i < count; ++i) {
      int fd = ready[static_cast<std::size_t>(i)].data.fd;
      if (fd == listener) {
        int client = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (client == -1) continue;
        event.events = EPOLLIN;
        event.data.fd = client;
        must(epoll_ctl(loop, EPOLL_CTL_ADD, client, &event), "epoll_ctl");
        continue;
      }
      ssize_t got = recv(fd, buffer.data(), buffer.size(), 0);
      if (got <= 0 || sendmsg(fd, answer.message(), MSG_NOSIGNAL) == -1) {
        if (got == -1 && errno == EAGAIN) continue;
        close(fd);
      }
    }
  }
}

#ifdef SHMB_HAVE_URING
struct Connection {
  int fd;
  std::array<std::byte, 4096> buffer;
};

// The rings that the broker's engine uses: a plain ring is slower than epoll.
[[noreturn]] void serve_uring(int listener, const Answer& answer) {
  io_uring ring;
  io_uring_params params{};
  params.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_COOP_TASKRUN | IORING_SETUP_DEFER_TASKRUN;
  int err = io_uring_queue_init_params(1024, &ring, &params);
  if (err != 0) {
    params = {};
    params.flags = IORING_SETUP_COOP_TASKRUN;
    err = io_uring_queue_init_params(1024, &ring, &params);
  }
  errno = -err;
  if (err != 0) give_up("io_uring_queue_init_params");
  std::deque<Connection> connections;
  auto next = [&] {
    io_uring_sqe* sqe = io_uring_get_sqe(&ring);
    if (sqe != nullptr) return sqe;
    io_uring_submit(&ring);
    return io_uring_get_sqe(&ring);
  };
  auto arm_receive = [&](Connection& connection) {
    io_uring_sqe* sqe = next();
    io_uring_prep_recv(sqe, connection.fd, connection.buffer.data(), connection.buffer.size(), 0);
    io_uring_sqe_set_data(sqe, &connection);
  };
  auto arm_accept = [&] {
    io_uring_sqe* sqe = next();
    io_uring_prep_multishot_accept(sqe, listener, nullptr, nullptr, SOCK_CLOEXEC);
    io_uring_sqe_set_data(sqe, &ring);
  };
  arm_accept();
  for (;;) {
    io_uring_submit_and_wait(&ring, 1);
    unsigned head, seen = 0;
    io_uring_cqe* cqe;
    io_uring_for_each_cqe(&ring, head, cqe) {
      ++seen;
      void* data = io_uring_cqe_get_data(cqe);
      if (data == nullptr) continue;  // an answer has left
      if (data == &ring) {
        if (cqe->res >= 0) arm_receive(connections.emplace_back(Connection{cqe->res, {}}));
        if ((cqe->flags & IORING_CQE_F_MORE) == 0) arm_accept();
        continue;
      }
      auto& connection = *static_cast<Connection*>(data);
      if (cqe->res <= 0) {
        close(connection.fd);
        continue;
      }
      io_uring_sqe* sqe = next();
      io_uring_prep_sendmsg(sqe, connection.fd, answer.message(), MSG_NOSIGNAL);
      io_uring_sqe_set_data(sqe, nullptr);
      arm_receive(connection);
    }
    io_uring_cq_advance(&ring, seen);
  }
}
#endif

}  // namespace

Child start_bare_echo(const std::string& engine, const std::string& path, std::size_t reply_size, bool descriptor) {
  int listener = listen_at(path, 1024);
  Child child = Child::start(Core::server, [&]() -> int {
    Answer answer(reply_size, descriptor);
#ifdef SHMB_HAVE_URING
    if (engine == "io_uring") serve_uring(listener, answer);
#endif
    serve_epoll(listener, answer);
  });
  close(listener);
  return child;
}

}  // namespace shmb::bench
