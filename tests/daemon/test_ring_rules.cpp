// SPDX-License-Identifier: Apache-2.0
// The ring of a broker does what the broker needs. Everything else the kernel refuses, also where no seccomp filter
// sees it.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <string>

#include "daemon/transport/ring_rules.hpp"
#include "tests/harness/skip.hpp"

namespace {

class Ring {
 public:
  explicit Ring(bool restricted) {
    io_uring_params params{};
    params.flags = IORING_SETUP_R_DISABLED;
    made_ = io_uring_queue_init_params(8, &ring_, &params);
    if (made_ < 0) return;
    if (restricted) CHECK(shmb::daemon::restrict_ring(ring_) == 0);
    CHECK(io_uring_enable_rings(&ring_) == 0);
  }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  ~Ring() {
    if (made_ == 0) io_uring_queue_exit(&ring_);
  }
  int made() const { return made_; }
  io_uring& get() { return ring_; }
  // The result of one operation.
  int run(const std::function<void(io_uring_sqe*)>& prepare, unsigned char flags = 0) {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    REQUIRE(entry != nullptr);
    prepare(entry);
    entry->flags |= flags;
    REQUIRE(io_uring_submit_and_wait(&ring_, 1) >= 0);
    io_uring_cqe* done = nullptr;
    REQUIRE(io_uring_wait_cqe(&ring_, &done) == 0);
    const int result = done->res;
    io_uring_cqe_seen(&ring_, done);
    return result;
  }

 private:
  io_uring ring_{};
  int made_ = -1;
};

}  // namespace

TEST_CASE("a broker's ring polls, and refuses to open, connect, read, write, send, close, fork off work or register") {
  Ring ring(true);
  if (ring.made() < 0) SKIP_CASE("io_uring is not available: " + std::to_string(-ring.made()));
  const int event = ::eventfd(1, EFD_CLOEXEC);
  char byte = 0;
  msghdr message{};
  sockaddr address{};
  const std::function<void(io_uring_sqe*)> polls = [&](io_uring_sqe* it) { io_uring_prep_poll_add(it, event, POLLIN); };
  const struct {
    const char* name;
    std::function<void(io_uring_sqe*)> prepare;
  } forbidden[] = {
      {"openat", [&](io_uring_sqe* it) { io_uring_prep_openat(it, AT_FDCWD, "/dev/null", O_RDONLY, 0); }},
      {"socket", [&](io_uring_sqe* it) { io_uring_prep_socket(it, AF_UNIX, SOCK_STREAM, 0, 0); }},
      {"connect", [&](io_uring_sqe* it) { io_uring_prep_connect(it, event, &address, sizeof address); }},
      {"accept", [&](io_uring_sqe* it) { io_uring_prep_accept(it, event, nullptr, nullptr, 0); }},
      {"sendmsg", [&](io_uring_sqe* it) { io_uring_prep_sendmsg(it, event, &message, 0); }},
      {"read", [&](io_uring_sqe* it) { io_uring_prep_read(it, event, &byte, 1, 0); }},
      {"write", [&](io_uring_sqe* it) { io_uring_prep_write(it, event, &byte, 1, 0); }},
      {"close", [&](io_uring_sqe* it) { io_uring_prep_close(it, event); }},
      {"unlinkat", [&](io_uring_sqe* it) { io_uring_prep_unlinkat(it, AT_FDCWD, "/nowhere/file", 0); }},
      {"fallocate", [&](io_uring_sqe* it) { io_uring_prep_fallocate(it, event, 0, 0, 1); }},
      {"epoll_ctl", [&](io_uring_sqe* it) { io_uring_prep_epoll_ctl(it, event, event, 1, nullptr); }},
      {"provide_buffers", [&](io_uring_sqe* it) { io_uring_prep_provide_buffers(it, &byte, 1, 1, 0, 0); }},
  };
  Ring open(false);  // without the rules each has another end
  for (const auto& operation : forbidden) {
    CHECK_MESSAGE(ring.run(operation.prepare) == -EACCES, operation.name);
    const std::string name = operation.name;
    if (name == "close") continue;
    const int end = open.run(operation.prepare);
    CHECK_MESSAGE(end != -EACCES, operation.name);
    if (name == "openat" || name == "socket") ::close(end);
  }
  CHECK(ring.run(polls) == POLLIN);
  CHECK(ring.run(polls, IOSQE_ASYNC) == -EACCES);
  CHECK(io_uring_register_eventfd(&ring.get(), event) == -EACCES);
  ::close(event);
}
