// SPDX-License-Identifier: Apache-2.0
// The order of the search, the checks of each place before it is trusted, and the sentence when all fail.
#include "client/session/connect.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <utility>

#include "base/private_place.hpp"
#include "base/sys_file.hpp"
#include "base/sys_process.hpp"
#include "base/sys_socket.hpp"
#include "base/text.hpp"
#include "client/session/launch.hpp"
#include "client/session/strategy.hpp"
#include "proto/names.hpp"

namespace shmb::client {
namespace {

std::optional<std::string> variable(const char* name) {
  const char* value = ::secure_getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

void add_clause(std::string& story, const std::string& clause) {
  if (clause.empty()) return;
  if (!story.empty()) story += "; ";
  story += clause;
}

std::string beside(const std::string& socket, const char* name) {
  const auto slash = socket.rfind('/');
  return slash == std::string::npos ? std::string(name) : socket.substr(0, slash + 1) + name;
}

Result<Greeting> greeting_for(const ConnectOptions& options, const Places& places) {
  Greeting greeting;
  greeting.program = options.program;
  if (options.no_group) return greeting;
  const bool given = !options.group.empty();
  const std::string text = given ? options.group : places.group_variable.value_or("");
  if (text.empty()) return greeting;
  SHMB_TRY(ticket, names::parse_group_variable(text, given ? "the group to connect to" : "SHMBROKER_GROUP"));
  greeting.group_name = ticket.name;
  greeting.group_token.emplace();
  std::copy(std::begin(ticket.token), std::end(ticket.token), greeting.group_token->bytes.begin());
  return greeting;
}

// Attempts to reach a private broker, and the pause where its directory was removed.
constexpr int kGreetings = 6;
constexpr std::int64_t kGreetingPause = 2'000'000;

// Greets the process that listens at `path`. `owner` is the uid that must own the socket where the path alone does not
// prove it.
Result<std::shared_ptr<Session>> try_socket(const std::string& path, const std::string& how, std::optional<uid_t> owner,
                                            bool started, const Greeting& greeting, Deadline deadline) {
  for (GreetingTries tries;;) {
    SHMB_TRY(socket, connect_socket(path, deadline));
    if (owner) {
      auto peer = sys::peer_credentials(socket.get());
      if (!peer) return system_failure(peer.error(), "asking who listens at " + path);
      if (peer->uid != *owner)
        return error(Status::no_broker, "the socket " + path + " belongs to a process of uid " +
                                            std::to_string(peer->uid) + ", not to uid " + std::to_string(*owner));
    }
    SessionFacts known;
    known.socket = path;
    known.how = how;
    known.started_by_us = started;
    auto session = Session::greet(std::move(socket), std::move(known), greeting, deadline);
    if (session || session.error().status != Status::session_lost) return session;
    if (!tries.again(session.error(), deadline))
      return error(Status::no_broker, path + ": no greeting: " + session.error().sentence);
  }
}

// No process listens, as opposed to a broker that refuses.
bool absent(const Error& error) { return error.status == Status::no_broker; }

std::unexpected<Error> no_broker(const std::string& story) { return error(Status::no_broker, "no broker: " + story); }

}  // namespace

bool GreetingTries::again(const Error& failure, Deadline deadline) {
  if (failure.status != Status::session_lost || failure.system_errno != ECONNRESET) return false;
  if (--left_ <= 0 || deadline.passed()) return false;
  sys::rest(earlier(deadline, Deadline::after(pause_)).left());
  pause_ *= 2;
  return true;
}

Places process_places() {
  Places places;
  places.socket_variable = variable("SHMBROKER_SOCKET");
  places.runtime_dir_variable = variable("XDG_RUNTIME_DIR");
  places.group_variable = variable("SHMBROKER_GROUP");
  places.daemon_variable = variable("SHMBROKER_DAEMON");
  if (auto config = variable("XDG_CONFIG_HOME"); config && config->front() == '/') places.config_home = *config;
  else if (auto home = variable("HOME"); home && home->front() == '/') places.config_home = *home + "/.config";
  places.uid = ::geteuid();
  return places;
}

Result<Fd> connect_socket(const std::string& path, Deadline deadline) {
  auto socket = sys::seqpacket_socket(true);
  if (!socket) {
    return system_failure(socket.error(), "a socket for the broker");
  }
  for (long pause = 1'000'000;; pause = std::min(pause * 2, 50'000'000L)) {
    auto connected = sys::connect_path(socket->get(), path);
    if (connected) return std::move(*socket);
    const int code = connected.error().value;
    if (code != EAGAIN) {
      Error failure = system_failure(connected.error(), path).error();
      failure.status = Status::no_broker;
      if (code == ENAMETOOLONG) failure.sentence = path + ": longer than the 107 bytes that a socket path may have";
      return std::unexpected(std::move(failure));
    }
    // A full backlog: on UNIX sockets a non-blocking connect gives EAGAIN and nothing to poll for (unix(7)).
    if (deadline.passed()) return error(Status::deadline, path + ": the broker did not accept before the deadline");
    sys::rest(pause);
  }
}

Result<void> check_directory(const std::string& path, uid_t uid) {
  auto facts = sys::path_facts(path.c_str());
  if (!facts) {
    const int code = facts.error().value;
    if (code == ENOENT || code == ENOTDIR) return error(Status::not_found, path + " does not exist");
    return system_failure(facts.error(), path);
  }
  if (!facts->is_directory) return error(Status::denied, path + " is not a directory");
  if (facts->uid != uid)
    return error(Status::denied, path + " belongs to uid " + std::to_string(facts->uid) + ", not to uid " +
                                     std::to_string(uid) + ": it is not used");
  if ((facts->mode & 022) != 0)
    return error(Status::denied, path + " can be written by others: it is not used (chmod 700 it)");
  return {};
}

PrivateDirectory private_directory(const Places& places) {
  PrivateDirectory chosen;
  if (places.runtime_dir_variable) {
    const std::string& runtime = *places.runtime_dir_variable;
    auto checked = runtime.front() == '/' ? check_directory(runtime, places.uid)
                                          : error(Status::invalid, runtime + " is not absolute");
    if (checked) {
      chosen.path = runtime + "/shmbroker";
      return chosen;
    }
    chosen.note = "XDG_RUNTIME_DIR ignored: " + checked.error().sentence;
  }
  chosen.path = first_place(places.temporary_dir, places.uid);
  chosen.shared = true;
  return chosen;
}

namespace {

bool foreign(const std::string& path, uid_t uid) {
  auto facts = sys::path_facts(path.c_str());
  return facts && facts->uid != uid;
}

// The common state of all steps of one search.
struct Search {
  const ConnectOptions& options;
  const Places& places;
  const Greeting& greeting;
  Deadline deadline;
  std::string story;  // a clause for each step that was passed over
};

// The private broker in `directory`: an existing one, or one that is started now. The broker that accepted the
// connection may be about to end, and one that was started may be killed. Then there is another try.
Result<std::shared_ptr<Session>> reach_private(Search& search, const std::string& directory, bool may_start) {
  const std::string socket = directory + "/" + (search.options.admin ? "admin" : "socket");
  for (int attempt = 0;; ++attempt) {
    bool by_us = false;
    if (may_start) {
      auto started = start_private_broker(directory, search.places, search.deadline);
      if (!started && started.error().status == Status::deadline) return std::unexpected(started.error());
      if (!started && started.error().status == Status::not_found && attempt < kGreetings) {
        sys::rest(kGreetingPause);  // the directory was removed in this moment
        continue;
      }
      if (!started) return error(Status::no_broker, started.error().sentence);
      by_us = started->by_us;
    }
    const std::string how =
        (by_us ? "private broker started at " : "private broker at ") + socket + "; " + search.story;
    auto session = try_socket(socket, how, search.places.uid, by_us, search.greeting, search.deadline);
    if (session || !absent(session.error())) return session;
    if (!may_start || attempt >= kGreetings || search.deadline.passed()) return session;
  }
}

// Searches the first place, then the second one, which counts as soon as it exists. Starts a broker where there is
// none.
Result<std::shared_ptr<Session>> find_private(Search& search) {
  const PrivateDirectory first = private_directory(search.places);
  add_clause(search.story, first.note);
  auto checked = check_directory(first.path, search.places.uid);
  const bool may_start = !search.options.no_start && !search.options.admin;
  Result<std::shared_ptr<Session>> session = no_broker("private broker: none was looked for");
  if (checked) {
    session = reach_private(search, first.path, false);
    if (session || !absent(session.error())) return session;
    add_clause(search.story, "private broker: " + session.error().sentence);
  } else {
    add_clause(search.story, "private broker: " + checked.error().sentence);
  }
  std::string place = first.path;
  bool usable = checked || checked.error().status == Status::not_found;
  if (first.shared) {
    auto second = second_place(search.places.temporary_dir, search.places.uid);
    if (!second && may_start && foreign(first.path, search.places.uid)) {
      auto made = make_second_place(search.places.temporary_dir, search.places.uid);
      if (made) second = std::move(*made);
      else add_clause(search.story, made.error().sentence);
    }
    if (second) {
      place = *second;
      usable = true;
      session = reach_private(search, place, false);
      if (session || !absent(session.error())) return session;
      add_clause(search.story, session.error().sentence);
    }
  }
  if (usable && may_start) {
    session = reach_private(search, place, true);
    if (session || !absent(session.error())) return session;
    add_clause(search.story, session.error().sentence);
  } else if (usable) {
    add_clause(search.story, "none was to be started");
  }
  return no_broker(search.story);
}

}  // namespace

Result<std::shared_ptr<Session>> connect(const ConnectOptions& options, const Places& places) {
  SHMB_TRY_VOID(strategy());
  if (options.local_only) return Session::local("local, as asked for");
  const Deadline deadline = Deadline::after(options.timeout);
  SHMB_TRY(greeting, greeting_for(options, places));

  const auto named = [&](const std::string& path, const std::string& how) -> Result<std::shared_ptr<Session>> {
    auto session =
        try_socket(options.admin ? beside(path, "admin") : path, how, std::nullopt, false, greeting, deadline);
    if (session || !absent(session.error())) return session;
    auto failure = no_broker(session.error().sentence + " (" + how + "; no other broker is tried)");
    failure.error().system_errno = session.error().system_errno;
    return failure;
  };
  if (!options.socket.empty()) return named(options.socket, "socket given by the program");
  if (places.socket_variable) return named(*places.socket_variable, "socket given by SHMBROKER_SOCKET");

  Search search{options, places, greeting, deadline, {}};
  const std::string system_socket = options.admin ? beside(places.system_socket, "admin") : places.system_socket;
  auto session =
      try_socket(system_socket, "system broker at " + system_socket, std::nullopt, false, greeting, deadline);
  if (session || !absent(session.error())) return session;
  add_clause(search.story, "system broker: " + session.error().sentence);

  session = find_private(search);
  if (session || !absent(session.error())) return session;
  // A search that a signal has ended says nothing of what is there.
  if (options.local_ok && !interrupt::noted())
    return Session::local("local, because there is no broker: " + search.story);
  return session;
}

}  // namespace shmb::client
