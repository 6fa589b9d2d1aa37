// SPDX-License-Identifier: Apache-2.0
// Where the memory of a region comes from: a NUMA node, or the host's reserve of hugetlb pages.
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>

#include "client/face/shmbroker.hpp"
#include "client/region/headroom.hpp"
#include "client/session/views.hpp"
#include "tests/harness/skip.hpp"
#include "tests/support/session.hpp"
#include "tests/support/until.hpp"

using namespace support;
using namespace shmb;
using namespace shmb::client;

namespace {

constexpr std::uint64_t kPage = 2 << 20;
const char* const kNumber = "/proc/sys/vm/nr_hugepages";

std::uint64_t number_in(const char* path, const std::string& key = {}) {
  std::ifstream file(path);
  std::uint64_t value = 0;
  if (key.empty()) file >> value;
  for (std::string word; !key.empty() && file >> word;)
    if (word == key + ":") file >> value;
  return value;
}
std::uint64_t host_fact(const char* key) { return number_in("/proc/meminfo", key); }
std::uint64_t left_in_reserve() {
  const std::uint64_t free = host_fact("HugePages_Free"), promised = host_fact("HugePages_Rsvd");
  return free - std::min(free, promised);  // read one after the other
}
// Pages of the host's reserve under a mapping of this process: other processes take and give back theirs meanwhile.
std::uint64_t reserved_under(const void* address) {
  std::ostringstream start;
  start << std::hex << reinterpret_cast<std::uintptr_t>(address) << "-";
  std::ifstream maps("/proc/self/smaps");
  std::uint64_t kib = 0;
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.find('-') < line.find(' ')) inside = line.starts_with(start.str());
    if (inside && (line.starts_with("Shared_Hugetlb:") || line.starts_with("Private_Hugetlb:")))
      kib += std::stoull(line.substr(line.find(':') + 1));
  }
  return kib / (kPage / 1024);
}

// Pages of the host's reserve for one test, of which no other test takes any. Their number is restored.
class Reserve {
 public:
  explicit Reserve(std::uint64_t pages) : lock_(std::fopen(kNumber, "r")) {
    if (lock_ == nullptr || host_fact("Hugepagesize") != kPage / 1024) return;
    ::flock(::fileno(lock_), LOCK_EX);
    const std::uint64_t left = left_in_reserve();
    if (left < pages) {
      before_ = number_in(kNumber);
      std::ofstream(kNumber) << *before_ + pages - left << std::flush;
    }
    enough_ = left_in_reserve() >= pages;
  }
  ~Reserve() {
    if (lock_ == nullptr) return;
    if (before_) std::ofstream(kNumber) << *before_ << std::flush;
    std::fclose(lock_);
  }
  Reserve(const Reserve&) = delete;
  Reserve& operator=(const Reserve&) = delete;
  bool enough() const { return enough_; }

 private:
  std::FILE* lock_;
  std::optional<std::uint64_t> before_;  // none: their number was not changed
  bool enough_ = false;
};
const char* const kNoPages = "this host gives no hugetlb pages of 2 MiB";

CreateItem on_hugetlb(const std::string& name, std::uint64_t length) {
  CreateItem item = named(name, length);
  item.flags |= SHMBW_CREATE_HUGETLB;
  return item;
}

CreateItem on_node(std::uint64_t length, std::uint32_t node) {
  CreateItem item = named("on-node", length);
  item.flags |= kCreateOnNode;
  item.node = node;
  return item;
}

// The line of /proc/self/numa_maps for a mapping: its policy, and its pages on each node.
std::string placement(const void* address) {
  std::ostringstream start;
  start << std::hex << reinterpret_cast<std::uintptr_t>(address) << " ";
  std::ifstream maps("/proc/self/numa_maps");
  for (std::string line; std::getline(maps, line);)
    if (line.starts_with(start.str())) return line + " ";
  return {};
}
bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

// Containers often refuse mbind by a filter of system calls.
bool not_allowed(const Result<Region::Handle>& made) {
  return !made && (made.error().system_errno == EPERM || made.error().system_errno == EACCES ||
                   made.error().status == Status::unsupported);
}
const char* const kNoBinding = "this process may not bind memory to a node (mbind)";

std::uint64_t regions_of(const std::shared_ptr<Session>& session) {
  return must(list_regions(*session, {}, Deadline::after(0))).rows.size();
}

}  // namespace

TEST_CASE("all memory of a region on a node is bound to it and there, and is not recycled") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  for (const std::uint64_t length : {std::uint64_t{1} << 20, std::uint64_t{8} << 20}) {
    auto made = create_region(session, on_node(length, 0));
    if (not_allowed(made)) SKIP_CASE(kNoBinding);
    auto region = must(std::move(made));
    CHECK(region->facts().populated == region->facts().bytes);
    const std::string line = placement(region->data());
    if (line.empty()) SKIP_CASE("this kernel has no /proc/self/numa_maps");
    CHECK(has(line, "bind:0"));
    CHECK(has(line, " N0="));
    CHECK_FALSE(has(line, " N1="));
    must(region->release(kReleaseUnname));
    CHECK(must(broker_status(*session, Deadline::after(0))).record.bytes_cached == 0);
  }
}

TEST_CASE("a node that the host does not have is refused in words, and nothing is left of the region") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  for (const std::uint32_t node : {1000U, 5000U, UINT32_MAX}) {
    auto refused = create_region(session, on_node(4 << 20, node));
    if (not_allowed(refused)) SKIP_CASE(kNoBinding);
    CHECK(status_of(refused) == Status::invalid);
    CHECK(has(refused.error().sentence, "node " + std::to_string(node)));
  }
  CreateItem unmapped = on_node(4096, 0);
  unmapped.flags |= kCreateUnmapped;
  CHECK(status_of(create_region(session, unmapped)) == Status::invalid);
  CHECK(regions_of(session) == 0);
}

TEST_CASE("law 5: a region on a node that would get its memory later is refused in words, also without a broker") {
  const harness::BrokerFixture broker;
  auto session = open(broker), local = must(Session::local("test"));
  for (const std::uint32_t more : {0U, unsigned{SHMBW_CREATE_HUGETLB}}) {
    CreateItem later = on_node(4 << 20, 0), read_only = later;
    later.flags |= kCreateNoPopulate | more;
    read_only.flags |= more;
    read_only.rights = SHMBW_RIGHT_MAP_READ | SHMBW_RIGHT_SHARE;
    for (const CreateItem& item : {later, read_only}) {
      auto refused = create_region(session, item);
      CHECK(status_of(refused) == Status::invalid);
      CHECK(has(refused.error().sentence, "leave the node out"));
      CHECK(status_of(create_region(local, item)) == Status::invalid);
    }
  }
  CHECK(regions_of(session) == 0);
}

TEST_CASE("law 5: a region on a node has all its memory at its creation, also above 1 GiB") {
  const std::uint64_t large = kPopulateByDefault + kHugePage;
  if (!check_node_room(0, 2 * large, false) || !check_headroom(2 * large)) SKIP_CASE("not enough memory is free");
  const harness::BrokerFixture broker;
  auto session = open(broker);
  auto made = create_region(session, on_node(large, 0));
  if (not_allowed(made)) SKIP_CASE(kNoBinding);
  auto region = must(std::move(made));
  CHECK(region->facts().populated == large);
  must(region->release(kReleaseUnname));
}

TEST_CASE("without reserved pages a hugetlb region is refused with the numbers, and nothing is left of it") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  const std::uint64_t more = (left_in_reserve() + 1) * kPage;
  auto refused = create_region(session, on_hugetlb("large", more));
  const Status why = status_of(refused);
  CHECK((why == Status::no_memory || why == Status::unsupported));
  if (why == Status::no_memory) {
    CHECK(has(refused.error().sentence, "vm.nr_hugepages"));
    CHECK(refused.error().shortage.asked == more);
  }
  CHECK(status_of(create_region(session, on_hugetlb("empty", 0))) == Status::invalid);
  CreateItem both = on_hugetlb("both", kPage);
  both.flags |= kCreateSmallPages;
  CHECK(status_of(create_region(session, both)) == Status::invalid);
  CHECK(regions_of(session) == 0);
}

TEST_CASE("a hugetlb region has pages of the host's reserve, is shared and published, and gives them back") {
  const Reserve reserve(4);
  if (!reserve.enough()) SKIP_CASE(kNoPages);
  const harness::BrokerFixture broker;
  auto session = open(broker), other = open(broker);
  auto region = must(create_region(session, on_hugetlb("kv", kPage + 1)));
  CHECK(region->facts().bytes == 2 * kPage);
  CHECK(region->facts().page_kind == SHMBW_PAGE_KIND_HUGE);
  CHECK((region->facts().flags & SHMBW_REGION_HUGETLB) != 0);
  CHECK(reserved_under(region->data()) == 2);
  std::strcpy(reinterpret_cast<char*>(region->data() + kPage), "hello");

  const Target target = Target::with_id(region->ref());
  auto writer = must(attach_region(other, {target, SHMBW_RIGHT_MAP_READ | SHMBW_RIGHT_MAP_WRITE}));
  CHECK((writer->facts().flags & SHMBW_REGION_HUGETLB) != 0);
  CHECK(std::strcmp(reinterpret_cast<char*>(writer->data() + kPage), "hello") == 0);
  CHECK(status_of(writer->map_part(4096, 4096, Access::read, Deadline::after(0))) == Status::invalid);
  void* part = must(writer->map_part(kPage, kPage, Access::read, Deadline::after(0)));
  CHECK(std::strcmp(static_cast<char*>(part), "hello") == 0);
  must(writer->unmap_part(part, kPage));
  must(writer->release(0));

  must(region->publish(Deadline::after(0)));
  CHECK(std::strcmp(reinterpret_cast<char*>(region->data() + kPage), "hello") == 0);
  auto reader = must(attach_region(other, {target}));
  CHECK(std::strcmp(reinterpret_cast<char*>(reader->data() + kPage), "hello") == 0);
  must(reader->release(0));
  must(region->release(kReleaseUnname));
  CHECK(eventually([&] { return left_in_reserve() >= 4; }));  // others may give theirs back too
  CHECK(must(broker_status(*session, Deadline::after(0))).record.bytes_cached == 0);
}

TEST_CASE("mapping reserves the pages of a hugetlb region that is not populated") {
  const Reserve reserve(4);
  if (!reserve.enough()) SKIP_CASE(kNoPages);
  const harness::BrokerFixture broker;
  auto session = open(broker);
  CreateItem item = on_hugetlb("later", 3 * kPage);
  item.flags |= kCreateNoPopulate;
  auto region = must(create_region(session, item));
  CHECK(region->facts().populated == 0);
  CHECK(reserved_under(region->data()) == 0);
  must(region->populate(kPage, 1));
  CHECK(region->facts().populated == kPage);
  CHECK(region->facts().page_kind == SHMBW_PAGE_KIND_HUGE);
  CHECK(reserved_under(region->data()) == 1);
  // With those that it has reserved there are not so many, whatever others take and give back.
  const std::uint64_t all = host_fact("HugePages_Total");
  CHECK(status_of(create_region(session, on_hugetlb("more", (all - 2) * kPage))) == Status::no_memory);
  must(region->release(kReleaseUnname));
}

TEST_CASE("a local session and the C++ face make hugetlb regions, and regions on a node, in the same way") {
  const Reserve reserve(2);
  CreateItem unnamed = on_node(4096, 0);
  unnamed.name.clear();
  if (not_allowed(create_region(must(Session::local("test")), unnamed))) SKIP_CASE(kNoBinding);
  const shmbroker::Session local = shmbroker::Session::connect({.local_only = true});
  auto near = local.create(1 << 20, {.numa_node = 0});
  const std::string line = placement(near.data());
  CHECK((line.empty() || has(line, "bind:0")));
  if (!reserve.enough()) SKIP_CASE(kNoPages);
  auto region = local.create(1, {.hugetlb = true});
  CHECK(region.info().page_kind == SHMB_PAGES_HUGE);
  CHECK(region.info().bytes == kPage);
  region.bytes()[0] = std::byte{1};
}
