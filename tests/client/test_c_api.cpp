// SPDX-License-Identifier: Apache-2.0
// The C ABI as a program sees it that knows nothing else: growing structs, missing arguments, sentences.
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "client/face/shmbroker.h"
#include "tests/harness/child.hpp"
#include "tests/support/session.hpp"

namespace {

struct Connected {
  harness::BrokerFixture broker;
  shmb_session* session = nullptr;
  shmb_error error{};
  Connected() {
    shmb_connect_options options{};
    options.size = sizeof options;
    options.socket = broker.socket().c_str();
    options.program = "c_api_test";
    options.flags = SHMB_CONNECT_NO_GROUP;
    REQUIRE(shmb_connect(&options, &session, &error) == SHMB_OK);
  }
  ~Connected() { shmb_disconnect(session); }
};

}  // namespace

TEST_CASE("one region's life in C") {
  Connected c;
  shmb_create_options create{};
  create.size = sizeof create;
  create.name = "kv";
  shmb_region* region = nullptr;
  REQUIRE(shmb_create(c.session, 100'000, &create, &region, &c.error) == SHMB_OK);
  CHECK(shmb_region_length(region) == 100'000);
  std::strcpy(static_cast<char*>(shmb_region_data(region)), "text");
  const shmb_region_id id = shmb_region_get_id(region);

  shmb_attach_options attach{};
  attach.size = sizeof attach;
  attach.rights = SHMB_RIGHT_READ | SHMB_RIGHT_WRITE;
  shmb_region* again = nullptr;
  REQUIRE(shmb_attach_id(c.session, &id, &attach, &again, &c.error) == SHMB_OK);
  CHECK(std::strcmp(static_cast<char*>(shmb_region_data(again)), "text") == 0);
  CHECK(shmb_publish(region, 0, &c.error) == SHMB_E_STILL_MAPPED);
  CHECK(std::strstr(c.error.sentence, "still mapped") != nullptr);
  REQUIRE(shmb_release(again, 0, &c.error) == SHMB_OK);
  REQUIRE(shmb_publish(region, 0, &c.error) == SHMB_OK);

  std::uint8_t ticket[16], parsed[16];
  std::int64_t expires = 0;
  REQUIRE(shmb_ticket_create(region, 0, 0, 0, 0, ticket, &expires, &c.error) == SHMB_OK);
  CHECK(expires > 0);
  CHECK(shmb_ticket_create(region, 0x100, 0, 0, 0, parsed, nullptr, &c.error) == SHMB_E_UNKNOWN_FLAGS);
  CHECK(std::strstr(c.error.sentence, "unknown right") != nullptr);
  CHECK(std::strstr(c.error.sentence, "older") == nullptr);
  CHECK(shmb_ticket_lend(region, 0x100, 0, 0, 0, parsed, nullptr, &c.error) == SHMB_E_UNKNOWN_FLAGS);
  char text[SHMB_TOKEN_TEXT];
  shmb_token_format(ticket, text);
  REQUIRE(shmb_token_parse(text, parsed) == SHMB_OK);
  CHECK(std::memcmp(ticket, parsed, 16) == 0);
  CHECK(shmb_token_parse("nonsense", parsed) == SHMB_E_INVALID);
  CHECK(shmb_token_parse(nullptr, parsed) == SHMB_E_INVALID);
  REQUIRE(shmb_attach_ticket(c.session, parsed, nullptr, &again, &c.error) == SHMB_OK);
  CHECK(shmb_ticket_revoke(c.session, parsed, 0, &c.error) == SHMB_E_NOT_FOUND);  // used up
  REQUIRE(shmb_ticket_create(region, 0, 2, 0, 0, ticket, nullptr, &c.error) == SHMB_OK);
  CHECK(shmb_ticket_revoke(c.session, ticket, 0, &c.error) == SHMB_OK);
  REQUIRE(shmb_ticket_lend(region, 0, 2, 0, 0, ticket, &expires, &c.error) == SHMB_OK);
  CHECK(expires > 0);
  CHECK(shmb_ticket_revoke(c.session, ticket, 0, &c.error) == SHMB_OK);
  shmb_region* late = nullptr;
  CHECK(shmb_attach_ticket(c.session, ticket, nullptr, &late, &c.error) == SHMB_E_NOT_FOUND);

  shmb_region_stat stat{};
  stat.size = sizeof stat;
  REQUIRE(shmb_stat(c.session, "kv", 0, &stat, &c.error) == SHMB_OK);
  CHECK(std::strcmp(stat.name, "kv") == 0);
  CHECK(stat.state == SHMB_REGION_PUBLISHED);
  CHECK(stat.length == 100'000);
  REQUIRE(shmb_stat_id(c.session, &id, 0, &stat, &c.error) == SHMB_OK);
  CHECK(stat.id.id == id.id);
  CHECK(shmb_unname(c.session, "kv", 0, &c.error) == SHMB_OK);
  CHECK(shmb_stat(c.session, "kv", 0, &stat, &c.error) == SHMB_E_NOT_FOUND);
  CHECK(shmb_release(again, 0, nullptr) == SHMB_OK);
  CHECK(shmb_release(region, 0, nullptr) == SHMB_OK);
}

TEST_CASE("missing arguments are refused, never followed") {
  Connected c;
  shmb_region* region = nullptr;
  shmb_error* const e = &c.error;
  CHECK(shmb_connect(nullptr, nullptr, e) == SHMB_E_INVALID);
  CHECK(shmb_create(nullptr, 1, nullptr, &region, e) == SHMB_E_INVALID);
  CHECK(shmb_create(c.session, 1, nullptr, nullptr, e) == SHMB_E_INVALID);
  CHECK(shmb_attach(c.session, nullptr, nullptr, &region, e) == SHMB_E_INVALID);
  CHECK(shmb_attach_id(c.session, nullptr, nullptr, &region, e) == SHMB_E_INVALID);
  CHECK(shmb_attach_ticket(c.session, nullptr, nullptr, &region, e) == SHMB_E_INVALID);
  CHECK(shmb_ticket_lend(nullptr, 0, 1, 0, 0, nullptr, nullptr, e) == SHMB_E_INVALID);
  CHECK(shmb_ticket_revoke(c.session, nullptr, 0, e) == SHMB_E_INVALID);
  CHECK(shmb_create_many(c.session, nullptr, 1, 0, &region, nullptr, e) == SHMB_E_INVALID);
  CHECK(shmb_create_many(c.session, nullptr, 0, 0, nullptr, nullptr, e) == SHMB_OK);
  CHECK(shmb_session_get_info(c.session, nullptr, e) == SHMB_E_INVALID);
  CHECK(shmb_region_get_info(nullptr, nullptr, e) == SHMB_E_INVALID);
  CHECK(shmb_region_data(nullptr) == nullptr);
  CHECK(shmb_region_length(nullptr) == 0);
  CHECK(shmb_region_get_id(nullptr).id == 0);
  CHECK(shmb_publish(nullptr, 0, e) == SHMB_E_INVALID);
  CHECK(shmb_release(nullptr, 0, e) == SHMB_OK);
  CHECK(shmb_next_event(c.session, SHMB_NO_WAIT, nullptr, e) == SHMB_E_INVALID);
  CHECK(shmb_watch(c.session, nullptr, nullptr, nullptr, e) == SHMB_E_INVALID);
  CHECK(shmb_group_join_token(c.session, nullptr, 0, 0, nullptr, e) == SHMB_E_INVALID);
  CHECK(shmb_ping(nullptr, 0, nullptr) == SHMB_E_INVALID);
  shmb_disconnect(nullptr);
  for (const char* address : {"", "/", "a/b/c", "x:y/z", "g/", "/n", "a b", "\x1b[2J", "..", "99999999999:g/n"}) {
    CAPTURE(address);
    CHECK(shmb_attach(c.session, address, nullptr, &region, e) == SHMB_E_INVALID);
    CHECK(std::strlen(e->sentence) > 5);
    CHECK(std::strchr(e->sentence, 0x1b) == nullptr);
  }
}

TEST_CASE("structs grow: older and newer callers are served, unknown wishes are refused") {
  Connected c;
  struct Newer {
    shmb_create_options known;
    std::uint64_t tomorrow;
  } newer{};
  newer.known.size = sizeof newer;
  shmb_region* region = nullptr;
  CHECK(shmb_create(c.session, 1, &newer.known, &region, &c.error) == SHMB_OK);
  CHECK(shmb_release(region, 0, nullptr) == SHMB_OK);
  newer.tomorrow = 1;
  CHECK(shmb_create(c.session, 1, &newer.known, &region, &c.error) == SHMB_E_TOO_NEW);

  shmb_create_options older{};
  older.size = offsetof(shmb_create_options, keep_ns);
  older.flags = 0xffffffff;  // beyond its size: not read
  CHECK(shmb_create(c.session, 1, &older, &region, &c.error) == SHMB_OK);
  CHECK(shmb_release(region, 0, nullptr) == SHMB_OK);
  for (const auto& [size, told] : {std::pair{0, "is 0, "}, std::pair{4, "is 4, "}}) {
    older.size = static_cast<std::size_t>(size);
    CHECK(shmb_create(c.session, 1, &older, &region, &c.error) == SHMB_E_INVALID);
    CHECK(std::string(c.error.sentence) ==
          "the size field of the options " + std::string(told) +
              "which is less than the field itself has: set it to sizeof of that struct");
  }
  older.size = sizeof older;
  CHECK(shmb_create(c.session, 1, &older, &region, &c.error) == SHMB_E_UNKNOWN_FLAGS);

  struct NewerInfo {
    shmb_session_info known;
    std::uint64_t tomorrow;
  } info;
  std::memset(&info, 0xff, sizeof info);
  info.known.size = sizeof info;
  CHECK(shmb_session_get_info(c.session, &info.known, &c.error) == SHMB_OK);
  CHECK(info.tomorrow == 0);
  CHECK(info.known.mode == SHMB_MODE_PRIVATE);
  std::memset(&info, 0xff, sizeof info);
  info.known.size = offsetof(shmb_session_info, uid);
  CHECK(shmb_session_get_info(c.session, &info.known, &c.error) == SHMB_OK);
  CHECK(info.known.mode == SHMB_MODE_PRIVATE);
  CHECK(info.known.uid == 0xffffffff);
}

TEST_CASE("batches report each element, and the first failure with its sentence") {
  Connected c;
  shmb_create_options same{};
  same.size = sizeof same;
  same.name = "twice";
  const std::array<shmb_create_item, 4> items{{{1, nullptr}, {8192, &same}, {8192, &same}, {UINT64_MAX, nullptr}}};
  std::array<shmb_region*, 4> regions{};
  std::array<int, 4> statuses{};
  CHECK(shmb_create_many(c.session, items.data(), items.size(), 0, regions.data(), statuses.data(), &c.error) ==
        SHMB_E_EXISTS);
  CHECK(c.error.status == SHMB_E_EXISTS);
  CHECK(statuses == std::array<int, 4>{SHMB_OK, SHMB_OK, SHMB_E_EXISTS, SHMB_E_INVALID});
  CHECK(regions[2] == nullptr);

  const shmb_region_id id = shmb_region_get_id(regions[0]);
  const std::array<shmb_attach_item, 4> wanted{{{"twice", nullptr, nullptr, SHMB_RIGHT_READ | SHMB_RIGHT_WRITE, 0},
                                                {nullptr, &id, nullptr, 0, SHMB_ATTACH_UNMAPPED},
                                                {"absent", nullptr, nullptr, 0, 0},
                                                {"twice", nullptr, nullptr, 0, 0}}};
  std::array<shmb_region*, 4> attached{};
  CHECK(shmb_attach_many(c.session, wanted.data(), wanted.size(), 0, attached.data(), statuses.data(), &c.error) ==
        SHMB_E_NOT_FOUND);
  CHECK(statuses[0] == SHMB_OK);
  CHECK(statuses[1] == SHMB_OK);
  CHECK(shmb_region_data(attached[1]) == nullptr);
  for (shmb_region* region : attached) shmb_release(region, 0, nullptr);
  for (shmb_region* region : regions) shmb_release(region, 0, nullptr);
  CHECK(shmb_unname(c.session, "twice", 0, &c.error) == SHMB_OK);  // its name alone had held it
  const std::array<shmb_attach_item, 1> two_ways{{{"twice", &id, nullptr, 0, 0}}};
  CHECK(shmb_attach_many(c.session, two_ways.data(), 1, 0, attached.data(), nullptr, &c.error) == SHMB_E_INVALID);
}

TEST_CASE("events and groups in C") {
  Connected c;
  shmb_group_options options{};
  options.size = sizeof options;
  options.name = "job";
  shmb_group group{};
  REQUIRE(shmb_group_create(c.session, &options, &group, &c.error) == SHMB_OK);
  char variable[SHMB_VARIABLE_TEXT];
  REQUIRE(shmb_group_variable("job", group.token, variable, &c.error) == SHMB_OK);
  CHECK(std::strncmp(variable, "job:", 4) == 0);
  CHECK(shmb_group_variable("no/slash", group.token, variable, &c.error) == SHMB_E_INVALID);
  std::uint64_t joined = 0;
  REQUIRE(shmb_group_join(c.session, "job", 0, 0, &joined, &c.error) == SHMB_OK);
  CHECK(joined == group.id);
  CHECK(shmb_group_wait(c.session, 0, 1'000'000, &c.error) == SHMB_E_DEADLINE);

  shmb_watch_options watch{};
  watch.size = sizeof watch;
  watch.kind = SHMB_WATCH_NAME;
  watch.address = "job/late";
  std::uint64_t subscription = 0;
  std::uint32_t state = 9;
  REQUIRE(shmb_watch(c.session, &watch, &subscription, &state, &c.error) == SHMB_OK);
  CHECK(state == 0);
  int fd = -1;
  REQUIRE(shmb_event_descriptor(c.session, &fd, &c.error) == SHMB_OK);
  shmb_event event{};
  event.size = sizeof event;
  CHECK(shmb_next_event(c.session, SHMB_NO_WAIT, &event, &c.error) == SHMB_E_DEADLINE);
  shmb_create_options create{};
  create.size = sizeof create;
  create.name = "late";
  shmb_region* region = nullptr;
  REQUIRE(shmb_create(c.session, 4096, &create, &region, &c.error) == SHMB_OK);
  pollfd watched{fd, POLLIN, 0};
  CHECK(::poll(&watched, 1, 10'000) == 1);
  REQUIRE(shmb_next_event(c.session, 0, &event, &c.error) == SHMB_OK);
  CHECK(event.kind == SHMB_EVENT_NAME_APPEARED);
  CHECK(event.watch == subscription);
  CHECK(std::strcmp(event.text, "late") == 0);
  CHECK(event.region.id == shmb_region_get_id(region).id);
  CHECK(shmb_unwatch(c.session, subscription, 0, &c.error) == SHMB_OK);
  CHECK(shmb_release(region, SHMB_RELEASE_UNNAME, &c.error) == SHMB_OK);
  CHECK(shmb_group_leave(c.session, 0, 0, &c.error) == SHMB_OK);
  watch.kind = 99;
  CHECK(shmb_watch(c.session, &watch, &subscription, nullptr, &c.error) == SHMB_E_INVALID);
}

TEST_CASE("a limit's refusal carries its numbers") {
  harness::BrokerOptions options;
  options.config = "[limits]\ngroup_bytes = \"1M\"\n";
  const harness::BrokerFixture broker(options);
  REQUIRE(broker.running());
  shmb_connect_options connect{};
  connect.size = sizeof connect;
  connect.socket = broker.socket().c_str();
  shmb_session* session = nullptr;
  shmb_error error;
  REQUIRE(shmb_connect(&connect, &session, &error) == SHMB_OK);
  shmb_region *first = nullptr, *second = nullptr;
  REQUIRE(shmb_create(session, 600'000, nullptr, &first, &error) == SHMB_OK);
  CHECK(shmb_create(session, 600'000, nullptr, &second, &error) == SHMB_E_LIMIT);
  CHECK(error.slot == SHMB_SLOT_BYTES);
  CHECK(error.scope == SHMB_SCOPE_GROUP);
  CHECK(error.limit == 1 << 20);
  CHECK(error.used == 602'112);
  CHECK(error.asked == 602'112);
  CHECK(std::strstr(error.sentence, "limits") != nullptr);
  shmb_release(first, 0, nullptr);
  shmb_disconnect(session);
}

TEST_CASE("every status has a name and a text") {
  CHECK(std::strcmp(shmb_status_name(SHMB_E_NOT_FOUND), "not_found") == 0);
  for (int status = 0; status <= SHMB_E_FORKED; ++status) {
    CHECK(std::strcmp(shmb_status_name(status), "unknown status") != 0);
    CHECK(std::strlen(shmb_status_text(status)) > 3);
  }
  CHECK(std::strcmp(shmb_status_name(-1), "unknown status") == 0);
  CHECK(std::strcmp(shmb_version(), "0.1.0") == 0);
}

TEST_CASE("a program whose standard output is closed may print: its session and its regions stay whole") {
  const harness::BrokerFixture broker;
  const std::string socket = broker.socket();
  auto child = harness::Child::run([&] {
    for (const int standard : {0, 1, 2}) ::close(standard);
    if (shmb_set_sharing_strategy("file_descriptor", nullptr) != SHMB_OK) return 1;
    shmb_connect_options options{};
    options.size = sizeof options;
    options.socket = socket.c_str();
    shmb_session* session = nullptr;
    shmb_region* region = nullptr;
    if (shmb_connect(&options, &session, nullptr) != SHMB_OK) return 2;
    if (shmb_create(session, 4096, nullptr, &region, nullptr) != SHMB_OK) return 3;
    for (const int standard : {0, 1, 2}) (void)!::write(standard, "hello", 5);
    if (shmb_ping(session, 0, nullptr) != SHMB_OK) return 4;
    return static_cast<const char*>(shmb_region_data(region))[0] == 0 ? 0 : 5;
  });
  CHECK(child.wait() == 0);
}

TEST_CASE("the mapping of a handle is given back with the handle only, not as a part") {
  Connected c;
  shmb_region* region = nullptr;
  REQUIRE(shmb_create(c.session, 8192, nullptr, &region, &c.error) == SHMB_OK);
  auto* data = static_cast<char*>(shmb_region_data(region));
  for (const auto& [from, length] :
       {std::pair(data, 4096), std::pair(data + 4096, 4096), std::pair(data - 4096, 8192)}) {
    CHECK(shmb_region_unmap(region, from, length, &c.error) == SHMB_E_INVALID);
    data[0] = data[8191] = 1;  // both pages are there
  }
  void* part = nullptr;
  REQUIRE(shmb_region_map(region, 0, 4096, SHMB_ACCESS_READ, &part, &c.error) == SHMB_OK);
  CHECK(shmb_region_unmap(region, part, 4096, &c.error) == SHMB_OK);
  shmb_release(region, 0, nullptr);
}
