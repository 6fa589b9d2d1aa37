// SPDX-License-Identifier: Apache-2.0
// Mappings own their memory, lie where huge pages are possible, and leave nothing beside themselves.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>

#include "base/fd.hpp"
#include "base/mapping.hpp"
#include "tests/harness/child.hpp"
#include "tests/harness/emulator.hpp"
#include "tests/harness/injected.hpp"
#include "tests/harness/sanitizer.hpp"
#include "tests/harness/skip.hpp"

using shmb::Access;
using shmb::Fd;
using shmb::kHugePage;
using shmb::kSmallPage;
using shmb::Mapping;
using shmb::fault::Call;

namespace {

Fd memory_file(std::size_t size) {
  Fd fd = Fd::adopt(::memfd_create("mapping", MFD_CLOEXEC));
  REQUIRE(::ftruncate(fd.get(), static_cast<off_t>(size)) == 0);
  return fd;
}

std::uintptr_t address(const Mapping& mapping) { return reinterpret_cast<std::uintptr_t>(mapping.data()); }

// Of this process' whole address space, so that a forgotten margin of 2 MiB shows.
std::size_t address_space_pages() {
  std::ifstream file("/proc/self/statm");
  std::size_t pages = 0;
  file >> pages;
  return pages;
}

}  // namespace

TEST_CASE("a store through one mapping is visible through another") {
  const Fd fd = memory_file(kSmallPage);
  auto writer = Mapping::map(fd.get(), 0, kSmallPage, Access::read_write);
  auto reader = Mapping::map(fd.get(), 0, kSmallPage, Access::read);
  REQUIRE(writer);
  REQUIRE(reader);
  std::memcpy(writer->data(), "shared", 6);
  CHECK(std::memcmp(reader->data(), "shared", 6) == 0);
  CHECK(reader->size() == kSmallPage);
}

TEST_CASE("from 2 MiB on, address and file offset agree modulo 2 MiB") {
  const Fd fd = memory_file(8 * kHugePage);
  for (const std::uint64_t offset : {std::uint64_t{0}, std::uint64_t{kSmallPage}, std::uint64_t{kHugePage},
                                     std::uint64_t{kHugePage + 17 * kSmallPage}, std::uint64_t{kHugePage - kSmallPage}})
    for (const std::size_t length : {kHugePage, kHugePage + 1, 3 * kHugePage - kSmallPage, 4 * kHugePage}) {
      CAPTURE(offset);
      CAPTURE(length);
      auto mapping = Mapping::map(fd.get(), offset, length, Access::read_write);
      REQUIRE(mapping);
      CHECK((address(*mapping) - offset) % kHugePage == 0);
      CHECK(mapping->size() == length);
      mapping->data()[length - 1] = std::byte{1};
    }
}

TEST_CASE("a mapping grows over the same file, and stays as it is where there is no address space") {
  const Fd fd = memory_file(3 * kSmallPage);
  auto mapping = Mapping::map(fd.get(), kSmallPage, kSmallPage, Access::read_write);
  auto whole = Mapping::map(fd.get(), 0, 3 * kSmallPage, Access::read);
  REQUIRE(mapping);
  REQUIRE(whole);
  mapping->data()[0] = std::byte{1};
  {
    const harness::Injected broken(Call::mremap, ENOMEM);
    CHECK_FALSE(mapping->grow(2 * kSmallPage));
    CHECK(mapping->size() == kSmallPage);
    CHECK(mapping->data()[0] == std::byte{1});
  }
  REQUIRE(mapping->grow(2 * kSmallPage));
  CHECK(mapping->size() == 2 * kSmallPage);
  CHECK(mapping->data()[0] == std::byte{1});
  mapping->data()[kSmallPage] = std::byte{2};
  CHECK(whole->data()[kSmallPage] == std::byte{1});
  CHECK(whole->data()[2 * kSmallPage] == std::byte{2});
}

TEST_CASE("the margin of an aligned mapping is given back, and all of it at the end") {
  if (harness::kAddressSanitizer || harness::kThreadSanitizer) SKIP_CASE("a sanitizer moves the address space itself");
  const Fd fd = memory_file(4 * kHugePage);
  (void)address_space_pages();  // the stream's own buffers
  const std::size_t before = address_space_pages();
  {
    auto mapping = Mapping::map(fd.get(), kSmallPage, 2 * kHugePage + 1, Access::read);
    REQUIRE(mapping);
    CHECK(address_space_pages() - before == 2 * kHugePage / kSmallPage + 1);
  }
  CHECK(address_space_pages() == before);
}

TEST_CASE("a failed aligned mapping leaves no reservation behind") {
  if (harness::kAddressSanitizer || harness::kThreadSanitizer) SKIP_CASE("a sanitizer moves the address space itself");
  (void)address_space_pages();
  const std::size_t before = address_space_pages();
  CHECK(Mapping::map(-1, 0, 2 * kHugePage, Access::read).error().value == EBADF);
  CHECK(address_space_pages() == before);
}

TEST_CASE("without address space for the margin the mapping is made unaligned") {
  const Fd fd = memory_file(2 * kHugePage);
  const harness::Injected no_margin(Call::mmap, ENOMEM, 1);
  auto mapping = Mapping::map(fd.get(), 0, 2 * kHugePage, Access::read_write);
  REQUIRE(mapping);
  mapping->data()[2 * kHugePage - 1] = std::byte{1};
}

TEST_CASE("a limit on address space is an error, not a signal") {
  if (harness::kAddressSanitizer || harness::kThreadSanitizer) SKIP_CASE("a sanitizer needs the address space itself");
  if (harness::emulated()) SKIP_CASE("the emulator knows no limit on address space");
  const Fd fd = memory_file(std::size_t{1} << 30);
  auto child = harness::Child::run([&] {
    const rlimit limit{std::size_t{256} << 20, std::size_t{256} << 20};
    if (::setrlimit(RLIMIT_AS, &limit) != 0) return 1;
    const auto mapping = Mapping::map(fd.get(), 0, std::size_t{1} << 30, Access::read);
    return !mapping && mapping.error().value == ENOMEM ? 0 : 2;
  });
  CHECK(child.wait() == 0);
}

TEST_CASE("bad arguments are refused with the kernel's errno") {
  const Fd fd = memory_file(kHugePage);
  CHECK(Mapping::map(fd.get(), 0, 0, Access::read).error().value == EINVAL);
  CHECK(Mapping::map(fd.get(), 7, kSmallPage, Access::read).error().value == EINVAL);
  CHECK(Mapping::map(fd.get(), 7, kHugePage, Access::read).error().value == EINVAL);
  CHECK(Mapping::map(fd.get(), 0, ~std::size_t{0}, Access::read).error().value == ENOMEM);
  CHECK(Mapping::map(fd.get(), 0, ~std::size_t{0} - kHugePage, Access::read).error().value == ENOMEM);
  CHECK(Mapping::anonymous(0).error().value == EINVAL);
}

TEST_CASE("a read-only mapping cannot be written") {
  const Fd fd = memory_file(kSmallPage);
  auto mapping = Mapping::map(fd.get(), 0, kSmallPage, Access::read);
  REQUIRE(mapping);
  auto child = harness::Child::run([&] {
    ::signal(SIGSEGV, SIG_DFL);  // also under a sanitizer
    *reinterpret_cast<volatile char*>(mapping->data()) = 1;
    return 0;
  });
  CHECK(child.wait() == 128 + SIGSEGV);
}

TEST_CASE("moving a mapping empties the source and unmaps the target's former memory") {
  auto from = Mapping::anonymous(kSmallPage), to = Mapping::anonymous(kSmallPage);
  REQUIRE(from);
  REQUIRE(to);
  std::byte* kept = from->data();
  void* replaced = to->data();
  *to = std::move(*from);
  CHECK(to->data() == kept);
  CHECK_FALSE(*from);
  CHECK(from->size() == 0);
  CHECK(::msync(replaced, kSmallPage, MS_ASYNC) == -1);
  CHECK(errno == ENOMEM);
  *kept = std::byte{9};
  Mapping third(std::move(*to));
  CHECK(third.data() == kept);
  CHECK_FALSE(*to);
}

TEST_CASE("a released mapping stays mapped") {
  auto mapping = Mapping::anonymous(kSmallPage);
  REQUIRE(mapping);
  void* memory = mapping->release();
  CHECK_FALSE(*mapping);
  mapping->reset();
  REQUIRE(::msync(memory, kSmallPage, MS_ASYNC) == 0);
  ::munmap(memory, kSmallPage);
}

TEST_CASE("anonymous memory is private to the process") {
  auto mapping = Mapping::anonymous(kSmallPage);
  REQUIRE(mapping);
  auto child = harness::Child::run([&] {
    mapping->data()[0] = std::byte{7};
    return 0;
  });
  CHECK(child.wait() == 0);
  CHECK(mapping->data()[0] == std::byte{0});
}
