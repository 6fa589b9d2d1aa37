// SPDX-License-Identifier: Apache-2.0
// The ledger behind the seam: passes what the transport reports to the nouns.
#include "daemon/serve/broker.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <string>

#include "base/sys_process.hpp"
#include "base/text.hpp"
#include "daemon/serve/answer.hpp"
#include "daemon/serve/compare_books.hpp"
#include "daemon/serve/ledger.hpp"
#include "daemon/serve/load_books.hpp"
#include "daemon/serve/records.hpp"
#include "daemon/serve/session_end.hpp"

namespace shmb::daemon {
namespace {

// One call from the transport. At its end all its changes are in the books. A turn may be within another one: what
// has come from a helper thread lets a request go on that waited for it. The end of the inner one then commits what the
// outer one has done so far, which is one whole result after the other.
class Turn {
 public:
  explicit Turn(Ledger& ledger) : ledger_(ledger) { ledger_.begin_turn(); }
  ~Turn() {
    write_books(ledger_);
    if (ledger_.host.facts.compare_books != 0) compare_books(ledger_);
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  Ledger& ledger_;
};

// Sessions of one uid over its limit that may be open. One that has got its refusal makes room for the next. If none of
// them has said HELLO yet, the next is closed at once.
constexpr std::size_t kRefusedAtMost = 16;

class Broker final : public BrokerEvents {
 public:
  Broker(const Config& config, BrokerFacts facts, const Secret& key, books::Store store)
      : ledger_(config, std::move(facts), key, std::move(store)) {}
  Sys<void> prepare() { return Closer::prepare(ledger_.regions.closer); }
  // At its end these books take the place of the last ones. Before, nothing is freed that the last ones name.
  Result<void> begin(const books::LastBooks* last) {
    if (last) SHMB_TRY_VOID(load_books(ledger_, *last));
    write_books(ledger_);
    if (ledger_.host.books.store.behind())
      return error(Status::no_memory, "no memory for the records of what the last broker has left");
    if (ledger_.host.facts.books_are_at) ledger_.host.facts.books_are_at(ledger_.host.books.store.descriptor());
    if (!last) return {};
    for (const std::string& loss : last->losses()) ledger_.host.log(3, "the last broker's books: " + loss);
    compare_all_books(ledger_);
    return {};
  }

  // A session has two descriptors, its socket and its pidfd. Half of the reserve is for clients that get the refusal of
  // a full table.
  bool room_for_session(bool admin) const override {
    return ledger_.accounts.descriptors() + 2 + kept_back(admin) <= ledger_.host.facts.descriptors_limit;
  }
  Session* connected(Link& link) override;
  std::vector<Open> open_sessions() override;
  void connected_again(Session& session, Link& link) override {
    const Turn turn(ledger_);
    session.link = &link;
    tell_resume(session);
  }
  void begun() override;
  void packet(Session& session, const wire::PacketView& packet) override {
    const Turn turn(ledger_);
    if (!session.link || session.phase == Phase::ended) return;
    session.held = false;
    dispatch(ledger_, session, packet);
    if (!session.held) forget_awaited(ledger_.accounts, session);
  }
  void given_up(Session& session, const wire::PacketView& packet) override {
    const Turn turn(ledger_);
    if (!session.link || session.phase == Phase::ended) return;
    session.held = false;
    forget_awaited(ledger_.accounts, session);
    Request{ledger_, session, packet}.note_served();
  }
  bool greeted(const Session& session) const override { return session.greeted(); }
  void end_of_file(Session& session) override {
    const Turn turn(ledger_);
    end_session(ledger_, session);
    session.lose_link();
    changed(session);
  }
  void process_died(Session& session, const sys::ExitInfo* how) override {
    const Turn turn(ledger_);
    session_process_died(ledger_, session, how);
  }
  void disconnected(Session& session) override {
    const Turn turn(ledger_);
    session_disconnected(ledger_, session);
  }
  void process_lives(Session& session) override {
    const Turn turn(ledger_);
    report_lives(ledger_.sessions, session.id);
  }
  bool wants_exit(const Session& session) const override { return ledger_.sessions.reports.contains(session.id); }
  bool awaits_end(const Session& session) const override { return session.awaits_end(); }
  void process_ended(Session& session) override {
    const Turn turn(ledger_);
    session_process_ended(ledger_, session);
  }
  void forget(Session& session) override;
  std::int64_t next_deadline() const override { return ledger_.host.timers.next(); }
  void tick(std::int64_t now) override {
    const Turn turn(ledger_);
    ledger_.host.timers.run(now, ledger_.host.facts.tick_at_most);
  }
  bool close_elsewhere(std::uint32_t uid, std::vector<Fd> fds) override {
    return daemon::close_elsewhere(ledger_.accounts, uid, std::move(fds));
  }
  bool keep_waiting(std::uint32_t uid, std::size_t descriptors) override {
    if (ledger_.accounts.descriptor_shortage(uid, descriptors, false)) return false;
    ledger_.accounts.count_waiting(uid, static_cast<std::int64_t>(descriptors));
    return true;
  }
  void waited(std::uint32_t uid, std::size_t descriptors) override {
    ledger_.accounts.count_waiting(uid, -static_cast<std::int64_t>(descriptors));
  }
  bool closes_too_many(std::uint32_t uid) override { return ledger_.accounts.closes_too_many(uid); }
  bool keep_pidfd(std::uint32_t uid) override { return ledger_.accounts.keep_pidfd(uid); }
  void pidfd_closed(std::uint32_t uid) override { ledger_.accounts.close_pidfd(uid); }
  void set_limits(const Limits& limits) override {
    ledger_.host.config.limits = limits;
    ledger_.accounts.apply_limits();
    for (auto& [id, group] : ledger_.groups.all) group.apply_limits();
    for (auto& [id, session] : ledger_.sessions.all) session.apply_limits(ledger_.host);
  }
  int wake_fd() const override { return ledger_.regions.closer.wake_fd(); }
  void woken() override {
    const Turn turn(ledger_);
    closed_regions(ledger_.regions);
    seals_done(ledger_.sessions);
    devices_found(ledger_.gpu);
  }
  bool idle() const override {
    return ledger_.accounts.live_sessions == 0 && ledger_.regions.all.empty() && ledger_.pools.all.empty();
  }

 private:
  bool drop_one_told(Uid& uid);
  std::uint64_t kept_back(bool admin) const { return admin ? 0 : ledger_.host.config.descriptors_reserved / 2; }
  Ledger ledger_;
};

bool Broker::drop_one_told(Uid& uid) {
  const auto told =
      std::ranges::find_if(uid.refused, [&](std::uint64_t id) { return ledger_.sessions.all.at(id).refusal_told; });
  if (told == uid.refused.end()) return false;
  Session& session = ledger_.sessions.all.at(*told);
  uid.refused.erase(told);
  session.link->drop("it has the refusal that its user is over a limit, and others wait for theirs");
  return true;
}

Session* Broker::connected(Link& link) {
  const Turn turn(ledger_);
  const Peer& peer = link.peer();
  const bool admin = peer.admin || (peer.uid == 0 && !ledger_.host.private_mode());
  if (!ledger_.has_memory() && !peer.admin) return nullptr;
  // Its socket and its pidfd are open already.
  if (ledger_.accounts.descriptors() + kept_back(admin) > ledger_.host.facts.descriptors_limit) return nullptr;
  Uid& uid = ledger_.accounts.hold_uid(peer.uid);
  const auto full = session_shortage(ledger_.accounts, peer.uid, admin);
  std::expected<Charge, Shortage> charge = std::unexpected(full.value_or(Shortage{}));
  if (!full) charge = uid.account.charge(Resource::sessions, 1);
  if (!charge && !peer.admin && uid.refused.size() >= kRefusedAtMost && !drop_one_told(uid)) {
    ledger_.accounts.drop_uid(peer.uid);
    return nullptr;
  }
  std::uint64_t id = ++ledger_.sessions.last_id;
  auto [at, fresh] = ledger_.sessions.all.try_emplace(id, ledger_.host, id, link, uid.account);
  Session& session = at->second;
  ++ledger_.accounts.live_sessions;
  if (charge) {
    session.charge = std::move(*charge);
  } else if (!peer.admin) {
    uid.refused.push_back(id);
    session.refusal =
        full ? refuse_descriptors(ledger_.host, *full) : refuse_limit(ledger_.groups, session, charge.error());
  }
  return &session;
}

std::vector<BrokerEvents::Open> Broker::open_sessions() {
  std::vector<Open> out;
  for (auto& [id, session] : ledger_.sessions.all)
    if (!session.link && session.socket >= 0)
      out.push_back({&session, session.socket, session.process_gone ? -1 : session.pidfd, session.admin,
                     session.takes_descriptors});
  return out;
}

void Broker::begun() {
  {
    const Turn turn(ledger_);
    end_loaded(ledger_);
  }
  if (ledger_.groups.all.empty() && ledger_.sessions.all.empty()) return;
  ledger_.host.log(5, "from the last broker: " + std::to_string(ledger_.regions.count) + " regions in " +
                          std::to_string(ledger_.groups.all.size()) + " groups, and " +
                          std::to_string(ledger_.sessions.all.size()) + " sessions");
}

void Broker::forget(Session& session) {
  const Turn turn(ledger_);
  forget_session(ledger_, session);
}

// A limit on the size of files (RLIMIT_FSIZE) also counts what a file has no memory for. Then there is room for fewer
// records.
Result<books::Store> make_store(const BrokerFacts& facts) {
  constexpr std::uint32_t kLeast = 4'096;
  books::Store::Shape shape{.epoch = facts.epoch, .no_exec = facts.exec_seal};
  auto store = books::Store::make(shape);
  while (!store && store.error().system_errno == EFBIG && shape.capacity > kLeast) {
    shape.capacity /= 2;
    store = books::Store::make(shape);
  }
  return store;
}

constexpr const char* kPressure = "/proc/pressure/memory";

// The last field of /proc/loadavg. Threads have such numbers too.
std::uint32_t newest_pid() {
  const std::string line = sys::read_file("/proc/loadavg", 256).value_or("");
  std::uint32_t pid = 0;
  const std::size_t at = line.rfind(' ') + 1;
  (void)std::from_chars(line.data() + at, line.data() + line.size(), pid);
  return pid;
}

}  // namespace

Result<std::unique_ptr<BrokerEvents>> make_broker(const Config& config, BrokerFacts facts,
                                                  const books::LastBooks* last) {
  if (!facts.log) facts.log = [](int, std::string_view) {};
  if (!facts.now) facts.now = sys::now_boottime;
  if (!facts.last_pid) facts.last_pid = newest_pid;
  if (!facts.memory_stall) facts.memory_stall = [] { return stalled_us(sys::read_file(kPressure, 256).value_or("")); };
  if (!facts.memory_stall())
    facts.losses.push_back(std::string("no ") + kPressure + ": recycled memory is given up at limits and after " +
                           format_duration(config.limits.shelf_idle) + " idle, not under memory pressure");
  if (facts.descriptors_limit == 0) {
    auto limit = sys::descriptor_limit();
    if (!limit) return system_failure(limit.error(), "reading RLIMIT_NOFILE");
    facts.descriptors_limit = limit->soft;
  }
  if (facts.mappings_limit == 0) facts.mappings_limit = sys::mappings_limit();
  auto key = Secret::draw();
  if (!key) return system_failure(key.error(), "drawing the key of the token tables");
  if (last) facts.epoch = last->epoch();
  while (facts.epoch == 0)
    if (auto drawn = sys::random_bytes(std::as_writable_bytes(std::span(&facts.epoch, 1))); !drawn)
      return system_failure(drawn.error(), "drawing the epoch");
  SHMB_TRY(store, make_store(facts));
  if (const std::uint32_t places = store.capacity(); places < books::Store::Shape{}.capacity)
    facts.losses.push_back("RLIMIT_FSIZE leaves room for " + std::to_string(places) +
                           " objects of each kind: raise that limit if more are needed");
  auto broker = std::make_unique<Broker>(config, std::move(facts), *key, std::move(store));
  if (auto ready = broker->prepare(); !ready) return system_failure(ready.error(), "eventfd of the closing thread");
  if (auto begun = broker->begin(last); !begun) {
    (void)broker.release();  // its end would close what the next broker looks for
    return std::unexpected(std::move(begun.error()));
  }
  return broker;
}

}  // namespace shmb::daemon
