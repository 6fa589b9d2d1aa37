// SPDX-License-Identifier: Apache-2.0
// GPU memory over real sockets and processes, on both engines: many descriptors in one request only where they may
// come, and what the deaths of real processes do to regions.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "base/sys_gpu.hpp"
#include "base/sys_memory.hpp"
#include "base/sys_process.hpp"
#include "base/sys_socket.hpp"
#include "base/text.hpp"
#include "tests/harness/child.hpp"
#include "tests/harness/skip.hpp"
#include "tests/harness/temp_dir.hpp"
#include "tests/support/bystander.hpp"
#include "tests/support/gpu_files.hpp"
#include "tests/support/wire.hpp"
#include "tests/wire/stage.hpp"

namespace wire_test {
namespace {

struct ExportPairs {
  std::vector<support::GpuExport> chunks;
  explicit ExportPairs(std::size_t count) : chunks(count) {}
  std::vector<int> numbers() const {
    std::vector<int> out;
    for (const auto& chunk : chunks) out.insert(out.end(), {chunk.keeper.get(), chunk.share.get()});
    return out;
  }
};

// Of a process that lives on after its socket: only where the kernel cannot tell is the socket's end the end.
enum class Life { of_process, of_socket };

RawClient gpu_session(const BrokerFixture& broker, Life life = Life::of_process, bool name = true) {
  RawClient client = RawClient::connect(broker.socket());
  shmbw_hello hello = RawClient::greeting();
  if (life == Life::of_socket) hello.start_time = 0;
  hello.features = SHMBW_FEATURE_PASS_RIGHTS;
  REQUIRE(client.call(SHMBW_OP_HELLO, hello).ok());
  if (name) REQUIRE(name_gpu(client) == "");
  return client;
}

RawPacket publish_chunks(RawClient& client, std::uint32_t chunks, std::string_view name, std::uint32_t flags = 0) {
  const ExportPairs exports(chunks);
  shmbw_gpu_publish wish = gpu_publication(SHMBW_GPU_KIND_VMM);
  wish.bytes = std::uint64_t{chunks} << 21;
  if (chunks > 1) wish.chunk_bytes = 1 << 21;
  wish.chunks = chunks;
  wish.flags = flags;
  wish.name_len = static_cast<std::uint16_t>(name.size());
  const auto fds = exports.numbers();
  Packet packet = stating(batch(SHMBW_OP_GPU_PUBLISH, 97, std::vector{wish}, name), fds.size());
  const auto sent = shmb::sys::send(client.fd(), packet, {}, fds, true);
  REQUIRE_MESSAGE(sent, shmb::errno_text(sent ? 0 : sent.error().value));
  return client.reply(97);
}

template <class Body>
void on_gpu_brokers(Life life, Body&& body) {
  harness::TempDir gpus;
  make_gpu_files(gpus.path());
  BrokerOptions options;
  options.seam = "gpu=" + gpus.path();
  if (life == Life::of_socket) options.kernel = "6.1";
  on_each_engine(options, body);
}

shmbw_gpu_record gpu_row(RawClient& client) {
  shmbw_gpu_record out{};
  std::size_t rows = 0;
  CHECK(list_all<shmbw_gpu_record>(client, SHMBW_TABLE_GPU_REGIONS,
                                   [&](const shmbw_gpu_record& row) { out = row, ++rows; }));
  if (rows != 1) out = {};
  return out;
}

// Sessions that ask, do not read the answer, and send a request with as many descriptors as a message carries. When
// `end` opens, they read. Ends with the number of those whose second request was answered.
harness::Child sends_ahead(const BrokerFixture& broker, int sessions, const harness::Gate& sent,
                           const harness::Gate& end) {
  return harness::Child::run_as(60'001, 60'001, [&, sessions] {
    constexpr std::uint32_t kChunks = 126;
    const shmb::Fd file = std::move(shmb::sys::memfd_create("any", false).value());
    const std::vector<int> fds(2 * kChunks, file.get());
    shmbw_gpu_chunks wish{};
    wish.count = kChunks;
    std::vector<RawClient> clients;
    for (int i = 0; i < sessions; ++i) {
      RawClient& client = clients.emplace_back(RawClient::connect(broker.socket()));
      shmbw_hello hello = RawClient::greeting();
      hello.features = SHMBW_FEATURE_PASS_RIGHTS;
      shmbw_gpu_device device{};
      std::ranges::copy(kGpuUuid, device.uuid);
      device.pci_len = sizeof support::kGpuBus - 1;
      if (!client.call(SHMBW_OP_HELLO, hello).ok() || !client.call(SHMBW_OP_GPU_DEVICE, device, support::kGpuBus).ok())
        return 101;
    }
    for (RawClient& client : clients) {
      if (!client.send(plain(SHMBW_OP_STATUS, 1, shmbw_status{}))) return 102;
      const Packet packet = stating(plain(SHMBW_OP_GPU_CHUNKS, 2, wish), fds.size());
      for (;;) {  // as fast as the broker takes them: until then the kernel counts them as this user's
        auto went = shmb::sys::send(client.fd(), packet, {}, fds, true);
        if (went || went.error().value != ETOOMANYREFS) break;
        ::usleep(1000);
      }
    }
    sent.open();
    if (!end.wait()) return 103;
    int answered = 0;
    for (RawClient& client : clients) {
      if (!client.reply(1).ok()) continue;
      answered += client.reply(2).kind == RawPacket::Kind::packet;
    }
    return answered;
  });
}

}  // namespace

TEST_CASE("a request with 252 descriptors comes in, and so many come back") {
  on_gpu_brokers(Life::of_socket, [](BrokerFixture& broker) {
    RawClient client = gpu_session(broker, Life::of_socket);
    RawPacket made = publish_chunks(client, 126, "big");
    REQUIRE_MESSAGE(made.ok(), made.sentence());
    REQUIRE_MESSAGE(made.element<shmbw_outcome>(0).status == 0, error_of_element(made).sentence);
    shmbw_gpu_open open{};
    open.by = SHMBW_ATTACH_BY_ID;
    open.rights = kRead;
    open.region = made.element<shmbw_gpu_publish_reply>(0).region;
    RawPacket opened = client.call_batch(SHMBW_OP_GPU_OPEN, one(open));
    REQUIRE(opened.ok());
    CHECK(opened.fds.size() == 126);
    CHECK(opened.element<shmbw_gpu_open_reply>(0).sent == 126);
  });
}

TEST_CASE("a session that has named no GPU and sends many descriptors is dropped") {
  on_gpu_brokers(Life::of_socket, [](BrokerFixture& broker) {
    RawClient client = gpu_session(broker, Life::of_socket, false);
    const ExportPairs exports(1);
    const auto fds = exports.numbers();
    Packet packet =
        stating(batch(SHMBW_OP_GPU_PUBLISH, 97, std::vector{gpu_publication(SHMBW_GPU_KIND_VMM)}), fds.size());
    (void)client.send(packet, fds);
    CHECK(hung_up(client));
    RawClient other = gpu_session(broker, Life::of_socket);
    CHECK(publish_chunks(other, 1, "fine").ok());
  });
}

TEST_CASE("refused publications leave no descriptor in the broker, however many came") {
  on_gpu_brokers(Life::of_socket, [](BrokerFixture& broker) {
    RawClient client = gpu_session(broker, Life::of_socket);
    CHECK(publish_chunks(client, 1, "taken").ok());
    const auto descriptors = [&] { return client.status().fixed<shmbw_status_reply>().descriptors; };
    const std::uint32_t before = descriptors();
    // More than may wait for their close at once: then their sender is not read, and nobody loses a session by it.
    for (int round = 0; round < 60; ++round) {
      RawPacket refused = publish_chunks(client, 126, "taken");
      REQUIRE(refused.ok());
      CHECK(refused.element<shmbw_outcome>(0).status == static_cast<std::int32_t>(shmb::Status::exists));
    }
    CHECK(eventually([&] { return descriptors() == before; }));
    CHECK(eventually([&] { return broker.descriptors() < 60; }));
  });
}

TEST_CASE("a killed writer poisons, a killed reader gives back, and the memory outlives both") {
  on_gpu_brokers(Life::of_process, [](BrokerFixture& broker) {
    RawClient keeper = gpu_session(broker);
    shmbw_group_create group{};
    group.name_len = 3;
    REQUIRE(keeper.call(SHMBW_OP_GROUP_CREATE, group, "job").ok());
    shmbw_group_join join{};
    join.name_len = 3;
    REQUIRE(keeper.call(SHMBW_OP_GROUP_JOIN, join, "job").ok());
    harness::Gate published, never;
    harness::Child writer = harness::Child::run([&] {
      RawClient own = gpu_session(broker);
      if (!own.call(SHMBW_OP_GROUP_JOIN, join, "job").ok()) return 1;
      if (!publish_chunks(own, 2, "kv", SHMBW_GPU_PUBLISH_WRITING).ok()) return 2;
      published.open();
      never.wait(60'000);
      return 3;
    });
    REQUIRE(published.wait());
    const shmbw_gpu_record before = gpu_row(keeper);
    CHECK(before.state == SHMBW_GPU_STATE_OK);
    CHECK(before.exporter == 1);
    writer.kill();
    CHECK(eventually([&] { return gpu_row(keeper).state == SHMBW_GPU_STATE_POISONED; }));
    CHECK(writer.wait() == 128 + SIGKILL);
    CHECK(eventually([&] { return gpu_row(keeper).leaving == 0; }));
    CHECK(gpu_row(keeper).exporter == 0);
    harness::Gate opened;
    harness::Child reader = harness::Child::run([&] {
      RawClient own = gpu_session(broker);
      shmbw_gpu_open open{};
      open.by = SHMBW_ATTACH_BY_ID;
      open.rights = kRead;
      open.region = before.region;
      RawPacket reply = own.call_batch(SHMBW_OP_GPU_OPEN, one(open));
      if (!reply.ok() || reply.fds.size() != 2) return 1;
      opened.open();
      never.wait(60'000);
      return 3;
    });
    REQUIRE(opened.wait());
    CHECK(gpu_row(keeper).importers == 1);
    reader.kill();
    CHECK(eventually([&] { return gpu_row(keeper).importers == 0; }));
    CHECK(reader.wait() == 128 + SIGKILL);
    CHECK(gpu_row(keeper).bytes == 2 << 21);
  });
}

TEST_CASE("a process that closes its socket and lives on keeps what it may still map") {
  on_gpu_brokers(Life::of_process, [](BrokerFixture& broker) {
    RawClient keeper = gpu_session(broker);
    harness::Gate closed, never;
    harness::Child child = harness::Child::run([&] {
      RawClient own = gpu_session(broker);
      if (!publish_chunks(own, 1, "").ok()) return 1;
      own.close();
      closed.open();
      never.wait(60'000);
      return 3;
    });
    REQUIRE(closed.wait());
    CHECK(eventually([&] { return gpu_row(keeper).state == SHMBW_GPU_STATE_DETACHED; }));
    CHECK(gpu_row(keeper).leaving == 1);
    CHECK(gpu_row(keeper).bytes == 1 << 21);
    child.kill();
    CHECK(eventually([&] { return gpu_row(keeper).region.id == 0; }));
    CHECK(child.wait() == 128 + SIGKILL);
  });
}

TEST_CASE("descriptors that wait with their requests count for their sender, and leave others theirs") {
  if (!harness::can_change_uid()) SKIP_CASE("needs root");
  harness::TempDir gpus;
  make_gpu_files(gpus.path());
  ::chmod(gpus.path().c_str(), 0755);
  BrokerOptions options;
  options.system = true;
  options.seam = "gpu=" + gpus.path();
  options.config = "descriptors = 1024\n";
  on_each_engine(options, [](BrokerFixture& broker) {
    Bystander bystander(broker.socket(), 60'002);
    RawClient admin = greeted(broker.admin());
    const auto descriptors = [&] { return admin.status().fixed<shmbw_status_reply>().descriptors; };
    // One fits into the user's share. All together fit into the table, because those that are refused are closed later.
    harness::Gate sent, end;
    harness::Child ahead = sends_ahead(broker, 3, sent, end);
    REQUIRE_MESSAGE(sent.wait(60'000), ahead.wait());
    const auto refused = [&] {
      int found = 0;
      const std::string log = broker.log();
      for (std::size_t at = log.find("before it had read"); at != log.npos; at = log.find("before it had read", at + 1))
        ++found;
      return found;
    };
    for (int waited = 0; waited < 3000 && refused() < 2; ++waited) ::usleep(10'000);
    CHECK(refused() == 2);
    CHECK(descriptors() >= 252);
    for (int i = 0; i < 3 && bystander.goes_on(); ++i) continue;
    CHECK(bystander.wrong() == "");
    end.open();
    CHECK(ahead.wait() == 1);
    // Their descriptors count no longer.
    for (int waited = 0; waited < 3000 && descriptors() >= 252; ++waited) ::usleep(10'000);
    CHECK(descriptors() < 252);
  });
}

}  // namespace wire_test
