// SPDX-License-Identifier: Apache-2.0
// Memory files: born closed to others, sealed for good, and reopened without the right to write.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "base/compat.hpp"
#include "base/kernel.hpp"
#include "base/sys_memory.hpp"
#include "tests/harness/injected.hpp"
#include "tests/harness/skip.hpp"

using shmb::Fd;
using shmb::fault::Call;
namespace sys = shmb::sys;

namespace {

Fd region(std::uint64_t size = 4096) {
  auto made = sys::memfd_create("test", true);
  REQUIRE(made);
  REQUIRE(sys::truncate(made->get(), size));
  return std::move(*made);
}

}  // namespace

TEST_CASE("a memory file closes at exec, can be sealed and carries its label") {
  const Fd fd = region();
  CHECK((::fcntl(fd.get(), F_GETFD) & FD_CLOEXEC) != 0);
  CHECK((sys::seals(fd.get()).value() & F_SEAL_SEAL) == 0);
  char target[64] = {};
  REQUIRE(::readlink(("/proc/self/fd/" + std::to_string(fd.get())).c_str(), target, sizeof target - 1) > 0);
  CHECK(std::string_view(target).starts_with("/memfd:test"));
}

TEST_CASE("the no-exec seal is set where asked for and known") {
  const bool known = shmb::kernel().exec_seal;
  CHECK(((sys::seals(region().get()).value() & F_SEAL_EXEC) != 0) == known);
  const auto plain = sys::memfd_create("test", false);
  REQUIRE(plain);
  CHECK((sys::seals(plain->get()).value() & F_SEAL_EXEC) == 0);
}

TEST_CASE("on a kernel without the no-exec seal the file is made without it") {
  const harness::PretendedKernel old(6, 2);
  const Fd fd = region();
  CHECK(sys::seals(fd.get()).value() == 0);
}

TEST_CASE("a label that is too long is refused, and the flag is not blamed for it") {
  CHECK(sys::memfd_create(std::string(300, 'x').c_str(), true).error().value == EINVAL);
  CHECK(((sys::seals(region().get()).value() & F_SEAL_EXEC) != 0) == shmb::kernel().exec_seal);
}

TEST_CASE("seals hold: neither size nor seals change afterwards") {
  const Fd fd = region();
  REQUIRE(sys::add_seals(fd.get(), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL));
  CHECK(sys::truncate(fd.get(), 0).error().value == EPERM);
  CHECK(sys::truncate(fd.get(), 8192).error().value == EPERM);
  CHECK(sys::add_seals(fd.get(), F_SEAL_WRITE).error().value == EPERM);
  CHECK(sys::file_facts(fd.get())->size == 4096);
}

TEST_CASE("sealing against writes is EBUSY while a writable mapping exists") {
  const Fd fd = region();
  auto mapped = sys::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  REQUIRE(mapped);
  CHECK(sys::add_seals(fd.get(), F_SEAL_WRITE).error().value == EBUSY);
  REQUIRE(sys::munmap(*mapped, 4096));
  CHECK(sys::add_seals(fd.get(), F_SEAL_WRITE));
  CHECK(sys::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0).error().value == EPERM);
}

TEST_CASE("a future-write seal lets the present writer go on but refuses new writers") {
  const Fd fd = region();
  auto mapped = sys::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  REQUIRE(mapped);
  REQUIRE(sys::add_seals(fd.get(), F_SEAL_FUTURE_WRITE));
  *static_cast<volatile char*>(*mapped) = 7;
  CHECK(sys::mmap(nullptr, 4096, PROT_WRITE, MAP_SHARED, fd.get(), 0).error().value == EPERM);
  REQUIRE(sys::munmap(*mapped, 4096));
}

TEST_CASE("a read-only reopening is a new open file that cannot write") {
  const Fd fd = region();
  auto reader = sys::reopen_read_only(fd.get());
  REQUIRE(reader);
  CHECK((::fcntl(reader->get(), F_GETFL) & O_ACCMODE) == O_RDONLY);
  CHECK((::fcntl(reader->get(), F_GETFD) & FD_CLOEXEC) != 0);
  CHECK(::write(reader->get(), "x", 1) == -1);
  CHECK(sys::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, reader->get(), 0).error().value == EACCES);
  CHECK(sys::truncate(reader->get(), 1).error().value == EINVAL);
  REQUIRE(::lseek(fd.get(), 5, SEEK_SET) == 5);
  CHECK(::lseek(reader->get(), 0, SEEK_CUR) == 0);
}

TEST_CASE("facts tell size, touched memory, owner, mode and identity") {
  const Fd fd = region(1 << 20), other = region();
  REQUIRE(sys::set_mode(fd.get(), 0600));
  auto facts = sys::file_facts(fd.get());
  REQUIRE(facts);
  CHECK(facts->size == 1 << 20);
  CHECK(facts->touched == 0);
  CHECK(facts->uid == ::geteuid());
  CHECK((facts->mode & 07777) == 0600);
  CHECK(facts->is_regular);
  CHECK_FALSE(facts->is_socket);
  CHECK(facts->inode != sys::file_facts(other.get())->inode);
  REQUIRE(::pwrite(fd.get(), "x", 1, 0) == 1);
  CHECK(sys::file_facts(fd.get())->touched >= 4096);
}

TEST_CASE("allocated bytes have memory behind them before anyone touches them") {
  const Fd fd = region(16 * 4096);
  REQUIRE(sys::allocate(fd.get(), 4096, 2 * 4096));
  CHECK(sys::file_facts(fd.get())->touched == 2 * 4096);
  CHECK(sys::allocate(fd.get(), 0, 0).error().value == EINVAL);
  REQUIRE(sys::add_seals(fd.get(), F_SEAL_GROW));
  CHECK(sys::allocate(fd.get(), 16 * 4096, 4096).error().value == EPERM);
}

TEST_CASE("sizes that no file can have are refused") {
  const Fd fd = region();
  CHECK(sys::truncate(fd.get(), std::uint64_t{1} << 63).error().value == EFBIG);
  CHECK(sys::truncate(fd.get(), UINT64_MAX).error().value == EFBIG);
  CHECK_FALSE(sys::truncate(-1, 4096));
}

TEST_CASE("every memory call can be made to fail") {
  const Fd fd = region();
  struct Probe {
    Call call;
    bool (*works)(int);
  };
  for (const Probe& probe :
       {Probe{Call::memfd_create, [](int) { return sys::memfd_create("x", true).has_value(); }},
        Probe{Call::memfd_create, [](int) { return sys::memfd_create("x", false).has_value(); }},
        Probe{Call::ftruncate, [](int f) { return sys::truncate(f, 4096).has_value(); }},
        Probe{Call::fallocate, [](int f) { return sys::allocate(f, 0, 4096).has_value(); }},
        Probe{Call::fchmod, [](int f) { return sys::set_mode(f, 0600).has_value(); }},
        Probe{Call::fstat, [](int f) { return sys::file_facts(f).has_value(); }},
        Probe{Call::add_seals, [](int f) { return sys::add_seals(f, F_SEAL_GROW).has_value(); }},
        Probe{Call::get_seals, [](int f) { return sys::seals(f).has_value(); }},
        Probe{Call::reopen, [](int f) { return sys::reopen_read_only(f).has_value(); }},
        Probe{Call::mmap,
              [](int f) {
                auto mapped = sys::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, f, 0);
                return mapped && sys::munmap(*mapped, 4096).has_value();
              }},
        Probe{Call::madvise, [](int) { return sys::madvise(nullptr, 0, MADV_NORMAL).has_value(); }}}) {
    CAPTURE(static_cast<int>(probe.call));
    CHECK(probe.works(fd.get()));
    const harness::Injected failing(probe.call, EIO);
    CHECK_FALSE(probe.works(fd.get()));
    CHECK(probe.works(fd.get()));
  }
}
