// SPDX-License-Identifier: Apache-2.0
// Population of a bare memory file: what comes out, and what each refusal of the kernel becomes.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>

#include "base/fault.hpp"
#include "base/sys_memory.hpp"
#include "client/region/populate.hpp"
#include "tests/harness/skip.hpp"

using namespace shmb;
using namespace shmb::client;

namespace {

struct Memory {
  Fd fd;
  Mapping mapping;
  explicit Memory(std::uint64_t bytes) {
    auto made = sys::memfd_create("populate-test", false);
    REQUIRE(made.has_value());
    fd = std::move(*made);
    REQUIRE(sys::truncate(fd.get(), bytes).has_value());
    auto mapped = Mapping::map(fd.get(), 0, bytes, Access::read_write);
    REQUIRE(mapped.has_value());
    mapping = std::move(*mapped);
  }
  std::uint64_t touched() const { return sys::file_facts(fd.get())->touched; }
};

constexpr std::uint64_t kBytes = 6 << 20;

bool can_collapse() {
  Memory memory(2 << 20);
  return populate_fresh(memory.mapping, memory.fd.get(), PagesWanted::huge)->kind == SHMBW_PAGE_KIND_HUGE;
}

}  // namespace

TEST_CASE("from 2 MiB on memory is in huge pages, and all of it is there") {
  if (!can_collapse()) SKIP_CASE("no huge pages for shared memory on this kernel");
  Memory memory(kBytes);
  auto done = populate_fresh(memory.mapping, memory.fd.get(), PagesWanted::huge);
  REQUIRE(done.has_value());
  CHECK(done->kind == SHMBW_PAGE_KIND_HUGE);
  CHECK(done->bytes == kBytes);
  CHECK(memory.touched() == kBytes);
}

TEST_CASE("law 12: recycled memory that was in huge pages is mapped without a look, and is not called huge") {
  if (!can_collapse()) SKIP_CASE("no huge pages for shared memory on this kernel");
  Memory memory(kBytes), unknown(kBytes);
  if (populate_fresh(memory.mapping, memory.fd.get(), PagesWanted::huge)->kind != SHMBW_PAGE_KIND_HUGE)
    SKIP_CASE("the host had no free huge page in this moment");
  // A peer may split it at any time.
  REQUIRE(::fallocate(memory.fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4096, 4096) == 0);
  fault::pretend_kernel(5, 15);  // it cannot collapse
  int unseen = 0, small = 0;
  for (int i = 0; i < 32; ++i) {
    auto again = Mapping::map(memory.fd.get(), 0, kBytes, Access::read_write);
    const auto kind = populate_fresh(*again, memory.fd.get(), PagesWanted::huge, true)->kind;
    unseen += kind == SHMBW_PAGE_KIND_UNKNOWN;
    small += kind == SHMBW_PAGE_KIND_SMALL;
  }
  CHECK(populate_fresh(unknown.mapping, unknown.fd.get(), PagesWanted::huge, true)->kind == SHMBW_PAGE_KIND_SMALL);
  fault::pretend_kernel(0, 0);
  CHECK(unseen == 30);
  CHECK(small == 2);  // each sixteenth time it is looked at
}

TEST_CASE("small pages where that is asked for, and below 2 MiB") {
  Memory memory(kBytes), little(5 * 4096);
  CHECK(populate_fresh(memory.mapping, memory.fd.get(), PagesWanted::small)->kind == SHMBW_PAGE_KIND_SMALL);
  CHECK(memory.touched() == kBytes);
  CHECK(populate_fresh(little.mapping, little.fd.get(), PagesWanted::huge)->kind == SHMBW_PAGE_KIND_SMALL);
  CHECK(little.touched() == 5 * 4096);
}

TEST_CASE("a kernel before 6.1 gives small pages, and says so") {
  fault::pretend_kernel(5, 15);
  Memory memory(kBytes);
  auto done = populate_fresh(memory.mapping, memory.fd.get(), PagesWanted::huge);
  fault::pretend_kernel(0, 0);
  REQUIRE(done.has_value());
  CHECK(done->kind == SHMBW_PAGE_KIND_SMALL);
  CHECK(memory.touched() == kBytes);
}

TEST_CASE("a kernel before 5.14 still gives an errno instead of a signal: fallocate") {
  Memory memory(kBytes);
  fault::inject(fault::Call::madvise, EINVAL, 1, -1);
  auto done = populate_fresh(memory.mapping, memory.fd.get(), PagesWanted::huge);
  const long calls = fault::count(fault::Call::fallocate);
  fault::clear();
  REQUIRE(done.has_value());
  CHECK(calls == 1);
  CHECK(memory.touched() == kBytes);
  CHECK(done->kind == SHMBW_PAGE_KIND_SMALL);
}

TEST_CASE("a collapse that fails once is tried again; one that always fails leaves small pages and no error") {
  if (!can_collapse() || shmem_takes_huge_advice()) SKIP_CASE("huge pages come in another way here");
  const int seeds = static_cast<int>(kBytes / kHugePage);
  {
    Memory memory(kBytes);
    fault::inject(fault::Call::madvise, ENOMEM, seeds + 1, 1);
    auto done = populate_fresh(memory.mapping, memory.fd.get(), PagesWanted::huge);
    fault::clear();
    CHECK(done->kind == SHMBW_PAGE_KIND_HUGE);
  }
  Memory memory(kBytes);
  fault::inject(fault::Call::madvise, ENOMEM, seeds + 1, 4);  // three tries and the look at the first 2 MiB
  auto done = populate_fresh(memory.mapping, memory.fd.get(), PagesWanted::huge);
  fault::clear();
  REQUIRE(done.has_value());
  CHECK(done->kind == SHMBW_PAGE_KIND_SMALL);
  CHECK(memory.touched() == kBytes);
}

TEST_CASE("no memory is a status with the bytes that were asked, wherever the kernel says so") {
  for (int code : {ENOMEM, EFAULT, EHWPOISON}) {
    CAPTURE(code);
    Memory memory(kBytes);
    fault::inject(fault::Call::madvise, code, 1, -1);
    auto done = populate_fresh(memory.mapping, memory.fd.get(), PagesWanted::huge);
    fault::clear();
    REQUIRE_FALSE(done.has_value());
    CHECK(done.error().status == Status::no_memory);
    CHECK(done.error().shortage.asked == kBytes);
    CHECK(done.error().system_errno == code);
  }
}

TEST_CASE("a small part is populated page by page") {
  Memory memory(kBytes);
  CHECK(populate_part(memory.mapping, 4095, 2, Access::read_write, PagesWanted::huge)->bytes == 8192);
  CHECK(memory.touched() == 8192);
  CHECK_FALSE(populate_part(memory.mapping, kBytes, 1, Access::read_write, PagesWanted::huge).has_value());
  CHECK_FALSE(populate_part(memory.mapping, 0, 0, Access::read_write, PagesWanted::huge).has_value());
}

TEST_CASE("a part with whole huge pages in it gets them where a fresh mapping would, and nothing but the part") {
  Memory fresh(kBytes), memory(kBytes);
  const auto all = populate_fresh(fresh.mapping, fresh.fd.get(), PagesWanted::huge);
  REQUIRE(all.has_value());
  const auto part = populate_part(memory.mapping, 0, kHugePage, Access::read_write, PagesWanted::huge);
  REQUIRE(part.has_value());
  CHECK(part->bytes == kHugePage);
  // A collapse may fail now and then, for some of the pages.
  CHECK((part->kind == all->kind || part->kind == SHMBW_PAGE_KIND_MIXED || all->kind == SHMBW_PAGE_KIND_MIXED));
  CHECK(memory.touched() == kHugePage);
  const auto rest =
      populate_part(memory.mapping, kHugePage, kBytes - kHugePage, Access::read_write, PagesWanted::small);
  REQUIRE(rest.has_value());
  CHECK(rest->kind == SHMBW_PAGE_KIND_SMALL);
  CHECK(memory.touched() == kBytes);
  Memory odd(kBytes);
  const auto across = populate_part(odd.mapping, 4096, kBytes - 4096, Access::read_write, PagesWanted::huge);
  REQUIRE(across.has_value());
  CHECK(across->kind != SHMBW_PAGE_KIND_HUGE);  // its first pages are small ones
  CHECK(odd.touched() >= kBytes - 4096);
}

TEST_CASE("mapping what exists allocates nothing new where all is there") {
  Memory memory(kBytes);
  REQUIRE(populate_fresh(memory.mapping, memory.fd.get(), PagesWanted::huge).has_value());
  auto reader = Mapping::map(memory.fd.get(), 0, kBytes, Access::read);
  REQUIRE(reader.has_value());
  (void)map_existing(*reader, Access::read, false);
  CHECK(memory.touched() == kBytes);
}
