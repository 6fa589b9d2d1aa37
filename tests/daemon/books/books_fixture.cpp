// SPDX-License-Identifier: Apache-2.0
// See books_fixture.hpp.
#include "tests/daemon/books/books_fixture.hpp"

#include "base/sys_process.hpp"
#include "tests/daemon/books/allocations.hpp"

namespace shmb::daemon::test {

wire::PacketView Packet::view() const {
  auto out = wire::open_packet(bytes, fds.size(), wire::Direction::from_broker);
  REQUIRE(out);
  return *out;
}

void FakeLink::reply(wire::Bytes packet, std::span<const int> fds) {
  // Into room that is there already, so that what the books allocate can be counted.
  REQUIRE(!pending_);
  pending_ = true;
  on_reply();
  bytes_.assign(packet.begin(), packet.end());
  for (int fd : fds) {
    Fd borrowed = Fd::adopt(fd);
    auto own = borrowed.dup();
    (void)borrowed.release();
    REQUIRE(own);
    fds_.push_back(std::move(*own));
  }
}

void FakeLink::send_events() {
  if (queued_.empty()) return;
  on_event();
  for (Packet& event : queued_) events.push_back(std::move(event));
  queued_.clear();
}

void FakeLink::collect() {
  if (!std::exchange(pending_, false)) return;
  replies.push_back({bytes_, {}});
  for (Fd& fd : fds_) replies.back().fds.push_back(std::move(fd));
  fds_.clear();
}

FakeLink::FakeLink(Peer peer) : peer_(std::move(peer)) {
  bytes_.reserve(SHMBW_MAX_MESSAGE);
  fds_.reserve(SHMBW_MAX_BATCH);
}

std::span<std::byte> request_room() {
  static std::vector<std::byte> bytes(SHMBW_MAX_MESSAGE);
  return bytes;
}

std::uint8_t (&raw(std::array<std::uint8_t, 16>& bytes))[16] {
  return *reinterpret_cast<std::uint8_t(*)[16]>(bytes.data());
}

Config private_config() {
  Config config;
  config.mode = Mode::private_;
  config.limits.host_bytes = 1ULL << 40;
  return config;
}

Config system_config() {
  Config config = private_config();
  config.mode = Mode::system;
  return config;
}

World::World(Config config, BrokerFacts facts, bool compares, const books::LastBooks* last, std::int64_t begin)
    : now(begin) {
  if (config.limits.host_bytes == 0) config.limits.host_bytes = 1ULL << 40;
  if (facts.version.empty()) facts.version = "shmbrokerd test";
  if (facts.uid == 0) facts.uid = 990;
  facts.epoch = 0xe10c;
  facts.compare_books = compares ? 1 : 0;
  if (facts.descriptors_limit == 0) facts.descriptors_limit = 19'000;
  facts.now = [this] { return now; };
  facts.last_pid = [this] { return next_pid - 1; };
  facts.log = [this](int, std::string_view line) { log.emplace_back(line); };
  auto made = make_broker(config, std::move(facts), last);
  REQUIRE(made);
  books = std::move(*made);
  if (last) books->begun();
}

World::~World() {
  if (check_at_end) expect_empty();
}

void World::expect_empty() {
  advance(30LL * 24 * 3600 * kSecond);  // every keep, ticket and shelf is over
  wait_for_closes();
  // A thread closes the memory of a large pool too, and no table lists it.
  while (status().bytes != 0) {
    auto woken = sys::poll_readable(books->wake_fd(), 10 * kSecond);
    CHECK(woken);
    if (!woken || !*woken) break;  // the checks say so
    books->woken();
  }
  CHECK(books->idle());
  auto end = status();
  CHECK(end.bytes == 0);
  CHECK(end.bytes_cached == 0);
  CHECK(end.regions == 0);
  CHECK(end.groups == 0);
  CHECK(end.leases == 0);
  CHECK(end.tickets == 0);
  CHECK(end.watches == 0);
  CHECK(end.sessions == 1);  // the one that asks
  {
    Client asker = admin();
    CHECK(asker.rows<shmbw_uid_record>(SHMBW_TABLE_UIDS).size() == 1);
  }
  for (const std::string& line : log) {
    CAPTURE(line);
    CHECK(line.find("own bug") == line.npos);
  }
}

shmbw_status_reply World::status() {
  Client asker = admin();
  auto out = asker.status();
  asker.close();
  return out;
}

bool World::holds_descriptors(std::uint32_t count) {
  for (int waited = 0; waited < 30'000 && status().descriptors != count; ++waited) sys::rest(1'000'000);
  return status().descriptors == count;
}

Client World::silent(std::uint32_t uid, std::uint32_t pid, bool pidfd) {
  Peer peer;
  peer.uid = peer.gid = uid;
  peer.pid = pid ? pid : next_pid++;
  peer.has_pidfd = pidfd;
  return Client(*this, peer);
}

Client World::client(std::uint32_t uid, std::uint32_t pid) {
  Client out = silent(uid, pid);
  REQUIRE(out.hello().status() == Status::ok);
  return out;
}

Client World::admin() {
  Peer peer;
  peer.uid = 0;
  peer.pid = next_pid++;
  peer.admin = true;
  Client out(*this, peer);
  REQUIRE(out.hello().status() == Status::ok);
  return out;
}

void World::advance(std::int64_t by) {
  // In the order of the deadlines, as the transport's loop does it.
  std::int64_t end = now + by;
  while (books->next_deadline() <= end) {
    now = std::max(now, books->next_deadline());
    books->tick(now);
  }
  now = end;
  books->tick(now);
}

void World::wait_for_closes() {
  Client asker = admin();
  for (;;) {
    shmbw_list wish{};
    bool closing = false;
    for (const auto& row : asker.rows<shmbw_region_record>(SHMBW_TABLE_REGIONS, wish))
      closing = closing || row.state == SHMBW_REGION_STATE_FREEING;
    if (!closing) break;
    auto woken = sys::poll_readable(books->wake_fd(), 10 * kSecond);
    REQUIRE(woken);
    REQUIRE(*woken);
    books->woken();
  }
  asker.close();
}

Client::Client(World& world, Peer peer) : world_(&world), link_(std::make_unique<FakeLink>(std::move(peer))) {
  session_ = world.books->connected(*link_);
}

Client::~Client() {
  if (link_ && session_) close();
}

static bool serve_turn(World& world, Session& session, FakeLink& link, wire::Bytes packet) {
  link.yields = false;
  world.books->packet(session, *wire::open_packet(packet, 0, wire::Direction::request));
  link.collect();
  return link.yields;
}

void Client::send_only(wire::Bytes packet) {
  auto view = wire::open_packet(packet, link_->brought.size(), wire::Direction::request);
  REQUIRE(view);
  link_->yields = false;  // of a request that this one takes the place of
  {
    room::AllocationsForbidden counter;
    world_->books->packet(*session_, *view);
    world_->allocations += counter.seen();
  }
  link_->brought.clear();
  link_->collect();
  for (; link_->yields; ++world_->turns) serve_turn(*world_, *session_, *link_, packet);
  if (!link_->held) return;
  link_->again = [world = world_, session = session_, link = link_.get(),
                  bytes = std::vector<std::byte>(packet.begin(), packet.end())] {
    link->held = false;
    do serve_turn(*world, *session, *link, bytes);
    while (link->yields);
  };
}

bool Client::turn(wire::Bytes packet) { return serve_turn(*world_, *session_, *link_, packet); }

void Client::wait_while_held() {
  while (link_->held) {
    auto woken = sys::poll_readable(world_->books->wake_fd(), kMinute);
    REQUIRE(woken);
    REQUIRE(*woken);
    world_->books->woken();
  }
}

Packet& Client::exchange(wire::Bytes packet, bool answered) {
  static Packet none;
  std::size_t before = link_->replies.size();
  send_only(packet);
  wait_while_held();
  REQUIRE(link_->replies.size() == before + (answered ? 1 : 0));
  if (!answered) return none;
  Packet& reply = link_->replies.back();
  shmbw_header asked;
  std::memcpy(&asked, packet.data(), sizeof asked);
  REQUIRE(reply.op() == (asked.op | SHMBW_REPLY));
  REQUIRE(reply.view().header.tag == asked.tag);
  return reply;
}

Packet& Client::hello(const HelloRequest& wish) {
  shmbw_hello hello{};
  hello.version_min = wish.version_min;
  hello.version_max = wish.version_max;
  hello.start_time = wish.start_time;
  hello.features = wish.features;
  hello.fork_session = wish.fork_session;
  std::memcpy(hello.fork_secret, wish.fork_secret.data(), 16);
  std::memcpy(hello.group_token, wish.group_token.data(), 16);
  hello.library_len = 4;
  Packet& reply = call(SHMBW_OP_HELLO, hello, "test");
  if (reply.status() == Status::ok) {
    auto fixed = reply.fixed<shmbw_hello_reply>();
    id = fixed.session;
    group = fixed.group;
    epoch = fixed.epoch;
    std::memcpy(secret.data(), fixed.fork_secret, 16);
  }
  return reply;
}

template <class Reply>
static void read_elements(Packet& packet, auto each) {
  REQUIRE(packet.status() == Status::ok);
  auto batch = wire::BatchView::open(packet.view());
  REQUIRE(batch);
  wire::TextReader texts = batch->texts();
  for (std::size_t i = 0; i < batch->count(); ++i) {
    auto reply = batch->template element<Reply>(i);
    REQUIRE(reply);
    Element element;
    element.status = static_cast<Status>(reply->outcome.status);
    auto detail = texts.take(reply->outcome.detail_len);
    REQUIRE(detail);
    if (element.status != Status::ok) element.error = wire::read_element_detail(reply->outcome.status, *detail);
    if (reply->outcome.fd_index != SHMBW_NO_FD) {
      REQUIRE(reply->outcome.fd_index < packet.fds.size());
      element.fd = reply->outcome.fd_index;
    }
    each(element, *reply);
  }
  REQUIRE(texts.done());
}

std::vector<Created> Client::create_many(const std::vector<CreateRequest>& wishes) {
  std::vector<shmbw_create> elements;
  std::string texts;
  for (const CreateRequest& wish : wishes) {
    shmbw_create element{};
    element.group = wish.group;
    element.length = wish.length;
    element.keep = wish.keep;
    element.flags = wish.flags;
    element.rights = wish.rights;
    element.name_len = static_cast<std::uint16_t>(wish.name.size());
    elements.push_back(element);
    texts += wish.name;
  }
  std::vector<Created> out;
  Packet& packet = batch(SHMBW_OP_CREATE, elements, texts);
  read_elements<shmbw_create_reply>(packet, [&](const Element& element, const shmbw_create_reply& reply) {
    Created created;
    static_cast<Element&>(created) = element;
    created.reply = reply;
    if (element.fd >= 0) created.memory = std::move(packet.fds[static_cast<std::size_t>(element.fd)]);
    out.push_back(std::move(created));
  });
  link_->replies.clear();
  return out;
}

Created Client::create(const CreateRequest& wish) { return std::move(create_many({wish}).front()); }

static Attached one_attached(Packet& packet) {
  Attached out;
  read_elements<shmbw_attach_reply>(packet, [&](const Element& element, const shmbw_attach_reply& reply) {
    static_cast<Element&>(out) = element;
    out.reply = reply;
    if (element.fd >= 0) out.memory = std::move(packet.fds[static_cast<std::size_t>(element.fd)]);
  });
  return out;
}

Attached Client::attach_id(shmbw_region_ref ref, std::uint32_t rights, std::uint32_t flags) {
  shmbw_attach wish{};
  wish.by = SHMBW_ATTACH_BY_ID;
  wish.rights = rights;
  wish.flags = flags;
  wish.region = ref;
  return one_attached(batch<shmbw_attach>(SHMBW_OP_ATTACH, {wish}));
}

Attached Client::attach_name(std::string_view group_text, std::string_view name, std::uint32_t rights,
                             std::optional<std::uint32_t> owner) {
  shmbw_attach wish{};
  wish.by = SHMBW_ATTACH_BY_NAME;
  wish.rights = rights;
  if (owner) wish.flags |= SHMBW_ATTACH_OWNER_GIVEN;
  wish.owner_uid = owner.value_or(0);
  wish.group_len = static_cast<std::uint16_t>(group_text.size());
  wish.name_len = static_cast<std::uint16_t>(name.size());
  return one_attached(batch<shmbw_attach>(SHMBW_OP_ATTACH, {wish}, std::string(group_text) + std::string(name)));
}

Attached Client::attach_ticket(const std::array<std::uint8_t, 16>& ticket, std::uint32_t rights) {
  shmbw_attach wish{};
  wish.by = SHMBW_ATTACH_BY_TICKET;
  wish.rights = rights;
  std::memcpy(wish.ticket, ticket.data(), 16);
  return one_attached(batch<shmbw_attach>(SHMBW_OP_ATTACH, {wish}));
}

template <class Reply>
static Element one_element(Packet& packet) {
  Element out;
  read_elements<Reply>(packet, [&](const Element& element, const Reply&) { out = element; });
  return out;
}

Element Client::release(shmbw_region_ref ref, std::uint32_t count, std::uint32_t flags) {
  return one_element<shmbw_release_reply>(batch<shmbw_release>(SHMBW_OP_RELEASE, {{ref, count, flags}}));
}

void Client::ready(shmbw_region_ref ref, std::uint32_t kind) {
  batch<shmbw_ready>(SHMBW_OP_READY, {{ref, 4096, kind, 0}}, {}, SHMBW_HEADER_NO_REPLY);
}

std::array<std::uint8_t, 16> Client::ticket_of(const Packet& reply) {
  REQUIRE(reply.status() == Status::ok);
  auto fixed = reply.fixed<shmbw_ticket_create_reply>();
  std::array<std::uint8_t, 16> out;
  std::memcpy(out.data(), fixed.ticket, 16);
  return out;
}

Element Client::inherit(shmbw_region_ref ref, std::uint32_t rights) {
  return one_element<shmbw_inherit_reply>(batch<shmbw_inherit>(SHMBW_OP_INHERIT, {{ref, rights, 0}}));
}

Packet& Client::make_group(const GroupRequest& wish) {
  shmbw_group_create fixed{};
  fixed.flags = wish.flags;
  fixed.limit_regions = wish.limit_regions;
  fixed.keep = wish.keep;
  fixed.limit_bytes = wish.limit_bytes;
  fixed.name_len = static_cast<std::uint16_t>(wish.name.size());
  return call(SHMBW_OP_GROUP_CREATE, fixed, wish.name);
}

Packet& Client::join(std::string_view name, std::uint32_t flags, std::optional<std::uint32_t> owner) {
  shmbw_group_join fixed{};
  fixed.flags = flags | (owner ? std::uint32_t{SHMBW_JOIN_OWNER_GIVEN} : 0U);
  fixed.owner_uid = owner.value_or(0);
  fixed.name_len = static_cast<std::uint16_t>(name.size());
  return call(SHMBW_OP_GROUP_JOIN, fixed, name);
}

Packet& Client::join(const std::uint8_t (&token)[16], std::uint32_t flags) {
  shmbw_group_join fixed{};
  fixed.flags = flags;
  std::memcpy(fixed.token, token, 16);
  return call(SHMBW_OP_GROUP_JOIN, fixed);
}

Packet& Client::watch_region(shmbw_region_ref ref, std::uint32_t events) {
  shmbw_watch wish{};
  wish.kind = SHMBW_WATCH_KIND_REGION;
  wish.events = events;
  wish.region = ref;
  return call(SHMBW_OP_WATCH, wish);
}

Packet& Client::watch_name(std::string_view group_text, std::string_view name, std::uint32_t flags) {
  shmbw_watch wish{};
  wish.flags = flags;
  wish.kind = SHMBW_WATCH_KIND_NAME;
  wish.events = SHMBW_WATCH_EVENT_APPEARED;
  wish.group_len = static_cast<std::uint16_t>(group_text.size());
  wish.name_len = static_cast<std::uint16_t>(name.size());
  return call(SHMBW_OP_WATCH, wish, std::string(group_text) + std::string(name));
}

Packet& Client::watch_group(std::uint64_t which) {
  shmbw_watch wish{};
  wish.kind = SHMBW_WATCH_KIND_GROUP;
  wish.events = SHMBW_WATCH_EVENT_ENDED;
  wish.group = which;
  return call(SHMBW_OP_WATCH, wish);
}

Packet& Client::watch_reclaims(std::uint64_t which) {
  shmbw_watch wish{};
  wish.kind = SHMBW_WATCH_KIND_RECLAIM;
  wish.events = SHMBW_WATCH_EVENT_RECLAIM;
  wish.group = which;
  return call(SHMBW_OP_WATCH, wish);
}

Packet& Client::list(const shmbw_list& wish, std::string_view group_text, std::string_view name) {
  shmbw_list fixed = wish;
  fixed.group_len = static_cast<std::uint16_t>(group_text.size());
  fixed.name_len = static_cast<std::uint16_t>(name.size());
  return call(SHMBW_OP_LIST, fixed, std::string(group_text) + std::string(name));
}

void Client::end_of_file() {
  socket_open_ = false;
  world_->books->end_of_file(*session_);
}

void Client::pidfd(std::optional<sys::ExitInfo> how) { world_->books->process_died(*session_, how ? &*how : nullptr); }

void Client::disconnect() {
  socket_open_ = false;
  world_->books->disconnected(*session_);
}

void Client::forget() {
  world_->books->forget(*session_);
  session_ = nullptr;
}

void Client::close() {
  if (socket_open_) end_of_file();
  forget();
}

void Client::die(std::optional<sys::ExitInfo> how) {
  pidfd(how);
  if (socket_open_) end_of_file();
  forget();
}

}  // namespace shmb::daemon::test
