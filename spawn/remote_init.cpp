// SPDX-License-Identifier: Apache-2.0
// Finding the others: by user and port, at the broker. The worker of rank 0 makes the pool, in the group of the world.
// Where the world runs already this worker takes a dead one's place in it, and in the pool. Its threads begin last, and
// their end is here too.
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <system_error>

#include "base/sys_process.hpp"
#include "client/connect.hpp"
#include "client/views.hpp"
#include "spawn/remote_agent.hpp"

namespace shmb::remote {
namespace {

using client::Deadline;

constexpr std::uint32_t kMostWorkers = 64, kMostThreads = 256;
constexpr std::chrono::seconds kThreadPatience{1};  // with a thread that runs a call when the worker is at its end
constexpr std::int64_t kLookAtPool = 2'000'000;     // nobody tells when all are in it
// Where a dead one's place is not free yet. Nobody tells of that: it depends on what others have read.
constexpr std::int64_t kLookAtPlace = 10'000'000;

struct Address {
  std::string text, host;
  std::uint32_t port = 0;
};

Result<Address> address_of(const std::string& given) {
  Address out;
  std::string text = given;
  if (text.empty()) {
    const char* host = std::getenv("MASTER_ADDR");
    const char* port = std::getenv("MASTER_PORT");
    if (host == nullptr || port == nullptr)
      return error(Status::invalid, std::string("no address of the world: give one as HOST:PORT, or set ") +
                                        (host == nullptr ? "MASTER_ADDR" : "MASTER_PORT"));
    text = std::string(host) + ":" + port;
  }
  const std::size_t colon = text.rfind(':');
  if (colon == text.npos || colon == 0)
    return error(Status::invalid, "the address of a world is HOST:PORT, not \"" + text + "\"");
  out.text = text;
  out.host = text.substr(0, colon);
  if (out.host.size() > 2 && out.host.front() == '[' && out.host.back() == ']')
    out.host = out.host.substr(1, out.host.size() - 2);
  const char* const end = text.data() + text.size();
  const auto [stop, wrong] = std::from_chars(text.data() + colon + 1, end, out.port);
  if (wrong != std::errc() || stop != end || out.port == 0 || out.port > 65535)
    return error(Status::invalid, "the port of a world is 1 to 65535, not \"" + text.substr(colon + 1) + "\"");
  return out;
}

bool same(const sockaddr* a, const sockaddr* b) {
  if (a == nullptr || b == nullptr || a->sa_family != b->sa_family) return false;
  if (a->sa_family == AF_INET)
    return reinterpret_cast<const sockaddr_in*>(a)->sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in*>(b)->sin_addr.s_addr;
  if (a->sa_family != AF_INET6) return false;
  return std::memcmp(&reinterpret_cast<const sockaddr_in6*>(a)->sin6_addr,
                     &reinterpret_cast<const sockaddr_in6*>(b)->sin6_addr, sizeof(in6_addr)) == 0;
}

bool loopback(const sockaddr* address) {
  if (address->sa_family == AF_INET)
    return ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr) >> 24 == 127;
  return address->sa_family == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

bool same_name(std::string_view a, std::string_view b) {
  return a.size() == b.size() && ::strncasecmp(a.data(), b.data(), a.size()) == 0;
}

// With or without its domain: where one has none, the other one's is not compared.
bool own_name(std::string_view host) {
  char buffer[256] = {};
  if (::gethostname(buffer, sizeof buffer - 1) != 0) return false;
  const std::string_view own(buffer);
  const std::size_t dot = host.find('.'), own_dot = own.find('.');
  if (same_name(host, own)) return true;
  return (dot == host.npos) != (own_dot == own.npos) && same_name(host.substr(0, dot), own.substr(0, own_dot));
}

// Whether it is this machine: workers of one world share memory. Nobody is asked about a name: a name server may take
// its time, and what it says of this host is not needed.
Result<void> check_host(const std::string& host) {
  if (host == "localhost" || own_name(host)) return {};
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0)
    return error(Status::invalid, "the host \"" + host +
                                      "\" of the world's address is neither localhost nor this host's name, and "
                                      "other names are not looked up: give localhost, or a numeric address of this "
                                      "host");
  ifaddrs* interfaces = nullptr;
  (void)::getifaddrs(&interfaces);
  bool here = false;
  for (const addrinfo* one = found; one != nullptr && !here; one = one->ai_next) {
    here = loopback(one->ai_addr);
    for (const ifaddrs* face = interfaces; face != nullptr && !here; face = face->ifa_next)
      here = same(face->ifa_addr, one->ai_addr);
  }
  ::freeaddrinfo(found);
  if (interfaces != nullptr) ::freeifaddrs(interfaces);
  if (here) return {};
  return error(Status::invalid, "the world's address is on another host (\"" + host +
                                    "\"): workers share the memory of one host; give localhost or this host's name "
                                    "(programs on several hosts have a world on each)");
}

Result<std::int32_t> number_of(const char* variable) {
  const char* text = std::getenv(variable);
  if (text == nullptr) return error(Status::invalid, std::string("neither given nor in the variable ") + variable);
  std::int32_t value = 0;
  const char* const end = text + std::strlen(text);
  const auto [stop, wrong] = std::from_chars(text, end, value);
  if (wrong != std::errc() || stop != end)
    return error(Status::invalid, std::string("the variable ") + variable + " is no number: \"" + text + "\"");
  return value;
}

}  // namespace

Result<std::shared_ptr<Agent>> Agent::join(Wish wish) {
  if (wish.rank < 0) {
    auto rank = number_of("RANK");
    if (!rank) return error(Status::invalid, "the rank of this worker: " + rank.error().sentence);
    wish.rank = *rank;
  }
  if (wish.world_size == 0) {
    auto size = number_of("WORLD_SIZE");
    if (!size) return error(Status::invalid, "the size of the world: " + size.error().sentence);
    wish.world_size = *size;
  }
  if (wish.world_size < 1)
    return error(Status::invalid, "a world has 1 to 64 workers, not " + std::to_string(wish.world_size));
  if (static_cast<std::uint32_t>(wish.world_size) > kMostWorkers)
    return std::unexpected(Error{Status::limit,
                                 0,
                                 {.limit = kMostWorkers, .asked = static_cast<std::uint64_t>(wish.world_size)},
                                 "a world has at most 64 workers (the participants of its pool), not " +
                                     std::to_string(wish.world_size) + "; make several worlds"});
  if (wish.rank < 0 || wish.rank >= wish.world_size)
    return error(Status::invalid, "rank " + std::to_string(wish.rank) + " is out of range: the ranks of a world of " +
                                      std::to_string(wish.world_size) + " are 0 to " +
                                      std::to_string(wish.world_size - 1));
  if (wish.threads > kMostThreads)
    return error(Status::invalid, "a worker has at most 256 threads, not " + std::to_string(wish.threads) +
                                      ": ask for fewer, or spread its calls over several workers");
  auto address = address_of(wish.address);
  if (!address) return std::unexpected(address.error());
  if (auto here = check_host(address->host); !here) return std::unexpected(here.error());
  wish.address = address->text;

  const Deadline deadline = Deadline::after(wish.timeout, kInitTimeout);
  std::shared_ptr<Agent> agent(new Agent(std::move(wish)));
  auto mark = client::ForkMark::make();
  if (!mark) return system_failure(mark.error(), "a page to notice forks");
  agent->mark_ = std::move(*mark);
  client::enrol(*agent);
  agent->rank_ = static_cast<std::uint32_t>(agent->wish_.rank);
  agent->workers_.resize(static_cast<std::uint32_t>(agent->wish_.world_size));
  if (agent->wish_.call_timeout != 0) agent->call_timeout_ = agent->wish_.call_timeout;
  client::ConnectOptions options;
  options.socket = agent->wish_.socket;
  auto session = client::connect(options);
  if (!session) return std::unexpected(session.error());
  agent->session_ = std::move(*session);

  client::WorldWish joining;
  joining.port = address->port;
  joining.rank = agent->rank_;
  joining.world_size = agent->size();
  joining.address = agent->wish_.address;
  joining.name = agent->wish_.name;
  auto place = client::join_world(*agent->session_, joining, deadline);
  for (; !place && place.error().status == Status::not_ready && !deadline.passed();
       place = client::join_world(*agent->session_, joining, deadline))
    (void)agent->session_->next_remote_event(earlier(deadline, Deadline::after(kLookAtPlace)));
  if (!place) return std::unexpected(place.error());
  agent->life_ = place->life;
  agent->world_ = place->world;
  agent->group_ = place->group;
  agent->pool_told_ = place->pool;
  agent->complete_ = (place->flags & SHMBW_WORLD_STATE_COMPLETE) != 0;
  const auto give_up = [&](Error why) -> Result<std::shared_ptr<Agent>> {
    // A world that fails before it is complete ends under its workers. Whatever they found first, an event or a pool
    // that is gone, the broker says the cause, and the same to all of them.
    const auto left = client::leave_world(*agent->session_, agent->world_, Deadline::after(0));
    if (!left && (left.error().status == Status::exists || left.error().status == Status::worker_gone))
      why = left.error();
    agent->closed_ = true;
    return std::unexpected(std::move(why));
  };
  if (auto opened = agent->open_inbox(deadline); !opened) return give_up(opened.error());
  if (auto came = agent->await_world(deadline); !came) return give_up(came.error());
  if (auto inside = agent->await_peers(deadline); !inside) return give_up(inside.error());
  if (auto started = agent->start_threads(); !started) return give_up(started.error());
  return agent;
}

Result<void> Agent::look_at_world(Deadline deadline) {
  client::Selection selection;
  selection.region.id = world_;
  auto list = client::list_worlds(*session_, selection, deadline);
  if (!list) return std::unexpected(list.error());
  for (const client::WorldRow& row : list->rows) {
    if (row.record.world != world_) continue;
    pool_told_ = row.record.pool;
    complete_ = complete_ || (row.record.flags & SHMBW_WORLD_STATE_COMPLETE) != 0;
    return {};
  }
  return ended_under_us();
}

// Said where the broker does not say more, see join().
std::unexpected<Error> Agent::ended_under_us() const {
  return error(Status::group_ended, "the group of the world at " + wish_.address + " has ended, and the world with it");
}

// The next thing that happens in the world, while it comes together.
Result<void> Agent::await_event(Deadline deadline) {
  auto event = session_->next_remote_event(deadline);
  if (!event) return std::unexpected(event.error());
  if (!*event) {
    (void)read_workers();
    return error(Status::deadline,
                 "the world at " + wish_.address + " was not complete before the deadline: " + workers_.missing());
  }
  if ((*event)->kind == client::RemoteEvent::Kind::gap) return look_at_world(deadline);
  if ((*event)->kind != client::RemoteEvent::Kind::world_changed) return {};
  switch ((*event)->change) {
    case SHMBW_WORLD_CHANGE_COMPLETE:
      complete_ = true;
      return {};
    case SHMBW_WORLD_CHANGE_POOL:
      return pool_told_ == 0 ? look_at_world(deadline) : Result<void>();
    case SHMBW_WORLD_CHANGE_DIED:
      (void)read_workers();
      return error(Status::worker_gone, "worker " + std::to_string((*event)->rank) + " of the world at " +
                                            wish_.address + " died while it was waited for");
    case SHMBW_WORLD_CHANGE_LEFT:
      if (!complete_ || (*event)->rank != 0) return {};  // else nobody comes in its place, and the pool is its to make
      return error(Status::worker_gone, "worker 0 of the world at " + wish_.address +
                                            " left when that was complete, before this worker was in its pool");
    case SHMBW_WORLD_CHANGE_ENDED:
      return ended_under_us();
    default:
      return {};
  }
}

Result<void> Agent::open_inbox(Deadline deadline) {
  for (;;) {
    if (rank_ != 0)
      while (pool_told_ == 0)
        if (auto next = await_event(deadline); !next) return next;
    const std::uint64_t pool = pool_told_;
    auto opened = open_inbox_in(pool, deadline);
    if (opened || pool == 0 || opened.error().status != Status::not_found) return opened;
    // It has gone with the worker that made it and gave up, before another one came to it.
    if (auto looked = look_at_world(deadline); !looked) return looked;
    if (pool_told_ == pool) return opened;
  }
}

// `pool` 0: this worker makes it.
Result<void> Agent::open_inbox_in(std::uint64_t pool, Deadline deadline) {
  const bool makes_pool = pool == 0;
  auto inbox = Inbox::open(session_, group_, pool, rank_, size(), 0);
  // A dead one's place in the pool is free when what it wrote has been read.
  for (; !inbox && life_ > size() && !makes_pool && inbox.error().status == Status::limit && !deadline.passed();
       inbox = Inbox::open(session_, group_, pool, rank_, size(), 0))
    if (auto event = session_->next_remote_event(earlier(deadline, Deadline::after(kLookAtPlace))); event && *event)
      put_off_.push_back(**event);
  if (!inbox) return std::unexpected(inbox.error());
  inbox_ = std::move(*inbox);
  if (!makes_pool) return {};
  auto told = client::tell_world_pool(*session_, world_, inbox_->pool_id(), Deadline::after(0));
  if (!told) return std::unexpected(told.error());
  return {};
}

Result<void> Agent::await_world(Deadline deadline) {
  while (!complete_)
    if (auto next = await_event(deadline); !next) return next;
  return {};
}

// Until all are in the pool: it is gone with the last one that is there, and who came first may leave at once. Who has
// left or died since the world was complete is not waited for.
Result<void> Agent::await_peers(Deadline deadline) {
  if (auto known = read_workers(); !known) return known;
  for (;;) {
    auto inside = inbox_->participants();
    if (!inside) return std::unexpected(inside.error());
    if (*inside >= workers_.present()) return {};
    if (deadline.passed())
      return error(Status::deadline, "the world at " + wish_.address + " is complete, but only " +
                                         std::to_string(*inside) + " of its " + std::to_string(size()) +
                                         " workers came to its pool in time");
    auto event = session_->next_remote_event(earlier(deadline, Deadline::after(kLookAtPool)));
    if (!event) return std::unexpected(event.error());
    if (!*event) continue;
    if ((*event)->kind == client::RemoteEvent::Kind::gap) (void)read_workers();
    const std::lock_guard lock(mutex_);
    // What is told of references is looked at behind the messages, which nobody reads yet.
    if ((*event)->kind == client::RemoteEvent::Kind::world_changed) take_event(**event);
    else put_off_.push_back(**event);
    if (lost_) return std::unexpected(*lost_);
  }
}

Result<void> Agent::start_threads() {
  threads_ = new std::vector<Server>;
  try {
    for (std::uint32_t i = 0; i < wish_.threads; ++i) {
      auto ended = std::make_shared<bool>(false);
      threads_->push_back(
          {std::thread([self = shared_from_this(), ended]() mutable { self->serve_as_thread(*ended); }), ended});
    }
  } catch (const std::system_error& why) {
    const std::size_t started = threads_->size();
    end_threads();
    return error(Status::system, "thread " + std::to_string(started + 1) + " of the " + std::to_string(wish_.threads) +
                                     " that this worker is to have cannot be started (" + why.what() +
                                     "): ask for fewer, or raise the limit of processes (RLIMIT_NPROC, pids.max)");
  }
  return {};
}

void Agent::end_threads() {
  if (threads_ == nullptr || forked()) return;
  const auto is_self = [](const Server& one) { return one.thread.get_id() == std::this_thread::get_id(); };
  {
    Lock lock(mutex_);
    closed_ = true;
    wake();
    changed_.wait_for(lock, kThreadPatience, [&] {
      return std::ranges::all_of(*threads_, [&](const Server& one) { return *one.ended || is_self(one); });
    });
    // One that is in a function of the user still has its own hold on this worker, and ends when that returns.
    for (Server& one : *threads_)
      if (!*one.ended) one.thread.detach();
  }
  for (Server& one : *threads_)
    if (one.thread.joinable()) one.thread.join();
  threads_->clear();
}

}  // namespace shmb::remote
