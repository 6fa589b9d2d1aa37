// SPDX-License-Identifier: Apache-2.0
// See transport.hpp.
#include "daemon/transport/transport.hpp"

#include <algorithm>

#include "base/sys_process.hpp"
#include "daemon/kit/log.hpp"
#include "daemon/transport/dead_peer_watch.hpp"

namespace shmb::daemon {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;
// epoll and io_uring count CLOCK_MONOTONIC, which stops in suspend; deadlines are CLOCK_BOOTTIME.
constexpr std::int64_t kLongestWait = 60 * kSecond;
constexpr std::int64_t kSilence = kSecond / 10;

template <class T>
std::unique_ptr<T> take_out(std::vector<std::unique_ptr<T>>& table, std::size_t index) {
  std::swap(table[index], table.back());
  table[index]->index = index;
  auto out = std::move(table.back());
  table.pop_back();
  return out;
}

}  // namespace

Transport::Transport(Engine& engine, const Config& config, std::uint64_t table)
    : engine_(engine), config_(config), table_(table), in_flight_(table) {}

Transport::~Transport() { close_all(); }

void Transport::close_all() {
  // The listeners close first, so no client comes any more. Then the ledger hears each connection end, so that its
  // balance can be proved.
  listeners_.clear();
  if (books_ == nullptr) return;
  for (auto& connection : connections_) connection->end(Connection::Ending::end_of_file);
  finish();
  while (!afterlives_.empty()) forget(*afterlives_.back());
  engine_.unwatch(wake_);
  idle_timer_.cancel();
  sweep_.cancel();
  engine_.discard = nullptr;
  engine_.turns.after = nullptr;
  books_ = nullptr;
}

Sys<void> Transport::attach(BrokerEvents& books) {
  books_ = &books;
  constexpr std::uint32_t kNobody = UINT32_MAX;  // no user has that number: chown(2) takes it for "as it is"
  engine_.discard = [&books](std::vector<Fd> fds) { (void)books.close_elsewhere(kNobody, std::move(fds)); };
  engine_.turns.after = [this] { finish(); };
  if (int fd = books.wake_fd(); fd >= 0) return engine_.watch(fd, wake_);
  return {};
}

// A connection that cannot go on is closed after the books have forgotten its session.
void Transport::take_over() {
  std::vector<std::unique_ptr<Connection>> over;
  for (const BrokerEvents::Open& open : books_->open_sessions()) {
    connections_.push_back(std::make_unique<Connection>(*this, Fd::adopt(open.socket), known_peer(open)));
    Connection& connection = *connections_.back();
    connection.index = connections_.size() - 1;
    connection.born = now();
    if (!connection.take_over(open)) over.push_back(take_out(connections_, connection.index));
    engine_.step();
  }
  books_->begun();
  engine_.step();
}

Sys<void> Transport::listen_on(Fd socket, bool admin) {
  // Half of the reserve is for newcomers: their answer to HELLO says that the table is full.
  std::uint64_t reserve = admin ? 0 : std::min(config_.descriptors_reserved / 2, table_ / 4);
  listeners_.push_back(std::make_unique<Listener>(*this, std::move(socket), admin, table_ - reserve));
  return listeners_.back()->start();
}

Transport::End Transport::run() {
  while (!stopped_ && !idle_) {
    if (auto turned = turn(-1); !turned) return End::failed;
  }
  return stopped_ ? End::stopped : End::idle;
}

Sys<void> Transport::turn(std::int64_t longest) {
  if (in_flight_.crowded() && !sweep_.armed()) {
    // Often enough that no reply is over the time-out for long; seldom enough that asking 10,000 sockets costs nothing.
    timers_.set(sweep_, now() + std::clamp<std::int64_t>(config_.unread_timeout / 4, kSecond / 100, kSecond));
  }
  watch_idleness();
  std::int64_t deadline = std::min(timers_.next(), books_->next_deadline());
  std::int64_t wait = deadline == kNever ? kLongestWait : std::clamp<std::int64_t>(deadline - now(), 0, kLongestWait);
  if (longest >= 0) wait = std::min(wait, longest);
  auto turned = engine_.run_once(wait);
  std::int64_t after = now();
  timers_.run(after, kSlice);
  if (books_->next_deadline() <= after) books_->tick(after);
  finish();
  return turned;
}

void Transport::admit(Fd socket, bool admin) {
  connections_.push_back(std::make_unique<Connection>(*this, std::move(socket), identify(socket.get(), admin)));
  Connection& connection = *connections_.back();
  connection.index = connections_.size() - 1;
  connection.born = now();
  if (!admin) {
    half_open_.push_back(connection);
    ++silent_[connection.peer().uid];
  }
  if (!connection.start()) {
    no_longer_silent(connection);
    take_out(connections_, connection.index);
  }
}

// A client says HELLO at once, so few connections are silent unless a user means harm. At the bound the oldest silent
// connection of the uid with most of them makes room. It must have been silent so long that the scheduler is not the
// cause. Otherwise newcomers wait in the backlog. Admins are not counted.
bool Transport::make_room_among_silent() {
  auto most = std::max_element(silent_.begin(), silent_.end(), [](auto& a, auto& b) { return a.second < b.second; });
  for (Connection* connection = half_open_.first(); connection != nullptr;
       connection = List<Connection, HalfOpen>::next(*connection)) {
    if (now() - connection->born < kSilence) return false;
    if (connection->peer().uid != most->first || !connection->is_silent()) continue;
    connection->drop("too many connections that have not said HELLO");
    return true;
  }
  return false;
}

void Transport::no_longer_silent(Connection& connection) {
  if (!connection.peer().admin) {
    half_open_.remove(connection);
    if (auto at = silent_.find(connection.peer().uid); --at->second == 0) silent_.erase(at);
  }
  freed_ = true;
}

void Transport::finish_later(Connection& connection) {
  if (!connection.greeted()) no_longer_silent(connection);
  finishing_.push_back(&connection);
}

void Transport::finish() {
  // By index: finishing one may end others.
  for (std::size_t i = 0; i < finishing_.size(); ++i) finish_one(take_out(connections_, finishing_[i]->index));
  finishing_.clear();
  if (!freed_) return;
  freed_ = false;
  for (auto& listener : listeners_) listener->resume();
}

void Transport::finish_one(std::unique_ptr<Connection> connection) {
  Session& session = *connection->session();
  bool lazy = connection->ending() == Connection::Ending::lazy;
  Connection::Remains remains;
  if (lazy) remains = connection->leave_remains();
  Fd pidfd = connection->take_pidfd();
  bool watchable = pidfd && !connection->death_told();
  bool awaited = false;
  freed_ = true;
  if (lazy && watchable) {
    books_->disconnected(session);
  } else {
    books_->end_of_file(session);
    awaited = watchable && books_->awaits_end(session);
    watchable = awaited || (watchable && books_->wants_exit(session) && books_->keep_pidfd(connection->peer().uid));
  }
  const Peer peer = connection->peer();
  // After the commit that forgets the socket: whoever reads the books finds no number there that is another file's.
  connection.reset();
  if (!watchable) return books_->forget(session);  // and then the pidfd is closed
  afterlives_.push_back(std::make_unique<DeadPeerWatch>(*this, std::move(pidfd), peer, session,
                                                        lazy      ? DeadPeerWatch::Why::disconnected
                                                        : awaited ? DeadPeerWatch::Why::awaited
                                                                  : DeadPeerWatch::Why::report));
  afterlives_.back()->index = afterlives_.size() - 1;
  if (afterlives_.back()->counted_by_books()) ++counted_by_books_;
  if (lazy) ++abandoned_sockets_;
  afterlives_.back()->take(std::move(remains));
  afterlives_.back()->start();
}

void Transport::forget(DeadPeerWatch& afterlife) {
  Session& session = afterlife.session();
  if (afterlife.holds_socket()) --abandoned_sockets_;
  if (afterlife.counted_by_books()) {
    --counted_by_books_;
    books_->pidfd_closed(afterlife.uid());
  }
  const auto closed_at_the_end = take_out(afterlives_, afterlife.index);  // after the commit that forgets its pidfd
  freed_ = true;
  books_->forget(session);
}

static bool may_disconnect(const Outbox& outbox) {
  const auto* connection = static_cast<const Connection*>(outbox.owner());
  return connection != nullptr && connection->ending() == Connection::Ending::none && connection->peer().has_pidfd;
}

// Law 8: an unread reply costs its session nothing until the descriptors in flight over all sessions pass half of the
// kernel's allowance. Then the sessions with the oldest unread replies are disconnected, and only past the time-out.
// While some processes are over their share, only their sessions are. A process that computes while a doorbell is on
// its way must not pay for others. A session without a pidfd would end by it, with all it holds, so it is left alone.
void Transport::disconnect_lazy(std::int64_t now) {
  in_flight_.look_again();
  bool some_over = false;
  for (Outbox* outbox = in_flight_.oldest(); outbox != nullptr; outbox = List<Outbox, Unread>::next(*outbox))
    some_over = some_over || (may_disconnect(*outbox) && in_flight_.over_share(*outbox));
  for (Outbox *outbox = in_flight_.oldest(), *next = nullptr; outbox != nullptr && in_flight_.crowded();
       outbox = next) {
    next = List<Outbox, Unread>::next(*outbox);
    if (!may_disconnect(*outbox)) continue;
    if (now - outbox->unread_since() < config_.unread_timeout) break;
    if (some_over && !in_flight_.over_share(*outbox)) continue;
    auto* connection = static_cast<Connection*>(outbox->owner());
    log::peer_fault("disconnected " + connection->who() +
                    ": it does not read its replies, and too many descriptors are in flight");
    outbox->abandon();
    connection->end(Connection::Ending::lazy);
  }
}

void Transport::tell_full() {
  if (told_full_ != 0 && now() - told_full_ < 10 * kSecond) return;
  told_full_ = now();
  log::line(log::warning, "the descriptor table is full: new connections wait; raise RLIMIT_NOFILE or `descriptors`");
}

std::uint32_t Transport::descriptors() const {
  return static_cast<std::uint32_t>(2 * connections_.size() + in_flight_.kept() + afterlives_.size() -
                                    counted_by_books_ + abandoned_sockets_);
}

std::uint32_t Transport::descriptors_in_flight() {
  in_flight_.look_again();
  return static_cast<std::uint32_t>(in_flight_.descriptors());
}

void Transport::watch_idleness() {
  if (config_.mode != Mode::private_ || config_.idle_exit < 0) return;
  bool idle = connections_.empty() && books_->idle();
  if (!idle) idle_timer_.cancel();
  else if (!idle_timer_.armed()) timers_.set(idle_timer_, now() + config_.idle_exit);
}

void Transport::idle_over() {
  // A client that connects at this moment is served; afterwards the time-out begins again.
  for (auto& listener : listeners_)
    if (listener->someone_waits()) return;
  idle_ = connections_.empty() && books_->idle();
}

}  // namespace shmb::daemon
