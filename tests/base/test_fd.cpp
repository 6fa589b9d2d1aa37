// SPDX-License-Identifier: Apache-2.0
// An Fd closes exactly what it owns, once, and copying has a name.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <span>
#include <type_traits>
#include <vector>

#include "base/fd.hpp"
#include "base/sys_file.hpp"
#include "base/sys_memory.hpp"
#include "base/sys_process.hpp"
#include "base/sys_socket.hpp"
#include "tests/harness/child.hpp"
#include "tests/harness/injected.hpp"

using shmb::Fd;

namespace {

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }
Fd null_device() { return Fd::adopt(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }

}  // namespace

TEST_CASE("an Fd closes its descriptor at the end of its scope") {
  int number;
  {
    const Fd fd = null_device();
    number = fd.get();
    REQUIRE(is_open(number));
  }
  CHECK_FALSE(is_open(number));
}

TEST_CASE("a default Fd is empty and closes nothing") {
  Fd fd;
  CHECK_FALSE(fd);
  CHECK(fd.get() == -1);
  fd.reset();
  CHECK(is_open(0));
}

TEST_CASE("an Fd cannot be copied by accident") {
  static_assert(!std::is_copy_constructible_v<Fd> && !std::is_copy_assignable_v<Fd>);
  static_assert(std::is_nothrow_move_constructible_v<Fd> && std::is_nothrow_move_assignable_v<Fd>);
}

TEST_CASE("moving an Fd empties the source and closes the target's former descriptor") {
  Fd from = null_device(), to = null_device();
  const int kept = from.get(), replaced = to.get();
  to = std::move(from);
  CHECK(to.get() == kept);
  CHECK(is_open(kept));
  CHECK_FALSE(is_open(replaced));
  CHECK_FALSE(from);  // NOLINT(bugprone-use-after-move): the promise under test
  Fd& alias = to;
  to = std::move(alias);
  CHECK(to.get() == kept);
  CHECK(is_open(kept));
}

TEST_CASE("a released Fd no longer closes") {
  Fd fd = null_device();
  const int number = fd.release();
  CHECK_FALSE(fd);
  fd.reset();
  REQUIRE(is_open(number));
  ::close(number);
}

TEST_CASE("closing keeps errno of the call before it") {
  Fd fd = Fd::adopt(1'000'000);  // close(2) will say EBADF
  errno = ENOSPC;
  fd.reset();
  CHECK(errno == ENOSPC);
}

TEST_CASE("dup gives the same open file under a new number, closed at exec") {
  const Fd fd = Fd::adopt(::memfd_create("dup", MFD_CLOEXEC));
  const auto copy = fd.dup();
  REQUIRE(copy);
  CHECK(copy->get() != fd.get());
  CHECK((::fcntl(copy->get(), F_GETFD) & FD_CLOEXEC) != 0);
  REQUIRE(::lseek(fd.get(), 17, SEEK_SET) == 17);
  CHECK(::lseek(copy->get(), 0, SEEK_CUR) == 17);
}

TEST_CASE("dup of nothing is EBADF, and a full table is EMFILE") {
  CHECK(Fd().dup().error().value == EBADF);
  const Fd fd = null_device();
  const harness::Injected full(shmb::fault::Call::dup, EMFILE);
  CHECK(fd.dup().error().value == EMFILE);
}

TEST_CASE("what is opened while the standard descriptors are closed takes none of their numbers") {
  auto child = harness::Child::run([] {
    for (const int standard : {0, 1, 2}) ::close(standard);
    auto memory = shmb::sys::memfd_create("above", false);
    auto set = shmb::sys::epoll(), wake = shmb::sys::event_fd(), file = shmb::sys::open("/dev/null", O_RDONLY);
    auto pipe = shmb::sys::pipe(), pair = shmb::sys::seqpacket_pair();
    if (!memory || !set || !wake || !file || !pipe || !pair) return 1;
    const int sent[] = {memory->get()};
    if (!shmb::sys::send((*pair)[0].get(), std::as_bytes(std::span("x")), {}, sent, true)) return 2;
    std::byte packet[16];
    std::vector<Fd> received;
    if (!shmb::sys::receive((*pair)[1].get(), packet, received, true) || received.size() != 1) return 3;
    auto again = received[0].dup();
    if (!again || again->get() <= 2 || received[0].get() <= 2) return 4;
    return is_open(0) || is_open(1) || is_open(2) ? 5 : 0;
  });
  CHECK(child.wait() == 0);
}

TEST_CASE("in a full table a low number is better than none") {
  auto child = harness::Child::run([] {
    ::close(2);
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = 3;
    if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return 1;
    auto made = shmb::sys::event_fd();
    return made && made->get() == 2 ? 0 : 2;
  });
  CHECK(child.wait() == 0);
}
