// SPDX-License-Identifier: Apache-2.0
// The books without a transport: a link that keeps what it is given, a clock that stands until it is moved, and
// clients that speak bytes. Every world proves at its end that the books are empty.
#pragma once

#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.hpp"
#include "daemon/serve/broker.hpp"
#include "proto/refusal.hpp"

namespace shmb::daemon::test {

inline constexpr std::int64_t kSecond = 1'000'000'000, kMinute = 60 * kSecond;
inline constexpr std::uint64_t kMiB = 1 << 20;

struct Packet {
  std::vector<std::byte> bytes;
  std::vector<Fd> fds;
  wire::PacketView view() const;
  std::uint16_t op() const { return view().header.op; }
  Status status() const { return static_cast<Status>(view().header.status); }
  Error error() const { return wire::read_error_reply(view()); }
  template <class T>
  T fixed() const {
    return wire::read_struct<T>(view().fixed).value();
  }
};

class FakeLink final : public Link {
 public:
  explicit FakeLink(Peer peer);
  const Peer& peer() const override { return peer_; }
  void reply(wire::Bytes packet, std::span<const int> fds) override;
  void hold() override { held = true; }
  void serve_again() override { again(); }
  void yield() override { yields = true; }
  void event(wire::Bytes packet) override { queued_.push_back({{packet.begin(), packet.end()}, {}}); }
  void send_events() override;
  void drop(std::string_view why) override { dropped = why; }
  std::uint32_t descriptors_in_flight() const override { return 0; }
  Held descriptors_held() const override { return {socket, -1}; }
  bool over_share() const override { return is_over_share; }
  bool confirm_start_time(std::uint64_t) override { return start_time_right; }
  bool process_over() const override { return process_is_over; }
  void take_descriptors(bool many) override { takes_descriptors = true, takes_many = many; }
  std::vector<Fd>& descriptors() override { return brought; }

  std::vector<Packet> replies, events;
  std::string dropped;
  int socket = -1;              // that it would be on
  bool yields = false;          // the request was served in part
  bool held = false;            // the books keep the request in service...
  std::function<void()> again;  // ... and this hands it in once more
  bool start_time_right = true, takes_descriptors = false, takes_many = false, process_is_over = false,
       is_over_share = false;
  std::vector<Fd> brought;  // with the next request; gone after it
  std::function<void()> on_reply = [] {};
  std::function<void()> on_event = [] {};
  void bring(Fd fd) { brought.push_back(std::move(fd)); }

  void collect();  // the reply, after the books have returned

 private:
  Peer peer_;
  std::vector<Packet> queued_;  // events
  std::vector<std::byte> bytes_;
  std::vector<Fd> fds_;
  bool pending_ = false;
};

struct Element {  // of a batch reply
  Status status = Status::ok;
  Error error;
  int fd = -1;  // number inside Packet::fds
};

struct Created : Element {
  shmbw_create_reply reply{};
  Fd memory;
  shmbw_region_ref ref() const { return reply.region; }
};
struct Attached : Element {
  shmbw_attach_reply reply{};
  Fd memory;
};

struct CreateRequest {
  std::string name = {};
  std::uint64_t length = 4096;
  std::uint64_t group = 0;
  std::uint32_t flags = 0, rights = 0;
  std::int64_t keep = 0;
};
struct GroupRequest {
  std::string name = {};
  std::uint32_t flags = 0, limit_regions = 0;
  std::int64_t keep = 0;
  std::uint64_t limit_bytes = 0;
};
struct HelloRequest {
  std::uint64_t fork_session = 0;
  std::array<std::uint8_t, 16> fork_secret{}, group_token{};
  std::uint16_t version_min = 1, version_max = 1;
  std::uint64_t start_time = 0, features = 0;
};

inline constexpr std::uint32_t kAll = SHMBW_RIGHT_KNOWN;
inline constexpr std::uint32_t kRead = SHMBW_RIGHT_MAP_READ;
inline constexpr std::uint32_t kWrite = SHMBW_RIGHT_MAP_READ | SHMBW_RIGHT_MAP_WRITE;

class World;

// For the one request that is being written.
std::span<std::byte> request_room();

// One connected process.
class Client {
 public:
  Client(World& world, Peer peer);
  Client(Client&&) = default;
  Client& operator=(Client&&) = default;  // over one that has been forgotten
  ~Client();

  // Sends one request; the reply is the last of link().replies. Fails the test if there is not exactly one.
  template <class T>
  Packet& call(std::uint16_t op, const T& fixed, std::string_view texts = {}, std::uint16_t flags = 0) {
    wire::Writer out(request_room());
    out.begin(op, ++tag_, Status::ok, fixed, flags);
    out.text(texts);
    return exchange(out.finish(link_->brought.size()));
  }
  template <class T>
  Packet& batch(std::uint16_t op, const std::vector<T>& elements, std::string_view texts = {},
                std::uint16_t flags = 0) {
    wire::Writer out(request_room());
    out.begin_batch<T>(op, ++tag_, elements.size(), flags);
    for (std::size_t i = 0; i < elements.size(); ++i) out.element(i, elements[i]);
    out.text(texts);
    return exchange(out.finish(link_->brought.size()),
                    (flags & SHMBW_HEADER_NO_REPLY) == 0 && op != SHMBW_OP_READY && op != SHMBW_OP_LANE_FINISHED);
  }
  Packet& exchange(wire::Bytes packet, bool answered = true);
  void send_only(wire::Bytes packet);  // the reply may come later: link().held
  void wait_while_held();
  // One turn of a request without descriptors. True: it was served in part, and wants another turn.
  bool turn(wire::Bytes packet);

  Packet& hello(const HelloRequest& wish = {});
  Created create(const CreateRequest& wish = {});
  std::vector<Created> create_many(const std::vector<CreateRequest>& wishes);
  Attached attach_id(shmbw_region_ref ref, std::uint32_t rights = kRead, std::uint32_t flags = 0);
  Attached attach_name(std::string_view group, std::string_view name, std::uint32_t rights = kRead,
                       std::optional<std::uint32_t> owner = {});
  Attached attach_ticket(const std::array<std::uint8_t, 16>& ticket, std::uint32_t rights = kRead);
  Element release(shmbw_region_ref ref, std::uint32_t count = 0, std::uint32_t flags = 0);
  void ready(shmbw_region_ref ref, std::uint32_t kind = SHMBW_PAGE_KIND_HUGE);
  Packet& publish(shmbw_region_ref ref) { return call(SHMBW_OP_PUBLISH, shmbw_publish{ref}); }
  Packet& ticket(shmbw_region_ref ref, std::uint32_t rights = kRead, std::uint32_t uses = 0, std::int64_t life = 0,
                 std::uint32_t flags = 0, std::uint64_t session = 0) {
    return call(SHMBW_OP_TICKET_CREATE, shmbw_ticket_create{ref, rights, uses, life, flags, 0, session});
  }
  static std::array<std::uint8_t, 16> ticket_of(const Packet& reply);
  Packet& revoke(const std::array<std::uint8_t, 16>& ticket) {
    shmbw_ticket_revoke wish{};
    std::ranges::copy(ticket, wish.ticket);
    return call(SHMBW_OP_TICKET_REVOKE, wish);
  }
  // One request of it: `next` says whether the table goes on.
  Packet& release_tickets(const shmbw_tickets_release& wish) { return call(SHMBW_OP_TICKETS_RELEASE, wish); }
  Element inherit(shmbw_region_ref ref, std::uint32_t rights = 0);
  Packet& make_group(const GroupRequest& wish = {});
  Packet& join(std::string_view name, std::uint32_t flags = 0, std::optional<std::uint32_t> owner = {});
  Packet& join(const std::uint8_t (&token)[16], std::uint32_t flags = 0);
  Packet& leave(std::uint64_t group = 0) { return call(SHMBW_OP_GROUP_LEAVE, shmbw_group_leave{group}); }
  Packet& end_group(std::uint64_t group, std::uint32_t flags = 0) {
    return call(SHMBW_OP_GROUP_END, shmbw_group_end{group, flags, 0, 0});
  }
  Packet& limit_group(std::uint64_t group, std::uint64_t bytes) {
    return call(SHMBW_OP_GROUP_LIMIT, shmbw_group_limit{group, bytes, 0, 0, 0});
  }
  Packet& watch_region(shmbw_region_ref ref, std::uint32_t events);
  Packet& watch_name(std::string_view group, std::string_view name, std::uint32_t flags = 0);
  Packet& watch_group(std::uint64_t group);
  Packet& watch_reclaims(std::uint64_t group = 0);
  Packet& list(const shmbw_list& wish, std::string_view group = {}, std::string_view name = {});
  // All rows of a table, over all pages.
  template <class Record>
  std::vector<Record> rows(std::uint32_t table, shmbw_list wish = {}, std::size_t* pages = nullptr);
  shmbw_status_reply status() { return call(SHMBW_OP_STATUS, shmbw_status{}).template fixed<shmbw_status_reply>(); }

  // Ends, as the transport tells them.
  void close();  // end of file of a living process, then forget
  void die(std::optional<sys::ExitInfo> how = sys::ExitInfo{true, 9, false});  // pidfd, end of file, forget
  void pidfd(std::optional<sys::ExitInfo> how = sys::ExitInfo{true, 9, false});
  void end_of_file();
  void disconnect();
  void forget();

  FakeLink& link() { return *link_; }
  Session* session() { return session_; }
  std::uint64_t id = 0, group = 0, epoch = 0;
  std::array<std::uint8_t, 16> secret{};

 private:
  World* world_;
  std::unique_ptr<FakeLink> link_;
  Session* session_ = nullptr;
  bool socket_open_ = true;
  std::uint64_t tag_ = 0;
};

class World {
 public:
  // `compares`: after each call the books are compared with the objects. A comparison allocates.
  // `last`: it begins from these books, at the time `begin`.
  explicit World(Config config = {}, BrokerFacts facts = {}, bool compares = true,
                 const books::LastBooks* last = nullptr, std::int64_t begin = 1000 * kSecond);
  ~World();  // everything freed, every table empty
  // Connected and greeted.
  Client client(std::uint32_t uid = 1000, std::uint32_t pid = 0);
  Client admin();
  Client silent(std::uint32_t uid = 1000, std::uint32_t pid = 0, bool pidfd = true);
  void advance(std::int64_t by);
  void expect_empty();     // once every keep, ticket and shelf is over; the sessions have ended before
  void wait_for_closes();  // regions that a helper thread closes
  shmbw_status_reply status();
  // Sooner or later: what clients brought is closed on a thread, and counts until then.
  bool holds_descriptors(std::uint32_t count);

  std::int64_t now;
  std::vector<std::string> log;
  std::unique_ptr<BrokerEvents> books;
  std::uint32_t next_pid = 100;
  long allocations = 0;  // by the books, in requests
  long turns = 0;        // more than one for each request
  bool check_at_end = true;
};

template <class Record>
std::vector<Record> Client::rows(std::uint32_t table, shmbw_list wish, std::size_t* pages) {
  std::vector<Record> out;
  wish.table = table;
  do {
    Packet& page = list(wish);
    REQUIRE(page.status() == Status::ok);
    auto reply = page.fixed<shmbw_list_reply>();
    wire::RecordReader reader(page.view().rest, reply.element_size);
    for (unsigned i = 0; i < reply.count; ++i) {
      auto record = reader.next<Record>();
      REQUIRE(record);
      out.push_back(*record);
      if constexpr (requires { record->pool_len; }) REQUIRE(reader.text(record->pool_len));
      if constexpr (requires { record->group_len; }) REQUIRE(reader.text(record->group_len));
      if constexpr (requires { record->name_len; }) REQUIRE(reader.text(record->name_len));
      if constexpr (requires { record->address_len; }) REQUIRE(reader.text(record->address_len));
      if constexpr (requires { record->error_len; }) REQUIRE(reader.text(record->error_len));
      if constexpr (requires { record->library_len; }) REQUIRE(reader.text(record->library_len));
      if constexpr (requires { record->ending_len; }) REQUIRE(reader.text(record->ending_len));
    }
    REQUIRE(reader.done());
    wish.cursor = reply.next;
    if (pages) ++*pages;
  } while (wish.cursor != 0);
  return out;
}

Config private_config();
Config system_config();
std::uint8_t (&raw(std::array<std::uint8_t, 16>& bytes))[16];

}  // namespace shmb::daemon::test
