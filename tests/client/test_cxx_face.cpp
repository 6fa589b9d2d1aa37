// SPDX-License-Identifier: Apache-2.0
// The C++ face: ownership in types, both forms of every call.
#include <unistd.h>

#include <atomic>
#include <type_traits>
#include <unordered_set>

#include "client/face/shmbroker.hpp"
#include "tests/support/face.hpp"
#include "tests/support/session.hpp"

// Its own: other tests of this program mean the library's inside by these names.
namespace cxx_face {

using shmbroker::Rights;
using shmbroker::Status;

static_assert(!std::is_copy_constructible_v<shmbroker::Region> &&
              std::is_nothrow_move_constructible_v<shmbroker::Region>);
static_assert(!std::is_copy_constructible_v<shmbroker::Session>);
static_assert(!std::is_convertible_v<shmbroker::GroupId, shmbroker::WatchId>);
static_assert(std::is_same_v<decltype(std::declval<shmbroker::ReadOnlyRegion&>().bytes()), std::span<const std::byte>>);
template <class R>
concept PublishesInPlace = requires(R region) { region.try_publish(); };
static_assert(!PublishesInPlace<shmbroker::Region&>, "publishing consumes");

TEST_CASE("a region is written, published and read through the C++ face") {
  const harness::BrokerFixture broker;
  auto session = support::connect(broker.socket());
  shmbroker::CreateOptions options;
  options.name = "kv";
  auto region = session.create(4096 * 3, options);
  auto numbers = region.as_span<std::uint64_t>();
  CHECK(numbers.size() == 1536);
  numbers[7] = 42;
  const auto id = region.id();
  {
    auto writer = session.attach_writable("kv");
    CHECK(writer.as_span<std::uint64_t>()[7] == 42);
    CHECK(writer.id() == id);
    auto refused = std::move(region).try_publish();
    REQUIRE_FALSE(refused.has_value());
    CHECK(refused.error().status() == Status::still_mapped);
    CHECK(region.as_span<std::uint64_t>()[7] == 42);  // as it was
  }
  auto published = std::move(region).publish();
  CHECK(published.as_span<std::uint64_t>()[7] == 42);
  auto ticket = published.ticket();
  CHECK(shmbroker::Token::parse(ticket.text()) == ticket);
  auto other = support::connect(broker.socket());
  auto reader = other.attach(ticket);
  CHECK(reader.as_span<std::uint64_t>()[7] == 42);
  CHECK(reader.size() == 4096 * 3);
  CHECK_THROWS_AS(other.attach(ticket), shmbroker::Error);
  CHECK(session.stat("kv").holders == 2);
  CHECK(session.stat(id).length == 4096 * 3);
  std::unordered_set<shmbroker::RegionId> ids{id, reader.id()};
  CHECK(ids.size() == 1);
  published.release(true);
}

TEST_CASE("errors are values or exceptions, with the same words") {
  const harness::BrokerFixture broker;
  auto session = support::connect(broker.socket());
  auto absent = session.try_attach("absent");
  REQUIRE_FALSE(absent);
  CHECK(absent.error().status() == Status::not_found);
  try {
    auto never = session.attach("absent");
    FAIL("found what is not there");
  } catch (const shmbroker::Error& error) {
    CHECK(std::string(error.what()) == absent.error().what());
  }
  auto lost = shmbroker::Session::try_connect({.socket = broker.socket() + "x"});
  REQUIRE_FALSE(lost);
  CHECK(lost.error().status() == Status::no_broker);
}

TEST_CASE("the longest durations are long, and a negative keep is none that lasts for ever") {
  using namespace std::chrono;
  constexpr std::int64_t year = 365LL * 86400 * 1'000'000'000;
  CHECK(shmbroker::Timeout(hours::max()).nanoseconds() > 99 * year);
  CHECK(shmbroker::Timeout(seconds::max()).nanoseconds() > 99 * year);
  CHECK(shmbroker::Timeout(nanoseconds::max()).nanoseconds() > 99 * year);
  CHECK(shmbroker::Timeout(duration<double>(1e300)).nanoseconds() > 99 * year);
  CHECK(shmbroker::Timeout(hours::min()) == shmbroker::Timeout::no_wait());
  CHECK(shmbroker::Timeout(duration<double>(0.25)).nanoseconds() == 250'000'000);
  CHECK(shmbroker::Timeout(nanoseconds(7)).nanoseconds() == 7);
  const harness::BrokerFixture broker;
  auto session = support::connect(broker.socket());
  CHECK(session.try_ping(hours::max()));
  for (const nanoseconds keep : {nanoseconds(-1), nanoseconds::min(), duration_cast<nanoseconds>(seconds(-5))}) {
    shmbroker::CreateOptions options;
    options.keep = shmbroker::Keep(keep);
    auto refused = session.try_create(4096, options);
    REQUIRE_FALSE(refused);
    CHECK(refused.error().status() == Status::invalid);
  }
}

TEST_CASE("a result gives its value without a move, and text that is no token is refused") {
  auto good = shmbroker::Token::try_parse("00112233445566778899aabbccddeeff");
  REQUIRE(good);
  CHECK(good.value() == *good);
  auto bad = shmbroker::Token::try_parse("00112233445566778899AABBCCDDEEFF");
  REQUIRE_FALSE(bad);
  CHECK(bad.error().status() == Status::invalid);
  CHECK(std::string(bad.error().what()).find("32 lower-case hex digits") != std::string::npos);
  CHECK_THROWS_AS(bad.value(), shmbroker::Error);
}

TEST_CASE("many at once: each has its own result, or all or none") {
  const harness::BrokerFixture broker;
  auto session = support::connect(broker.socket());
  const std::array<std::uint64_t, 4> lengths{100, UINT64_MAX, 5000, UINT64_MAX};
  auto results = session.try_create_many(lengths);
  REQUIRE(results.has_value());
  CHECK((*results)[0].has_value());
  CHECK((*results)[1].error().status() == Status::invalid);
  CHECK((*results)[2]->size() == 5000);
  CHECK((*results)[3].error().status() == Status::invalid);
  CHECK_THROWS_AS((void)session.create_many(lengths), shmbroker::Error);
  const std::array<std::uint64_t, 2> fine{0, 2};
  CHECK(session.create_many(fine).size() == 2);
}

TEST_CASE("groups, parts, events and deadlines through the C++ face") {
  const harness::BrokerFixture broker;
  auto session = support::connect(broker.socket()), member = support::connect(broker.socket());
  auto group = session.create_group({.name = "job"});
  CHECK(session.join("job") == group.id);
  CHECK(member.join(group.token) == group.id);
  CHECK(group.variable("job").size() == 3 + 1 + 32);
  auto watch = session.watch_name("late");
  CHECK(session.try_next_event(shmbroker::Timeout::no_wait()).error().status() == Status::deadline);
  shmbroker::CreateOptions options;
  options.name = "late";
  options.keep = shmbroker::Keep::none();
  auto region = member.create(1 << 20, options);
  auto event = session.next_event();
  CHECK(event.kind == shmbroker::EventKind::name_appeared);
  CHECK(event.watch == watch.id);
  CHECK(event.region == region.id());
  session.unwatch(watch.id);
  {
    auto part = region.map(4096, 4096, true);
    part.writable_bytes()[0] = std::byte{1};
    CHECK(region.bytes()[4096] == std::byte{1});
    auto moved = std::move(part);
    CHECK(moved.bytes().size() == 4096);
  }
  CHECK(session.try_wait_group({}, std::chrono::milliseconds(5)).error().status() == Status::deadline);
  region.release(true);
  shmbroker::AttachOptions wait;
  wait.wait = std::chrono::milliseconds(5);
  CHECK(session.try_attach("late", wait).error().status() == Status::deadline);
}

TEST_CASE("a local session has the same face") {
  auto session = shmbroker::Session::connect({.local_only = true});
  CHECK(session.local());
  auto region = session.create(100);
  region.bytes()[99] = std::byte{5};
  const int fd = region.descriptor();
  auto reader = session.adopt_read_only(fd);
  ::close(fd);
  CHECK(reader.bytes()[99] == std::byte{5});
}

}  // namespace cxx_face
