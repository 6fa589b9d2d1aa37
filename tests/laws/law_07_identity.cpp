// SPDX-License-Identifier: Apache-2.0
// Law 7: identity is id + generation + epoch, never a descriptor number, name or process number; the memfd's name says
// which, so that /proc/PID/maps can be read by people and by a broker after a crash.
//
// To see it fail: in daemon/ledger/create.cpp, fresh, make
//   std::uint64_t id = ++regions.last_id;
// the smallest free one: regions.all.size() + 1.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <set>
#include <sstream>
#include <unordered_set>

#include "proto/names.hpp"
#include "tests/laws/law.hpp"

using namespace laws;

namespace {

// The labels of all regions that this process maps, from /proc/self/maps.
std::vector<names::Label> labels_in_maps() {
  std::vector<names::Label> found;
  std::istringstream maps(sys::read_file("/proc/self/maps", 16 << 20).value_or(""));
  for (std::string line; std::getline(maps, line);) {
    const auto at = line.find("/memfd:shmb:");
    if (at == std::string::npos) continue;
    std::string name = line.substr(at + std::string("/memfd:").size());
    if (const auto deleted = name.find(" (deleted)"); deleted != std::string::npos) name.resize(deleted);
    auto label = names::parse_memfd_name(name);
    REQUIRE_MESSAGE(label.has_value(), line);
    found.push_back(*label);
  }
  return found;
}

std::string group_label(std::uint64_t id) {
  std::ostringstream text;
  text << '#' << std::hex << id;
  return text.str();
}

}  // namespace

TEST_CASE("law 7: the name in /proc/PID/maps says epoch, id, generation, owner, group and name") {
  on_each_engine([](BrokerFixture& broker) {
    auto session = open(broker);
    auto unnamed = must(create_region(session, named("", 8192)));
    auto labels = labels_in_maps();
    REQUIRE(labels.size() == 1);
    CHECK(labels[0].epoch == session->facts().epoch);
    CHECK(labels[0].id == unnamed->ref().id);
    CHECK(labels[0].generation == 1);
    CHECK(labels[0].owner_uid == ::geteuid());
    CHECK(labels[0].group == group_label(unnamed->facts().group));
    CHECK(labels[0].region.empty());
    unnamed.reset();

    const std::string longest(96, 'n');
    const auto group = must(session->create_group({.name = longest}, soon()));
    must(session->join_group(group.token, 0, soon()));
    auto region = must(create_region(session, named(longest, 4096)));
    labels = labels_in_maps();
    REQUIRE(labels.size() == 1);
    CHECK(labels[0].id == region->ref().id);
    CHECK(labels[0].group == longest);
    CHECK(labels[0].region == longest);
    auto fd = must(region->descriptor(soon()));
    struct stat facts{};
    REQUIRE(::fstat(fd.get(), &facts) == 0);
    CHECK(facts.st_uid == ::geteuid());
    CHECK((facts.st_mode & 07777) == 0600);
    must(region->release(kReleaseUnname));
  });
}

TEST_CASE("law 7: ten thousand creates never give an id twice, recycled memory or not") {
  on_each_engine([](BrokerFixture& broker) {
    auto session = open(broker);
    const std::size_t wanted = 10'000 / harness::kSlowdown;
    std::unordered_set<std::uint64_t> ids;
    std::size_t made = 0;
    std::vector<CreateItem> batch(200, named("", 4096));
    for (auto& item : batch) item.flags = kCreateUnmapped;
    while (made < wanted) {
      for (auto& region : create_regions(session, batch, 0)) {
        ids.insert(must(std::move(region))->ref().id);
        ++made;
      }
    }
    for (int i = 0; i < 50; ++i, ++made) {
      auto recycled = must(create_region(session, named("", 2 << 20)));
      if (i > 0) CHECK(recycled->facts().recycled);
      ids.insert(recycled->ref().id);
    }
    CHECK(ids.size() == made);
    MESSAGE(made << " creates");
  });
}

TEST_CASE("law 7: the generation counts re-creations under one name; another one's number is stale") {
  on_each_engine([](BrokerFixture& broker) {
    auto session = open(broker);
    std::vector<Region::Handle> all;
    for (std::uint32_t generation = 1; generation <= 5; ++generation) {
      CreateItem item = named("kv", 4096);
      item.flags = generation > 1 ? std::uint32_t{SHMBW_CREATE_REPLACE} : 0U;
      all.push_back(must(create_region(session, item)));
      CHECK(all.back()->ref().generation == generation);
      CHECK(must(attach_region(session, at("kv", kReadWrite)))->ref().id == all.back()->ref().id);
    }
    std::set<std::uint64_t> ids;
    for (const auto& region : all) ids.insert(region->ref().id);
    CHECK(ids.size() == 5);
    // The old ones live on under their own identity.
    AttachItem item;
    item.rights = kReadWrite;
    item.target = Target::with_id(all[0]->ref());
    CHECK(attach_region(session, item).has_value());
    shmbw_region_ref wrong = all[0]->ref();
    wrong.generation = 2;
    item.target = Target::with_id(wrong);
    CHECK(status_of(attach_region(session, item)) == Status::stale);
    must(all.back()->release(kReleaseUnname));
  });
}

TEST_CASE("law 7: two lives of a broker have two epochs, and an identity of the one is stale in the other") {
  on_each_engine([](BrokerFixture& broker) {
    auto session = open(broker);
    auto region = must(create_region(session, named("kv", 4096)));
    const auto epoch = session->facts().epoch;
    BrokerOptions options;
    BrokerFixture next(options);
    REQUIRE(next.running());
    auto elsewhere = open(next);
    CHECK(elsewhere->facts().epoch != epoch);
    CHECK(epoch != 0);
    auto twin = must(create_region(elsewhere, named("kv", 4096)));
    CHECK(twin->ref().id == region->ref().id);  // only the epoch tells them apart
    AttachItem item;
    item.rights = kReadWrite;
    item.target = Target::with_id(region->ref(), epoch);
    CHECK(status_of(attach_region(elsewhere, item)) == Status::stale);
    item.target = Target::with_id(region->ref(), elsewhere->facts().epoch);
    CHECK(attach_region(elsewhere, item).has_value());
    must(region->release(kReleaseUnname));
    must(twin->release(kReleaseUnname));
  });
}
