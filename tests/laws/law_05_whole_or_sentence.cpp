// SPDX-License-Identifier: Apache-2.0
// Law 5: a create succeeds whole or fails with a sentence (limit, scope, used, asked, largest holders, the key to
// raise); population returns an errno where a store would be a signal; the headroom of the client's cgroup is compared
// first.
//
// To see it fail: in client/region/create.cpp, create_batch, take away
//   if (!result) (void)post_release(*session, granted->region, ...);
// and a create that fails while it populates leaves its region behind.
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>

#include "client/region/headroom.hpp"
#include "tests/harness/injected.hpp"
#include "tests/laws/cgroup.hpp"
#include "tests/laws/law.hpp"

using namespace laws;

namespace {

constexpr std::uint64_t kMiB = 1 << 20;

Error refused(const shmb::Result<Region::Handle>& result) {
  REQUIRE_FALSE(result.has_value());
  MESSAGE(result.error().sentence);
  return result.error();
}

}  // namespace

TEST_CASE("law 5: a refusal says limit, scope, used, asked, the largest holders and the key to raise") {
  BrokerOptions options;
  options.config =
      "[limits]\nuid_bytes = \"16M\"\nsession_leases = 40\n[limits.group.small]\nbytes = \"4M\"\nregions = 3\n";
  on_each_engine(options, [](BrokerFixture& broker) {
    auto session = open(broker);
    const auto group = must(session->create_group({.name = "small"}, soon()));
    must(session->join_group(group.token, 0, soon()));
    auto big = must(create_region(session, named("big", kMiB)));
    auto second = must(create_region(session, named("second", kMiB / 2)));

    const Error bytes = refused(create_region(session, named("third", 3 * kMiB)));
    CHECK(bytes.status == Status::limit);
    CHECK(bytes.shortage.slot == SHMBW_SLOT_BYTES);
    CHECK(bytes.shortage.scope == SHMBW_SCOPE_GROUP);
    CHECK(bytes.shortage.scope_id == group.id);
    CHECK(bytes.shortage.limit == 4 * kMiB);
    CHECK(bytes.shortage.used == kMiB + kMiB / 2);
    CHECK(bytes.shortage.asked == 4 * kMiB);  // rounded to huge pages
    for (const char* part : {"limit", "'small'", "asked 4.0 MiB", "used 1.5 of 4.0 MiB", "'big' (1.0 MiB)",
                             "'second' (512.0 KiB)", "raise limits.group.small.bytes"})
      CHECK_MESSAGE(has(bytes.sentence, part), part);

    auto third = must(create_region(session, named("third", 4096)));
    const Error count = refused(create_region(session, named("fourth", 4096)));
    CHECK(count.shortage.slot == SHMBW_SLOT_REGIONS);
    CHECK(count.shortage.limit == 3);
    CHECK(has(count.sentence, "limits.group.small.regions"));

    // The next wider scope, by a session outside of the group.
    auto other = open(broker);
    const Error uid = refused(create_region(other, named("huge", 15 * kMiB)));
    CHECK(uid.shortage.scope == SHMBW_SCOPE_UID);
    CHECK(uid.shortage.scope_id == ::geteuid());
    CHECK(has(uid.sentence, "limits.uid." + std::to_string(::geteuid()) + ".bytes"));
    CHECK(has(uid.sentence, "group small"));

    // Nothing of the refused was left; the same session goes on.
    CHECK(regions(session).size() == 3);
    must(third->release(kReleaseUnname));
    auto again = must(create_region(session, named("fourth", 4096)));
    for (auto* region : {&big, &second, &again}) must((*region)->release(kReleaseUnname));
  });
}

TEST_CASE("law 5: in a batch each create is whole or nothing, and the failed one leaves nothing") {
  BrokerOptions options;
  options.config = "[limits]\nuid_bytes = \"1M\"\n";
  on_each_engine(options, [](BrokerFixture& broker) {
    auto session = open(broker);
    const CreateItem items[] = {named("a", 4096), named("b", 2 * kMiB), named("c", 4096), named("a", 4096)};
    auto made = create_regions(session, items, 0);
    CHECK(made[0].has_value());
    CHECK(status_of(made[1]) == Status::limit);
    CHECK(made[2].has_value());
    CHECK(status_of(made[3]) == Status::exists);
    CHECK(regions(session).size() == 2);
    CHECK(leases(session).size() == 2);
    for (auto& region : made)
      if (region) must((*region)->release(kReleaseUnname));
  });
}

TEST_CASE("law 5: a call that fails in the broker is a sentence, and the next create is served") {
  // A broker's first memory file is its books, and its first ftruncate is of its lock file.
  for (const std::string fault :
       {"memfd_create:EMFILE:2", "memfd_create:ENFILE:2", "memfd_create:ENOMEM:2", "ftruncate:ENOSPC:3",
        "ftruncate:ENOMEM:3", "fchmod:EPERM:2", "add_seals:EPERM:1", "add_seals:ENOMEM:1"}) {
    CAPTURE(fault);
    BrokerOptions options;
    options.seam = "fail=" + fault;
    on_each_engine(options, [](BrokerFixture& broker) {
      auto session = open(broker);
      auto failed = create_region(session, named("kv", 4096));
      REQUIRE_FALSE(failed.has_value());
      CHECK(has(failed.error().sentence, "region"));
      CHECK(failed.error().status != Status::ok);
      CHECK(regions(session).empty());
      CHECK(leases(session).empty());
      auto next = must(create_region(session, named("kv", 4096)));
      must(next->release(kReleaseUnname));
    });
  }
}

TEST_CASE("law 5: population that finds no memory is an error, not a signal, and the region is given back") {
  on_each_engine([](BrokerFixture& broker) {
    auto session = open(broker);
    for (const std::uint64_t length : {std::uint64_t{64 << 10}, 4 * kMiB}) {
      for (const int code : {ENOMEM, EFAULT, ENOSPC, EHWPOISON}) {
        CAPTURE(length);
        CAPTURE(code);
        {
          const harness::Injected fault(fault::Call::madvise, code, 1, -1);
          auto failed = create_region(session, named("kv", length));
          REQUIRE_FALSE(failed.has_value());
          CHECK(failed.error().status == Status::no_memory);
          CHECK(failed.error().shortage.asked == length);
          CHECK(has(failed.error().sentence, "populating"));
        }
        CHECK(regions(session).empty());
        CHECK(leases(session).empty());
      }
      {
        const harness::Injected fault(fault::Call::mmap, ENOMEM, 1, -1);
        auto failed = create_region(session, named("kv", length));
        REQUIRE_FALSE(failed.has_value());
        CHECK(has(failed.error().sentence, "mapping"));
      }
      CHECK(regions(session).empty());
      auto fine = must(create_region(session, named("kv", length)));
      CHECK(fine->facts().populated == fine->facts().bytes);
      must(fine->release(kReleaseUnname | kReleaseNoRecycle));
    }
  });
}

TEST_CASE("law 5: a create that the client's cgroup has no room for is refused with its path before anything is made") {
  on_each_engine([](BrokerFixture& broker) {
    CgroupForTest cgroup("law5", 64 << 20);
    if (!cgroup.usable()) SKIP_CASE(cgroup.why_not());
    const auto admin = open_admin(broker);
    // The parent's facts about its own cgroup do not apply to a forked child in another one.
    auto parents = must(create_region(open(broker), named("parents", 1 << 20)));
    auto client = Child::run([&] {
      if (!cgroup.enter()) return 1;
      auto session = must(try_open(broker.socket()));
      auto small = create_region(session, named("small", 8 << 20));
      if (!small) return 2;
      auto failed = create_region(session, named("large", 256 << 20));
      if (failed || failed.error().status != Status::no_memory) return 3;
      if (failed.error().shortage.scope != SHMBW_SCOPE_CGROUP) return 4;
      if (!has(failed.error().sentence, "cgroup " + cgroup.path()) || !has(failed.error().sentence, "64.0 MiB"))
        return 5;
      if (!has(failed.error().sentence, "raise its limit")) return 6;
      if (regions(session).size() != 2) return 7;  // the parent's and the small one
      return 0;
    });
    CHECK(client.wait() == 0);
    parents.reset();
    CHECK(eventually([&] { return regions(admin).empty(); }));
  });
}

TEST_CASE("law 5: memory that was released in a full cgroup is used again, or given up, before a create is refused") {
  on_each_engine([](BrokerFixture& broker) {
    CgroupForTest cgroup("law5b", 64 << 20);
    if (!cgroup.usable()) SKIP_CASE(cgroup.why_not());
    auto client = Child::run([&] {
      if (!cgroup.enter()) return 1;
      auto session = must(try_open(broker.socket()));
      auto item = named("", 40 << 20);
      for (int round = 0; round < 4; ++round) {  // from the shelf
        auto made = create_region(session, item);
        if (!made) return 2;
        made->reset();
      }
      // Of another size: the shelf has nothing of it, and is given up for it.
      for (const std::uint64_t length : {std::uint64_t{44} << 20, std::uint64_t{36} << 20}) {
        auto made = create_region(session, named("", length));
        if (!made) return 3;
        made->reset();
      }
      // By another session of the same user.
      auto other = must(try_open(broker.socket()));
      if (!create_region(other, named("", 42 << 20))) return 4;
      // Several at once, of which the shelf has one.
      if (!create_region(session, named("", 20 << 20))) return 5;
      const CreateItem both[] = {named("", 20 << 20), named("", 24 << 20)};
      auto made = create_regions(session, both, 0);
      if (!made[0] || !made[1]) return 6;
      made.clear();
      // A create that does not fit at all is refused, and the sentence says what was freed for it.
      auto failed = create_region(session, named("", 256 << 20));
      if (failed || failed.error().status != Status::no_memory) return 7;
      if (!has(failed.error().sentence, "cgroup " + cgroup.path())) return 8;
      return has(failed.error().sentence, "of recycled memory first") ? 0 : 9;
    });
    CHECK(client.wait() == 0);
  });
}

TEST_CASE("law 5: a region without memory behind it is refused under vm.overcommit_memory=2") {
  on_each_engine([](BrokerFixture& broker) {
    const harness::TempDir folder;
    std::ofstream(folder.file("two")) << "2\n";
    // Only this child sees the file: the machine's own setting stays as it is.
    auto client = Child::run([&] {
      if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
          ::mount(folder.file("two").c_str(), "/proc/sys/vm/overcommit_memory", nullptr, MS_BIND, nullptr) != 0)
        return 77;
      if (!strict_overcommit()) return 1;
      auto session = must(try_open(broker.socket()));
      for (const std::uint32_t flag : {kCreateNoPopulate, kCreateUnmapped}) {
        CreateItem item = named("hollow", 1 << 20);
        item.flags = flag;
        auto failed = create_region(session, item);
        if (failed || failed.error().status != Status::unsupported) return 2;
        if (!has(failed.error().sentence, "vm.overcommit_memory") || !has(failed.error().sentence, "SIGBUS")) return 3;
      }
      if (!regions(session).empty()) return 4;
      auto populated = create_region(session, named("full", 1 << 20));
      return populated && (*populated)->facts().populated == (1 << 20) ? 0 : 5;
    });
    const int status = client.wait();
    if (status == 77) SKIP_CASE("a mount namespace needs CAP_SYS_ADMIN");
    CHECK(status == 0);
  });
}
