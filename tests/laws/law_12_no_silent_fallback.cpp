// SPDX-License-Identifier: Apache-2.0
// Law 12: no silent fallback. Which path is in use, and why, is in STATUS, in the session's facts or in the region's.
//
// To see it fail: in daemon/main.cpp, serve, take away
//   facts.losses.insert(facts.losses.end(), kernel().losses.begin(), kernel().losses.end());
// or in client/region/populate.cpp, populate_fresh, say SHMBW_PAGE_KIND_HUGE whatever collapse() returned.
#include <cerrno>
#include <map>

#include "base/kernel.hpp"
#include "tests/harness/injected.hpp"
#include "tests/harness/temp_dir.hpp"
#include "tests/laws/law.hpp"

using namespace laws;

namespace {

BrokerStatus status_of(const BrokerFixture& broker) { return must(broker_status(*open(broker), soon())); }

// Calls of madvise before the first MADV_COLLAPSE of 4 MiB: a seed in each 2 MiB, or the hint and the filling.
constexpr int kCallsBeforeCollapse = 3;

constexpr std::uint64_t kFourMiB = 4 << 20;

std::uint32_t listed_kind(const std::shared_ptr<Session>& session, const Region& region) {
  for (const auto& row : regions(session))
    if (row.record.region.id == region.ref().id) return row.record.page_kind;
  return UINT32_MAX;
}

}  // namespace

TEST_CASE("law 12: STATUS names each feature that an older kernel lacks, in one sentence") {
  const std::map<std::string, std::vector<std::string>> lost = {
      {"5.15", {"MFD_NOEXEC_SEAL", "SO_PEERPIDFD", "SO_PASSRIGHTS", "PIDFD_INFO_EXIT", "MADV_COLLAPSE"}},
      {"6.1", {"MFD_NOEXEC_SEAL", "SO_PEERPIDFD", "SO_PASSRIGHTS", "PIDFD_INFO_EXIT"}},
      {"6.18", {}},
  };
  const KernelFeatures& real = kernel();
  for (BrokerOptions options : harness::engines_and_kernels()) {
    if (options.kernel.empty()) continue;
    CAPTURE(harness::name_of(options));
    BrokerFixture broker(options);
    REQUIRE_MESSAGE(broker.running(), broker.log());
    const BrokerStatus status = status_of(broker);
    CHECK(has(status.kernel, "pretending " + options.kernel));
    for (const auto& feature : lost.at(options.kernel)) {
      CAPTURE(feature);
      CHECK(has(status.losses, feature));
    }
    for (const char* feature : {"MFD_NOEXEC_SEAL", "SO_PEERPIDFD", "SO_PASSRIGHTS", "PIDFD_INFO_EXIT", "MADV_COLLAPSE"})
      if (options.kernel == "6.18")
        CHECK(has(status.losses, feature) == [&] {
          std::string all;
          for (const auto& loss : real.losses) all += loss;
          return has(all, feature);
        }());
    const std::uint64_t features = status.record.features;
    CHECK(((features & SHMBW_FEATURE_PEER_PIDFD) == 0) == has(status.losses, "SO_PEERPIDFD"));
    CHECK(((features & SHMBW_FEATURE_EXEC_SEAL) == 0) == has(status.losses, "MFD_NOEXEC_SEAL"));
    CHECK(((features & SHMBW_FEATURE_EXIT_INFO) == 0) == has(status.losses, "PIDFD_INFO_EXIT"));
    CHECK(has(status.losses, "private mode"));  // itself a loss
  }
}

TEST_CASE("law 12: the broker reports its engine with the reason, and an absent engine that is asked for is an error") {
  for (const std::string& engine : harness::engines()) {
    BrokerOptions options;
    options.engine = engine;
    BrokerFixture broker(options);
    REQUIRE(broker.running());
    const BrokerStatus status = status_of(broker);
    CHECK(status.record.engine == (engine == "epoll" ? SHMBW_ENGINE_EPOLL : SHMBW_ENGINE_IO_URING));
    CHECK(has(status.engine, engine));
    CHECK(((status.record.features & SHMBW_FEATURE_IO_URING) != 0) == (engine == "io_uring"));
  }
  BrokerOptions denied;
  denied.seam = "fail=io_uring_setup:EPERM:1:-1";
  BrokerFixture fallen_back(denied);
  REQUIRE(fallen_back.running());
  const BrokerStatus status = status_of(fallen_back);
  MESSAGE(status.engine);
  CHECK(status.record.engine == SHMBW_ENGINE_EPOLL);
  CHECK(has(status.engine + status.losses, "io_uring"));
  CHECK(has(fallen_back.log(), status.engine));
  denied.engine = "io_uring";
  denied.expect_exit_0 = false;
  BrokerFixture refused(denied);
  CHECK_FALSE(refused.running());
  CHECK(has(refused.log(), "io_uring"));
}

TEST_CASE("law 12: a session without a broker says that it is local and why, and refuses what it cannot do") {
  const harness::TempDir folder;
  Places places;
  places.system_socket = folder.file("none");
  places.runtime_dir_variable = folder.path();
  places.daemon_variable = folder.file("no-daemon");
  places.uid = ::geteuid();
  ConnectOptions options;
  options.no_group = true;
  auto none = shmb::client::connect(options, places);
  REQUIRE_FALSE(none.has_value());
  CHECK(none.error().status == Status::no_broker);
  CHECK(has(none.error().sentence, folder.file("none")));
  CHECK(has(none.error().sentence, "no-daemon"));
  options.local_ok = true;
  auto local = must(shmb::client::connect(options, places));
  CHECK(local->facts().mode == SHMBW_MODE_LOCAL);
  CHECK(local->facts().epoch == 0);
  MESSAGE(local->facts().how);
  CHECK(has(local->facts().how, "local"));
  CHECK(has(local->facts().how, "no-daemon"));
  auto region = must(create_region(local, named("", 4096)));
  CHECK(support::status_of(region->make_ticket(SHMBW_RIGHT_MAP_READ, 1, 0, soon())) == Status::local_only);
  CHECK(support::status_of(attach_region(local, at("kv"))) == Status::local_only);
}

TEST_CASE("law 12: how a broker was found, and what was passed over, is a sentence") {
  on_each_engine([](BrokerFixture& broker) {
    auto session = open(broker);
    CHECK(has(session->facts().how, "given by the program"));
    CHECK(session->facts().socket == broker.socket());
    CHECK(session->facts().mode == SHMBW_MODE_PRIVATE);
    CHECK_FALSE(session->facts().started_by_us);
  });
}

TEST_CASE("law 12: region and broker report the kind of pages, also where huge ones were not available") {
  on_each_engine([](BrokerFixture& broker) {
    auto session = open(broker);
    const auto make = [&](std::uint32_t flags = 0, std::uint64_t length = kFourMiB) {
      CreateItem item = named("", length);
      item.flags = flags | SHMBW_CREATE_NO_RECYCLE;
      return must(create_region(session, item));
    };
    {
      auto region = make(kCreateSmallPages);
      CHECK(region->facts().page_kind == SHMBW_PAGE_KIND_SMALL);
      CHECK(listed_kind(session, *region) == SHMBW_PAGE_KIND_SMALL);
    }
    {
      auto region = make(0, 8192);
      CHECK(region->facts().page_kind == SHMBW_PAGE_KIND_SMALL);
    }
    {
      auto region = make(kCreateNoPopulate);
      CHECK(region->facts().page_kind == SHMBW_PAGE_KIND_UNPOPULATED);
      CHECK(region->facts().populated == 0);
      CHECK(listed_kind(session, *region) == SHMBW_PAGE_KIND_UNPOPULATED);
    }
    if (!kernel().collapse || !kernel().populate) SKIP_CASE("this kernel has no MADV_COLLAPSE for shared memory");
    {
      // Two pages are seeded, then the collapse fails in each of its attempts.
      const harness::Injected fault(fault::Call::madvise, EINVAL, kCallsBeforeCollapse, 2);
      auto region = make();
      CHECK(region->facts().page_kind == SHMBW_PAGE_KIND_SMALL);
      CHECK(region->facts().populated == kFourMiB);
      CHECK(listed_kind(session, *region) == SHMBW_PAGE_KIND_SMALL);
    }
    {
      const harness::PretendedKernel old(5, 15);
      auto region = make();
      CHECK(region->facts().page_kind == SHMBW_PAGE_KIND_SMALL);
    }
    auto region = make();
    CHECK(listed_kind(session, *region) == region->facts().page_kind);
    CHECK((region->facts().page_kind == SHMBW_PAGE_KIND_HUGE || region->facts().page_kind == SHMBW_PAGE_KIND_MIXED));
  });
}
