// SPDX-License-Identifier: Apache-2.0
// Regions and pools of the program's own as arguments and results of calls: with the rights that they have, whatever
// session they are of; and nobody's where nobody takes them.
#include <cstdlib>
#include <cstring>
#include <optional>

#include "client/face/shmbroker_pool.hpp"
#include "tests/spawn/remote_functions.hpp"

namespace remote_test {
namespace {

using shmbroker::ReadOnlyRegion;
using shmbroker::Region;
using shmbroker::Session;

// The program's own, beside the worker's; made in each process by itself.
std::string broker_socket;
const Session& own_session() {
  static Session* session = nullptr;
  if (session == nullptr) {
    shmbroker::ConnectOptions options;
    options.socket = broker_socket;
    session = new Session(Session::connect(options));
  }
  return *session;
}

void fill(const Region& region, int value) { std::memset(region.data(), value, region.size()); }
int first_byte(const ReadOnlyRegion& region) { return static_cast<int>(region.data()[0]); }
int passed_on(const Region& region, const std::string& to, int value) {
  remote::rpc_sync<void>(to, "fill", region, value);
  return static_cast<int>(region.data()[region.size() - 1]);
}
Region made(std::size_t size, int value) {
  Region region = own_session().create(size);
  fill(region, value);
  return region;
}
void dies_with(const Region&) { ::raise(SIGKILL); }
// The length, or none where the region is not mapped.
std::optional<std::size_t> length_of(const ReadOnlyRegion& region) {
  return region.mapped() ? std::optional(region.size()) : std::nullopt;
}
bool share(const Region& one, const ReadOnlyRegion& other) { return one.data() == other.data(); }
std::uint64_t id_of(const shmbroker::Pool& pool) { return pool.info().id; }
SHMBROKER_REMOTE_FUNCTION("fill", fill);
SHMBROKER_REMOTE_FUNCTION("first_byte", first_byte);
SHMBROKER_REMOTE_FUNCTION("passed_on", passed_on);
SHMBROKER_REMOTE_FUNCTION("made", made);
SHMBROKER_REMOTE_FUNCTION("dies_with", dies_with);
SHMBROKER_REMOTE_FUNCTION("length_of", length_of);
SHMBROKER_REMOTE_FUNCTION("share", share);
SHMBROKER_REMOTE_FUNCTION("id_of", id_of);

// The books know of this process alone, and of no ticket.
bool is_ours_alone(const Region& region) {
  for (int i = 0; i < 3000; ++i) {
    const auto stat = own_session().stat(region.id());
    if (stat.holders == 1 && stat.tickets == 0) return true;
    pause_ms(10);
  }
  return false;
}

void use_regions(const std::string& to) {
  const Region region = own_session().create(3'000'000);
  std::memset(region.data(), 1, region.size());
  remote::rpc_sync<void>(to, "fill", region, 7);
  EXPECT(region.data()[2'999'999] == std::byte{7});
  EXPECT(remote::rpc_sync<int>(to, "passed_on", region, "a", 9) == 9);  // what came goes on, and back
  EXPECT(region.data()[0] == std::byte{9});
  EXPECT(remote::rpc_sync<int>(to, "first_byte", region) == 9);
  EXPECT(is_ours_alone(region));

  Region back = remote::rpc_sync<Region>(to, "made", std::size_t{100'000}, 5);
  EXPECT(back.size() == 100'000);
  EXPECT(back.data()[99'999] == std::byte{5});
  remote::rpc_sync<void>(to, "fill", back, 6);
  EXPECT(back.data()[99'999] == std::byte{6});
  const auto value = remote::remote<Region>(to, "made", std::size_t{5000}, 3);
  if (to != "a") EXPECT(value.to_here().data()[4999] == std::byte{3});
  else EXPECT(value.local_value().data()[4999] == std::byte{3});
}

}  // namespace

TEST_CASE("A region of any session is an argument and a result, to another worker and to self") {
  World world;
  broker_socket = world.broker.socket();
  world.run(2, [](int rank) {
    if (rank != 0) return;
    use_regions("a");
    use_regions("b");
  });
}

TEST_CASE("A region of 0 bytes is an argument, a result and a reference like any other") {
  World world;
  broker_socket = world.broker.socket();
  world.run(2, [](int rank) {
    if (rank != 0) return;
    for (const char* to : {"a", "b"}) {
      const Region empty = own_session().create(0);
      EXPECT(remote::rpc_sync<std::optional<std::size_t>>(to, "length_of", empty) == std::size_t{0});
      const Region back = remote::rpc_sync<Region>(to, "made", std::size_t{0}, 5);
      EXPECT(back.mapped());
      EXPECT(back.size() == 0);
      EXPECT(remote::rpc_sync<std::optional<std::size_t>>(to, "length_of", back) == std::size_t{0});
      const auto value = remote::remote<Region>(to, "made", std::size_t{0}, 3);
      const auto is_empty = [](const Region& region) { return region.mapped() && region.size() == 0; };
      EXPECT(to == std::string("a") ? is_empty(value.local_value()) : is_empty(value.to_here()));
    }
  });
}

TEST_CASE("A region that is two arguments of a call to another worker is one mapping there") {
  World world;
  broker_socket = world.broker.socket();
  world.run(2, [](int rank) {
    if (rank != 0) return;
    const Region region = own_session().create(5000), other = own_session().create(5000);
    EXPECT(remote::rpc_sync<bool>("b", "share", region, region));
    EXPECT(!remote::rpc_sync<bool>("b", "share", region, other));
    EXPECT(is_ours_alone(region));
  });
}

TEST_CASE("A region that may be read only can be read where it comes, and not be taken to be written") {
  World world;
  broker_socket = world.broker.socket();
  world.run(2, [](int rank) {
    if (rank != 0) return;
    Region region = own_session().create(5000);
    std::memset(region.data(), 4, region.size());
    const ReadOnlyRegion published = std::move(region).publish();
    for (const char* to : {"a", "b"}) {
      EXPECT(remote::rpc_sync<int>(to, "first_byte", published) == 4);
      EXPECT(has(thrown([&] { remote::rpc_sync<void>(to, "fill", published, 1); }), "read-only"));
    }
    EXPECT(published.data()[0] == std::byte{4});
  });
}

TEST_CASE(
    "A region that no callee takes is released: without such a function, with wrong arguments, with a killed callee") {
  World world;
  broker_socket = world.broker.socket();
  const auto statuses = world.run_bare(2, [](int rank) {
    join(rank, 2);
    if (rank != 0) {
      (void)serve_until([] { return false; });
      return;
    }
    const Region region = own_session().create(3'000'000);
    EXPECT(!thrown([&] { remote::rpc_sync<void>("b", "unheard_of", region); }).empty());
    EXPECT(is_ours_alone(region));
    EXPECT(!thrown([&] { remote::rpc_sync<void>("b", "fill", region); }).empty());
    EXPECT(is_ours_alone(region));
    EXPECT(!thrown([&] { (void)remote::remote<int>("b", "fill", region).to_here(); }).empty());
    EXPECT(is_ours_alone(region));
    Status status = Status::ok;
    EXPECT(!thrown([&] { remote::rpc_sync<void>("b", "dies_with", region); }, &status).empty());
    EXPECT(status == Status::worker_gone);
    EXPECT(is_ours_alone(region));
    EXPECT(!thrown([&] { remote::rpc_sync<void>("b", "fill", region, 1); }, &status).empty());
    EXPECT(status == Status::worker_gone);
    EXPECT(is_ours_alone(region));
    remote::shutdown();
  });
  CHECK(statuses == std::vector<int>{0, 128 + SIGKILL});
}

TEST_CASE("Regions and pools find the broker of the world where only init has its socket") {
  World world;
  broker_socket = world.broker.socket();
  const auto statuses = world.run_bare(2, [](int rank) {
    ::setenv("SHMBROKER_SOCKET", "/nowhere/at/all", 1);
    remote::InitOptions options;
    options.address = kAddress;
    options.socket = broker_socket;
    remote::init(name_of(rank), rank, 2, options);
    if (rank == 0) {
      use_regions("b");
      shmbroker::PoolOptions wanted;
      wanted.classes = {{64, 4, 4}};
      const auto pool = shmbroker::Pool::create(own_session(), wanted);
      for (const char* to : {"a", "b"}) EXPECT(remote::rpc_sync<std::uint64_t>(to, "id_of", pool) == pool.info().id);
    }
    remote::shutdown();
  });
  CHECK(statuses == std::vector<int>{0, 0});
}

TEST_CASE("A region of another broker, or of none, is refused in words") {
  World world;
  broker_socket = world.broker.socket();
  world.run(2, [](int rank) {
    if (rank != 0) return;
    shmbroker::ConnectOptions options;
    options.local_only = true;
    const Session local = Session::connect(options);
    const Region region = local.create(100);
    Status status = Status::ok;
    EXPECT(has(thrown([&] { (void)remote::rpc_sync<int>("b", "first_byte", region); }, &status), "local"));
    EXPECT(status == Status::invalid);
  });
}

}  // namespace remote_test
