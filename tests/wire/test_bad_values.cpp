// SPDX-License-Identifier: Apache-2.0
// Whole frames with wrong contents: sizes, names, rights, identities, words of every request. Each is refused with the
// status and the sentence that a user needs, leaves nothing behind, and harms no element beside it in a batch.
#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/text.hpp"
#include "tests/support/wire.hpp"

namespace wire_test {
namespace {

using shmb::Status;

constexpr std::uint32_t kShare = SHMBW_RIGHT_SHARE, kRelease = SHMBW_RIGHT_RELEASE;

bool contains(const std::string& text, std::string_view word) { return text.find(word) != std::string::npos; }

void check_error(const shmb::Error& error, Status status, std::string_view word) {
  CHECK_MESSAGE(error.status == status, error.sentence);
  CHECK(wrong_with_sentence(error) == "");
  CHECK_MESSAGE(contains(error.sentence, word), error.sentence);
}

template <class T>
void check_plain(RawClient& client, std::uint16_t op, const T& fixed, std::string_view texts, Status status,
                 std::string_view word) {
  RawPacket reply = client.call(op, fixed, texts);
  REQUIRE(reply.kind == RawPacket::Kind::packet);
  check_error(error_of(reply), status, word);
}

template <class T>
void check_element(RawClient& client, std::uint16_t op, const T& element, std::string_view texts, Status status,
                   std::string_view word) {
  RawPacket reply = client.call_batch(op, one(element), texts);
  REQUIRE_MESSAGE(reply.ok(), reply.sentence());
  CHECK(reply.fds.empty());
  check_error(error_of_element(reply), status, word);
}

shmbw_create sized(std::uint64_t length) {
  shmbw_create create{};
  create.length = length;
  return create;
}

void mapped_by(RawClient& client, const shmbw_region_ref& ref) {
  REQUIRE(client.send(batch(SHMBW_OP_READY, 0, std::vector{shmbw_ready{ref, 4096, SHMBW_PAGE_KIND_SMALL, 0}})));
}

shmbw_attach attach_by_id(const shmbw_region_ref& ref, std::uint32_t rights) {
  shmbw_attach attach{};
  attach.by = SHMBW_ATTACH_BY_ID;
  attach.region = ref;
  attach.rights = rights;
  return attach;
}

const std::vector<std::string>& bad_names() {
  static const std::vector<std::string> names = {"/",
                                                 "a/b",
                                                 "/a",
                                                 "a/",
                                                 ".",
                                                 "..",
                                                 ".hidden",
                                                 "../../etc/passwd",
                                                 std::string("a\0b", 3),
                                                 std::string(1, '\0'),
                                                 "\x1b[31mred\x1b[0m",
                                                 "\x1b]0;title\x07",
                                                 "a b",
                                                 " ",
                                                 "a\n",
                                                 "a\r",
                                                 "\t",
                                                 "a:b",
                                                 "#1",
                                                 "a#",
                                                 "a*",
                                                 "$(reboot)",
                                                 "a'b",
                                                 "a\"b",
                                                 "a\\b",
                                                 "\x7f",
                                                 "\x80",
                                                 "\xff\xff",
                                                 "\xc3\xa9",
                                                 "\xe2\x80\xae",
                                                 std::string(97, 'n'),
                                                 std::string(255, 'n'),
                                                 std::string(4096, 'n'),
                                                 std::string(60000, '/')};
  return names;
}

}  // namespace

TEST_CASE("a size is rounded up to a page at least and charged as rounded; 2^47 and more are no sizes") {
  BrokerOptions options;
  options.config = "[limits]\nbytes = \"1G\"\n";
  on_each_engine(options, [](BrokerFixture& broker) {
    RawClient client = greeted(broker);
    const std::uint64_t page = 4096, huge = 2 << 20;
    const std::pair<std::uint64_t, std::uint64_t> good[] = {{0, page},
                                                            {1, page},
                                                            {4095, page},
                                                            {4096, page},
                                                            {4097, 2 * page},
                                                            {huge - 1, huge},
                                                            {huge, huge},
                                                            {huge + 1, 2 * huge},
                                                            {3 * huge + 5000, 4 * huge}};
    for (auto [asked, rounded] : good) {
      CAPTURE(asked);
      std::vector<shmb::Fd> fds;
      auto made = ok_element<shmbw_create_reply>(client, SHMBW_OP_CREATE, sized(asked), {}, &fds);
      CHECK(made.bytes == rounded);
      struct stat facts{};
      REQUIRE(fds.size() == 1);
      REQUIRE(::fstat(fds[0].get(), &facts) == 0);
      CHECK(static_cast<std::uint64_t>(facts.st_size) == rounded);
      shmbw_list wish{};
      wish.table = SHMBW_TABLE_REGIONS;
      wish.region = made.region;
      RawPacket page_of_list = client.call(SHMBW_OP_LIST, wish);
      REQUIRE(page_of_list.fixed<shmbw_list_reply>().count == 1);
      shmbw_region_record record{};
      std::memcpy(&record, page_of_list.rest().data(), sizeof record);
      CHECK(record.length == asked);
      CHECK(record.bytes == rounded);
      ok_element<shmbw_release_reply>(client, SHMBW_OP_RELEASE, shmbw_release{made.region, 0, 0});
    }
    const std::uint64_t two = 1;
    for (std::uint64_t size :
         {two << 47, (two << 47) + 1, two << 48, two << 62, (two << 63) - 1, two << 63, UINT64_MAX - 4095, UINT64_MAX})
      check_element(client, SHMBW_OP_CREATE, sized(size), {}, Status::invalid, "2^47");
    for (std::uint64_t size : {(two << 30) + 1, two << 40, (two << 47) - 1}) {
      check_element(client, SHMBW_OP_CREATE, sized(size), {}, Status::limit, "bytes");
    }
    CHECK(books_of(broker).bytes == 0);
  });
}

TEST_CASE("a name is 1 to 96 bytes of a fixed alphabet, in every request that carries one") {
  on_each_engine({}, [](BrokerFixture& broker) {
    RawClient client = greeted(broker);
    for (const std::string& name : bad_names()) {
      INFO(shmb::quoted(name));
      auto length = static_cast<std::uint16_t>(name.size());
      shmbw_create create = sized(4096);
      create.name_len = length;
      check_element(client, SHMBW_OP_CREATE, create, name, Status::invalid, "region name");
      shmbw_group_create group{};
      group.name_len = length;
      check_plain(client, SHMBW_OP_GROUP_CREATE, group, name, Status::invalid, "group name");
      shmbw_attach attach{};
      attach.by = SHMBW_ATTACH_BY_NAME;
      attach.rights = kRead;
      attach.name_len = length;
      check_element(client, SHMBW_OP_ATTACH, attach, name, Status::invalid, "region name");
      shmbw_watch watch{};
      watch.kind = SHMBW_WATCH_KIND_NAME;
      watch.events = SHMBW_WATCH_EVENT_APPEARED;
      watch.name_len = length;
      check_plain(client, SHMBW_OP_WATCH, watch, name, Status::invalid, "region name");
      // Where a group is only looked up, a name that cannot be is like one that is not.
      shmbw_group_join join{};
      join.name_len = length;
      check_plain(client, SHMBW_OP_GROUP_JOIN, join, name, Status::not_found, "group");
      shmbw_group_end end{};
      end.name_len = length;
      check_plain(client, SHMBW_OP_GROUP_END, end, name, Status::not_found, "group");
      check_plain(client, SHMBW_OP_GROUP_LIMIT, shmbw_group_limit{0, 1, length, 0, 0}, name, Status::not_found,
                  "group");
      shmbw_list list{};
      list.table = SHMBW_TABLE_REGIONS;
      list.group_len = length;
      RawPacket none = client.call(SHMBW_OP_LIST, list, name);
      CHECK(none.ok());
      CHECK(none.fixed<shmbw_list_reply>().count == 0);
    }
    check_plain(client, SHMBW_OP_GROUP_JOIN, shmbw_group_join{}, {}, Status::invalid, "token or a name");
    shmbw_attach nameless{};
    nameless.by = SHMBW_ATTACH_BY_NAME;
    nameless.rights = kRead;
    check_element(client, SHMBW_OP_ATTACH, nameless, {}, Status::invalid, "region name");
    for (const std::string& name :
         {std::string("a"), std::string(96, 'Z'), std::string("A-z_0.9"), std::string("-"), std::string("_.")}) {
      CAPTURE(name);
      CHECK(create_region(client, 4096, name).region.generation == 1);
      shmbw_create again = sized(4096);
      again.name_len = static_cast<std::uint16_t>(name.size());
      check_element(client, SHMBW_OP_CREATE, again, name, Status::exists, name);
    }
    CHECK(books_of(broker).regions == 5);
  });
}

TEST_CASE("the name that a client gives itself reaches a table only as printable text") {
  on_each_engine({}, [](BrokerFixture& broker) {
    RawClient client = RawClient::connect(broker.socket());
    shmbw_hello hello = RawClient::greeting();
    const std::string evil = "\x1b[2J\n" + std::string("\0", 1) + std::string(60000, '\xff');
    hello.library_len = static_cast<std::uint16_t>(evil.size());
    CHECK(client.call(SHMBW_OP_HELLO, hello, evil).ok());
    shmbw_list wish{};
    wish.table = SHMBW_TABLE_SESSIONS;
    RawPacket page = client.call(SHMBW_OP_LIST, wish);
    REQUIRE(page.ok());
    std::string_view text = page.rest().substr(sizeof(shmbw_session_record));
    CHECK(!text.empty());
    CHECK(text.size() <= 128);
    for (char c : text) CHECK((c >= 0x20 && c < 0x7f));
  });
}

TEST_CASE("a create with words that do not fit together is refused") {
  on_each_engine({}, [](BrokerFixture& broker) {
    RawClient client = greeted(broker);
    auto refused = [&](auto&& change, Status status, std::string_view word, std::string_view name = {}) {
      shmbw_create create = sized(4096);
      create.name_len = static_cast<std::uint16_t>(name.size());
      change(create);
      check_element(client, SHMBW_OP_CREATE, create, name, status, word);
    };
    for (std::uint32_t flag = SHMBW_CREATE_KNOWN + 1; flag != 0; flag <<= 1)
      refused([=](auto& create) { create.flags = flag; }, Status::unknown_flags, "flag");
    for (std::uint32_t right = SHMBW_RIGHT_KNOWN + 1; right != 0; right <<= 1)
      refused([=](auto& create) { create.rights = kRead | kWrite | right; }, Status::unknown_flags, "right");
    for (std::uint32_t rights : {kRead, kWrite, kShare | kRelease, kRead | kShare | kRelease})
      refused([=](auto& create) { create.rights = rights; }, Status::invalid, "map_write");
    refused([](auto& create) { create.keep = 1; }, Status::invalid, "keep");
    for (std::int64_t keep : {std::int64_t{-2}, INT64_MIN})
      refused([=](auto& create) { create.keep = keep, create.flags = SHMBW_CREATE_KEEP_GIVEN; }, Status::invalid,
              "keep");
    for (std::int64_t keep : {INT64_MAX, std::int64_t{8} * 86'400 * 1'000'000'000})
      refused([=](auto& create) { create.keep = keep, create.flags = SHMBW_CREATE_KEEP_GIVEN; }, Status::limit,
              "keep_max", "kept");
    refused([](auto& create) { create.keep = INT64_MAX, create.flags = SHMBW_CREATE_KEEP_GIVEN; }, Status::invalid,
            "needs a name");
    refused([](auto& create) { create.flags = SHMBW_CREATE_REPLACE; }, Status::invalid, "name");
    for (std::uint64_t group : {std::uint64_t{1} << 40, UINT64_MAX, std::uint64_t{4711}})
      refused([=](auto& create) { create.group = group; }, Status::not_found, "group");
    CHECK(books_of(broker).regions == 0);
  });
}

TEST_CASE("rights that are not there cannot be taken, given on or used") {
  on_each_engine({}, [](BrokerFixture& broker) {
    RawClient client = greeted(broker);
    shmbw_create poor = sized(4096);
    poor.rights = kRead | kWrite;
    auto region = create_region(client, poor, "poor").region;
    for (std::uint32_t right = SHMBW_RIGHT_KNOWN + 1; right != 0; right <<= 1) {
      check_element(client, SHMBW_OP_ATTACH, attach_by_id(region, kRead | right), {}, Status::unknown_flags, "right");
      check_plain(client, SHMBW_OP_TICKET_CREATE, shmbw_ticket_create{region, kRead | right, 1, 0}, {},
                  Status::unknown_flags, "right");
      check_element(client, SHMBW_OP_INHERIT, shmbw_inherit{region, kRead | right, 1}, {}, Status::unknown_flags,
                    "right");
    }
    for (std::uint32_t flag = SHMBW_TICKET_CREATE_KNOWN + 1; flag != 0; flag <<= 1)
      check_plain(client, SHMBW_OP_TICKET_CREATE, shmbw_ticket_create{region, kRead, 1, 0, flag, 0, 0}, {},
                  Status::unknown_flags, "flag");
    for (std::uint32_t rights : {0U, kWrite, kShare, kRelease})
      check_element(client, SHMBW_OP_ATTACH, attach_by_id(region, rights), {}, Status::invalid, "map_read");
    shmbw_attach flagged = attach_by_id(region, kRead);
    flagged.flags = SHMBW_ATTACH_KNOWN + 1;
    check_element(client, SHMBW_OP_ATTACH, flagged, {}, Status::unknown_flags, "flag");
    for (std::uint32_t by : {0U, 4U, UINT32_MAX}) {
      flagged = attach_by_id(region, kRead);
      flagged.by = by;
      check_element(client, SHMBW_OP_ATTACH, flagged, {}, Status::invalid, "by id, name or ticket");
    }
    shmbw_attach both = attach_by_id(region, kRead);
    both.name_len = 4;
    check_element(client, SHMBW_OP_ATTACH, both, "poor", Status::invalid, "by name");

    check_plain(client, SHMBW_OP_TICKET_CREATE, shmbw_ticket_create{region, kRead, 1, 0}, {}, Status::denied, "share");
    check_element(client, SHMBW_OP_RELEASE, shmbw_release{region, 1, SHMBW_RELEASE_UNNAME}, {}, Status::denied,
                  "release");
    shmbw_create successor = sized(4096);
    successor.name_len = 4;
    successor.flags = SHMBW_CREATE_REPLACE;
    check_element(client, SHMBW_OP_CREATE, successor, "poor", Status::denied, "release");
    check_element(client, SHMBW_OP_RELEASE, shmbw_release{region, 2, 0}, {}, Status::invalid, "references");
    check_element(client, SHMBW_OP_RELEASE, shmbw_release{region, 0, SHMBW_RELEASE_KNOWN + 1}, {},
                  Status::unknown_flags, "flag");

    shmbw_create rich = sized(4096);
    rich.rights = kRead | kWrite | kShare;
    auto shared = create_region(client, rich).region;
    check_plain(client, SHMBW_OP_TICKET_CREATE, shmbw_ticket_create{shared, kRead | kRelease, 1, 0}, {}, Status::denied,
                "release");
    check_plain(client, SHMBW_OP_TICKET_CREATE, shmbw_ticket_create{shared, kWrite, 1, 0}, {}, Status::invalid,
                "map_read");
    for (std::int64_t life : {std::int64_t{-1}, INT64_MIN})
      check_plain(client, SHMBW_OP_TICKET_CREATE, shmbw_ticket_create{shared, kRead, 1, life}, {}, Status::invalid,
                  "lifetime");
    check_plain(client, SHMBW_OP_TICKET_CREATE, shmbw_ticket_create{shared, kRead, 1, 0, 0, 0, 1}, {}, Status::invalid,
                "with_session");
    check_plain(client, SHMBW_OP_TICKET_CREATE,
                shmbw_ticket_create{shared, kRead, 1, 0, SHMBW_TICKET_CREATE_WITH_SESSION, 0, UINT64_MAX}, {},
                Status::not_found, "session");
    for (std::uint32_t flag = SHMBW_TICKETS_RELEASE_KNOWN + 1; flag != 0; flag <<= 1)
      check_plain(client, SHMBW_OP_TICKETS_RELEASE, shmbw_tickets_release{{}, 0, 0, 0, flag}, {}, Status::unknown_flags,
                  "flag");
    check_plain(client, SHMBW_OP_TICKETS_RELEASE,
                shmbw_tickets_release{{}, 0, 0, ::geteuid() + 1, SHMBW_TICKETS_RELEASE_OWNER_GIVEN}, {}, Status::denied,
                "admin socket");
    check_plain(client, SHMBW_OP_TICKET_CREATE, shmbw_ticket_create{shared, kRead, 1, INT64_MAX}, {}, Status::limit,
                "ticket_max");
    check_element(client, SHMBW_OP_INHERIT, shmbw_inherit{shared, 0, 1}, {}, Status::not_found, "inherit");

    // A reader cannot publish, and after it nobody can write.
    mapped_by(client, shared);
    RawClient reader = greeted(broker);
    ok_element<shmbw_attach_reply>(reader, SHMBW_OP_ATTACH, attach_by_id(shared, kRead));
    check_plain(reader, SHMBW_OP_PUBLISH, shmbw_publish{shared}, {}, Status::denied, "map_write");
    check_element(reader, SHMBW_OP_ATTACH, attach_by_id(shared, kRead | kWrite), {}, Status::write_closed, "writing");
    check_plain(client, SHMBW_OP_TICKET_CREATE, shmbw_ticket_create{shared, kRead | kWrite, 1, 0}, {},
                Status::write_closed, "writing");
    CHECK(client.call(SHMBW_OP_PUBLISH, shmbw_publish{shared}).ok());
    check_element(client, SHMBW_OP_ATTACH, attach_by_id(shared, kRead | kWrite), {}, Status::write_closed, "published");

    // Not yet mapped by its writer; then still mapped by it.
    auto fresh = create_region(client, sized(4096)).region;
    check_element(reader, SHMBW_OP_ATTACH, attach_by_id(fresh, kRead), {}, Status::not_ready, "ready");
    std::vector<shmb::Fd> fds;
    auto written = ok_element<shmbw_create_reply>(client, SHMBW_OP_CREATE, sized(4096), {}, &fds).region;
    void* at = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fds.at(0).get(), 0);
    REQUIRE(at != MAP_FAILED);
    mapped_by(client, written);
    check_plain(client, SHMBW_OP_PUBLISH, shmbw_publish{written}, {}, Status::still_mapped, "unmap");
    ::munmap(at, 4096);
    CHECK(client.call(SHMBW_OP_PUBLISH, shmbw_publish{written}).ok());
  });
}

TEST_CASE("an identity that is none, of another generation or of another session gets its own error") {
  on_each_engine({}, [](BrokerFixture& broker) {
    RawClient client = greeted(broker);
    auto region = create_region(client, 4096, "thing").region;
    for (std::uint64_t id :
         {std::uint64_t{0}, region.id + 1, std::uint64_t{1} << 32, std::uint64_t{1} << 60, UINT64_MAX}) {
      CAPTURE(id);
      shmbw_region_ref ref{id, 0, 0};
      check_element(client, SHMBW_OP_ATTACH, attach_by_id(ref, kRead), {}, Status::not_found, "region");
      check_element(client, SHMBW_OP_RELEASE, shmbw_release{ref, 0, 0}, {}, Status::not_found, "region");
      check_plain(client, SHMBW_OP_PUBLISH, shmbw_publish{ref}, {}, Status::not_found, "region");
      check_plain(client, SHMBW_OP_TICKET_CREATE, shmbw_ticket_create{ref, kRead, 1, 0}, {}, Status::not_found,
                  "region");
      shmbw_watch watch{};
      watch.kind = SHMBW_WATCH_KIND_REGION;
      watch.events = SHMBW_WATCH_EVENT_GONE;
      watch.region = ref;
      check_plain(client, SHMBW_OP_WATCH, watch, {}, Status::not_found, "region");
      mapped_by(client, ref);  // nobody to tell; nothing happens
    }
    for (std::uint32_t generation : {2U, UINT32_MAX}) {
      shmbw_region_ref ref{region.id, generation, 0};
      check_element(client, SHMBW_OP_ATTACH, attach_by_id(ref, kRead), {}, Status::stale, "generation 1");
      check_element(client, SHMBW_OP_RELEASE, shmbw_release{ref, 0, 0}, {}, Status::stale, "generation 1");
      check_plain(client, SHMBW_OP_PUBLISH, shmbw_publish{ref}, {}, Status::stale, "generation 1");
      mapped_by(client, ref);
    }
    shmbw_region_ref reserved{region.id, 1, 7};
    RawPacket too_new = client.call_batch(SHMBW_OP_RELEASE, one(shmbw_release{reserved, 0, 0}));
    check_error(error_of(too_new), Status::too_new, "fields");
    RawClient other = greeted(broker);
    check_element(other, SHMBW_OP_RELEASE, shmbw_release{region, 0, 0}, {}, Status::not_found, "no lease");
    check_plain(other, SHMBW_OP_PUBLISH, shmbw_publish{region}, {}, Status::not_found, "region");
    CHECK(books_of(broker).leases == 1);
    CHECK(client.status().ok());
  });
}

TEST_CASE("groups, watches and lists refuse words that they do not know and things that are not there") {
  on_each_engine({}, [](BrokerFixture& broker) {
    RawClient client = greeted(broker);
    shmbw_group_create group{};
    group.flags = SHMBW_GROUP_KNOWN + 1;
    check_plain(client, SHMBW_OP_GROUP_CREATE, group, {}, Status::unknown_flags, "flag");
    group = {};
    group.keep = -2;
    check_plain(client, SHMBW_OP_GROUP_CREATE, group, {}, Status::invalid, "keep");
    group.keep = INT64_MAX;
    check_plain(client, SHMBW_OP_GROUP_CREATE, group, {}, Status::limit, "keep_max");
    shmbw_group_join join{};
    join.flags = SHMBW_JOIN_KNOWN + 1;
    join.name_len = 1;
    check_plain(client, SHMBW_OP_GROUP_JOIN, join, "a", Status::unknown_flags, "flag");
    for (std::string name :
         {"nowhere", "#1", "#0", "#18446744073709551615", "#99999999999999999999", "#", "#-1", "#01", "#x"}) {
      join = {};
      join.name_len = static_cast<std::uint16_t>(name.size());
      check_plain(client, SHMBW_OP_GROUP_JOIN, join, name, Status::not_found, "no group");
    }
    join.flags = SHMBW_JOIN_OWNER_GIVEN;
    join.owner_uid = UINT32_MAX;
    check_plain(client, SHMBW_OP_GROUP_JOIN, join, "#x", Status::not_found, "no group");
    for (std::uint64_t id : {std::uint64_t{1}, std::uint64_t{99}, UINT64_MAX}) {
      check_plain(client, SHMBW_OP_GROUP_LEAVE, shmbw_group_leave{id}, {}, Status::not_found, "not in that group");
      shmbw_group_end end{};
      end.group = id;
      check_plain(client, SHMBW_OP_GROUP_END, end, {}, Status::not_found, "no group");
      check_plain(client, SHMBW_OP_GROUP_LIMIT, shmbw_group_limit{id, 1, 0, 0, 0}, {}, Status::not_found, "no group");
    }
    check_plain(client, SHMBW_OP_GROUP_LIMIT, shmbw_group_limit{}, {}, Status::not_found, "no group");
    check_plain(client, SHMBW_OP_GROUP_END, shmbw_group_end{}, {}, Status::not_found, "no group");
    RawPacket made = client.call(SHMBW_OP_GROUP_CREATE, shmbw_group_create{});
    REQUIRE(made.ok());
    shmbw_group_end end{};
    end.group = made.fixed<shmbw_group_create_reply>().group;
    end.flags = SHMBW_END_TREE_GONE;
    check_plain(client, SHMBW_OP_GROUP_END, end, {}, Status::denied, "supervisor");
    end.flags = SHMBW_END_KNOWN + 1;
    check_plain(client, SHMBW_OP_GROUP_END, end, {}, Status::unknown_flags, "flag");

    auto watch = [&](auto&& change, Status status, std::string_view word, std::string_view texts = {}) {
      shmbw_watch wish{};
      wish.kind = SHMBW_WATCH_KIND_RECLAIM;
      wish.events = SHMBW_WATCH_EVENT_RECLAIM;
      change(wish);
      check_plain(client, SHMBW_OP_WATCH, wish, texts, status, word);
    };
    for (std::uint32_t kind : {5U, 100U, UINT32_MAX})
      watch([=](auto& wish) { wish.kind = kind; }, Status::invalid, "watch a region");
    watch([](auto& wish) { wish.events = 0; }, Status::invalid, "events");
    watch([](auto& wish) { wish.events = SHMBW_WATCH_EVENT_KNOWN + 1; }, Status::unknown_flags, "event");
    watch([](auto& wish) { wish.flags = SHMBW_WATCH_KNOWN + 1; }, Status::unknown_flags, "flag");
    watch([](auto& wish) { wish.kind = SHMBW_WATCH_KIND_GROUP, wish.group = 4711; }, Status::not_found, "group");
    watch([](auto& wish) { wish.kind = SHMBW_WATCH_KIND_GROUP; }, Status::not_found, "group");
    for (std::uint64_t id : {std::uint64_t{0}, std::uint64_t{1}, UINT64_MAX})
      watch([=](auto& wish) { wish.kind = SHMBW_WATCH_KIND_CANCEL, wish.watch = id; }, Status::not_found, "watch");
    watch([](auto& wish) { wish.kind = SHMBW_WATCH_KIND_NAME, wish.group_len = 2, wish.name_len = 1; },
          Status::not_found, "group", "#9n");

    for (std::uint32_t table : {0U, SHMBW_TABLE_REFUSALS + 1U, 255U, UINT32_MAX}) {
      shmbw_list wish{};
      wish.table = table;
      check_plain(client, SHMBW_OP_LIST, wish, {}, Status::invalid, "which lists regions");
    }
    shmbw_list flagged{};
    flagged.table = SHMBW_TABLE_REGIONS;
    flagged.flags = SHMBW_LIST_KNOWN + 1;
    check_plain(client, SHMBW_OP_LIST, flagged, {}, Status::unknown_flags, "flag");
    for (std::uint32_t table = SHMBW_TABLE_REGIONS; table <= SHMBW_TABLE_PARTICIPANTS; ++table) {
      shmbw_list wish{};
      wish.table = table;
      wish.cursor = UINT64_MAX;
      RawPacket page = client.call(SHMBW_OP_LIST, wish);
      CHECK(page.ok());
      CHECK(page.fixed<shmbw_list_reply>().count == 0);
      CHECK(page.fixed<shmbw_list_reply>().next == 0);
      wish.cursor = 0;
      wish.group = wish.region.id = UINT64_MAX;
      wish.region.generation = UINT32_MAX;
      CHECK(client.call(SHMBW_OP_LIST, wish).ok());
    }
  });
}

TEST_CASE("in a batch each element has its own outcome, and a bad one takes nothing from the good") {
  on_each_engine({}, [](BrokerFixture& broker) {
    RawClient client = greeted(broker);
    for (std::size_t count : {std::size_t{2}, std::size_t{3}, std::size_t{100}, std::size_t{SHMBW_MAX_BATCH}}) {
      CAPTURE(count);
      std::vector<shmbw_create> wishes;
      for (std::size_t i = 0; i < count; ++i) wishes.push_back(sized(i % 3 == 1 ? UINT64_MAX : 4096 * (i % 5 + 1)));
      RawPacket reply = client.call_batch(SHMBW_OP_CREATE, std::span<const shmbw_create>(wishes));
      REQUIRE(wrong_with(reply, batch(SHMBW_OP_CREATE, reply.header().tag, wishes)) == "");
      std::vector<shmbw_release> releases;
      std::size_t made = 0;
      for (std::size_t i = 0; i < count; ++i) {
        auto element = reply.element<shmbw_create_reply>(i);
        if (i % 3 == 1) {
          CHECK(element.outcome.status == SHMB_E_INVALID);
          CHECK(element.outcome.fd_index == SHMBW_NO_FD);
          CHECK(contains(error_of_element(reply, i).sentence, "2^47"));
          continue;
        }
        ++made;
        REQUIRE(element.outcome.status == 0);
        struct stat facts{};
        REQUIRE(::fstat(reply.fds.at(element.outcome.fd_index).get(), &facts) == 0);
        CHECK(static_cast<std::uint64_t>(facts.st_size) == wishes[i].length);
        releases.push_back({element.region, 0, 0});
        releases.push_back({element.region, 0, 0});  // the second time it is gone
      }
      CHECK(reply.fds.size() == made);
      CHECK(books_of(broker).regions == made);
      for (std::size_t from = 0; from < releases.size(); from += 250) {
        std::span<const shmbw_release> some(releases.data() + from, std::min<std::size_t>(250, releases.size() - from));
        RawPacket done = client.call_batch(SHMBW_OP_RELEASE, some);
        REQUIRE(done.ok());
        for (std::size_t i = 0; i < some.size(); ++i)
          CHECK(done.element<shmbw_outcome>(i).status == (i % 2 == 0 ? 0 : SHMB_E_NOT_FOUND));
      }
      CHECK(books_of(broker).regions == 0);
    }
  });
}

TEST_CASE("numbers at their ends do not overflow a count") {
  on_each_engine({}, [](BrokerFixture& broker) {
    RawClient parent = RawClient::connect(broker.socket());
    auto hello = parent.hello().fixed<shmbw_hello_reply>();
    auto region = create_region(parent, 4096).region;
    RawClient child = RawClient::connect(broker.socket());
    shmbw_hello follow = RawClient::greeting();
    follow.fork_session = hello.session;
    std::memcpy(follow.fork_secret, hello.fork_secret, sizeof follow.fork_secret);
    REQUIRE(child.call(SHMBW_OP_HELLO, follow).ok());
    ok_element<shmbw_inherit_reply>(child, SHMBW_OP_INHERIT, shmbw_inherit{region, 0, UINT32_MAX});
    check_element(child, SHMBW_OP_INHERIT, shmbw_inherit{region, 0, 1}, {}, Status::invalid, "references");
    check_element(child, SHMBW_OP_INHERIT, shmbw_inherit{region, 0, UINT32_MAX}, {}, Status::invalid, "references");
    check_element(child, SHMBW_OP_ATTACH, attach_by_id(region, kRead | kWrite), {}, Status::invalid, "references");
    ok_element<shmbw_release_reply>(child, SHMBW_OP_RELEASE, shmbw_release{region, UINT32_MAX - 1, 0});
    ok_element<shmbw_release_reply>(child, SHMBW_OP_RELEASE, shmbw_release{region, 1, 0});
    check_element(child, SHMBW_OP_RELEASE, shmbw_release{region, 1, 0}, {}, Status::not_found, "no lease");
    // A populated count is the client's word: bounded before it is shown.
    REQUIRE(parent.send(batch(SHMBW_OP_READY, 0, std::vector{shmbw_ready{region, UINT64_MAX, UINT32_MAX, 0}})));
    auto drawn =
        parent.call(SHMBW_OP_TICKET_CREATE, shmbw_ticket_create{region, kRead | kWrite, UINT32_MAX, 1'000'000});
    CHECK(drawn.ok());
    CHECK(parent.status().ok());
    CHECK(books_of(broker).leases == 1);
  });
}

}  // namespace wire_test
