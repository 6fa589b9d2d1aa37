// SPDX-License-Identifier: Apache-2.0
// shmbrokerd: from the command line to the loop, in the order that safety needs. Files are read and the directory is
// made while root. Everything that a client can reach is opened after the privileges are gone.
#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "base/fault.hpp"
#include "base/fault_lives.hpp"
#include "base/kernel.hpp"
#include "base/result.hpp"
#include "base/sys_process.hpp"
#include "base/text.hpp"
#include "daemon/books/last_books.hpp"
#include "daemon/keep/keeper.hpp"
#include "daemon/keep/leftovers.hpp"
#include "daemon/kit/log.hpp"
#include "daemon/kit/reserve.hpp"
#include "daemon/serve/broker.hpp"
#include "daemon/serve/signals.hpp"
#include "daemon/start/directory.hpp"
#include "daemon/start/options.hpp"
#include "daemon/start/privileges.hpp"
#include "daemon/start/sandbox.hpp"
#include "daemon/start/service_manager.hpp"
#include "daemon/transport/engine.hpp"
#include "daemon/transport/transport.hpp"

namespace shmb::daemon {
namespace {

#ifdef SHMB_TEST_SEAM
// With this word among the faults of --seam a broker of the tests grants the feature RESUME also without keepers.
constexpr std::string_view kResumes = "resume";
#endif

constexpr int kOk = 0, kFailure = 1, kUsage = 2;
constexpr std::int64_t kLockPatience = 2'000'000'000;
constexpr std::size_t kOpenedLater = 8;  // by a broker with keepers: engine, signals, wake-up, two sockets

std::uint64_t feature_bits(const KernelFeatures& found, bool uring) {
  std::uint64_t bits = 0;
  auto set = [&](bool has, std::uint64_t bit) { bits |= has ? bit : 0; };
  set(found.peer_pidfd, SHMBW_FEATURE_PEER_PIDFD);
  set(found.pass_rights, SHMBW_FEATURE_PASS_RIGHTS);
  set(found.exec_seal, SHMBW_FEATURE_EXEC_SEAL);
  set(found.exit_info, SHMBW_FEATURE_EXIT_INFO);
  set(uring, SHMBW_FEATURE_IO_URING);
  set(found.proc, SHMBW_FEATURE_PROC);
  return bits;
}

std::uint32_t open_descriptors() {
  std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir("/proc/self/fd"), ::closedir);
  if (!directory) return 16;  // no /proc: more than the process has at that moment
  std::uint32_t count = 0;
  while (::readdir(directory.get()) != nullptr) ++count;
  return count - 2;  // "." and ".."; the directory's own descriptor counts for one that is opened later
}

Result<SystemUser> account_of(const Config& config) {
  std::uint32_t uid = ::geteuid();
  if (config.mode == Mode::private_ || (uid != 0 && config.user.empty())) return SystemUser{uid, ::getegid()};
  auto account = find_account(config.user.empty() ? "shmbroker" : config.user);
  if (account && account->uid == 0)
    return error(Status::invalid, "a system broker does not run as root: create a user for it and give it with --user");
  return account;
}

// The service manager's socket of that name, or one of our own.
Result<SocketFile> listen_at(ServiceManager& manager, const Config& config, const char* name, const char* file,
                             unsigned mode) {
  if (Fd passed = manager.take(name)) return SocketFile(std::move(passed));
  return SocketFile::create(config.directory + "/" + file, mode);
}

// Rights, lock and sockets, which a process takes before it has any other state. With keepers the process that was
// started takes them, and each broker inherits them.
struct Place {
  SystemUser account;
  Lowered lowered;
  Fd lock;
  std::optional<SocketFile> socket, admin;
};

Result<Place> take_place(const Config& config) {
  Place place;
  SHMB_TRY(account, account_of(config));
  place.account = account;
  SHMB_TRY_VOID(prepare_directory(config.directory, config.mode, account.uid, account.gid));
  SHMB_TRY(lowered, lower_privileges(config, account));
  place.lowered = std::move(lowered);
  SHMB_TRY(lock, lock_directory(config.directory));
  place.lock = std::move(lock);
  return place;
}

Result<void> open_sockets(const Config& config, ServiceManager& manager, Place& place) {
  SHMB_TRY(socket,
           listen_at(manager, config, "broker", "socket", config.mode == Mode::system ? config.socket_mode : 0600));
  place.socket.emplace(std::move(socket));
  SHMB_TRY(admin, listen_at(manager, config, "admin", "admin", 0600));
  place.admin.emplace(std::move(admin));
  return {};
}

// Writes to --ready-fd once, even if the first brokers die before one serves.
void tell_ready(const Options& options, const std::optional<keep::Life>& life) {
  if (options.ready_fd >= 0 && !(life && life->has_served())) {
    const char newline = '\n';
    (void)sys::write_all(options.ready_fd, std::as_bytes(std::span(&newline, 1)));
    if (life) life->served();
    ::close(options.ready_fd);
  }
  if (life) life->served();
}

// `last`: the books of the last broker. They are closed as soon as this one has its own.
Result<int> serve(const Options& options, ServiceManager& manager, Place& place, const std::optional<keep::Life>& life,
                  std::uint32_t counted, std::optional<books::LastBooks> last) {
  Config config = options.config;
  reserve::keep();
  const SystemUser& account = place.account;
  Lowered& lowered = place.lowered;
  config.descriptors_reserved = std::min(config.descriptors_reserved, lowered.table / 4);
  SHMB_TRY(chosen, choose_engine(config.engine));
  if (life) chosen.engine->tell_beat(life->board->beat);
  auto transport_owner = std::make_unique<Transport>(*chosen.engine, config, lowered.table);
  Transport& transport = *transport_owner;

  BrokerFacts facts;
  facts.engine = chosen.io_uring ? SHMBW_ENGINE_IO_URING : SHMBW_ENGINE_EPOLL;
  facts.engine_reason = chosen.reason;
  if (!manager.loss().empty()) lowered.losses.push_back(manager.loss());
  if (std::string none = no_sandbox(); !none.empty()) lowered.losses.push_back(std::move(none));
  facts.losses = lowered.losses;
  facts.losses.insert(facts.losses.end(), kernel().losses.begin(), kernel().losses.end());
  if (life && life->before > 0)
    facts.losses.push_back(
        "sessions of the brokers before, where they could not go on: keepers have started this one, "
        "number " +
        std::to_string(life->before + 1) + ", after the last one " + life->last);
  facts.version = "shmbrokerd " SHMB_VERSION;
  facts.kernel = kernel().release;
  facts.features = feature_bits(kernel(), chosen.io_uring);
  facts.exec_seal = kernel().exec_seal;
  facts.resumable = life.has_value();
#ifdef SHMB_TEST_SEAM
  facts.compare_books = 16;  // a comparison takes longer than most requests
  facts.resumable = facts.resumable || options.seam.contains(kResumes);
#endif
  facts.uid = account.uid;
  facts.pid = static_cast<std::uint32_t>(::getpid());
  facts.descriptors_limit = lowered.table;
  // With keepers leftovers of a dead broker may still be open, so the own descriptors were counted before.
  facts.transport_descriptors = [&transport, own = life ? counted : open_descriptors() + 4] {
    return own + transport.descriptors();
  };
  facts.in_flight = [&transport] { return transport.descriptors_in_flight(); };
  facts.descriptor_freed = [&transport] { transport.descriptor_freed(); };
  facts.log = log::line;
  facts.tick_at_most = kSlice;
  if (life) facts.books_are_at = [&life](int number) { life->use_books(number); };
  const bool begins_again = last.has_value();
  SHMB_TRY(books, make_broker(config, std::move(facts), last ? &*last : nullptr));
  if (last) last->done();
  last.reset();
  // The transport names sessions to the ledger until it ends, so it has to end first. A broker that fails leaves its
  // descriptors to the next one: its end would close them, and they are in the books.
  struct End {
    std::unique_ptr<Engine>& engine;
    std::unique_ptr<Transport>& transport;
    std::unique_ptr<BrokerEvents>& books;
    bool failed;
    ~End() {
      if (!failed) {
        transport->close_all();
      } else {
        (void)transport.release();
        (void)books.release();
        (void)engine.release();
      }
    }
  } at_end{chosen.engine, transport_owner, books, life.has_value()};
  if (life) life->step();
  if (auto attached = transport.attach(*books); !attached)
    return system_failure(attached.error(), "the books' wake-up");
  if (begins_again) transport.take_over();

  const std::string serving = "serving " + config.directory +
                              (config.mode == Mode::system ? " in system mode" : " in private mode") + ", " +
                              chosen.reason + ", " + std::to_string(lowered.table) + " descriptors";
  Signals signals(transport, *books, manager, options, serving);
  SHMB_TRY_VOID(signals.start());

  if (!place.socket) SHMB_TRY_VOID(open_sockets(config, manager, place));
  for (auto [file, is_admin] : {std::pair{&*place.socket, false}, std::pair{&*place.admin, true}}) {
    auto fd = life ? file->copy() : Sys<Fd>(file->take());  // the keepers' own number stays as it is
    if (!fd) return system_failure(fd.error(), "copying a listening socket");
    if (auto listening = transport.listen_on(std::move(*fd), is_admin); !listening)
      return system_failure(listening.error(), "waiting for connections");
  }

  SHMB_TRY_VOID(enter_sandbox());

  log::line(log::info, serving);
  for (const std::string& loss : lowered.losses) log::line(log::notice, loss);
  tell_ready(options, life);
  manager.ready(serving);
  const Transport::End end = transport.run();
  at_end.failed = life && end == Transport::End::failed;
  // A broker that its keepers replace does not end the service.
  if (end != Transport::End::failed) manager.stopping("ending");
  else if (!life) manager.stopping("the event loop failed");
  switch (end) {
    case Transport::End::stopped:
      log::line(log::info, "stopped by a signal");
      return kOk;
    case Transport::End::idle:
      log::line(log::info, "nobody has used this private broker for a while: ending");
      return kOk;
    case Transport::End::failed:
      break;
  }
  return error(Status::system, "the event loop failed: the broker cannot go on");
}

// A SIGHUP may have changed the limits of the last broker, or have come while there was no broker.
void take_limits_again(Options& options) {
  std::vector<std::string> notes;
  if (auto fresh = read_settings_again(options, notes)) options.config.limits = fresh->limits;
  else log::line(log::error, "the limits are those of the first start: " + fresh.error().sentence);
}

// The last broker may have closed a number of its keepers, which this one needs as well.
Result<void> take_again(const Config& config, ServiceManager& manager, Place& place, const keep::Leftovers& left) {
  if (manager.notified() && left.lost(manager.number())) {
    manager.forget();
    log::line(log::error, "own bug: the last broker closed the socket to the service manager: it is not notified");
  }
  if (left.lost(place.lock.get())) {
    (void)place.lock.release();
    // A lock that the last broker took again goes with its descriptors, in a moment.
    auto lock = lock_directory(config.directory);
    for (const std::int64_t until = sys::now_monotonic() + kLockPatience;
         !lock && lock.error().status == Status::busy && sys::now_monotonic() < until;
         lock = lock_directory(config.directory))
      sys::rest(1'000'000);
    if (!lock) return std::unexpected(std::move(lock.error()));
    place.lock = std::move(*lock);
    log::line(log::error, "own bug: the last broker closed the lock of its directory; it was taken again");
  }
  for (auto [file, name, mode] :
       {std::tuple{&place.socket, "socket", config.mode == Mode::system ? config.socket_mode : 0600U},
        std::tuple{&place.admin, "admin", 0600U}}) {
    if (!left.lost((*file)->number())) continue;
    if ((*file)->path().empty())
      return error(Status::system, "own bug: the last broker closed the socket of the service manager: ending");
    (*file)->forget();
    SHMB_TRY(made, SocketFile::create(config.directory + "/" + name, mode));
    file->emplace(std::move(made));
    log::line(log::error, std::string("own bug: the last broker closed the socket '") + name + "'; it was made again");
  }
  return {};
}

// Keepers never give up, so a fault that comes again at each start is told: the 10th time, the 100th, ...
void tell_unserved(std::uint32_t brokers) {
  std::uint32_t round = 10;
  while (round < brokers && round <= UINT32_MAX / 10) round *= 10;
  if (brokers == round)
    log::line(log::error, std::to_string(brokers) +
                              " brokers in a row have ended before they could serve. If the kernel kills them because "
                              "memory is short, give the broker more (MemoryMax of its unit), or end it. Keepers kill "
                              "one whose start makes no step for 10 s");
}

// The books that the last broker has left, if they can be believed.
Result<std::optional<books::LastBooks>> last_books(const keep::Life& life) {
  if (life.before == 0) return std::nullopt;
  const int number = life.last_books();
  if (number < 0) {
    if (life.gave_up())
      log::line(log::error,
                "own bug: " + std::to_string(keep::kBeginsAtMost) +
                    " brokers died in a row that began from the same books: those are given up, and all that "
                    "was kept is lost");
    life.use_books(-1);
    return std::nullopt;
  }
  if (life.ends_sessions())
    log::line(log::error, std::to_string(keep::kFaultsAtMost) +
                              " brokers in a row died by their own fault soon after their start, or hung: all sessions "
                              "end, because a request that comes again to each broker may be the cause");
  auto last = books::LastBooks::open(number, !life.ends_sessions());
  if (last) return std::optional(std::move(*last));
  if (last.error().status != Status::broken) return std::unexpected(std::move(last.error()));  // the next one tries
  life.use_books(-1);
  log::line(log::error, "what the last broker has kept is lost: " + last.error().sentence);
  return std::nullopt;
}

// With keepers only a broker, the first or a later one, comes to the part behind keep_broker(). A keeper never does.
Result<int> serve(Options options, ServiceManager& manager) {
  SHMB_TRY(place, take_place(options.config));
  std::optional<keep::Life> life;
  keep::Keep keep;
  std::string no_keepers = options.config.keep ? keep::no_keepers() : "";
  std::vector<keep::Known> known;
  if (options.config.keep && no_keepers.empty()) {
    SHMB_TRY_VOID(open_sockets(options.config, manager, place));
    keep.sockets = {place.socket->path(), place.admin->path()};
    keep.notify = manager.address();
    known = keep::open_now();
    SHMB_TRY(started, keep::keep_broker(keep));
    life = std::move(started);
    fault::begin_life(life->before);
  }
  if (!no_keepers.empty()) place.lowered.losses.push_back(std::move(no_keepers));
  // A broker cannot ask for the settings of its unit, and without these its start is not heard of.
  if (life && manager.notified())
    place.lowered.losses.push_back(
        "no look at the unit: with keepers it needs NotifyAccess=all, ExitType=cgroup and OOMPolicy=continue");
  if (!life) return serve(options, manager, place, life, 0, std::nullopt);

  tell_unserved(life->begins());
  keep::Leftovers left(known);
  auto found = last_books(*life);
  if (!found) {
    log::failure(found.error().sentence);
    ::_exit(kFailure);
  }
  std::optional<books::LastBooks> last = std::move(*found);
  life->step();
  if (last) left.spare(last->numbers());
  left.close();
  life->step();
  if (life->before > 0) log::line(log::warning, "the last broker " + life->last + ": this one takes its place");
  if (auto whole = take_again(options.config, manager, place, left); !whole) {
    log::failure(whole.error().sentence);
    ::_exit(keep::kCannotGoOn);
  }
  if (life->before > 0) take_limits_again(options);
  const auto own = static_cast<std::uint32_t>(known.size() + kOpenedLater);
  auto served = serve(options, manager, place, life, own, std::move(last));
  if (served) {
    life->ended();
    return served;
  }
  if (!life->has_served()) return served;
  // The next broker finds lock and sockets as they are: nothing of this process may close them.
  log::failure(served.error().sentence);
  ::_exit(kFailure);
}

#ifdef SHMB_TEST_SEAM
// Prints how many calls of each kind this life made. A test that lets each fail once needs that number.
void tell_calls() {
  std::string made = "seam: calls";
#define X(name) made += " " #name "=" + std::to_string(fault::count(fault::Call::name));
  SHMB_CALLS(X)
#undef X
  log::line(log::debug, made);
}
#endif

int run(int argc, char** argv) {
  ::signal(SIGPIPE, SIG_IGN);  // a lost log reader or client is an errno
  ::signal(SIGXFSZ, SIG_IGN);  // so is a memory file beyond RLIMIT_FSIZE
  auto options = parse_options(argc, argv);
  if (!options) {
    // To a person, to the service manager, or to the log that the library opened for a private broker.
    const bool system = std::ranges::any_of(std::span(argv, static_cast<std::size_t>(argc)),
                                            [](const char* word) { return std::string_view(word) == "--system"; });
    if (!system && ::isatty(STDERR_FILENO) != 1) log::set_form(log::Form::file);
    log::failure(options.error().sentence);
    return options.error().system_errno == EINVAL && options.error().status == Status::invalid ? kUsage : kFailure;
  }
  switch (options->action) {
    case Options::Action::help:
      std::fputs(help_text(), stdout);
      return kOk;
    case Options::Action::version:
      std::puts("shmbrokerd " SHMB_VERSION);
      return kOk;
    case Options::Action::check:
      std::puts("the configuration is good");
      return kOk;
    case Options::Action::serve:
      break;
  }
#ifdef SHMB_TEST_SEAM
  std::string faults = options->seam;
  if (const std::size_t at = faults.find(kResumes); at != faults.npos) faults.erase(at, kResumes.size());
  if (auto set = fault::configure(faults); !set) {
    std::fprintf(stderr, "shmbrokerd: --seam: %s\n", set.error().sentence.c_str());
    return kUsage;
  }
#endif
  log::set_threshold(options->config.log_priority);
  if (options->config.mode == Mode::private_) log::set_form(log::Form::file);
  for (const std::string& note : options->notes) log::line(log::notice, note);
  auto manager = ServiceManager::from_environment();
  auto served = manager ? serve(*options, *manager) : std::unexpected(std::move(manager.error()));
  if (!served) log::failure(served.error().sentence);
  if (!served && manager) manager->failed(served.error().sentence);
#ifdef SHMB_TEST_SEAM
  tell_calls();
#endif
#ifdef __SANITIZE_ADDRESS__
  (void)sys::set_dumpable(true);  // the leak checker uses ptrace on the process
#endif
  return served ? *served : kFailure;
}

}  // namespace
}  // namespace shmb::daemon

int main(int argc, char** argv) { return shmb::daemon::run(argc, argv); }
