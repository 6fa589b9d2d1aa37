// SPDX-License-Identifier: Apache-2.0
// Each system call that the library makes in each operation fails once: the operation succeeds all the same or fails
// with a sentence, nothing is left in the process or in the broker's books, and the next call works.
#include <cerrno>
#include <map>
#include <optional>
#include <vector>

#include "base/fault.hpp"
#include "tests/e2e/support.hpp"
#include "tests/harness/leak_guard.hpp"
#include "tests/harness/raw_client.hpp"
#include "tests/harness/sanitizer.hpp"
#include "tests/harness/snapshot.hpp"

using namespace e2e;
using shmb::fault::Call;

namespace {

struct Failure {
  Call call;
  const char* name;
  int code;
};

const std::vector<Failure>& failures() {
  static const std::vector<Failure> all = {
      {Call::mmap, "mmap", ENOMEM},
      {Call::madvise, "madvise", ENOMEM},
      {Call::madvise, "madvise", EAGAIN},
      {Call::madvise, "madvise", EFAULT},
      {Call::socket, "socket", EMFILE},
      {Call::socket, "socket", ENOBUFS},
      {Call::connect, "connect", EAGAIN},
      {Call::connect, "connect", ECONNREFUSED},
      {Call::send, "send", ENOBUFS},
      {Call::send, "send", ENOMEM},
      {Call::send, "send", EPIPE},
      {Call::receive, "receive", EAGAIN},
      {Call::receive, "receive", ENOMEM},
      {Call::receive, "receive", ECONNRESET},
      {Call::poll, "poll", EINTR},
      {Call::poll, "poll", ENOMEM},
      {Call::epoll, "epoll", EMFILE},
      {Call::eventfd, "eventfd", EMFILE},
      {Call::getsockopt, "getsockopt", EINVAL},
      {Call::open, "open", EMFILE},
      {Call::read, "read", EIO},
      {Call::dup, "dup", EMFILE},
      {Call::fstat, "fstat", ENOMEM},
      {Call::fallocate, "fallocate", ENOSPC},
      {Call::memfd_create, "memfd_create", EMFILE},
      {Call::ftruncate, "ftruncate", ENOMEM},
      {Call::add_seals, "add_seals", EPERM},
      {Call::reopen, "reopen", EACCES},
      {Call::fchmod, "fchmod", EPERM},
  };
  return all;
}

// The state before an operation: a session, a region of its own, one of another session.
struct Stage {
  std::optional<Session> session;
  std::optional<Region> own;
  std::vector<Region> made;
  std::vector<shmbroker::ReadOnlyRegion> attached;
  RegionId foreign;
  Ticket ticket;
};

using Step = std::function<shmbroker::Result<void>(Stage&)>;
struct Operation {
  const char* name;
  Step prepare;  // without faults
  Step run;
};

template <class T>
shmbroker::Result<void> done(const shmbroker::Result<T>& result) {
  if (!result) return result.error();
  return {};
}

template <class T, class Keep>
shmbroker::Result<void> kept(shmbroker::Result<T>&& result, Keep& place) {
  if (!result) return result.error();
  place.push_back(std::move(*result));
  return {};
}

shmbroker::Result<void> nothing(Stage&) { return {}; }

shmbroker::Result<void> own_region(Stage& stage) {
  stage.own = stage.session->create(8 * KiB);
  return {};
}

std::vector<Operation> operations(const std::string& socket) {
  return {
      {"connect", nothing,
       [socket](Stage&) { return done(Session::try_connect({.socket = socket, .join_group = false})); }},
      {"create 4 KiB", nothing, [](Stage& stage) { return kept(stage.session->try_create(4096), stage.made); }},
      {"create 4 MiB", nothing, [](Stage& stage) { return kept(stage.session->try_create(4 * MiB), stage.made); }},
      {"create recycled",
       [](Stage& stage) {
         stage.session->create(4 * MiB).release();
         return stage.session->try_ping();
       },
       [](Stage& stage) { return kept(stage.session->try_create(4 * MiB), stage.made); }},
      {"create 3 at once", nothing,
       [](Stage& stage) -> shmbroker::Result<void> {
         const std::uint64_t lengths[] = {100, 4 * MiB, 5000};
         auto regions = stage.session->try_create_many(lengths);
         if (!regions) return regions.error();
         shmbroker::Result<void> first;
         for (auto& one : *regions)
           if (auto each = kept(std::move(one), stage.made); !each && first) first = each;
         return first;
       }},
      {"attach to read", nothing,
       [](Stage& stage) { return kept(stage.session->try_attach(stage.foreign), stage.attached); }},
      {"attach to write", nothing,
       [](Stage& stage) { return kept(stage.session->try_attach_writable(stage.foreign), stage.made); }},
      {"attach by name, waiting", nothing,
       [](Stage& stage) {
         return kept(stage.session->try_attach("job/weights", {.wait = std::chrono::seconds(5)}), stage.attached);
       }},
      {"publish", own_region,
       [](Stage& stage) -> shmbroker::Result<void> {
         auto published = std::move(*stage.own).try_publish();
         if (!published) return published.error();
         stage.attached.push_back(std::move(*published));
         stage.own.reset();
         return {};
       }},
      {"release", own_region,
       [](Stage& stage) {
         auto released = stage.own->try_release();
         stage.own.reset();
         return released;
       }},
      {"ticket", own_region,
       [](Stage& stage) -> shmbroker::Result<void> {
         auto ticket = stage.own->try_ticket(Rights::read, 1, std::chrono::milliseconds(20));
         if (!ticket) return ticket.error();
         return {};
       }},
      {"map a part", own_region, [](Stage& stage) { return done(stage.own->try_map(4096, 4096, true)); }},
      {"descriptor", own_region,
       [](Stage& stage) -> shmbroker::Result<void> {
         auto fd = stage.own->try_descriptor();
         if (!fd) return fd.error();
         ::close(*fd);
         return {};
       }},
      {"join", nothing, [](Stage& stage) { return done(stage.session->try_join("job")); }},
      {"stat", nothing, [](Stage& stage) { return done(stage.session->try_stat("job/weights")); }},
      {"create and publish in a local session", nothing,
       [](Stage&) -> shmbroker::Result<void> {
         const auto local = Session::try_connect({.local_only = true});
         if (!local) return local.error();
         auto region = local->try_create(4 * MiB);
         if (!region) return region.error();
         return done(std::move(*region).try_publish());
       }},
      {"watch and event descriptor", nothing,
       [](Stage& stage) -> shmbroker::Result<void> {
         if (auto watch = stage.session->try_watch(stage.foreign, SHMB_EVENT_BIT_GONE); !watch) return watch.error();
         return done(stage.session->try_event_descriptor());
       }},
  };
}

struct Score {
  long trials = 0, failed = 0;
};

struct Owner {
  explicit Owner(World& world)
      : session(world.connect()), weights([this] {
          session.create_group({.name = "job"});
          session.join("job");
          return session.create(4096, {.name = "weights"});
        }()) {}
  Session session;
  Region weights;
};

void prepare(World& world, const Owner& owner, const Operation& operation, Stage& stage) {
  stage.session = world.connect();
  stage.foreign = owner.weights.id();
  NEED_STATUS(operation.prepare(stage), ok);
}

// How often the operation makes each call.
std::map<Call, long> calls_of(World& world, const Operation& operation) {
  const Owner owner(world);
  Stage stage;
  prepare(world, owner, operation, stage);
  const harness::Injected counting;
  NEED_STATUS(operation.run(stage), ok);
  std::map<Call, long> counts;
  for (const Failure& failure : failures()) counts[failure.call] = shmb::fault::count(failure.call);
  return counts;
}

std::uint64_t leases(harness::RawClient& admin) { return admin.status().fixed<shmbw_status_reply>().leases; }

bool empty(harness::RawClient& admin) {
  const auto now = admin.status().fixed<shmbw_status_reply>();
  return now.regions + now.leases + now.tickets + now.watches + now.groups + now.bytes == 0 && now.sessions == 1;
}

harness::RawClient admin_of(World& world) {
  harness::RawClient admin = harness::RawClient::connect(world.broker().admin());
  NEED(admin.hello().ok());
  return admin;
}

// One operation with the `nth` of its calls failing. False: it did not make that many this time.
bool trial(World& world, harness::RawClient& admin, const Operation& operation, const Failure& failure, int nth,
           Score& score) {
  const Owner owner(world);
  Stage stage;
  prepare(world, owner, operation, stage);
  const harness::Snapshot before = harness::take_snapshot();
  bool failed = false, reached = false;
  {
    const harness::Injected injected(failure.call, failure.code, nth);
    const auto result = operation.run(stage);
    reached = shmb::fault::count(failure.call) >= nth;
    if (!result) {
      failed = true;
      NEED(!sentence_of(result).empty());
      NEED(sentence_of(result) != shmb_status_text(static_cast<int>(result.error().status())));
    }
  }
  if (!reached) {
    NEED(!failed);
    return false;
  }
  ++score.trials;
  score.failed += failed;
  if (failed) {
    stage.made.clear();  // of a batch, what did succeed
    stage.attached.clear();
    // The session lives: what a failed operation was granted must be given back, not only be forgotten.
    const std::uint64_t due = stage.own ? 2 : 1;
    if (stage.session->info().lost == 0 && !eventually([&] { return leases(admin) == due; }))
      e2e::failed(__FILE__, __LINE__, std::to_string(leases(admin)) + " leases, not " + std::to_string(due));
    const auto left = harness::differences(before, harness::take_snapshot());
    // A release that fails has unmapped all the same; a lost session may have closed its socket.
    for (const std::string& what : left)
      if (what.starts_with("left open") || what.starts_with("left mapped")) e2e::failed(__FILE__, __LINE__, what);
  }
  const bool lost = stage.session->info().lost != 0;
  if (lost) {
    NEED(failure.code == EPIPE || failure.call == Call::receive || failure.call == Call::poll);
    NEED_STATUS(stage.session->try_ping(), session_lost);
    stage.own.reset();
    stage.made.clear();
    stage.attached.clear();
    stage.session = world.connect();
  }
  // Published, but there was no room to map it for reading: the handle stays and may be mapped.
  if (failed && stage.own && stage.own->info().state == SHMB_REGION_PUBLISHED) {
    NEED_STATUS(stage.own->try_map(0, 4096), ok);
  } else if (failed || lost) {
    if (!stage.own) NEED_STATUS(operation.prepare(stage), ok);
    NEED_STATUS(operation.run(stage), ok);
  }
  NEED_STATUS(stage.session->try_ping(), ok);
  return true;
}

}  // namespace

TEST_CASE(
    "every call that fails once in every operation: a sentence or success, nothing left, and the next call works") {
  std::vector<BrokerOptions> worlds = {{.engine = "epoll"}, {.engine = "epoll", .kernel = "5.15"}};
  if (harness::engines().size() > 1) worlds.push_back({.engine = "io_uring"});
  if (harness::kSlowdown > 1) worlds.resize(1);
  for (const BrokerOptions& options : worlds) {
    const std::string name = harness::name_of(options);
    CAPTURE(name);
    World world(options);
    Score score;
    harness::RawClient admin = admin_of(world);
    for (const Operation& operation : operations(world.socket())) {
      const auto calls = calls_of(world, operation);
      for (const Failure& failure : failures()) {
        for (int nth = 1; nth <= calls.at(failure.call); ++nth) {
          bool more = false;
          std::string wrong;
          try {
            more = trial(world, admin, operation, failure, nth, score);
          } catch (const std::exception& failed) {
            wrong = failed.what();
          }
          if (wrong.empty() && !eventually([&] { return empty(admin); })) wrong = "the books are not empty";
          if (!wrong.empty()) {
            const std::string where = std::string(operation.name) + ", call " + failure.name + " number " +
                                      std::to_string(nth) + " fails with " + std::to_string(failure.code);
            CAPTURE(where);
            CHECK(wrong == "");
          }
          if (!more) break;
        }
      }
    }
    MESSAGE(name << ": " << score.trials << " calls failed in turn, " << score.failed << " operations failed by it");
    CHECK(score.trials > 200);
    CHECK(score.failed > 50);
  }
}

TEST_CASE("a release whose packet cannot be sent at once is sent later: the lease does not stay") {
  for (const int code : {ENOBUFS, EAGAIN, ENOMEM}) {
    CAPTURE(code);
    World world({.engine = "epoll"});
    const Session session = world.connect();
    Region region = session.create(4096);
    {
      const harness::Injected injected(Call::send, code, 1, 1);
      region.release();
    }
    session.ping();
    harness::RawClient admin = admin_of(world);
    CHECK(eventually([&] { return leases(admin) == 0; }));
  }
}
