// SPDX-License-Identifier: Apache-2.0
// Sharing strategies: what a handle keeps, what that is good for, and who inherits the choice.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "client/face/shmbroker.hpp"
#include "client/session/strategy.hpp"
#include "tests/harness/child.hpp"
#include "tests/harness/injected.hpp"
#include "tests/harness/snapshot.hpp"
#include "tests/support/session.hpp"

namespace strategies {

using namespace support;
using shmb::Status;

// The process is as it was afterwards.
struct Chosen {
  explicit Chosen(const char* name) { must(shmb::client::set_strategy(name)); }
  Chosen(const Chosen&) = delete;
  Chosen& operator=(const Chosen&) = delete;
  ~Chosen() { shmb::client::read_strategy_again(); }
};
struct Variable {
  explicit Variable(const char* value) {
    ::setenv(shmb::client::kStrategyVariable, value, 1);
    shmb::client::read_strategy_again();
  }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;
  ~Variable() {
    ::unsetenv(shmb::client::kStrategyVariable);
    shmb::client::read_strategy_again();
  }
};

std::size_t descriptors() { return harness::take_snapshot().descriptors.size(); }

TEST_CASE("the strategies have torch's names, and an unknown one is refused with a list of them") {
  CHECK(shmbroker::sharing_strategies() == std::vector<std::string>{"file_descriptor", "file_system"});
  CHECK(shmbroker::sharing_strategy() == "file_system");
  {
    const Chosen chosen("file_descriptor");
    CHECK(shmbroker::sharing_strategy() == "file_descriptor");
    auto refused = shmbroker::try_set_sharing_strategy("fd");
    REQUIRE_FALSE(refused);
    CHECK(refused.error().status() == shmbroker::Status::invalid);
    const std::string sentence = refused.error().what();
    for (const char* part : {"strategy 'fd'", "file_descriptor", "file_system"})
      CHECK(sentence.find(part) != sentence.npos);
    CHECK(shmbroker::sharing_strategy() == "file_descriptor");  // as it was
  }
  CHECK(shmb_set_sharing_strategy(nullptr, nullptr) == SHMB_E_INVALID);
  CHECK(shmb_sharing_strategy(nullptr, nullptr) == SHMB_E_INVALID);
}

TEST_CASE("a process begins with the strategy of its environment, and connect refuses an unknown one") {
  const harness::BrokerFixture broker;
  {
    const Variable variable("file_descriptor");
    CHECK(shmbroker::sharing_strategy() == "file_descriptor");
    CHECK(shmb::client::strategy_for_children() == std::nullopt);  // they have the variable
  }
  {
    const Variable variable("files");
    auto refused = try_open(broker.socket());
    REQUIRE_FALSE(refused);
    CHECK(refused.error().status == Status::invalid);
    CHECK(refused.error().sentence.find("SHMBROKER_SHARING_STRATEGY") != std::string::npos);
    CHECK_FALSE(shmbroker::Session::try_connect({.local_only = true}));
    CHECK_FALSE(shmbroker::try_sharing_strategy());
    must(shmb::client::set_strategy("file_system"));  // a call counts more than the variable
    CHECK(try_open(broker.socket()));
    CHECK(shmb::client::strategy_for_children() == "file_system");
  }
}

TEST_CASE("file_descriptor keeps one descriptor for each mapped handle and gives it back with the handle") {
  const harness::BrokerFixture broker;
  auto session = open(broker);
  for (const bool keeps : {false, true}) {
    const Chosen chosen(keeps ? "file_descriptor" : "file_system");
    const std::size_t before = descriptors();
    auto region = must(create_region(session, named("kept", 8192)));
    auto again = must(attach_region(session, at("kept", kReadWrite)));
    shmb::client::AttachItem unmapped = at("kept", kReadWrite);
    unmapped.flags = shmb::client::kAttachUnmapped;
    auto bare = must(attach_region(session, unmapped));
    CHECK(region->keeps_descriptor() == keeps);
    CHECK(again->keeps_descriptor() == keeps);
    CHECK_FALSE(bare->keeps_descriptor());
    CHECK(descriptors() == before + (keeps ? 2U : 0U));
    must(bare->release(0));
    must(again->release(0));
    must(region->publish(Deadline::after(0)));
    CHECK(descriptors() == before + (keeps ? 1U : 0U));
    must(region->unmap_part(must(region->map_part(4096, 4096, shmb::Access::read, Deadline::after(0))), 4096));
    must(region->release(shmb::client::kReleaseUnname));
    CHECK(descriptors() == before);
  }
}

TEST_CASE("a kept descriptor serves when the broker is gone; without one the answer is session_lost") {
  for (const bool keeps : {false, true}) {
    harness::BrokerFixture broker;
    const Chosen chosen(keeps ? "file_descriptor" : "file_system");
    auto session = open(broker);
    auto region = must(create_region(session, named("", 8192)));
    region->data()[4096] = std::byte{7};
    broker.kill();
    REQUIRE_FALSE(session->ping(Deadline::after(0)));
    auto part = region->map_part(4096, 4096, shmb::Access::read_write, Deadline::after(0));
    auto descriptor = region->descriptor(Deadline::after(0));
    if (keeps) {
      REQUIRE(part);
      CHECK(*static_cast<std::byte*>(*part) == std::byte{7});
      must(region->unmap_part(*part, 4096));
      CHECK(descriptor);
    } else {
      CHECK(status_of(part) == Status::session_lost);
      CHECK(status_of(descriptor) == Status::session_lost);
    }
    CHECK(region->data()[4096] == std::byte{7});
  }
}

TEST_CASE("a kept descriptor of which the process can make no copy is an error, and stays kept") {
  const harness::BrokerFixture broker;
  const Chosen chosen("file_descriptor");
  auto session = open(broker);
  auto region = must(create_region(session, named("", 8192)));
  {
    const harness::Injected failure(shmb::fault::Call::dup, EMFILE);
    const auto part = region->map_part(4096, 4096, shmb::Access::read, Deadline::after(0));
    REQUIRE_FALSE(part);
    CHECK(part.error().sentence.find("a copy of the kept descriptor") != std::string::npos);
  }
  CHECK(region->keeps_descriptor());
  must(region->unmap_part(must(region->map_part(4096, 4096, shmb::Access::read, Deadline::after(0))), 4096));
}

TEST_CASE("reading closes writing for a handle that keeps its descriptor, too") {
  const harness::BrokerFixture broker;
  const Chosen chosen("file_descriptor");
  auto session = open(broker);
  auto writer = must(create_region(session, named("closed", 8192)));
  auto reader = must(attach_region(session, at("closed")));
  CHECK(reader->keeps_descriptor());
  CHECK(status_of(writer->map_part(0, 4096, shmb::Access::read_write, Deadline::after(0))) == Status::write_closed);
  must(writer->unmap_part(must(writer->map_part(0, 4096, shmb::Access::read, Deadline::after(0))), 4096));
  auto theirs = must(reader->descriptor(Deadline::after(0)));
  CHECK((::fcntl(theirs.get(), F_GETFL) & O_ACCMODE) == O_RDONLY);
  CHECK(status_of(reader->map_part(0, 4096, shmb::Access::read_write, Deadline::after(0))) == Status::denied);
  must(writer->release(shmb::client::kReleaseUnname));
}

TEST_CASE("at most half of the limit of open files is kept; handles beyond it do without and say so") {
  const harness::BrokerFixture broker;
  auto child = harness::Child::run([&] {
    const rlimit few{64, 64};
    if (::setrlimit(RLIMIT_NOFILE, &few) != 0) return 1;
    if (!shmb::client::set_strategy("file_descriptor")) return 2;
    auto session = try_open(broker.socket());
    if (!session) return 3;
    std::vector<shmb::client::Region::Handle> handles;
    int kept = 0;
    for (int i = 0; i < 100; ++i) {
      auto made = create_region(*session, named("", 4096));
      if (!made) return 4;
      kept += (*made)->keeps_descriptor();
      handles.push_back(std::move(*made));
    }
    if (kept != 32) return 5;
    handles.clear();
    auto after = create_region(*session, named("", 4096));
    return after && (*after)->keeps_descriptor() ? 0 : 6;
  });
  CHECK(child.wait() == 0);
}

TEST_CASE("a forked child has its parent's strategy and uses the descriptors that it inherits") {
  const harness::BrokerFixture broker;
  const Chosen chosen("file_descriptor");
  auto session = open(broker);
  auto region = must(create_region(session, named("", 8192)));
  auto child = harness::Child::run([&] {
    if (shmbroker::sharing_strategy() != "file_descriptor") return 1;
    auto part = region->map_part(0, 4096, shmb::Access::read_write, Deadline::after(0));
    if (!part) return 2;
    *static_cast<std::byte*>(*part) = std::byte{9};
    auto own = create_region(session, named("", 4096));
    return own && (*own)->keeps_descriptor() ? 0 : 3;
  });
  CHECK(child.wait() == 0);
  CHECK(region->data()[0] == std::byte{9});
}

TEST_CASE("a local session keeps its descriptors under either strategy") {
  for (const char* name : {"file_descriptor", "file_system"}) {
    const Chosen chosen(name);
    auto session = shmbroker::Session::connect({.local_only = true});
    CHECK(session.create(4096).info().descriptor_kept == 1);
  }
}

}  // namespace strategies
