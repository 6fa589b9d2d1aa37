// SPDX-License-Identifier: Apache-2.0
// shmbrokerd: from the command line to the loop, in the order that safety needs. Files are read and the directory is
// made while root. Everything that a client can reach is opened after the privileges are gone.
#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <memory>
#include <span>
#include <string_view>

#include "base/fault.hpp"
#include "base/kernel.hpp"
#include "base/result.hpp"
#include "base/sys_process.hpp"
#include "base/text.hpp"
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

constexpr int kOk = 0, kFailure = 1, kUsage = 2;

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

Result<int> serve(const Options& options, ServiceManager& manager) {
  Config config = options.config;
  reserve::keep();
  SHMB_TRY(account, account_of(config));
  SHMB_TRY_VOID(prepare_directory(config.directory, config.mode, account.uid, account.gid));
  SHMB_TRY(lowered, lower_privileges(config, account));
  SHMB_TRY(lock, lock_directory(config.directory));

  config.descriptors_reserved = std::min(config.descriptors_reserved, lowered.table / 4);
  SHMB_TRY(chosen, choose_engine(config.engine));
  Transport transport(*chosen.engine, config, lowered.table);

  BrokerFacts facts;
  facts.engine = chosen.io_uring ? SHMBW_ENGINE_IO_URING : SHMBW_ENGINE_EPOLL;
  facts.engine_reason = chosen.reason;
  if (!manager.loss().empty()) lowered.losses.push_back(manager.loss());
  if (std::string none = no_sandbox(); !none.empty()) lowered.losses.push_back(std::move(none));
  facts.losses = lowered.losses;
  facts.losses.insert(facts.losses.end(), kernel().losses.begin(), kernel().losses.end());
  facts.version = "shmbrokerd " SHMB_VERSION;
  facts.kernel = kernel().release;
  facts.features = feature_bits(kernel(), chosen.io_uring);
  facts.exec_seal = kernel().exec_seal;
#ifdef SHMB_TEST_SEAM
  facts.compare_books = true;
#endif
  facts.uid = account.uid;
  facts.pid = static_cast<std::uint32_t>(::getpid());
  facts.descriptors_limit = lowered.table;
  facts.transport_descriptors = [&transport, own = open_descriptors() + 4] { return own + transport.descriptors(); };
  facts.in_flight = [&transport] { return transport.descriptors_in_flight(); };
  facts.descriptor_freed = [&transport] { transport.descriptor_freed(); };
  facts.log = log::line;
  facts.tick_at_most = kSlice;
  SHMB_TRY(books, make_broker(config, std::move(facts)));
  // The transport names sessions to the ledger until it ends, so it has to end first.
  struct Detach {
    Transport& transport;
    ~Detach() { transport.close_all(); }
  } detach{transport};
  if (auto attached = transport.attach(*books); !attached)
    return system_failure(attached.error(), "the books' wake-up");

  const std::string serving = "serving " + config.directory +
                              (config.mode == Mode::system ? " in system mode" : " in private mode") + ", " +
                              chosen.reason + ", " + std::to_string(lowered.table) + " descriptors";
  Signals signals(transport, *books, manager, options, serving);
  SHMB_TRY_VOID(signals.start());

  SHMB_TRY(socket,
           listen_at(manager, config, "broker", "socket", config.mode == Mode::system ? config.socket_mode : 0600));
  SHMB_TRY(admin, listen_at(manager, config, "admin", "admin", 0600));
  for (auto [file, is_admin] : {std::pair{&socket, false}, std::pair{&admin, true}})
    if (auto listening = transport.listen_on(file->take(), is_admin); !listening)
      return system_failure(listening.error(), "waiting for connections");

  SHMB_TRY_VOID(enter_sandbox());

  log::line(log::info, serving);
  for (const std::string& loss : lowered.losses) log::line(log::notice, loss);
  if (options.ready_fd >= 0) {
    const char newline = '\n';
    (void)sys::write_all(options.ready_fd, std::as_bytes(std::span(&newline, 1)));
    ::close(options.ready_fd);
  }
  manager.ready(serving);
  const Transport::End end = transport.run();
  manager.stopping(end == Transport::End::failed ? "the event loop failed" : "ending");
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
  if (auto set = fault::configure(options->seam); !set) {
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
