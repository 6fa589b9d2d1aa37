// SPDX-License-Identifier: Apache-2.0
// Two users of one system broker: B can neither list, open, guess nor widen what A has, and cannot tell what A has from
// what is not there. The broker is started as root and drops to a uid of its own.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <vector>

#include "tests/e2e/support.hpp"
#include "tests/harness/raw_client.hpp"
#include "tests/harness/sanitizer.hpp"

using namespace e2e;
using harness::RawClient;
using harness::RawPacket;

namespace {

constexpr unsigned kA = 60001, kB = 60002;

struct Facts {
  RegionId id;
  std::uint64_t group, session;
  Ticket ticket;
};

// A's belongings, until `done` opens.
void own_things(World& world, const std::function<void(Session&, Region&)>& made, const Gate& done) {
  Session session = world.connect();
  session.create_group({.name = "trainer"});
  session.join("trainer");
  Region region = session.create(64 * KiB, {.name = "weights"});
  fill(region.bytes(), 1);
  made(session, region);
  NEED(done.wait());
  NEED(holds(region.bytes(), 1));
  session.ping();
}

shmbw_attach by_id(std::uint64_t id, std::uint32_t generation = 0, std::uint32_t rights = SHMBW_RIGHT_MAP_READ) {
  shmbw_attach attach{};
  attach.by = SHMBW_ATTACH_BY_ID;
  attach.rights = rights;
  attach.region = {id, generation, 0};
  return attach;
}

// Everything a stranger can ask about region and group number `n` and about uid A's names, as one string of bytes.
class Questions {
 public:
  explicit Questions(RawClient& client) : client_(client) {}

  std::string answers() {
    said_.clear();
    for (std::uint64_t n = 1; n <= 8; ++n) {
      const shmbw_region_ref ref{n, 0, 0};
      for (const std::uint32_t rights : {1U, 2U, 3U, 15U}) batch(SHMBW_OP_ATTACH, by_id(n, 0, rights));
      batch(SHMBW_OP_RELEASE, shmbw_release{ref, 0, SHMBW_RELEASE_UNNAME});
      batch(SHMBW_OP_INHERIT, shmbw_inherit{ref, 0, 0});
      one(SHMBW_OP_PUBLISH, shmbw_publish{ref});
      one(SHMBW_OP_TICKET_CREATE, shmbw_ticket_create{ref, 1, 1, 0});
      shmbw_watch watch{};
      watch.kind = SHMBW_WATCH_KIND_REGION;
      watch.region = ref;
      one(SHMBW_OP_WATCH, watch);
      watch = {};
      watch.kind = SHMBW_WATCH_KIND_GROUP;
      watch.group = n;
      one(SHMBW_OP_WATCH, watch);
      watch.kind = SHMBW_WATCH_KIND_RECLAIM;
      one(SHMBW_OP_WATCH, watch);
      one(SHMBW_OP_GROUP_LEAVE, shmbw_group_leave{n});
      shmbw_group_end end{};
      end.group = n;
      one(SHMBW_OP_GROUP_END, end);
      shmbw_create create{};
      create.group = n;
      create.length = 4096;
      batch(SHMBW_OP_CREATE, create);
      for (std::uint32_t table = SHMBW_TABLE_REGIONS; table <= SHMBW_TABLE_UIDS; ++table) {
        shmbw_list list{};
        list.table = table;
        list.region = ref;
        one(SHMBW_OP_LIST, list);
        list.region = {};
        list.group = n;
        one(SHMBW_OP_LIST, list);
      }
    }
    for (const std::string group : {"trainer", "#1", "#2"}) {
      shmbw_group_join join{};
      join.owner_uid = kA;
      join.flags = SHMBW_JOIN_OWNER_GIVEN;
      join.name_len = static_cast<std::uint16_t>(group.size());
      one(SHMBW_OP_GROUP_JOIN, join, group);
      join.owner_uid = 0;
      join.flags = 0;
      one(SHMBW_OP_GROUP_JOIN, join, group);
      shmbw_group_end end{};
      end.name_len = join.name_len;
      one(SHMBW_OP_GROUP_END, end, group);
      shmbw_attach attach = by_id(0);
      attach.by = SHMBW_ATTACH_BY_NAME;
      attach.flags = SHMBW_ATTACH_OWNER_GIVEN;
      attach.owner_uid = kA;
      attach.group_len = join.name_len;
      attach.name_len = 7;
      batch(SHMBW_OP_ATTACH, attach, group + "weights");
      for (std::uint32_t table = SHMBW_TABLE_REGIONS; table <= SHMBW_TABLE_UIDS; ++table) {
        shmbw_list list{};
        list.table = table;
        list.flags = SHMBW_LIST_OWNER_GIVEN;
        list.owner_uid = kA;
        one(SHMBW_OP_LIST, list);
        list.group_len = join.name_len;
        one(SHMBW_OP_LIST, list, group);
      }
    }
    for (std::uint32_t table = SHMBW_TABLE_REGIONS; table <= SHMBW_TABLE_UIDS; ++table) {
      shmbw_list list{};
      list.table = table;
      one(SHMBW_OP_LIST, list);
    }
    return said_;
  }
  std::size_t asked() const { return asked_; }

 private:
  void keep(RawPacket answer) {
    NEED(answer.kind == RawPacket::Kind::packet);
    NEED(answer.fds.empty());
    ++asked_;
    if (answer.bytes.size() >= sizeof(shmbw_header))
      std::memset(answer.bytes.data() + offsetof(shmbw_header, tag), 0, 8);
    said_.append(reinterpret_cast<const char*>(answer.bytes.data()), answer.bytes.size());
  }
  template <class T>
  void one(std::uint16_t op, const T& fixed, std::string_view texts = {}) {
    keep(client_.call(op, fixed, texts));
  }
  template <class T>
  void batch(std::uint16_t op, const T& element, std::string_view texts = {}) {
    keep(client_.call_batch(op, std::span<const T>(&element, 1), texts));
  }

  RawClient& client_;
  std::string said_;
  std::size_t asked_ = 0;
};

}  // namespace

TEST_CASE("an object of another user gets byte for byte the answer of a missing one, whatever is asked") {
  if (!harness::can_change_uid()) SKIP_CASE("changing to other uids is not allowed here");
  in_every_world(
      [](World& world) {
        Gate asked, made, done;
        Child b = actor_as(kB, [&] {
          RawClient client = RawClient::connect(world.socket());
          NEED(client.connected());
          NEED(client.hello().ok());
          Questions questions(client);
          const std::string absent = questions.answers();
          asked.open();
          NEED(made.wait());
          const std::string forbidden = questions.answers();
          NEED(questions.asked() > 500);
          NEED(absent.size() == forbidden.size());
          NEED(absent == forbidden);
        });
        REQUIRE(asked.wait());
        Child a = actor_as(kA, [&] {
          own_things(
              world,
              [&](Session& session, Region& region) {
                const Ticket ticket = region.ticket();
                const Region more = session.create(4096);
                const auto shared = session.attach(region.id());
                made.open();
                NEED(done.wait());
                NEED_STATUS(session.try_attach(ticket), ok);
              },
              done);
        });
        REQUIRE(b.wait() == 0);
        done.open();
        REQUIRE(a.wait() == 0);
      },
      true);
}

TEST_CASE("100,000 ids in every likely generation and 100,000 random tickets open nothing of another user") {
  if (!harness::can_change_uid()) SKIP_CASE("changing to other uids is not allowed here");
  for (const std::string& engine : harness::engines()) {
    CAPTURE(engine);
    World world({.engine = engine, .system = true});
    Gate made, done;
    Child a = actor_as(kA, [&] {
      own_things(
          world,
          [&](Session& session, Region& region) {
            const Ticket ticket = region.ticket(Rights::all);
            const Region next = session.create(4096, {.name = "weights", .replace = true});
            made.open();
            NEED(done.wait());
            NEED_STATUS(session.try_attach_writable(ticket), ok);
          },
          done);
    });
    REQUIRE(made.wait());
    Child b = actor_as(kB, [&] {
      RawClient client = RawClient::connect(world.socket());
      NEED(client.hello().ok());
      const auto nothing = [&](const std::vector<shmbw_attach>& guesses) {
        const RawPacket answer = client.call_batch(SHMBW_OP_ATTACH, std::span<const shmbw_attach>(guesses));
        NEED(answer.ok());
        NEED(answer.fds.empty());
        NEED(answer.fixed<shmbw_batch>().count == guesses.size());
        for (std::size_t i = 0; i < guesses.size(); ++i) {
          const auto outcome = answer.element<shmbw_attach_reply>(i);
          NEED(outcome.outcome.status == SHMB_E_NOT_FOUND);
          NEED(outcome.region.id == 0);
        }
      };
      constexpr std::uint64_t kGuesses = 100'000 / harness::kSlowdown;
      std::mt19937_64 random(1);
      std::vector<shmbw_attach> guesses;
      for (std::uint32_t generation = 0; generation <= 2; ++generation) {
        for (std::uint64_t id = 1; id <= kGuesses; ++id) {
          guesses.push_back(by_id(id, generation));
          if (guesses.size() == 253 || id == kGuesses) {
            nothing(guesses);
            guesses.clear();
          }
        }
      }
      for (std::uint64_t guess = 1; guess <= kGuesses; ++guess) {
        shmbw_attach attach = by_id(0);
        attach.by = SHMBW_ATTACH_BY_TICKET;
        const std::uint64_t words[2] = {random(), random()};
        std::memcpy(attach.ticket, words, sizeof words);
        guesses.push_back(attach);
        if (guesses.size() == 253 || guess == kGuesses) {
          nothing(guesses);
          guesses.clear();
        }
      }
    });
    CHECK(b.wait() == 0);
    done.open();
    CHECK(a.wait() == 0);
  }
}

TEST_CASE("a right to read cannot be widened: not through the broker, not past it") {
  if (!harness::can_change_uid()) SKIP_CASE("changing to other uids is not allowed here");
  in_every_world(
      [](World& world) {
        Shared<Facts> facts;
        Gate made, done;
        Child a = actor_as(kA, [&] {
          own_things(
              world,
              [&](Session& session, Region& region) {
                *facts = {region.id(), session.group().value, session.info().session, region.ticket(Rights::read, 2)};
                made.open();
              },
              done);
        });
        REQUIRE(made.wait());
        Child b = actor_as(kB, [&] {
          const Session session = world.connect();
          NEED_STATUS(session.try_attach_writable(facts->ticket), denied);
          NEED_STATUS(session.try_attach(facts->ticket, {.more_rights = Rights::share}), denied);
          NEED_STATUS(session.try_attach(facts->ticket, {.more_rights = Rights::release}), denied);
          auto region = session.attach(facts->ticket);
          NEED(holds(region.bytes(), 1));
          NEED_STATUS(session.try_attach_writable(facts->id), denied);
          NEED_STATUS(session.try_attach(facts->id, {.more_rights = Rights::share}), denied);
          NEED_STATUS(region.try_ticket(), denied);
          NEED_STATUS(session.try_create(4096, {.group = {facts->group}}), not_found);
          NEED_STATUS(session.try_end_group({facts->group}), not_found);
          NEED_STATUS(session.try_join("60001:trainer"), not_found);
          shmb_error error;
          NEED(shmb_publish(region.c(), 0, &error) == SHMB_E_DENIED);
          NEED(error.sentence[0] != '\0');
          // Past the broker: the descriptor itself.
          const int fd = region.descriptor();
          NEED(::mmap(nullptr, 4096, PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
          NEED(::mprotect(const_cast<std::byte*>(region.data()), 4096, PROT_READ | PROT_WRITE) != 0);
          NEED(::ftruncate(fd, 0) != 0);
          NEED(::fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL) != 0);
          NEED(::fchmod(fd, 0666) != 0);
          NEED(::open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_RDWR) < 0);
          NEED(errno == EACCES);
          ::close(fd);
          // A lease may be looked at again, read-only; releasing does not take A's name.
          NEED_STATUS(session.try_attach(facts->id), ok);
          shmb_region* raw = nullptr;
          NEED(shmb_attach_ticket(session.c(), facts->ticket.data(), nullptr, &raw, nullptr) == SHMB_OK);
          NEED(shmb_release(raw, SHMB_RELEASE_UNNAME, &error) == SHMB_E_DENIED);
          // The session number of A without its secret is worth nothing.
          RawClient heir = RawClient::connect(world.socket());
          shmbw_hello hello = RawClient::greeting();
          hello.fork_session = facts->session;
          NEED(heir.call(SHMBW_OP_HELLO, hello).status() == SHMB_E_NOT_FOUND);
        });
        REQUIRE(b.wait() == 0);
        Child still = actor_as(kA, [&] { NEED(holds(world.connect().attach("trainer/weights").bytes(), 1)); });
        REQUIRE(still.wait() == 0);
        done.open();
        REQUIRE(a.wait() == 0);
      },
      true);
}

TEST_CASE("two users both have a group called trainer, and each finds its own") {
  if (!harness::can_change_uid()) SKIP_CASE("changing to other uids is not allowed here");
  in_every_world(
      [](World& world) {
        Gate ready[2], done;
        const auto user = [&](unsigned uid, const Gate& me, const Gate& other) {
          return actor_as(uid, [&, uid] {
            const Session session = world.connect();
            session.create_group({.name = "trainer"});
            session.join("trainer");
            Region region = session.create(4096, {.name = "weights"});
            fill(region.bytes(), uid);
            me.open();
            NEED(other.wait());
            const Session second = world.connect();
            NEED(holds(second.attach("trainer/weights").bytes(), uid));
            NEED(holds(second.attach(std::to_string(uid) + ":trainer/weights").bytes(), uid));
            NEED(second.join("trainer") == session.group());
            const unsigned stranger = uid == kA ? kB : kA;
            NEED_STATUS(second.try_attach(std::to_string(stranger) + ":trainer/weights"), not_found);
            NEED_STATUS(second.try_join(std::to_string(stranger) + ":trainer"), not_found);
            NEED(done.wait());
          });
        };
        Child a = user(kA, ready[0], ready[1]), b = user(kB, ready[1], ready[0]);
        done.open();
        CHECK(a.wait() == 0);
        CHECK(b.wait() == 0);
      },
      true);
}

TEST_CASE("a token admits another user to the group, whose memory is then not recycled") {
  if (!harness::can_change_uid()) SKIP_CASE("changing to other uids is not allowed here");
  in_every_world(
      [](World& world) {
        constexpr std::size_t kLength = 4 * MiB;
        struct Token {
          shmbroker::Token token;
        };
        Shared<Token> shared;
        Gate made, used, done;
        Child a = actor_as(kA, [&] {
          const Session session = world.connect();
          shared->token = session.create_group({.name = "trainer"}).token;
          session.join("trainer");
          Region region = session.create(kLength);
          fill(region.bytes(), 1);
          region.release();
          session.ping();
          made.open();
          NEED(used.wait());
          const Region own = session.create(kLength, {.uninitialised = true});
          NEED(own.info().recycled == 1);  // what no other user ever had
          NEED(holds(own.bytes(), 1));
          const Region second = session.create(kLength, {.uninitialised = true});
          NEED(second.info().recycled == 0);  // B's has not been kept
          NEED(all_zero(second.bytes()));
          done.open();
        });
        REQUIRE(made.wait());
        Child b = actor_as(kB, [&] {
          const Session session = world.connect();
          session.join(shared->token);
          Region region = session.create(kLength, {.name = "mine", .uninitialised = true});
          NEED(region.info().recycled == 0);
          NEED(all_zero(region.bytes()));
          fill(region.bytes(), 2);
          region.release(true);
          session.ping();
          used.open();
          NEED(done.wait());
        });
        CHECK(b.wait() == 0);
        CHECK(a.wait() == 0);
      },
      true);
}
