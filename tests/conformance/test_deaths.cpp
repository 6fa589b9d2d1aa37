// SPDX-License-Identifier: Apache-2.0
// Scenarios 18 to 23: tensors of processes that end, are killed, or lose the service. Each with both strategies, and
// all ways to start.
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>

#include "base/fd.hpp"
#include "tests/conformance/world.hpp"
#include "tests/harness/child.hpp"
#include "tests/harness/snapshot.hpp"
#include "tests/harness/temp_dir.hpp"

using namespace conformance;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t kMebibyte = 1 << 20;
Tensor mebibyte(double value) {
  Tensor made = Tensor::zeros(Type::float64, {kMebibyte / 8});
  made.fill(value);
  return made;
}

// SIGKILL to the one rank, and its end told.
void kill_peer(shmbroker::ProcessContext& peer) {
  ::kill(peer.pids().at(0), SIGKILL);
  CHECK_THROWS_WITH_AS(peer.join(100s), "rank 0 terminated with signal SIGKILL", shmbroker::ProcessExitedException);
}

std::size_t descriptors_of_regions() {
  std::size_t count = 0;
  for (const std::string& one : harness::take_snapshot().descriptors) count += one.find("shmb:") != one.npos;
  return count;
}

}  // namespace

TEST_CASE("18, 19: what was sent arrives 3 s after its sender has ended, or was killed") {
  const harness::BrokerFixture broker;
  const World world(broker);
  int senders = 0;
  EACH_STRATEGY(strategy)
  for (const StartMethod method : kStartMethods)
    for (const bool killed : {false, true}) {
      CAPTURE(strategy);
      CAPTURE(std::string(text_of(method)));
      CAPTURE(killed);
      auto sender = shmbroker::spawn("send_and_end", process_of(broker, method), world.pool, senders++, killed);
      if (killed) CHECK_THROWS_AS(sender.join(100s), shmbroker::ProcessExitedException);
      else CHECK(sender.join(100s));
    }
  std::this_thread::sleep_for(3s);  // the scenario's own pause: nothing is expected to happen in it
  std::uint64_t seen = 0;
  for (int i = 0; i < senders; ++i) {
    const Received received = get(world.in);
    CHECK(received.tensors.at(0).all(static_cast<double>(received.type)));
    seen |= std::uint64_t{1} << received.type;
  }
  CHECK(seen == (std::uint64_t{1} << senders) - 1);
}

TEST_CASE("20: messages that a killed receiver had not read are freed when their sender releases them") {
  const harness::BrokerFixture broker;
  EACH_STRATEGY(strategy)
  for (const StartMethod method : kStartMethods) {
    CAPTURE(strategy);
    CAPTURE(std::string(text_of(method)));
    const Observer observer(broker);
    const World world(broker);
    const auto line = world.pool.open_queue("line", Role::writer, {.kind = QueueKind::spsc});
    const std::size_t before = descriptors_of_regions();
    auto receiver = shmbroker::spawn("never_read", process_of(broker, method), world.pool);
    CHECK(world.word() == "ready");
    {
      std::vector<Tensor> sent;
      for (int i = 0; i < 100; ++i) {
        sent.push_back(mebibyte(i));
        put(world.place(), line, {sent.back()});
      }
      CHECK(observer.regions(kMebibyte) == 100);
      CHECK(descriptors_of_regions() == before + (strategy == "file_descriptor" ? 100U : 0U));
      kill_peer(receiver);
    }
    CHECK(observer.soon_has(0, kMebibyte));  // and the sender lives
    CHECK(descriptors_of_regions() == before);
  }
  CHECK(broker.books() == "");
}

TEST_CASE("21: objects that a killed receiver held are freed when their sender releases them") {
  const harness::BrokerFixture broker;
  EACH_STRATEGY(strategy)
  for (const StartMethod method : kStartMethods) {
    CAPTURE(strategy);
    CAPTURE(std::string(text_of(method)));
    const Observer observer(broker);
    const World world(broker);
    const std::size_t before = descriptors_of_regions();
    auto receiver = shmbroker::spawn("hold", process_of(broker, method), world.pool, 100);
    {
      std::vector<Tensor> sent;
      for (int i = 0; i < 100; ++i) {
        sent.push_back(mebibyte(i));
        world.put({sent.back()});
      }
      CHECK(world.word() == "ready");
      kill_peer(receiver);
      CHECK(observer.regions(kMebibyte) == 100);
      for (int i = 0; i < 100; ++i) CHECK(sent[static_cast<std::size_t>(i)].all(i));
    }
    CHECK(observer.soon_has(0, kMebibyte));
    CHECK(descriptors_of_regions() == before);
  }
  CHECK(broker.books() == "");
}

TEST_CASE("22: a killed owner's objects go if no other process has them, and other objects live on") {
  const harness::BrokerFixture broker;
  EACH_STRATEGY(strategy)
  for (const StartMethod method : kStartMethods) {
    CAPTURE(strategy);
    CAPTURE(std::string(text_of(method)));
    const Observer observer(broker);
    const World world(broker);
    auto owner = shmbroker::spawn("own", process_of(broker, method), world.pool, 100, 10);
    {
      std::vector<Tensor> kept;
      for (int i = 0; i < 10; ++i) kept.push_back(get(world.in).tensors.at(0));
      CHECK(observer.regions(kMebibyte) == 100);
      kill_peer(owner);
      CHECK(observer.soon_has(10, kMebibyte));
      for (int i = 0; i < 10; ++i) CHECK(kept[static_cast<std::size_t>(i)].all(i));
    }
    CHECK(observer.soon_has(0, kMebibyte));
  }
  CHECK(broker.books() == "");
}

namespace {

// A runtime directory of its own, in which the library starts the service by itself.
struct OwnService {
  OwnService() {
    for (const char* name : {"SHMBROKER_SOCKET", "SHMBROKER_GROUP"}) ::unsetenv(name);
    ::setenv("XDG_RUNTIME_DIR", folder.path().c_str(), 1);
    ::setenv("SHMBROKER_DAEMON", harness::BrokerFixture::program().c_str(), 1);
  }
  OwnService(const OwnService&) = delete;
  OwnService& operator=(const OwnService&) = delete;
  ~OwnService() {
    end(SIGTERM);
    ::unsetenv("XDG_RUNTIME_DIR");
    ::unsetenv("SHMBROKER_DAEMON");
  }
  // The present server is gone when this returns true.
  bool end(int signal) const {
    shmb::client::ConnectOptions options;
    options.no_start = options.no_group = true;
    auto session = shmb::client::connect(options);
    if (!session) return false;
    const pid_t pid = (*session)->facts().broker_pid;
    const shmb::Fd pidfd = shmb::Fd::adopt(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    pollfd ended{pidfd.get(), POLLIN, 0};
    return ::kill(pid, signal) == 0 && ::poll(&ended, 1, 60'000) == 1;
  }
  harness::TempDir folder;
};

// The findings of a client that had a tensor when the service was killed: 0, or the number of what was not so.
int after_the_kill(const Session& session, const Tensor& tensor) {
  if (!tensor.all(23)) return 1;
  tensor.storage->data()[0] = tensor.storage->data()[0];  // and may still write
  auto refused = session.try_create(kMebibyte);
  if (refused || refused.error().status() != Status::session_lost || *refused.error().what() == '\0') return 2;
  auto again = Session::try_connect({.join_group = false});
  if (!again) return 3;
  auto fresh = again->try_create(kMebibyte);
  if (!fresh) return 4;
  fresh->as_span<double>()[0] = 1;
  return tensor.all(23) ? 0 : 5;
}

}  // namespace

TEST_CASE(
    "23: the service is killed: mapped data stays, a new allocation is refused in words, or made by the next one") {
  EACH_STRATEGY(strategy) {
    CAPTURE(strategy);
    const auto before = harness::take_snapshot().mappings;
    const OwnService service;
    {
      const auto session = Session::connect({.join_group = false});
      Tensor tensor = mebibyte(23);
      tensor.share_memory(session);
      const auto ticket = tensor.storage->region()->ticket(shmbroker::Rights::read | shmbroker::Rights::write);
      const harness::Gate killed, attached;
      const auto client = [&] { return killed.wait() ? after_the_kill(session, tensor) : 9; };
      auto heir = harness::Child::run(client);
      auto other = harness::Child::run([&] {
        auto own = Session::try_connect({.join_group = false});
        if (!own) return 10;
        auto region = own->try_attach_writable(ticket);
        if (!region) return 11;
        const Tensor theirs{std::make_shared<Storage>(std::move(*region)), Type::float64, tensor.shape, {1}, 0};
        attached.open();
        return killed.wait() ? after_the_kill(*own, theirs) : 12;
      });
      CHECK(attached.wait());
      CHECK(service.end(SIGKILL));
      killed.open();
      CHECK(after_the_kill(session, tensor) == 0);
      CHECK(heir.wait() == 0);
      CHECK(other.wait() == 0);
    }
    CHECK(harness::take_snapshot().mappings == before);
  }
}
